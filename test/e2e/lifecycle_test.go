//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/e2e/testbed"
)

const smallestManifest = `
apiVersion: databases.kumki.dev/v1
kind: PostgreSQLCluster
metadata: {name: my-postgres-cluster}
spec: {replicas: 3}
`

// parameter sets one parameter of postgresql.conf.
func parameter(name, value string) func(*databasesv1.PostgreSQLClusterSpec) {
	return func(spec *databasesv1.PostgreSQLClusterSpec) {
		if spec.PostgreSQL.Parameters == nil {
			spec.PostgreSQL.Parameters = map[string]string{}
		}
		spec.PostgreSQL.Parameters[name] = value
	}
}

var _ = Describe("A cluster", Ordered, ContinueOnFailure, func() {
	s := newScope()

	It("comes up from the smallest manifest", func(ctx SpecContext) {
		object := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal([]byte(smallestManifest), object)).To(Succeed())
		object.SetNamespace(s.namespace)
		Expect(bed.Client.Create(ctx, object)).To(Succeed())
		s.postgres = bed.AdoptPostgres(s.namespace, object.GetName(), clientDir())
		s.settle(ctx)
		s.connect(ctx)

		s.write(ctx, "CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept SELECT generate_series(1, 100)")
		s.everywhere(ctx, "SELECT count(*) FROM kept", "100")
		Expect(s.write(ctx, "SELECT pg_is_in_recovery()")).To(Equal([]string{"f"}))
		s.readsFromStandby(ctx, naming.ServiceRO(s.postgres.Name))
	}, SpecTimeout(6*time.Minute))

	It("spreads its instances over the nodes", func(ctx SpecContext) {
		nodes, err := bed.Nodes(ctx)
		Expect(err).NotTo(HaveOccurred())
		pods, err := s.postgres.Pods(ctx)
		Expect(err).NotTo(HaveOccurred())
		used := map[string]bool{}
		for _, pod := range pods {
			used[pod.Spec.NodeName] = true
		}
		Expect(used).To(HaveLen(min(len(nodes), len(pods))))
	}, SpecTimeout(shortTime))

	It("takes up a parameter by a reload, without a restart", func(ctx SpecContext) {
		const started = "SELECT pg_postmaster_start_time()"
		before := s.write(ctx, started)
		s.change(ctx, parameter("work_mem", "7MB"))
		s.everywhere(ctx, "SHOW work_mem", "7MB")
		Expect(s.write(ctx, started)).To(Equal(before))
	}, SpecTimeout(4*time.Minute))

	It("refuses a parameter that PostgreSQL refuses, with PostgreSQL's message", func(ctx SpecContext) {
		s.change(ctx, parameter("work_mem", "7MB"))
		s.request(ctx, parameter("work_mem", "a lot"))
		message := s.condition(ctx, databasesv1.ConditionConfigurationValid, "False", databasesv1.ReasonParameterRejected)
		Expect(message).To(ContainSubstring(`invalid value for parameter "work_mem": "a lot"`))
		s.everywhere(ctx, "SHOW work_mem", "7MB")
		s.change(ctx, parameter("work_mem", "8MB"))
		s.condition(ctx, databasesv1.ConditionConfigurationValid, "True", databasesv1.ReasonValid)
		s.everywhere(ctx, "SHOW work_mem", "8MB")
	}, SpecTimeout(6*time.Minute))

	It("refuses a parameter that the operator owns, and says what to do", func(ctx SpecContext) {
		s.request(ctx, parameter("synchronous_standby_names", ""))
		message := s.condition(ctx, databasesv1.ConditionConfigurationValid, "False", databasesv1.ReasonParameterOwned)
		Expect(message).To(ContainSubstring("synchronous_standby_names"))
		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) {
			delete(spec.PostgreSQL.Parameters, "synchronous_standby_names")
		})
	}, SpecTimeout(6*time.Minute))

	It("restarts instance by instance for a parameter that needs it", func(ctx SpecContext) {
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		s.change(ctx, parameter("max_connections", "222"))
		s.everywhere(ctx, "SHOW max_connections", "222")
		l.written(ctx, time.Now(), shortTime)
		l.finish(ctx, begin)

		By("lowering it: standbys must not have less than the primary")
		s.change(ctx, parameter("max_connections", "111"))
		s.everywhere(ctx, "SHOW max_connections", "111")
	}, SpecTimeout(8*time.Minute))

	It("hands over to a named instance", func(ctx SpecContext) {
		standbys, err := s.postgres.Standbys(ctx)
		Expect(err).NotTo(HaveOccurred())
		l := s.load(ctx, s.node(ctx))
		begin := time.Now()
		s.annotate(ctx, naming.AnnotationSwitchover, standbys[0].Name)
		eventually(ctx, shortTime, func() error { return s.isPrimary(ctx, standbys[0].Name) })
		l.written(ctx, time.Now(), shortTime)
		l.finish(ctx, begin)
		s.settle(ctx)
		cluster, err := s.postgres.Get(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(cluster.Annotations).NotTo(HaveKey(naming.AnnotationSwitchover), "a request that is done is taken away")
		l.sameEverywhere(ctx)
	}, SpecTimeout(6*time.Minute))

	It("sleeps and wakes with all its data", func(ctx SpecContext) {
		s.request(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Suspend = true })
		eventually(ctx, 2*time.Minute, func() error {
			pods, err := s.postgres.Pods(ctx)
			if err == nil && len(pods) > 0 {
				err = fmt.Errorf("%d pods are still there", len(pods))
			}
			return err
		})
		s.condition(ctx, databasesv1.ConditionSuspended, "True", databasesv1.ReasonSuspended)
		claims, err := s.postgres.Claims(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(claims).To(HaveLen(3))

		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Suspend = false })
		s.everywhere(ctx, "SELECT count(*) FROM kept", "100")
	}, SpecTimeout(8*time.Minute))

	It("grows its volumes", func(ctx SpecContext) {
		s.change(ctx, func(spec *databasesv1.PostgreSQLClusterSpec) { spec.Storage.Size.Add(testbed.Gibibyte) })
		cluster, err := s.postgres.Get(ctx)
		Expect(err).NotTo(HaveOccurred())
		eventually(ctx, 2*time.Minute, func() error {
			claims, err := s.postgres.Claims(ctx)
			for _, c := range claims {
				if size := c.Status.Capacity.Storage(); size.Cmp(cluster.Spec.Storage.Size) < 0 {
					err = fmt.Errorf("volume %s has %s, want %s", c.Name, size, &cluster.Spec.Storage.Size)
				}
			}
			return err
		})
		s.settle(ctx)
	}, SpecTimeout(6*time.Minute))
})
