//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/e2e/fault"
)

// freezeAndThaw stops everything in the primary's pod at one instant, guard and all, and lets it go on when another instance has
// long been promoted. A session that was open all the time must not get a commit acknowledged then.
func freezeAndThaw(ctx context.Context, s *scope) {
	GinkgoHelper()
	s.write(ctx, "CREATE TABLE IF NOT EXISTS thawed (id text PRIMARY KEY)")
	strikeAt(ctx, s, faultCase{
		resume: 60 * time.Second, leadership: changes,
		strike: func(ctx context.Context, sc *scene) {
			session, err := sc.credentials.Session(ctx, sc.primary.Spec.NodeName, sc.primary.Status.PodIP, naming.PortPostgreSQL)
			Expect(err).NotTo(HaveOccurred())
			id := fmt.Sprintf("%s-%d", sc.primary.Name, sc.record.Term)
			_, err = session.Exec(ctx, "BEGIN; INSERT INTO thawed VALUES ('"+id+"')").ReadAll()
			Expect(err).NotTo(HaveOccurred())
			sc.struck = time.Now()
			thaw := func(ctx context.Context) {
				// The container may be gone: the kubelet may have killed it.
				if err := faults.Thaw(ctx, sc.primary); err != nil {
					GinkgoWriter.Println("thaw:", err)
				}
			}
			DeferCleanup(func(ctx SpecContext) { thaw(ctx) }, NodeTimeout(shortTime))
			Expect(faults.Freeze(ctx, sc.primary)).To(Succeed())

			Eventually(func() time.Duration { return time.Since(sc.struck) }).WithContext(ctx).
				WithTimeout(time.Minute).WithPolling(polling).Should(BeNumerically(">", 30*time.Second))
			sc.load.written(ctx, sc.struck, 30*time.Second)
			thaw(ctx)
			commit, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			_, err = session.Exec(commit, "COMMIT").ReadAll()
			Expect(err).To(HaveOccurred(), "a commit was acknowledged by an instance that had lost leadership")
		},
	})
}

// withoutAPI: nothing happens to writes when the API server is away.
func withoutAPI(ctx context.Context, s *scope, long time.Duration) {
	GinkgoHelper()
	strikeAt(ctx, s, faultCase{
		resume: long + 90*time.Second, outage: 10 * time.Second, leadership: stays, sameServer: true,
		strike: func(ctx context.Context, sc *scene) {
			stopAPI(ctx)
			pass(ctx, sc.struck.Add(long))
			startAPI(ctx)
		},
	})
}

// killedWithoutAPI: nobody can be promoted while the API server is away; afterwards all is well by itself.
func killedWithoutAPI(ctx context.Context, s *scope, long time.Duration) {
	GinkgoHelper()
	strikeAt(ctx, s, faultCase{
		resume: long + 3*time.Minute, leadership: either,
		strike: func(ctx context.Context, sc *scene) {
			stopAPI(ctx)
			Expect(faults.Signal(ctx, sc.primary, fault.Postmaster, fault.Kill)).To(Succeed())
			pass(ctx, sc.struck.Add(long))
			startAPI(ctx)
		},
	})
}

func stopAPI(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(faults.StartAPI(ctx)).To(Succeed()) }, NodeTimeout(shortTime))
	Expect(faults.StopAPI(ctx)).To(Succeed())
}

func startAPI(ctx context.Context) {
	GinkgoHelper()
	Expect(faults.StartAPI(ctx)).To(Succeed())
	eventually(ctx, 2*time.Minute, func() error { return bed.NodesReady(ctx) })
}

// pass waits until a time: the outage is what is tested, so it has to last.
func pass(ctx context.Context, until time.Time) {
	GinkgoHelper()
	Eventually(time.Now).WithContext(ctx).WithTimeout(time.Until(until) + time.Minute).WithPolling(polling).
		Should(BeTemporally(">", until))
}

// withoutOperator: failover is the instances' own work. StatefulSets bring pods back, so the cluster is complete again too.
func withoutOperator(ctx context.Context, s *scope) {
	GinkgoHelper()
	s.settle(ctx)
	DeferCleanup(func(ctx SpecContext) {
		Expect(bed.ScaleOperator(ctx, 1)).To(Succeed())
		eventually(ctx, shortTime, func() error { return bed.OperatorSettled(ctx, 1) })
	}, NodeTimeout(3*time.Minute))
	Expect(bed.ScaleOperator(ctx, 0)).To(Succeed())
	eventually(ctx, shortTime, func() error { return bed.OperatorSettled(ctx, 0) })

	sc := s.scene(ctx, false)
	begin := time.Now()
	for _, strike := range []func(context.Context, *scene){
		signal(fault.Postmaster, fault.Kill),
		func(ctx context.Context, sc *scene) { Expect(faults.DeletePod(ctx, sc.primary)).To(Succeed()) },
		func(ctx context.Context, sc *scene) { Expect(faults.ForceDeletePod(ctx, sc.primary)).To(Succeed()) },
	} {
		var err error
		sc.primary, err = s.postgres.Primary(ctx)
		Expect(err).NotTo(HaveOccurred())
		before, _ := sc.load.Last()
		struck := time.Now()
		strike(ctx, sc)
		sc.load.writtenByOthers(ctx, before.Server, struck, time.Minute)
		eventually(ctx, settleTime, func() error { return s.postgres.PodsSettled(ctx, 3) })
		eventually(ctx, settleTime, func() error { return s.postgres.QuorumRecorded(ctx) })
	}
	sc.load.finish(ctx, begin)
	sc.load.sameEverywhere(ctx)
}
