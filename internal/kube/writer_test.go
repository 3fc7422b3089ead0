package kube

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/naming"
)

// server stands for an API server with a cache before it. It is a client of both.
type server struct {
	client.Client // what is not implemented is not called
	t             *testing.T
	scheme        *runtime.Scheme
	version       int
	stored        map[types.NamespacedName]client.Object
	cached        map[types.NamespacedName]client.Object
	writes, reads int
	now           time.Time
}

func newServer(t *testing.T) (*server, *Writer) {
	t.Helper()
	s := &server{
		t: t, scheme: runtime.NewScheme(), version: 100, now: time.Unix(1e9, 0),
		stored: map[types.NamespacedName]client.Object{}, cached: map[types.NamespacedName]client.Object{},
	}
	if err := corev1.AddToScheme(s.scheme); err != nil {
		t.Fatal(err)
	}
	return s, NewWriter(s, live{s}, func() time.Time { return s.now })
}

// live reads from the server itself.
type live struct{ *server }

// Get implements client.Reader.
func (l live) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	l.reads++
	return l.copyOf(l.stored, key, into)
}

// Get implements client.Reader: from the cache.
func (s *server) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	return s.copyOf(s.cached, key, into)
}

func (s *server) copyOf(from map[types.NamespacedName]client.Object, key client.ObjectKey, into client.Object) error {
	object := from[key]
	if object == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// Scheme implements client.Client.
func (s *server) Scheme() *runtime.Scheme { return s.scheme }

// Apply implements client.Client. There is one manager, so what it does not send is dropped.
func (s *server) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	meta := struct {
		Kind string `json:"kind"`
	}{}
	if err := json.Unmarshal(text, &meta); err != nil {
		return err
	}
	var into client.Object = &corev1.ConfigMap{}
	if meta.Kind == "Secret" {
		into = &corev1.Secret{}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return err
	}
	s.writes++
	s.store(into)
	answered := object.(interface { // the caller's object has the answer, as with a real client
		SetUID(types.UID)
		SetResourceVersion(string)
	})
	answered.SetUID(into.GetUID())
	answered.SetResourceVersion(into.GetResourceVersion())
	return nil
}

func (s *server) store(object client.Object) {
	s.version++
	object.SetUID("uid")
	object.SetResourceVersion(strconv.Itoa(s.version))
	s.stored[client.ObjectKeyFromObject(object)] = object.DeepCopyObject().(client.Object)
}

// catchUp makes the cache have what the server has.
func (s *server) catchUp() { s.cached = maps.Clone(s.stored) }

// restore is the server with an earlier state, from which versions begin again.
func (s *server) restore(stored map[types.NamespacedName]client.Object, version int) {
	s.stored, s.version = maps.Clone(stored), version
	s.catchUp()
}

func configMap(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pg", Labels: naming.ClusterLabels("pg")},
		Data:       map[string]string{"key": value},
	}
}

func secretOf(data map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pg-app", Labels: naming.ClusterLabels("pg")}, Data: map[string][]byte{},
	}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s
}

func (s *server) apply(w *Writer, object client.Object, want Result) {
	s.t.Helper()
	if got, err := w.Apply(s.t.Context(), object); err != nil || got != want {
		s.t.Errorf("apply says %q, want %q: %v", got, want, err)
	}
}

func (s *server) value() string {
	return s.stored[types.NamespacedName{Namespace: "ns", Name: "pg"}].(*corev1.ConfigMap).Data["key"]
}

// A cache that lags behind our own write is no difference, but only for a while: then the API server itself is asked, seldom.
func TestLaggingCacheIsWaitedForAndThenChecked(t *testing.T) {
	s, w := newServer(t)
	s.apply(w, configMap("one"), Created)
	s.catchUp()
	s.apply(w, configMap("two"), Updated)
	s.reads = 0
	for range 3 {
		s.now = s.now.Add(lagLimit/3 - time.Second)
		s.apply(w, configMap("two"), Unchanged)
	}
	if s.reads != 0 {
		t.Errorf("%d reads within the limit", s.reads)
	}
	s.now = s.now.Add(3 * time.Second)
	for range 3 {
		s.apply(w, configMap("two"), Unchanged)
	}
	if s.reads != 1 || s.writes != 2 {
		t.Errorf("%d reads and %d writes after the limit, want one read that confirms it", s.reads, s.writes)
	}
}

// After a restore of etcd the versions are lower than what we remember, until writes catch up, which may take for ever.
func TestRestoredEtcdIsRepaired(t *testing.T) {
	s, w := newServer(t)
	s.apply(w, configMap("one"), Created)
	backup, version := maps.Clone(s.stored), s.version
	s.catchUp()
	s.apply(w, configMap("two"), Updated)
	s.catchUp()
	s.apply(w, configMap("two"), Unchanged)

	s.restore(backup, version)
	s.now = s.now.Add(lagLimit)
	s.apply(w, configMap("two"), Updated)
	if s.value() != "two" {
		t.Errorf("the object stays as the backup has it: %q", s.value())
	}
	s.catchUp()
	s.apply(w, configMap("two"), Unchanged)
}

// What is read for a decision comes from the API server while the cache is behind, and what was taken back is forgotten.
func TestGetForgetsWhatWasTakenBack(t *testing.T) {
	s, w := newServer(t)
	s.apply(w, configMap("one"), Created)
	backup, version := maps.Clone(s.stored), s.version
	s.catchUp()
	s.apply(w, configMap("two"), Updated)
	s.restore(backup, version)
	s.reads = 0
	for range 3 {
		got := &corev1.ConfigMap{}
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "pg"}, got); err != nil || got.Data["key"] != "one" {
			t.Fatalf("%v %v", got.Data, err)
		}
	}
	if s.reads != 1 {
		t.Errorf("%d reads of the API server, want one", s.reads)
	}
}

// Passwords cannot be tried against what everybody who may describe the Secret sees; a changed one is written all the same.
func TestAppliedHashTellsNothingOfSecrets(t *testing.T) {
	s, w := newServer(t)
	annotation := func() string {
		return s.stored[types.NamespacedName{Namespace: "ns", Name: "pg-app"}].GetAnnotations()[annotationApplied]
	}
	s.apply(w, secretOf(map[string]string{"password": "summer"}), Created)
	first := annotation()
	s.catchUp()
	s.apply(w, secretOf(map[string]string{"password": "summer"}), Unchanged)
	s.apply(w, secretOf(map[string]string{"password": "winter"}), Updated)
	if first == "" || annotation() != first {
		t.Errorf("the annotation follows from the password: %q and %q", first, annotation())
	}
	s.catchUp()
	restarted := NewWriter(s, live{s}, func() time.Time { return s.now })
	s.apply(restarted, secretOf(map[string]string{"password": "winter"}), Unchanged)
	s.apply(restarted, secretOf(map[string]string{"user": "app"}), Updated)
	if annotation() == first {
		t.Error("a key that is dropped goes unnoticed")
	}
	if data := s.stored[types.NamespacedName{Namespace: "ns", Name: "pg-app"}].(*corev1.Secret).Data; len(data) != 1 || strings.Contains(string(data["user"]), "winter") {
		t.Errorf("%v", data)
	}
	if s.writes != 3 {
		t.Errorf("%d writes, want 3", s.writes)
	}
}
