//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/test/e2e/fault"
)

// scene is what a fault finds when it strikes.
type scene struct {
	*scope
	load    *load
	primary *corev1.Pod
	record  election.Record
	// struck is just before the fault.
	struck time.Time
}

// leadership is what a fault has to do to it.
type leadership string

const (
	stays   leadership = "stays"
	changes leadership = "changes"
	either  leadership = "stays or changes"
)

// faultCase is one way in which things go wrong.
type faultCase struct {
	name string
	// strike breaks something; what has to be healed it leaves to DeferCleanup, or heals it in heal.
	strike func(context.Context, *scene)
	// resume is how long after the fault writes must be taken again at the latest.
	resume time.Duration
	// outage bounds the longest time without an acknowledged write. Default: resume.
	outage     time.Duration
	leadership leadership
	// sameServer: the server may live through the fault. Otherwise another one, or another life of it, has to take writes.
	sameServer bool
	// then is what else must hold; it may heal.
	then func(context.Context, *scene)
	// fromPrimary puts the client on the primary's node; otherwise it is on another one.
	fromPrimary bool
}

// strikeAt runs one fault under a writing client and proves that nothing acknowledged is lost, that there never were two
// primaries, and that the cluster is complete again afterwards by itself.
func strikeAt(ctx context.Context, s *scope, c faultCase) {
	GinkgoHelper()
	s.settle(ctx)
	sc := s.scene(ctx, c.fromPrimary)
	before, _ := sc.load.Last()
	sc.struck = time.Now()
	c.strike(ctx, sc)
	sc.load.written(ctx, sc.struck, c.resume)
	if !c.sameServer {
		sc.load.writtenByOthers(ctx, before.Server, sc.struck, c.resume)
	}
	if c.leadership == changes {
		eventually(ctx, shortTime, func() error { return sc.handedOn(ctx) })
	}
	if c.then != nil {
		c.then(ctx, sc)
	}
	s.settle(ctx)
	if c.leadership == stays {
		record, err := s.postgres.Record(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(record.Holder).To(Equal(sc.record.Holder), "leadership changed although the primary could go on")
	}
	// Kubernetes' own components may need minutes to see where the Service leads after the API server was away: they retry ever less often.
	sc.load.written(ctx, time.Now(), 3*time.Minute)
	report := sc.load.finish(ctx, sc.struck)
	limit := c.outage
	if limit == 0 {
		limit = c.resume
	}
	Expect(report.OutageS).To(BeNumerically("<=", limit.Seconds()), "writes were not taken for too long")
	sc.load.sameEverywhere(ctx)
}

func (s *scope) scene(ctx context.Context, fromPrimary bool) *scene {
	GinkgoHelper()
	primary, err := s.postgres.Primary(ctx)
	Expect(err).NotTo(HaveOccurred())
	record, err := s.postgres.Record(ctx)
	Expect(err).NotTo(HaveOccurred())
	node := primary.Spec.NodeName
	if !fromPrimary {
		node = s.otherNodes(ctx, node)[0]
	}
	return &scene{scope: s, load: s.load(ctx, node), primary: primary, record: record}
}

// otherNodes are the nodes but this one.
func (s *scope) otherNodes(ctx context.Context, node string) []string {
	GinkgoHelper()
	nodes, err := bed.Nodes(ctx)
	Expect(err).NotTo(HaveOccurred())
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == node })
	Expect(nodes).NotTo(BeEmpty(), "faults need at least two nodes")
	return nodes
}

// handedOn fails unless a newer term is held by another instance or another life of the same one.
func (sc *scene) handedOn(ctx context.Context) error {
	record, err := sc.postgres.Record(ctx)
	if err != nil {
		return err
	}
	if record.Term <= sc.record.Term || record.Released != nil || record.HolderUID == sc.record.HolderUID {
		return fmt.Errorf("term %d is with %s (%s); before the fault it was term %d with %s (%s)", record.Term, record.Holder,
			record.HolderUID, sc.record.Term, sc.record.Holder, sc.record.HolderUID)
	}
	return nil
}

func signal(process fault.Process, name string) func(context.Context, *scene) {
	return func(ctx context.Context, sc *scene) {
		GinkgoHelper()
		Expect(faults.Signal(ctx, sc.primary, process, name)).To(Succeed())
	}
}

// stopProcess stops a process for good: the cluster has to get rid of it by itself.
func stopProcess(process fault.Process) func(context.Context, *scene) {
	return func(ctx context.Context, sc *scene) {
		GinkgoHelper()
		DeferCleanup(func(ctx SpecContext) {
			if CurrentSpecReport().Failed() { // so that the next spec finds a cluster that can recover
				_ = faults.Signal(ctx, sc.primary, process, fault.Cont)
			}
		}, NodeTimeout(shortTime))
		Expect(faults.Signal(ctx, sc.primary, process, fault.Stop)).To(Succeed())
	}
}

// cutTime is how long a partial cut lasts: longer than the lease.
const cutTime = 40 * time.Second

// endure lets a cut last, and proves that writes are taken under it.
func endure(ctx context.Context, sc *scene) {
	GinkgoHelper()
	pass(ctx, sc.struck.Add(cutTime))
	sc.load.written(ctx, time.Now(), 20*time.Second)
	heal(ctx, sc)
}

// cut cuts the primary's node off, until it is healed or the spec ends.
func cut(from ...string) func(context.Context, *scene) {
	return func(ctx context.Context, sc *scene) {
		GinkgoHelper()
		healLater(sc.primary.Spec.NodeName)
		Expect(faults.Cut(ctx, sc.primary.Spec.NodeName, from...)).To(Succeed())
	}
}

func cutFromReplicas(ctx context.Context, sc *scene) {
	GinkgoHelper()
	cut(sc.otherNodes(ctx, sc.primary.Spec.NodeName)...)(ctx, sc)
}

func heal(ctx context.Context, sc *scene) {
	GinkgoHelper()
	Expect(faults.Heal(ctx, sc.primary.Spec.NodeName)).To(Succeed())
}

func healLater(node string) {
	DeferCleanup(func(ctx SpecContext) { Expect(faults.Heal(ctx, node)).To(Succeed()) }, NodeTimeout(shortTime))
}

// processFaults hit single processes and pods.
var processFaults = []faultCase{
	{name: "SIGKILL of the postmaster", strike: signal(fault.Postmaster, fault.Kill), resume: 30 * time.Second, leadership: either},
	{name: "SIGKILL of a backend", strike: signal(fault.Backend, fault.Kill), resume: 30 * time.Second, leadership: either, sameServer: true},
	{name: "SIGKILL of the manager", strike: signal(fault.Manager, fault.Kill), resume: 30 * time.Second, leadership: either},
	{name: "SIGKILL of the guard", strike: signal(fault.Guard, fault.Kill), resume: 30 * time.Second, leadership: either, sameServer: true},
	{name: "SIGSTOP of the manager alone", strike: stopProcess(fault.Manager), resume: 45 * time.Second, leadership: changes},
	{
		name: "SIGSTOP of the postmaster alone", strike: stopProcess(fault.Postmaster), resume: 45 * time.Second,
		leadership: either, then: newConnectionsWork,
	},
	{name: "deletion of the pod", resume: 30 * time.Second, leadership: changes, strike: func(ctx context.Context, sc *scene) {
		Expect(faults.DeletePod(ctx, sc.primary)).To(Succeed())
	}},
	{name: "forced deletion of the pod", resume: 60 * time.Second, leadership: changes, strike: func(ctx context.Context, sc *scene) {
		Expect(faults.ForceDeletePod(ctx, sc.primary)).To(Succeed())
	}},
	{name: "deletion of the Lease", strike: deleteLease, resume: 60 * time.Second, leadership: either, sameServer: true},
	{name: "two failovers within ten seconds", strike: killTwice, resume: 90 * time.Second, leadership: either},
}

// newConnectionsWork: open sessions go on while the postmaster is stopped; whoever comes new must get in again too.
func newConnectionsWork(ctx context.Context, sc *scene) {
	GinkgoHelper()
	node := sc.otherNodes(ctx, sc.primary.Spec.NodeName)[0]
	eventually(ctx, shortTime, func() error {
		_, err := sc.credentials.QueryService(ctx, node, sc.postgres.Name+"-rw", "CREATE TEMPORARY TABLE t (id int)")
		return err
	})
}

func deleteLease(ctx context.Context, sc *scene) {
	GinkgoHelper()
	Expect(sc.postgres.DeleteLease(ctx)).To(Succeed())
	eventually(ctx, shortTime, func() error {
		_, err := sc.postgres.Primary(ctx)
		return err
	})
}

// killTwice kills the next primary as soon as it takes writes, ten seconds after the first at the latest.
func killTwice(ctx context.Context, sc *scene) {
	GinkgoHelper()
	Expect(faults.Signal(ctx, sc.primary, fault.Postmaster, fault.Kill)).To(Succeed())
	until := sc.struck.Add(10 * time.Second)
	Eventually(func() bool {
		return sc.load.AckedSince(sc.struck) > 0 || time.Now().After(until)
	}).WithContext(ctx).WithTimeout(15 * time.Second).WithPolling(100 * time.Millisecond).Should(BeTrue())
	eventually(ctx, shortTime, func() error {
		primary, err := sc.postgres.Primary(ctx)
		if err != nil {
			return err
		}
		return faults.Signal(ctx, primary, fault.Postmaster, fault.Kill)
	})
	sc.struck = time.Now()
}

// nodeFaults hit the network between nodes.
var nodeFaults = []faultCase{
	{name: "a cut of its node from everything", strike: cut(), resume: 60 * time.Second, leadership: changes, then: heal},
	{name: "a cut of its node from the API server only", strike: cut(fault.API), resume: 60 * time.Second, leadership: either, sameServer: true, then: endure},
}

// replicasCut is apart: what it must lead to depends on the durability.
func replicasCut(durability databasesv1.Durability) faultCase {
	c := faultCase{
		name: "a cut of its node from the replicas only", strike: cutFromReplicas, then: endure, fromPrimary: true,
		resume: 60 * time.Second, leadership: either, sameServer: true,
	}
	if durability == databasesv1.DurabilityRequired {
		c.then = nil
		c.strike = func(ctx context.Context, sc *scene) {
			cutFromReplicas(ctx, sc)
			sc.noWrites(ctx, 20*time.Second)
			heal(ctx, sc)
		}
	}
	return c
}

// noWrites proves that for a while nothing is acknowledged. A statement that was under way may still be.
func (sc *scene) noWrites(ctx context.Context, long time.Duration) {
	GinkgoHelper()
	begin := time.Now().Add(time.Second)
	Consistently(func() int { return sc.load.AckedSince(begin) }).WithContext(ctx).
		WithTimeout(long).WithPolling(polling).Should(BeZero(), "writes are acknowledged on one copy")
}

var _ = Describe("Faults", Ordered, ContinueOnFailure, Label("faults"), func() {
	s := newScope()

	BeforeAll(func(ctx SpecContext) {
		s.create(ctx, databasesv1.PostgreSQLClusterSpec{Replicas: 3})
	}, NodeTimeout(5*time.Minute))

	Context("with durability Preferred", func() {
		for _, c := range append(slices.Concat(processFaults, nodeFaults), replicasCut(databasesv1.DurabilityPreferred)) {
			It("survives "+c.name, func(ctx SpecContext) { strikeAt(ctx, s, c) }, SpecTimeout(10*time.Minute))
		}
		It("survives a freeze of the primary for 30 s with sessions open", func(ctx SpecContext) {
			freezeAndThaw(ctx, s)
		}, SpecTimeout(10*time.Minute))
		It("survives without the operator", func(ctx SpecContext) { withoutOperator(ctx, s) }, SpecTimeout(15*time.Minute))
		It("survives a minute without the API server", func(ctx SpecContext) {
			withoutAPI(ctx, s, time.Minute)
		}, SpecTimeout(10*time.Minute))
		It("survives a minute without the API server in which the primary is killed", func(ctx SpecContext) {
			killedWithoutAPI(ctx, s, time.Minute)
		}, SpecTimeout(10*time.Minute))
		It("survives five minutes without the API server", Label("long"), func(ctx SpecContext) {
			withoutAPI(ctx, s, 5*time.Minute)
		}, SpecTimeout(15*time.Minute))
		It("survives five minutes without the API server in which the primary is killed", Label("long"), func(ctx SpecContext) {
			killedWithoutAPI(ctx, s, 5*time.Minute)
		}, SpecTimeout(15*time.Minute))
	})

	Context("with durability Required", func() {
		BeforeAll(func(ctx SpecContext) {
			s.settle(ctx)
			s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) {
				spec.Replication.Durability = databasesv1.DurabilityRequired
			})
		}, NodeTimeout(8*time.Minute))

		for i, c := range append(slices.Concat(nodeFaults, processFaults), replicasCut(databasesv1.DurabilityRequired)) {
			labels := Label("long")
			if i == 0 || c.fromPrimary { // the two in which the setting makes the most difference
				labels = Label()
			}
			It("survives "+c.name, labels, func(ctx SpecContext) { strikeAt(ctx, s, c) }, SpecTimeout(10*time.Minute))
		}
		It("survives a freeze of the primary for 30 s with sessions open", Label("long"), func(ctx SpecContext) {
			freezeAndThaw(ctx, s)
		}, SpecTimeout(10*time.Minute))
	})
})
