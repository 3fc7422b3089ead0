package controllers_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

var _ = Describe("The objects of a cluster", func() {
	It("come back when they are deleted", func(ctx SpecContext) {
		s := created(ctx, nil)
		password := object(ctx, s, naming.SecretApp(s.Name), &corev1.Secret{}).Data["password"]
		for _, gone := range []client.Object{
			object(ctx, s, naming.ServiceRO(s.Name), &corev1.Service{}),
			object(ctx, s, naming.ServiceAccount(s.Name), &rbacv1.Role{}),
			object(ctx, s, s.Name, &policyv1.PodDisruptionBudget{}),
			object(ctx, s, naming.ConfigMap(s.Name), &corev1.ConfigMap{}),
		} {
			Expect(people.Delete(ctx, gone)).To(Succeed())
			Eventually(func(g Gomega) {
				again := gone.DeepCopyObject().(client.Object)
				g.Expect(people.Get(ctx, client.ObjectKeyFromObject(gone), again)).To(Succeed())
				g.Expect(again.GetUID()).NotTo(Equal(gone.GetUID()))
			}).Should(Succeed())
		}
		Expect(object(ctx, s, naming.SecretApp(s.Name), &corev1.Secret{}).Data["password"]).To(Equal(password))
	}, SpecTimeout(3*time.Minute))

	It("keep what others add, and lose what others change of ours", func(ctx SpecContext) {
		s := created(ctx, nil)
		service := object(ctx, s, naming.ServiceR(s.Name), &corev1.Service{})
		service.Labels["team.example.com/owner"] = "somebody"
		service.Labels[naming.LabelManagedBy] = "somebody"
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "more", Port: 9999})
		service.Spec.PublishNotReadyAddresses = true
		service.Spec.Selector["more"] = "narrow"
		Expect(people.Update(ctx, service)).To(Succeed())
		Eventually(func(g Gomega) {
			got := object(ctx, s, naming.ServiceR(s.Name), &corev1.Service{})
			g.Expect(got.Labels).To(HaveKeyWithValue("team.example.com/owner", "somebody"))
			g.Expect(got.Labels).To(HaveKeyWithValue(naming.LabelManagedBy, naming.ValueManagedBy))
			g.Expect(got.Spec.Ports).To(HaveLen(2))
			g.Expect(got.Spec.PublishNotReadyAddresses).To(BeTrue())
			g.Expect(got.Spec.Selector).NotTo(HaveKey("more"), "a selector belongs to one manager as a whole")
		}).Should(Succeed())

		By("even when ours beside the change is invalid")
		service = object(ctx, s, naming.ServiceR(s.Name), &corev1.Service{})
		service.Spec.Ports[0].Port = 5433
		Expect(people.Update(ctx, service)).To(Succeed())
		Eventually(func() int32 {
			return object(ctx, s, naming.ServiceR(s.Name), &corev1.Service{}).Spec.Ports[0].Port
		}).Should(BeEquivalentTo(5432))
		s.settles(ctx)
	}, SpecTimeout(3*time.Minute))

	It("leave the selector of the Service for writes to the leader", func(ctx SpecContext) {
		s := created(ctx, nil)
		service := object(ctx, s, naming.ServiceRW(s.Name), &corev1.Service{})
		Expect(service.Spec.Selector).To(BeEmpty())
		service.Spec.Selector = map[string]string{naming.LabelPod: s.Name + "-0"}
		Expect(people.Update(ctx, service)).To(Succeed())
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Service.Type = "NodePort" })
		Eventually(func(g Gomega) {
			got := object(ctx, s, naming.ServiceRW(s.Name), &corev1.Service{})
			g.Expect(got.Spec.Type).To(Equal(corev1.ServiceTypeNodePort))
			g.Expect(got.Spec.Selector).To(HaveKeyWithValue(naming.LabelPod, s.Name+"-0"))
		}).Should(Succeed())
	}, SpecTimeout(3*time.Minute))

	It("are not taken from somebody else", func(ctx SpecContext) {
		namespace := newNamespace(ctx)
		foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pg-app"}, StringData: map[string]string{"mine": "yes"}}
		Expect(people.Create(ctx, foreign)).To(Succeed())
		s := subjectOf(types.NamespacedName{Namespace: namespace, Name: "pg"})
		Expect(people.Create(ctx, &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pg"}})).To(Succeed())
		message := s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonReconcileError)
		Expect(message).To(ContainSubstring(`Secret "pg-app" exists`))
		Expect(object(ctx, s, "pg-app", &corev1.Secret{}).Data).To(HaveLen(1))
		Expect(people.Delete(ctx, foreign)).To(Succeed())
		s.settles(ctx)
	}, SpecTimeout(3*time.Minute))

	It("do not include a Lease of somebody else", func(ctx SpecContext) {
		namespace := newNamespace(ctx)
		foreign := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pg"}}
		Expect(people.Create(ctx, foreign)).To(Succeed())
		s := subjectOf(types.NamespacedName{Namespace: namespace, Name: "pg"})
		Expect(people.Create(ctx, &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pg"}})).To(Succeed())
		message := s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonReconcileError)
		Expect(message).To(ContainSubstring(`Lease "pg" exists`))
		Expect(exists(ctx, s, "pg", &appsv1.StatefulSet{})).To(BeFalse())
	}, SpecTimeout(3*time.Minute))

	It("include the Services that the spec adds, as long as it does", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.Service.Additional = []apiv1.AdditionalService{
				{Name: "outside", Target: apiv1.TargetPrimary, Type: "LoadBalancer"}, {Name: "reports", Target: apiv1.TargetStandbys},
			}
		})
		Expect(object(ctx, s, "pg-outside", &corev1.Service{}).Spec.Selector).To(HaveKeyWithValue(naming.LabelPod, "pg-0"))
		Expect(object(ctx, s, "pg-reports", &corev1.Service{}).Spec.Selector).To(HaveKeyWithValue(naming.LabelRole, naming.ValueStandby))

		By("following the primary")
		s.annotate(ctx, naming.AnnotationSwitchover, "pg-2")
		Eventually(func() map[string]string {
			return object(ctx, s, "pg-outside", &corev1.Service{}).Spec.Selector
		}).Should(HaveKeyWithValue(naming.LabelPod, "pg-2"))

		By("going when it is declared no more")
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Service.Additional = c.Spec.Service.Additional[:1] })
		Eventually(func() bool {
			err := people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: "pg-reports"}, &corev1.Service{})
			return apierrors.IsNotFound(err)
		}).Should(BeTrue())
	}, SpecTimeout(3*time.Minute))

	It("tell the role of each pod, and send reads to standbys while there are any", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Replicas = 2 })
		Eventually(func(g Gomega) {
			g.Expect(object(ctx, s, "pg-0", &corev1.Pod{}).Labels).To(HaveKeyWithValue(naming.LabelRole, naming.ValuePrimary))
			g.Expect(object(ctx, s, "pg-1", &corev1.Pod{}).Labels).To(HaveKeyWithValue(naming.LabelRole, naming.ValueStandby))
			g.Expect(object(ctx, s, "pg-ro", &corev1.Service{}).Spec.Selector).To(HaveKeyWithValue(naming.LabelRole, naming.ValueStandby))
		}).Should(Succeed())
		s.world.change(func(w *world) { w.broken["pg-1"] = true })
		Eventually(func() map[string]string {
			return object(ctx, s, "pg-ro", &corev1.Service{}).Spec.Selector
		}).ShouldNot(HaveKey(naming.LabelRole))
		s.condition(ctx, apiv1.ConditionFailoverReady, metav1.ConditionFalse, apiv1.ReasonPrimaryOnly)
	}, SpecTimeout(3*time.Minute))
})
