package controllers_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

var _ = Describe("A node", func() {
	// nodes makes three nodes, and a cluster with one instance on each.
	nodes := func(ctx context.Context) (*subject, []string) {
		var names []string
		for range 3 {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
			Expect(people.Create(ctx, node)).To(Succeed())
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			Expect(people.Status().Update(ctx, node)).To(Succeed())
			names = append(names, node.Name)
		}
		key := types.NamespacedName{Namespace: newNamespace(ctx), Name: "pg"}
		s := subjectOf(key)
		s.world.change(func(w *world) { w.nodes = map[string]string{"pg-0": names[0], "pg-1": names[1], "pg-2": names[2]} })
		Expect(people.Create(ctx, &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})).To(Succeed())
		s.settles(ctx)
		s.world.did()
		return s, names
	}
	setReady := func(ctx context.Context, name string, status corev1.ConditionStatus) {
		node := &corev1.Node{}
		Expect(people.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(clock.Now())}}
		Expect(people.Status().Update(ctx, node)).To(Succeed())
	}

	It("that is cordoned gives its primary away", func(ctx SpecContext) {
		s, names := nodes(ctx)
		for _, name := range []string{names[0], names[1]} {
			node := &corev1.Node{}
			Expect(people.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
			node.Spec.Unschedulable = true
			Expect(people.Update(ctx, node)).To(Succeed())
		}
		Eventually(s.world.primary).Should(Equal("pg-2"), "the node of pg-1 is cordoned too")
		s.settles(ctx)
	}, SpecTimeout(3*time.Minute))

	It("that is lost for long has its instance replaced, with a new volume", func(ctx SpecContext) {
		s, names := nodes(ctx)
		claim := object(ctx, s, "data-pg-2", &corev1.PersistentVolumeClaim{})
		pod := object(ctx, s, "pg-2", &corev1.Pod{})
		s.world.change(func(w *world) { w.broken["pg-2"] = true })
		setReady(ctx, names[2], corev1.ConditionUnknown)
		s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonNodeLost)
		Consistently(func() types.UID {
			return object(ctx, s, "data-pg-2", &corev1.PersistentVolumeClaim{}).UID
		}).WithTimeout(3 * time.Second).Should(Equal(claim.UID))

		s.world.change(func(w *world) { delete(w.broken, "pg-2"); w.nodes["pg-2"] = names[1] })
		clock.forward(31 * time.Minute)
		Eventually(func(g Gomega) {
			again, newPod := &corev1.PersistentVolumeClaim{}, &corev1.Pod{}
			g.Expect(people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: claim.Name}, again)).To(Succeed())
			g.Expect(people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: pod.Name}, newPod)).To(Succeed())
			g.Expect(again.UID).NotTo(Equal(claim.UID))
			g.Expect(newPod.UID).NotTo(Equal(pod.UID))
		}).Should(Succeed())
		s.settles(ctx)
		Expect(s.world.primary()).To(Equal("pg-0"))
		Expect(object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{}).DeletionTimestamp).To(BeNil())
	}, SpecTimeout(3*time.Minute))

	It("that is lost keeps the leader's volume, and every volume while nobody leads", func(ctx SpecContext) {
		s, names := nodes(ctx)
		s.world.change(func(w *world) { w.silent = true }) // the leader is gone and nobody can follow
		setReady(ctx, names[0], corev1.ConditionUnknown)
		setReady(ctx, names[1], corev1.ConditionUnknown)
		s.condition(ctx, apiv1.ConditionReady, metav1.ConditionFalse, apiv1.ReasonNoPrimary)
		clock.forward(time.Hour)
		Consistently(func(g Gomega) {
			for _, name := range []string{"data-pg-0", "data-pg-1", "data-pg-2"} {
				g.Expect(object(ctx, s, name, &corev1.PersistentVolumeClaim{}).DeletionTimestamp).To(BeNil())
			}
		}).WithTimeout(4 * time.Second).Should(Succeed())
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("Deletion", func() {
	It("shuts PostgreSQL down first and keeps volumes and leadership record", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.did()
		Expect(people.Delete(ctx, s.get(ctx))).To(Succeed())
		Eventually(func() bool { return exists(ctx, s, s.Name, &apiv1.PostgreSQLCluster{}) }).Should(BeFalse())
		Eventually(func() error {
			return people.Get(ctx, s.NamespacedName, &apiv1.PostgreSQLCluster{})
		}).ShouldNot(Succeed())
		Expect(s.world.did()).To(ContainElement("stopped pg-0"))
		Expect(object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{}).OwnerReferences).To(BeEmpty())
		Expect(exists(ctx, s, naming.Lease(s.Name), lease())).To(BeTrue())
	}, SpecTimeout(3*time.Minute))

	It("with policy Delete leaves volumes to the garbage collector and the leadership record to nobody", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.ReclaimPolicy = apiv1.ReclaimDelete })
		uid := s.get(ctx).UID
		Expect(people.Delete(ctx, s.get(ctx))).To(Succeed())
		Eventually(func() error {
			return people.Get(ctx, s.NamespacedName, &apiv1.PostgreSQLCluster{})
		}).ShouldNot(Succeed())
		Expect(object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{}).OwnerReferences).To(ContainElement(HaveField("UID", uid)))
		Expect(exists(ctx, s, naming.Lease(s.Name), lease())).To(BeFalse())
	}, SpecTimeout(3*time.Minute))

	It("is survived by the identity of the data, which a cluster of the same name takes up", func(ctx SpecContext) {
		s := created(ctx, nil)
		before := s.get(ctx).Status.SystemIdentifier
		Expect(people.Delete(ctx, s.get(ctx))).To(Succeed())
		Eventually(func() error {
			return people.Get(ctx, s.NamespacedName, &apiv1.PostgreSQLCluster{})
		}).ShouldNot(Succeed())
		s.world.collect(ctx)

		Expect(people.Create(ctx, &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}})).To(Succeed())
		Eventually(func(g Gomega) {
			config := &corev1.ConfigMap{}
			g.Expect(people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: naming.ConfigMap(s.Name)}, config)).To(Succeed())
			g.Expect(config.Data[naming.KeyConfig]).To(ContainSubstring(before), "so that no instance makes a new database")
		}).Should(Succeed())
		s.settles(ctx)
		Expect(s.get(ctx).Status.SystemIdentifier).To(Equal(before))
		Expect(s.get(ctx).Status.Term).To(BeNumerically(">", 1))
	}, SpecTimeout(3*time.Minute))

	It("leaves volumes beside which no new database is made, also when nothing else tells of them", func(ctx SpecContext) {
		s := created(ctx, nil)
		Expect(people.Delete(ctx, s.get(ctx))).To(Succeed())
		Eventually(func() error {
			return people.Get(ctx, s.NamespacedName, &apiv1.PostgreSQLCluster{})
		}).ShouldNot(Succeed())
		s.world.change(func(w *world) { w.silent = true }) // the pods that have the data take long to come up
		s.world.collect(ctx)
		Expect(people.Delete(ctx, object(ctx, s, naming.Lease(s.Name), lease()))).To(Succeed())
		first := object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{})
		first.Finalizers = nil
		Expect(people.Update(ctx, first)).To(Succeed())
		Expect(people.Delete(ctx, first)).To(Succeed())

		kept := object(ctx, s, "data-pg-2", &corev1.PersistentVolumeClaim{})
		Eventually(func() int64 { return time.Now().Unix() }).Should(BeNumerically(">", kept.CreationTimestamp.Unix()))
		Expect(people.Create(ctx, &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}})).To(Succeed())
		message := s.condition(ctx, apiv1.ConditionReady, metav1.ConditionFalse, apiv1.ReasonEarlierData)
		Expect(message).To(ContainSubstring("data-pg-1"))
		Expect(message).NotTo(ContainSubstring("data-pg-0"), "it is the new cluster's own")
		config := object(ctx, s, naming.ConfigMap(s.Name), &corev1.ConfigMap{}).Data[naming.KeyConfig]
		Expect(config).To(ContainSubstring(`"noBootstrap": true`))
	}, SpecTimeout(3*time.Minute))
})
