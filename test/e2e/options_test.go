//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/e2e/fault"
)

func everyOption() databasesv1.PostgreSQLClusterSpec {
	return databasesv1.PostgreSQLClusterSpec{
		Replicas: 2, Version: "15",
		Storage: databasesv1.StorageSpec{
			Size: resource.MustParse("1Gi"), ReclaimPolicy: databasesv1.ReclaimRetain,
			WALStorage: &databasesv1.VolumeSpec{Size: resource.MustParse("1Gi")},
		},
		PostgreSQL: databasesv1.PostgreSQLConfiguration{
			Parameters: map[string]string{"shared_buffers": "48MB", "log_min_duration_statement": "1min"},
			HBA:        []string{"hostssl all nobody all reject"},
		},
		Bootstrap: databasesv1.BootstrapSpec{InitDB: &databasesv1.InitDBSpec{
			Database: "shop", Owner: "clerk", SQL: []string{"CREATE TABLE kept AS SELECT 1 AS id", "GRANT SELECT ON kept TO clerk"},
		}},
		Replication: databasesv1.ReplicationSpec{Durability: databasesv1.DurabilityAsynchronous},
		Superuser:   databasesv1.SuperuserSpec{RemoteAccess: true},
		Service: databasesv1.ServiceSpec{Additional: []databasesv1.AdditionalService{
			{Name: "reports", Target: databasesv1.TargetStandbys},
		}},
		PodMetadata: &databasesv1.PodMetadata{Labels: map[string]string{"team": "shop"}},
	}
}

var _ = Describe("With many options set, a cluster", Ordered, func() {
	s := newScope()

	It("comes up with all of them in force", func(ctx SpecContext) {
		s.create(ctx, everyOption())
		s.everywhere(ctx, "SHOW shared_buffers", "48MB")
		s.everywhere(ctx, "SELECT count(*) FROM kept", "1")
		s.everywhere(ctx, "SELECT current_database() || ' ' || current_user", "shop clerk")
		s.everywhere(ctx, "SHOW server_version_num", s.write(ctx, "SHOW server_version_num")[0])
		Expect(s.write(ctx, "SELECT current_setting('server_version_num')::int / 10000")).To(Equal([]string{"15"}))
		s.readsFromStandby(ctx, s.postgres.Name+"-reports")
		pods, err := s.postgres.Pods(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(pods[0].Labels).To(HaveKeyWithValue("team", "shop"))
	}, SpecTimeout(6*time.Minute))

	It("lets the superuser in over TLS", func(ctx SpecContext) {
		superuser, err := s.postgres.SuperuserCredentials(ctx)
		Expect(err).NotTo(HaveOccurred())
		const service = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
		eventually(ctx, shortTime, func() error {
			rows, err := superuser.QueryService(ctx, s.node(ctx), naming.ServiceRW(s.postgres.Name), service)
			if err == nil && rows[0] != "t" {
				err = fmt.Errorf("not a superuser")
			}
			return err
		})
	}, SpecTimeout(2*time.Minute))

	It("is adopted with its data when it is deleted and made again", func(ctx SpecContext) {
		s.write(ctx, "CREATE TABLE mine AS SELECT generate_series(1, 10) AS id")
		before, err := s.postgres.Get(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.postgres.Delete(ctx)).To(Succeed())
		eventually(ctx, 3*time.Minute, func() error { return s.postgres.Gone(ctx) })
		claims, err := s.postgres.Claims(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(claims).To(HaveLen(4), "the reclaim policy is Retain")

		s.create(ctx, everyOption())
		s.everywhere(ctx, "SELECT count(*) FROM mine", "10")
		after, err := s.postgres.Get(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Status.SystemIdentifier).To(Equal(before.Status.SystemIdentifier))
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("A cluster that lost a copy", Ordered, ContinueOnFailure, func() {
	s := newScope()

	BeforeAll(func(ctx SpecContext) {
		s.create(ctx, databasesv1.PostgreSQLClusterSpec{
			Replicas: 3, NodeLost: databasesv1.NodeLostSpec{ReplaceAfter: &metav1.Duration{Duration: 10 * time.Second}},
		})
	}, NodeTimeout(5*time.Minute))

	It("clones a standby whose volume is gone", func(ctx SpecContext) {
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		standbys, err := s.postgres.Standbys(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.postgres.LoseVolume(ctx, &standbys[0])).To(Succeed())
		eventually(ctx, 2*time.Minute, func() error {
			pod, err := s.postgres.Pod(ctx, standbys[0].Name)
			if err == nil && pod.UID == standbys[0].UID {
				err = fmt.Errorf("pod %s is still the old one", pod.Name)
			}
			return err
		})
		s.settle(ctx)
		l.written(ctx, time.Now(), shortTime)
		report := l.finish(ctx, begin)
		Expect(report.OutageS).To(BeNumerically("<", 20))
		l.sameEverywhere(ctx)
	}, SpecTimeout(8*time.Minute))

	It("replaces a standby whose node is lost", Label("long", "faults"), func(ctx SpecContext) {
		standbys, err := s.postgres.Standbys(ctx)
		Expect(err).NotTo(HaveOccurred())
		lost := standbys[0]
		primary, err := s.postgres.Primary(ctx)
		Expect(err).NotTo(HaveOccurred())
		l := s.load(ctx, primary.Spec.NodeName)
		begin := time.Now()
		healLater(lost.Spec.NodeName)
		Expect(faults.Cut(ctx, lost.Spec.NodeName)).To(Succeed())
		eventually(ctx, 8*time.Minute, func() error {
			pod, err := s.postgres.Pod(ctx, lost.Name)
			if err == nil && (pod.UID == lost.UID || pod.Spec.NodeName == lost.Spec.NodeName) {
				err = fmt.Errorf("pod %s is still on the lost node %s", pod.Name, lost.Spec.NodeName)
			}
			return err
		})
		s.settle(ctx)
		l.written(ctx, time.Now(), shortTime)
		l.finish(ctx, begin)
		l.sameEverywhere(ctx)
	}, SpecTimeout(15*time.Minute))
})

var _ = Describe("PostgreSQL 18", Ordered, Label("faults"), func() {
	s := newScope()

	It("comes up and survives the death of its primary", func(ctx SpecContext) {
		s.create(ctx, databasesv1.PostgreSQLClusterSpec{Replicas: 2, Version: "18"})
		Expect(s.write(ctx, "SELECT current_setting('server_version_num')::int / 10000")).To(Equal([]string{"18"}))
		strikeAt(ctx, s, faultCase{strike: signal(fault.Postmaster, fault.Kill), resume: 30 * time.Second, leadership: either})
	}, SpecTimeout(6*time.Minute))
})
