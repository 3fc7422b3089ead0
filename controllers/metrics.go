package controllers

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

// ClusterMetrics tells the status of all clusters as metrics. They are read from the cache when they are asked for, so a cluster that is
// gone leaves none behind.
type ClusterMetrics struct {
	reader client.Reader
}

// NewClusterMetrics returns a collector that lists clusters with reader.
func NewClusterMetrics(reader client.Reader) *ClusterMetrics { return &ClusterMetrics{reader: reader} }

var (
	metricCondition = prometheus.NewDesc("kumki_cluster_condition",
		"Condition of a PostgreSQLCluster: 1 true, 0 false, -1 unknown.", []string{"namespace", "cluster", "type", "reason"}, nil)
	metricDeclared = prometheus.NewDesc("kumki_cluster_instances_declared",
		"Instances that a PostgreSQLCluster declares (spec.replicas).", []string{"namespace", "cluster"}, nil)
	metricReady = prometheus.NewDesc("kumki_cluster_instances_ready",
		"Instances of a PostgreSQLCluster that are ready.", []string{"namespace", "cluster"}, nil)
	metricTerm = prometheus.NewDesc("kumki_cluster_leadership_term",
		"Term of leadership of a PostgreSQLCluster: it rises with each change of the primary.", []string{"namespace", "cluster"}, nil)
	metricExpiry = prometheus.NewDesc("kumki_cluster_certificates_expire_timestamp_seconds",
		"When the first operator-made certificate of a PostgreSQLCluster expires, in seconds since the epoch.", []string{"namespace", "cluster"}, nil)
)

// Describe implements prometheus.Collector.
func (m *ClusterMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricCondition, metricDeclared, metricReady, metricTerm, metricExpiry} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *ClusterMetrics) Collect(out chan<- prometheus.Metric) {
	clusters := &apiv1.PostgreSQLClusterList{}
	if err := m.reader.List(context.Background(), clusters); err != nil {
		out <- prometheus.NewInvalidMetric(metricCondition, err)
		return
	}
	for i := range clusters.Items {
		c := &clusters.Items[i]
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{c.Namespace, c.Name}, labels...)...)
		}
		gauge(metricDeclared, float64(c.Spec.Replicas))
		gauge(metricReady, float64(c.Status.ReadyReplicas))
		gauge(metricTerm, float64(c.Status.Term))
		if at := c.Status.CertificatesExpireAt; at != nil {
			gauge(metricExpiry, float64(at.Unix()))
		}
		for _, condition := range c.Status.Conditions {
			gauge(metricCondition, valueOf(condition.Status), condition.Type, condition.Reason)
		}
	}
}

func valueOf(status metav1.ConditionStatus) float64 {
	switch status {
	case metav1.ConditionTrue:
		return 1
	case metav1.ConditionFalse:
		return 0
	}
	return -1
}
