//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// isPrimary fails unless that instance leads.
func (s *scope) isPrimary(ctx context.Context, name string) error {
	pod, err := s.postgres.Primary(ctx)
	if err != nil {
		return err
	}
	if pod.Name != name {
		return fmt.Errorf("%s is the primary, want %s", pod.Name, name)
	}
	return nil
}

var _ = Describe("Under load, a cluster", Ordered, ContinueOnFailure, func() {
	s := newScope()

	BeforeAll(func(ctx SpecContext) {
		s.create(ctx, databasesv1.PostgreSQLClusterSpec{Replicas: 3})
	}, NodeTimeout(5*time.Minute))

	It("scales from 3 to 5 to 2 while the highest instance is the primary", func(ctx SpecContext) {
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Replicas = 5 })
		highest := naming.Pod(s.postgres.Name, 4)
		s.annotate(ctx, naming.AnnotationSwitchover, highest)
		eventually(ctx, shortTime, func() error { return s.isPrimary(ctx, highest) })
		s.settle(ctx)

		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Replicas = 2 })
		l.written(ctx, time.Now(), shortTime)
		l.finish(ctx, begin)
		Expect(s.primary(ctx)).To(BeElementOf(naming.Pod(s.postgres.Name, 0), naming.Pod(s.postgres.Name, 1)))
		l.sameEverywhere(ctx)
		eventually(ctx, shortTime, func() error {
			claims, err := s.postgres.Claims(ctx)
			if err == nil && len(claims) != 2 {
				err = fmt.Errorf("%d volumes are there, want 2: the reclaim policy is Delete", len(claims))
			}
			return err
		})
	}, SpecTimeout(10*time.Minute))

	It("takes up a changed password", func(ctx SpecContext) {
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		const password = `it's a "new" \ one` // what needs quoting somewhere
		secret, err := s.postgres.AppSecret(ctx)
		Expect(err).NotTo(HaveOccurred())
		old := string(secret.Data["password"])
		Expect(s.postgres.SetPassword(ctx, password)).To(Succeed())
		eventually(ctx, 2*time.Minute, func() error {
			if err := s.credentials.Refresh(ctx); err != nil {
				return err
			}
			// A new connection: those that are open never ask for the password again.
			_, err := s.credentials.QueryService(ctx, s.node(ctx), naming.ServiceRW(s.postgres.Name), "SELECT 1")
			return err
		})
		secret, err = s.postgres.AppSecret(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(secret.Data["password"])).To(Equal(password))
		Expect(password).NotTo(Equal(old))
		l.written(ctx, time.Now(), shortTime)
		l.finish(ctx, begin)
		s.settle(ctx)
	}, SpecTimeout(5*time.Minute))

	It("changes its CA, and clients that trust the bundle get on all the time", func(ctx SpecContext) {
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		before, err := s.credentials.ServerCertificate(ctx, s.node(ctx))
		Expect(err).NotTo(HaveOccurred())
		s.annotate(ctx, naming.AnnotationRotateCA, "e2e")
		eventually(ctx, settleTime, func() error {
			if err := s.credentials.Refresh(ctx); err != nil {
				return err
			}
			now, err := s.credentials.ServerCertificate(ctx, s.node(ctx))
			if err != nil {
				return err
			}
			if now.Issuer.String() == before.Issuer.String() && string(now.AuthorityKeyId) == string(before.AuthorityKeyId) {
				return fmt.Errorf("the certificate is still signed by %s", before.Issuer)
			}
			return nil
		})
		l.written(ctx, time.Now(), shortTime)
		report := l.finish(ctx, begin)
		Expect(report.OutageS).To(BeNumerically("<", 15))
		s.settle(ctx)
	}, SpecTimeout(8*time.Minute))

	It("lets a node be drained", func(ctx SpecContext) {
		primary, err := s.postgres.Primary(ctx)
		Expect(err).NotTo(HaveOccurred())
		nodes, err := bed.Nodes(ctx)
		Expect(err).NotTo(HaveOccurred())
		other := nodes[0]
		if other == primary.Spec.NodeName {
			other = nodes[1]
		}
		l := s.load(ctx, other)
		begin := time.Now()
		Expect(bed.SetUnschedulable(ctx, primary.Spec.NodeName, true)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(bed.SetUnschedulable(ctx, primary.Spec.NodeName, false)).To(Succeed())
		}, NodeTimeout(shortTime))

		By("the primary leaves a node that was cordoned")
		eventually(ctx, 2*time.Minute, func() error {
			now, err := s.postgres.Primary(ctx)
			if err == nil && now.Spec.NodeName == primary.Spec.NodeName {
				err = fmt.Errorf("the primary is still on %s", now.Spec.NodeName)
			}
			return err
		})
		By("its pod can be evicted")
		eventually(ctx, 2*time.Minute, func() error { return faults.EvictPod(ctx, primary) })
		l.written(ctx, time.Now(), shortTime)
		report := l.finish(ctx, begin)
		Expect(report.OutageS).To(BeNumerically("<", 30))
		Expect(bed.SetUnschedulable(ctx, primary.Spec.NodeName, false)).To(Succeed())
		s.settle(ctx)
		l.sameEverywhere(ctx)
	}, SpecTimeout(8*time.Minute))

	It("can be reached by a node's port", func(ctx SpecContext) {
		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Service.Type = "NodePort" })
		node := s.node(ctx)
		address, err := bed.NodeAddress(ctx, node)
		Expect(err).NotTo(HaveOccurred())
		eventually(ctx, shortTime, func() error {
			service, err := s.postgres.Service(ctx, naming.ServiceRW(s.postgres.Name))
			if err != nil {
				return err
			}
			if service.Spec.Ports[0].NodePort == 0 {
				return fmt.Errorf("service %s has no node port yet", service.Name)
			}
			_, err = s.credentials.Query(ctx, node, fmt.Sprintf("%s:%d", address, service.Spec.Ports[0].NodePort), "SELECT 1")
			return err
		})
	}, SpecTimeout(5*time.Minute))
})

var _ = Describe("With a user that the platform chose, a cluster", Ordered, func() {
	s := newScope()

	It("works", func(ctx SpecContext) {
		user := int64(1000650000)
		s.create(ctx, databasesv1.PostgreSQLClusterSpec{
			Replicas:           2,
			PodSecurityContext: &databasesv1.PodSecurityContext{RunAsUser: &user, RunAsGroup: new(int64), FSGroup: &user},
		})
		s.write(ctx, "CREATE TABLE kept AS SELECT 1 AS id")
		s.everywhere(ctx, "SELECT count(*) FROM kept", "1")
	}, SpecTimeout(5*time.Minute))
})
