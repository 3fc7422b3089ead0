package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/controllers"
)

// listed is a reader that lists these clusters.
type listed struct {
	client.Reader
	clusters []apiv1.PostgreSQLCluster
}

// List implements client.Reader.
func (l *listed) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*apiv1.PostgreSQLClusterList).Items = l.clusters
	return nil
}

// gather returns all series as text, without the kinds.
func gather(metrics prometheus.Collector) map[string]float64 {
	GinkgoHelper()
	registry := prometheus.NewPedanticRegistry()
	Expect(registry.Register(metrics)).To(Succeed())
	families, err := registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%s", label.GetName(), label.GetValue())
			}
			out[name] = m.GetGauge().GetValue()
		}
	}
	return out
}

var _ = Describe("Metrics of clusters", func() {
	It("tell the status, and nothing of a cluster that is gone", func() {
		at := metav1.NewTime(time.Unix(1800000000, 0))
		cluster := apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pg"}}
		cluster.Spec.Replicas = 3
		cluster.Status.ReadyReplicas, cluster.Status.Term, cluster.Status.CertificatesExpireAt = 2, 7, &at
		cluster.Status.Conditions = []metav1.Condition{
			{Type: apiv1.ConditionReady, Status: metav1.ConditionFalse, Reason: apiv1.ReasonInstancesNotReady},
			{Type: apiv1.ConditionFailoverReady, Status: metav1.ConditionTrue, Reason: apiv1.ReasonQuorum},
			{Type: apiv1.ConditionDegraded, Status: metav1.ConditionUnknown, Reason: "Other"},
		}
		reader := &listed{clusters: []apiv1.PostgreSQLCluster{cluster}}
		metrics := controllers.NewClusterMetrics(reader)
		Expect(gather(metrics)).To(Equal(map[string]float64{
			"kumki_cluster_certificates_expire_timestamp_seconds cluster=pg namespace=ns":              1800000000,
			"kumki_cluster_condition cluster=pg namespace=ns reason=InstancesNotReady type=Ready":      0,
			"kumki_cluster_condition cluster=pg namespace=ns reason=QuorumRecorded type=FailoverReady": 1,
			"kumki_cluster_condition cluster=pg namespace=ns reason=Other type=Degraded":               -1,
			"kumki_cluster_instances_declared cluster=pg namespace=ns":                                 3,
			"kumki_cluster_instances_ready cluster=pg namespace=ns":                                    2,
			"kumki_cluster_leadership_term cluster=pg namespace=ns":                                    7,
		}))
		reader.clusters = nil
		Expect(gather(metrics)).To(BeEmpty())
	})
})
