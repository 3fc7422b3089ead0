package apiserver

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/desired"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// input is of a new cluster on the API server, with all certificates made.
func input(t *testing.T, c *apiv1.PostgreSQLCluster) desired.Input {
	t.Helper()
	if err := server.client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	remove(t, c)
	certificates, err := pki.Ensure(pki.Request{Now: time.Now(), Cluster: c.Name, Namespace: c.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	return desired.Input{
		Cluster: c, OperatorImage: "registry.example/kumki", PostgreSQLImage: "registry.example/postgres:17", MajorVersion: 17,
		OperatorNamespace: "kumki-system", Members: int(c.Spec.Replicas), Pods: c.Spec.Replicas, StandbyReady: true, Primary: c.Name + "-0",
		Parameters: map[string]string{"work_mem": "4MB"}, AppPassword: "secret", SuperuserPassword: "secret", Certificates: certificates.Set,
	}
}

func apply(t *testing.T, o desired.Object) *unstructured.Unstructured {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		t.Fatal(err)
	}
	delete(u.Object, "status")
	err = server.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(naming.FieldManager), client.ForceOwnership)
	if err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return u
}

// TestObjectsAreTaken applies all objects of a full declaration, twice: the second time nothing may change.
func TestObjectsAreTaken(t *testing.T) {
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "objects", "default"
	c.Spec.Storage.WALStorage = &apiv1.VolumeSpec{Size: resource.MustParse("1Gi")}
	c.Spec.Superuser.RemoteAccess = true
	class := "example.org/lb"
	c.Spec.Service.Additional = []apiv1.AdditionalService{
		{Name: "public", Type: "LoadBalancer", LoadBalancerClass: &class, LoadBalancerSourceRanges: []string{"192.0.2.0/24"}},
		{Name: "reports", Target: apiv1.TargetStandbys, Type: "NodePort"},
	}
	in := input(t, c)
	versions := map[string]string{}
	for round := range 2 {
		for _, o := range desired.Objects(in) {
			got := apply(t, o)
			key := got.GetKind() + " " + got.GetName()
			if round == 0 {
				remove(t, got)
				versions[key] = got.GetResourceVersion()
			} else if got.GetResourceVersion() != versions[key] {
				t.Errorf("%s changed though nothing else did", key)
			}
		}
	}
}

// asInstance is a client with the rights of the cluster's database pods.
func asInstance(t *testing.T, cluster string) *kubernetes.Clientset {
	t.Helper()
	config := rest.CopyConfig(server.config)
	config.Impersonate.UserName = "system:serviceaccount:default:" + naming.ServiceAccount(cluster)
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
}

// TestInstancesMayTouchTheirOwn: a database pod reaches the objects of its own cluster, each by its name, and nothing else.
func TestInstancesMayTouchTheirOwn(t *testing.T) {
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "rights", "default"
	in := input(t, c)
	for _, o := range desired.Objects(in) {
		remove(t, apply(t, o))
	}
	ctx, k := t.Context(), asInstance(t, "rights")
	leases := k.CoordinationV1().Leases("default")

	created, err := leases.Update(ctx, lease("rights"), metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("create the Lease by name: %v", err)
	}
	remove(t, lease("rights"))
	if _, err := leases.Update(ctx, lease("rights"), metav1.UpdateOptions{}); err == nil {
		t.Error("a second creation replaced the Lease")
	}
	if _, err := leases.Update(ctx, created, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	watch, err := leases.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=rights"})
	if err != nil {
		t.Fatal(err)
	}
	watch.Stop()
	if _, err := k.CoreV1().Services("default").Get(ctx, "rights-rw", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := k.CoreV1().Pods("default").Get(ctx, "rights-2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("read of a pod of the cluster: %v", err)
	}

	for name, try := range map[string]func() error{
		"create a foreign Lease": func() error {
			_, err := leases.Update(ctx, lease("other"), metav1.UpdateOptions{})
			return err
		},
		"read all Leases": func() error { _, err := leases.List(ctx, metav1.ListOptions{}); return err },
		"delete the Lease": func() error {
			return leases.Delete(ctx, "rights", metav1.DeleteOptions{})
		},
		"read a Secret": func() error {
			_, err := k.CoreV1().Secrets("default").Get(ctx, "rights-ca", metav1.GetOptions{})
			return err
		},
		"read a foreign pod": func() error {
			_, err := k.CoreV1().Pods("default").Get(ctx, "other-0", metav1.GetOptions{})
			return err
		},
		"change another Service": func() error {
			_, err := k.CoreV1().Services("default").Update(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "rights-ro", Namespace: "default"},
			}, metav1.UpdateOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// TestLeaseIsCreatedOnce goes through the adapter that instances use, with their rights.
func TestLeaseIsCreatedOnce(t *testing.T) {
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "leased", "default"
	for _, o := range desired.Objects(input(t, c)) {
		remove(t, apply(t, o))
	}
	config := rest.CopyConfig(server.config)
	config.Impersonate.UserName = "system:serviceaccount:default:" + naming.ServiceAccount("leased")
	leases, err := kubelease.New(config, "default", "leased")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if none, err := leases.Get(ctx); err != nil || none.Version != "" {
		t.Fatalf("the Lease is there before it is made: %v, %v", none, err)
	}
	first, err := leases.CAS(ctx, "", election.Record{Term: 1, Holder: "leased-0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leases.CAS(ctx, "", election.Record{Term: 1, Holder: "leased-1"}); !errors.Is(err, kubelease.ErrConflict) {
		t.Errorf("second creation: %v", err)
	}
	second, err := leases.CAS(ctx, first.Version, election.Record{Term: 2, Holder: "leased-1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leases.CAS(ctx, first.Version, election.Record{Term: 2, Holder: "leased-2"}); !errors.Is(err, kubelease.ErrConflict) {
		t.Errorf("change of an old version: %v", err)
	}
	if err := server.client.Delete(ctx, lease("leased")); err != nil {
		t.Fatal(err)
	}
	if _, err := leases.CAS(ctx, second.Version, election.Record{Term: 3, Holder: "leased-1"}); !errors.Is(err, kubelease.ErrConflict) {
		t.Errorf("change of a deleted Lease: %v", err)
	}
}

// TestPodsAreRestricted: the pods of a cluster, with and without fixed users, are let in where Pod Security is at its strictest.
func TestPodsAreRestricted(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "strict", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := server.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	c := &apiv1.PostgreSQLCluster{}
	c.Name, c.Namespace = "strict", "strict"
	in := input(t, c)
	for name, openShift := range map[string]bool{"strict-0": false, "strict-1": true} {
		in.OpenShift = openShift
		template := desired.StatefulSet(in).Spec.Template
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Name, pod.Namespace = name, "strict"
		for _, claim := range desired.StatefulSet(in).Spec.VolumeClaimTemplates {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + name},
			}})
		}
		if err := server.client.Create(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		remove(t, pod)
	}
	root := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "root", Namespace: "strict"}}
	root.Spec.Containers = []corev1.Container{{Name: "root", Image: "registry.example/root"}}
	if err := server.client.Create(t.Context(), root); !apierrors.IsForbidden(err) {
		t.Errorf("Pod Security is not at work here: %v", err)
	}
}
