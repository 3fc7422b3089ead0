package controllers_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// subject is the cluster of one test.
type subject struct {
	types.NamespacedName
	world *world
}

// subjectOf has a world for the cluster until the end of the test.
func subjectOf(key types.NamespacedName) *subject {
	s := &subject{NamespacedName: key, world: pods.of(key)}
	DeferCleanup(pods.retire, key)
	return s
}

// create makes a cluster in a namespace of its own.
func create(ctx context.Context, change func(*apiv1.PostgreSQLCluster)) *subject {
	GinkgoHelper()
	key := types.NamespacedName{Namespace: newNamespace(ctx), Name: "pg"}
	cluster := &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if change != nil {
		change(cluster)
	}
	s := subjectOf(key)
	Expect(people.Create(ctx, cluster)).To(Succeed())
	return s
}

// created makes a cluster and waits until it is settled.
func created(ctx context.Context, change func(*apiv1.PostgreSQLCluster)) *subject {
	GinkgoHelper()
	s := create(ctx, change)
	s.settles(ctx)
	return s
}

func (s *subject) get(ctx context.Context) *apiv1.PostgreSQLCluster {
	GinkgoHelper()
	cluster := &apiv1.PostgreSQLCluster{}
	Expect(people.Get(ctx, s.NamespacedName, cluster)).To(Succeed())
	return cluster
}

// update changes the declaration.
func (s *subject) update(ctx context.Context, change func(*apiv1.PostgreSQLCluster)) {
	GinkgoHelper()
	Eventually(func() error {
		cluster := s.get(ctx)
		change(cluster)
		return people.Update(ctx, cluster)
	}).Should(Succeed())
}

// settles waits until everything declared is applied and ready.
func (s *subject) settles(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		cluster := s.get(ctx)
		g.Expect(cluster.Status.ObservedGeneration).To(Equal(cluster.Generation), "%+v", cluster.Status.Conditions)
		g.Expect(cluster.Status.Phase).To(Equal("Ready"), "%+v", cluster.Status.Conditions)
	}).Should(Succeed())
}

// condition waits for a condition with that status and reason and returns its message.
func (s *subject) condition(ctx context.Context, kind string, status metav1.ConditionStatus, reason string) string {
	GinkgoHelper()
	var message string
	Eventually(func(g Gomega) {
		c := meta.FindStatusCondition(s.get(ctx).Status.Conditions, kind)
		g.Expect(c).NotTo(BeNil())
		g.Expect(string(c.Status)+" "+c.Reason).To(Equal(string(status)+" "+reason), c.Message)
		message = c.Message
	}).Should(Succeed())
	return message
}

// object reads an object of the cluster's namespace.
func object[T client.Object](ctx context.Context, s *subject, name string, into T) T {
	GinkgoHelper()
	Expect(people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, into)).To(Succeed())
	return into
}

var _ = Describe("A cluster", func() {
	It("has all its objects from the smallest manifest", func(ctx SpecContext) {
		s := subjectOf(types.NamespacedName{Namespace: newNamespace(ctx), Name: "my-postgres-cluster"})
		smallest := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "databases.kumki.dev/v1", "kind": "PostgreSQLCluster",
			"metadata": map[string]any{"name": s.Name, "namespace": s.Namespace},
			"spec":     map[string]any{"replicas": int64(3)},
		}}
		Expect(people.Create(ctx, smallest)).To(Succeed())
		s.settles(ctx)

		set := object(ctx, s, naming.StatefulSet(s.Name), &appsv1.StatefulSet{})
		Expect(*set.Spec.Replicas).To(BeEquivalentTo(3))
		Expect(set.Spec.UpdateStrategy.Type).To(Equal(appsv1.OnDeleteStatefulSetStrategyType))
		Expect(set.Spec.Template.Spec.Containers[0].Image).To(Equal("postgres:17"))
		for _, name := range []string{"-rw", "-ro", "-r", "-nodes"} {
			object(ctx, s, s.Name+name, &corev1.Service{})
		}
		for _, name := range []string{"-app", "-ca", "-server-tls", "-peer-tls", "-operator-tls"} {
			object(ctx, s, s.Name+name, &corev1.Secret{})
		}
		object(ctx, s, naming.ConfigMap(s.Name), &corev1.ConfigMap{})
		object(ctx, s, s.Name, &policyv1.PodDisruptionBudget{})
		object(ctx, s, s.Name, &networkingv1.NetworkPolicy{})
		object(ctx, s, naming.Lease(s.Name), &coordinationv1.Lease{})
		object(ctx, s, naming.ServiceAccount(s.Name), &corev1.ServiceAccount{})
		object(ctx, s, naming.ServiceAccount(s.Name), &rbacv1.Role{})
		object(ctx, s, naming.ServiceAccount(s.Name), &rbacv1.RoleBinding{})

		cluster := s.get(ctx)
		Expect(cluster.Status.Primary).To(Equal(s.Name + "-0"))
		Expect(cluster.Status.Ready).To(Equal("3/3"))
		Expect(cluster.Status.SystemIdentifier).NotTo(BeEmpty())
		Expect(cluster.Status.MajorVersion).To(Equal("17"))
		Expect(cluster.Status.Instances).To(HaveLen(3))
		s.condition(ctx, apiv1.ConditionReady, metav1.ConditionTrue, apiv1.ReasonAllReady)
		s.condition(ctx, apiv1.ConditionFailoverReady, metav1.ConditionTrue, apiv1.ReasonQuorum)
		s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionFalse, apiv1.ReasonHealthy)
	}, SpecTimeout(3*time.Minute))

	It("causes no write when it is steady", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.Service.Additional = []apiv1.AdditionalService{{Name: "extra", Target: apiv1.TargetPrimary}}
			c.Spec.Superuser.RemoteAccess = true
			c.Spec.Storage.WALStorage = &apiv1.VolumeSpec{Size: resource.MustParse("1Gi")}
		})
		count := func() int { return len(writes.in(s.Namespace)) }
		Eventually(func(g Gomega) { // events of the settling are recorded a moment later
			n := count()
			g.Consistently(count).WithTimeout(2 * time.Second).Should(Equal(n))
		}).WithTimeout(30 * time.Second).Should(Succeed())
		n := count()
		Consistently(func() []string { return writes.in(s.Namespace)[n:] }).
			WithTimeout(25*time.Second).WithPolling(time.Second).Should(BeEmpty(), "two periodic looks and more passed")
	}, SpecTimeout(4*time.Minute))
})
