package controllers_test

import (
	"context"
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// annotate sets an annotation of the cluster.
func (s *subject) annotate(ctx context.Context, key, value string) {
	GinkgoHelper()
	s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[key] = value
	})
}

// exists says whether an object of the cluster's namespace is there and not on its way out.
func exists(ctx context.Context, s *subject, name string, into client.Object) bool {
	err := people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, into)
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	return !apierrors.IsNotFound(err) && into.GetDeletionTimestamp().IsZero()
}

var _ = Describe("A change", func() {
	It("of the pod template replaces standbys first and the primary last", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.did()
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.PodMetadata = &apiv1.PodMetadata{Labels: map[string]string{"example.com/new": "yes"}}
		})
		s.settles(ctx)
		Expect(s.world.did()).To(Equal([]string{
			"gone pg-2", "pod pg-2", "gone pg-1", "pod pg-1", "handover pg-0 pg-1", "gone pg-0", "pod pg-0",
		}))
		Expect(s.get(ctx).Status.Primary).To(Equal("pg-1"))
	}, SpecTimeout(3*time.Minute))

	It("of the pod template stops at an instance that does not come up, and goes on when corrected", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.did()
		s.world.change(func(w *world) { w.brokenTemplate = "bad:1" })
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image, c.Spec.Version = "bad:1", "17" })
		s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonRolloutHalted)
		Consistently(func() string {
			return meta.FindStatusCondition(s.get(ctx).Status.Conditions, apiv1.ConditionDegraded).Reason
		}).WithTimeout(5*time.Second).Should(Equal(apiv1.ReasonRolloutHalted), "the reason says what to do, for as long as it lasts")
		Expect(s.world.did()).To(Equal([]string{"gone pg-2", "pod pg-2"}))
		Expect(s.world.primary()).To(Equal("pg-0"))

		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image = "" })
		s.settles(ctx)
		Expect(s.world.did()).To(Equal([]string{"gone pg-2", "pod pg-2"}), "the others were never replaced")
	}, SpecTimeout(3*time.Minute))

	It("of the pod template is corrected although a switchover to the broken instance was asked for", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.change(func(w *world) { w.brokenTemplate = "bad:1" })
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image, c.Spec.Version = "bad:1", "17" })
		s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonRolloutHalted)
		s.annotate(ctx, naming.AnnotationSwitchover, "pg-2")
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image = "" })
		s.settles(ctx)
		Expect(s.get(ctx).Annotations).NotTo(HaveKey(naming.AnnotationSwitchover))
		Expect(s.world.primary()).To(Equal("pg-0"), "the switchover was refused")
	}, SpecTimeout(3*time.Minute))

	It("of the restart annotation restarts every pod of a single instance too", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Replicas = 1 })
		s.world.did()
		s.annotate(ctx, naming.AnnotationRestart, "now")
		Eventually(func() string {
			return object(ctx, s, naming.StatefulSet(s.Name), &appsv1.StatefulSet{}).Spec.Template.Annotations[naming.AnnotationRestart]
		}).Should(Equal("now"))
		Eventually(s.world.did).Should(ContainElement("pod pg-0"))
		s.settles(ctx)
	}, SpecTimeout(3*time.Minute))

	It("of a raised parameter restarts standbys, hands over, and leaves no instance waiting", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.did()
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.PostgreSQL.Parameters = map[string]string{"max_connections": "200"}
		})
		Eventually(func() string { return s.world.primary() }).ShouldNot(Equal("pg-0"))
		s.settles(ctx)
		Expect(s.world.did()).To(Equal([]string{"restart pg-2", "restart pg-1", "handover pg-0 pg-1"}))

		By("lowering it: the primary comes first")
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.PostgreSQL.Parameters = map[string]string{"max_connections": "50"}
		})
		Eventually(s.world.seen).Should(HaveLen(3))
		s.settles(ctx)
		Expect(s.world.did()).To(Equal([]string{"restart pg-1", "restart pg-2", "restart pg-0"}))
	}, SpecTimeout(3*time.Minute))

	It("of an owned parameter is refused, and the last good configuration stays", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.PostgreSQL.Parameters = map[string]string{"work_mem": "7MB"}
		})
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.PostgreSQL.Parameters = map[string]string{"work_mem": "9MB", "listen_addresses": "localhost"}
			c.Spec.Replicas = 2
		})
		message := s.condition(ctx, apiv1.ConditionConfigurationValid, metav1.ConditionFalse, apiv1.ReasonParameterOwned)
		Expect(message).To(ContainSubstring(`spec.postgresql.parameters.listen_addresses="localhost"`))
		Eventually(func() int32 { return s.get(ctx).Status.Replicas }).Should(BeEquivalentTo(2), "what is not refused is done")
		text := object(ctx, s, naming.ConfigMap(s.Name), &corev1.ConfigMap{}).Data[naming.KeyConfig]
		Expect(text).To(ContainSubstring(`"work_mem": "7MB"`))
		Expect(text).NotTo(ContainSubstring("9MB"))

		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { delete(c.Spec.PostgreSQL.Parameters, "listen_addresses") })
		s.condition(ctx, apiv1.ConditionConfigurationValid, metav1.ConditionTrue, apiv1.ReasonValid)
		s.settles(ctx)
		Expect(object(ctx, s, naming.ConfigMap(s.Name), &corev1.ConfigMap{}).Data[naming.KeyConfig]).To(ContainSubstring(`"work_mem": "9MB"`))
	}, SpecTimeout(3*time.Minute))

	It("to a certificate that does not fit its key is told", func(ctx SpecContext) {
		pair := func() map[string][]byte {
			r, err := pki.Ensure(pki.Request{Now: time.Now(), Cluster: "pg", Namespace: "own"})
			Expect(err).NotTo(HaveOccurred())
			return r.Set.Server
		}
		good, other := pair(), pair()
		s := created(ctx, nil)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "own"}, Data: maps.Clone(good)}
		secret.Data[pki.KeyKey] = other[pki.KeyKey]
		Expect(people.Create(ctx, secret)).To(Succeed())
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.TLS.ServerSecret = "own" })
		message := s.condition(ctx, apiv1.ConditionConfigurationValid, metav1.ConditionFalse, apiv1.ReasonSecretInvalid)
		Expect(message).To(And(ContainSubstring(`Secret "own"`), ContainSubstring("do not belong together")))

		secret.Data = good
		Expect(people.Update(ctx, secret)).To(Succeed())
		s.annotate(ctx, "example.com/look", "again")
		s.condition(ctx, apiv1.ConditionConfigurationValid, metav1.ConditionTrue, apiv1.ReasonValid)
	}, SpecTimeout(3*time.Minute))

	It("of the major version is refused", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Version = "15" })
		message := s.condition(ctx, apiv1.ConditionConfigurationValid, metav1.ConditionFalse, apiv1.ReasonVersionChange)
		Expect(message).To(ContainSubstring("17"))
		Expect(object(ctx, s, s.Name, &appsv1.StatefulSet{}).Spec.Template.Spec.Containers[0].Image).To(Equal("postgres:17"))
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("A cluster without a database yet", func() {
	It("takes another major version, and replaces pods that cannot run", func(ctx SpecContext) {
		s := create(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image, c.Spec.Version = "bad:1", "15" })
		s.world.change(func(w *world) { w.brokenTemplate = "bad:1" })
		Eventually(func() string {
			pod := &corev1.Pod{}
			if err := people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: "pg-0"}, pod); err != nil {
				return err.Error()
			}
			return pod.Spec.Containers[0].Image
		}).Should(Equal("bad:1"))
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Image, c.Spec.Version = "", "17" })
		s.settles(ctx)
		Expect(s.get(ctx).Status.MajorVersion).To(Equal("17"))
	}, SpecTimeout(3*time.Minute))

	It("hands a corrected initdb to the instances", func(ctx SpecContext) {
		key := types.NamespacedName{Namespace: newNamespace(ctx), Name: "pg"}
		s := subjectOf(key)
		s.world.change(func(w *world) { w.silent = true }) // the bootstrap does not succeed
		cluster := &apiv1.PostgreSQLCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		cluster.Spec.Bootstrap.InitDB = &apiv1.InitDBSpec{Owner: "shop", SQL: []string{"CREAT TABLE t ()"}}
		Expect(people.Create(ctx, cluster)).To(Succeed())
		config := func(g Gomega) string {
			object := &corev1.ConfigMap{}
			g.Expect(people.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: naming.ConfigMap(s.Name)}, object)).To(Succeed())
			return object.Data[naming.KeyConfig]
		}
		Eventually(config).Should(ContainSubstring("CREAT TABLE"))
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) {
			c.Spec.Bootstrap.InitDB.Owner, c.Spec.Bootstrap.InitDB.SQL = "sales", []string{"CREATE TABLE t ()"}
		})
		Eventually(config).Should(And(ContainSubstring("CREATE TABLE"), ContainSubstring(`"owner": "sales"`)))
		Eventually(func() string {
			return string(object(ctx, s, naming.SecretApp(s.Name), &corev1.Secret{}).Data["username"])
		}).Should(Equal("sales"))
		s.world.change(func(w *world) { w.silent = false })
		s.settles(ctx)
		Eventually(func() error {
			c := s.get(ctx)
			c.Spec.Bootstrap.InitDB.Owner = "other"
			return people.Update(ctx, c)
		}).Should(MatchError(ContainSubstring("bootstrap.initdb is read once")))
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("Scaling", func() {
	It("works through the scale subresource, up and down", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Replicas = 1 })
		scale := func(n int32) {
			Expect(people.SubResource("scale").Update(ctx, s.get(ctx), client.WithSubResourceBody(&autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}, Spec: autoscalingv1.ScaleSpec{Replicas: n},
			}))).To(Succeed())
		}
		scale(3)
		s.settles(ctx)
		Expect(s.get(ctx).Status.ReadyReplicas).To(BeEquivalentTo(3))
		Expect(s.get(ctx).Status.Selector).To(ContainSubstring(naming.LabelCluster + "=pg"))
		scale(2)
		s.settles(ctx)
		Expect(s.get(ctx).Status.Replicas).To(BeEquivalentTo(2))
		Expect(exists(ctx, s, "data-pg-2", &corev1.PersistentVolumeClaim{})).To(BeTrue(), "the default policy keeps volumes")
	}, SpecTimeout(3*time.Minute))

	It("down hands over first when the primary would go, and takes volumes away when told so", func(ctx SpecContext) {
		s := created(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.ReclaimPolicy = apiv1.ReclaimDelete })
		s.annotate(ctx, naming.AnnotationSwitchover, "pg-2")
		Eventually(s.world.primary).Should(Equal("pg-2"))
		s.settles(ctx)
		Expect(s.get(ctx).Annotations).NotTo(HaveKey(naming.AnnotationSwitchover))
		s.world.did()

		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Replicas = 1 })
		s.settles(ctx)
		Expect(s.world.primary()).To(Equal("pg-0"))
		Expect(s.world.did()).To(HaveExactElements(Equal("handover pg-2 pg-0"), HavePrefix("gone"), HavePrefix("gone")))
		Eventually(func() bool {
			return exists(ctx, s, "data-pg-1", &corev1.PersistentVolumeClaim{}) || exists(ctx, s, "data-pg-2", &corev1.PersistentVolumeClaim{})
		}).Should(BeFalse())
		Expect(exists(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{})).To(BeTrue())
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("Suspension", func() {
	It("stops PostgreSQL before the pods go, keeps the volumes, and ends", func(ctx SpecContext) {
		s := created(ctx, nil)
		s.world.did()
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Suspend = true })
		s.condition(ctx, apiv1.ConditionSuspended, metav1.ConditionTrue, apiv1.ReasonSuspended)
		Expect(s.world.did()).To(HaveExactElements(Equal("stopped pg-0"), HavePrefix("gone"), HavePrefix("gone"), HavePrefix("gone")))
		Expect(s.get(ctx).Status.Phase).To(Equal("Suspended"))
		for i := range 3 {
			Expect(exists(ctx, s, fmt.Sprintf("data-pg-%d", i), &corev1.PersistentVolumeClaim{})).To(BeTrue())
		}

		By("waking with fewer instances")
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Suspend, c.Spec.Replicas = false, 2 })
		s.settles(ctx)
		Expect(s.get(ctx).Status.Ready).To(Equal("2/2"))
		s.condition(ctx, apiv1.ConditionSuspended, metav1.ConditionFalse, apiv1.ReasonActive)
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("Volumes", func() {
	class := func(ctx context.Context, grows bool) string {
		c := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "class-"}, Provisioner: "example.com/none", AllowVolumeExpansion: &grows,
		}
		Expect(people.Create(ctx, c)).To(Succeed())
		return c.Name
	}
	of := func(name string) func(*apiv1.PostgreSQLCluster) {
		return func(c *apiv1.PostgreSQLCluster) { c.Spec.Replicas, c.Spec.Storage.StorageClassName = 2, &name }
	}

	It("grow, and the StatefulSet is made anew around its pods", func(ctx SpecContext) {
		s := created(ctx, of(class(ctx, true)))
		s.bind(ctx)
		set := object(ctx, s, s.Name, &appsv1.StatefulSet{})
		s.world.did()
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.Size = resource.MustParse("20Gi") })
		Eventually(func(g Gomega) {
			for i := range 2 {
				claim := object(ctx, s, fmt.Sprintf("data-pg-%d", i), &corev1.PersistentVolumeClaim{})
				g.Expect(claim.Spec.Resources.Requests.Storage().String()).To(Equal("20Gi"))
			}
			again := &appsv1.StatefulSet{}
			g.Expect(people.Get(ctx, s.NamespacedName, again)).To(Succeed())
			g.Expect(again.UID).NotTo(Equal(set.UID))
			g.Expect(again.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String()).To(Equal("20Gi"))
		}).Should(Succeed())
		s.condition(ctx, apiv1.ConditionProgressing, metav1.ConditionTrue, apiv1.ReasonGrowingVolumes)
		s.bind(ctx)
		s.settles(ctx)
		Expect(s.world.did()).To(BeEmpty(), "no pod was touched")
	}, SpecTimeout(3*time.Minute))

	It("that cannot grow are told", func(ctx SpecContext) {
		s := created(ctx, of(class(ctx, false)))
		s.bind(ctx)
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.Size = resource.MustParse("20Gi") })
		message := s.condition(ctx, apiv1.ConditionDegraded, metav1.ConditionTrue, apiv1.ReasonVolumeNotGrown)
		Expect(message).To(ContainSubstring("allowVolumeExpansion"))
	}, SpecTimeout(3*time.Minute))

	It("go with the cluster or stay, as the policy says", func(ctx SpecContext) {
		s := created(ctx, nil)
		Expect(object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{}).OwnerReferences).To(BeEmpty())
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.ReclaimPolicy = apiv1.ReclaimDelete })
		Eventually(func(g Gomega) {
			for i := range 3 {
				claim := object(ctx, s, fmt.Sprintf("data-pg-%d", i), &corev1.PersistentVolumeClaim{})
				g.Expect(claim.OwnerReferences).To(HaveLen(1))
				g.Expect(claim.OwnerReferences[0].UID).To(Equal(s.get(ctx).UID))
			}
		}).Should(Succeed())
		s.update(ctx, func(c *apiv1.PostgreSQLCluster) { c.Spec.Storage.ReclaimPolicy = apiv1.ReclaimRetain })
		Eventually(func() []metav1.OwnerReference {
			return object(ctx, s, "data-pg-0", &corev1.PersistentVolumeClaim{}).OwnerReferences
		}).Should(BeEmpty())
	}, SpecTimeout(3*time.Minute))
})

// bind gives every claim the capacity that it asks for, as a provisioner does.
func (s *subject) bind(ctx context.Context) {
	GinkgoHelper()
	claims := &corev1.PersistentVolumeClaimList{}
	Expect(people.List(ctx, claims, client.InNamespace(s.Namespace))).To(Succeed())
	for i := range claims.Items {
		claim := &claims.Items[i]
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: *claim.Spec.Resources.Requests.Storage()}
		Expect(people.Status().Update(ctx, claim)).To(Succeed())
	}
}
