// Package kube is the only writer to Kubernetes. It applies objects by server-side apply with one field manager, writes
// nothing when nothing would change, deletes only what was looked at, and patches status.
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Result says what Apply did.
type Result string

// Values of Result.
const (
	// Unchanged: the live object has everything already; nothing was sent.
	Unchanged Result = "Unchanged"
	// Created: there was no such object.
	Created Result = "Created"
	// Updated: the object was there and differed.
	Updated Result = "Updated"
	// Terminating: the object is being deleted; it is applied again once it is gone.
	Terminating Result = "Terminating"
)

// ForeignError says that an object of a name that a cluster needs exists and belongs to somebody else.
type ForeignError struct {
	Kind, Name, Why string
}

// Error names the object and the way out.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %q exists and %s: rename or delete it, or give the cluster another name", e.Kind, e.Name, e.Why)
}

// Writer writes to Kubernetes. It is safe for use by several goroutines.
type Writer struct {
	client client.Client // reads come from its cache
	live   client.Reader // reads come from the API server
	now    func() time.Time

	mu   sync.Mutex
	memo map[memoKey]memo
}

type memoKey struct {
	kind string
	name types.NamespacedName
}

// memo is what the last Apply of an object left behind: with it a cache that lags behind our own write is told from a real
// difference, and a value that the API server normalises is not written again and again.
type memo struct {
	cluster string
	uid     types.UID
	version string
	// hash of the whole content, what is secret in it too; it never leaves the process.
	hash string
	// at is when the API server was last known to have that version.
	at time.Time
}

// lagLimit is how long a cache may be behind our own write before the API server is asked. An object that is older there too was not
// delayed but taken back: etcd was restored from a backup, and versions begin again from there.
const lagLimit = time.Minute

// NewWriter returns a Writer that reads from the cache of c, and from live what the cache does not hold. now is the clock by which a cache
// that lags behind is told from one that stands still.
func NewWriter(c client.Client, live client.Reader, now func() time.Time) *Writer {
	return &Writer{client: c, live: live, now: now, memo: map[memoKey]memo{}}
}

// Apply makes the live object have every field of the desired one, and drops fields that an earlier Apply set and this one
// does not. Fields of other managers survive. Nothing is sent when nothing would change. It returns a *ForeignError when the
// object exists and is not of the same cluster.
func (w *Writer) Apply(ctx context.Context, desired client.Object) (Result, error) {
	want, hash, err := w.prepare(desired)
	if err != nil {
		return "", err
	}
	kind := want.GetKind()
	key := memoKey{kind: kind, name: client.ObjectKeyFromObject(desired)}
	have, err := w.observe(ctx, key, desired)
	if err != nil {
		return "", fmt.Errorf("read %s %s: %w", kind, key.name, err)
	}
	result := Created
	if have != nil {
		if !have.GetDeletionTimestamp().IsZero() {
			return Terminating, nil
		}
		if why := foreign(have, want); why != "" {
			return "", &ForeignError{Kind: kind, Name: key.name.Name, Why: why}
		}
		if w.settled(key, have, hash) {
			return Unchanged, nil
		}
		if contains(have.Object, want.Object) {
			w.remember(key, have, hash)
			return Unchanged, nil
		}
		result = Updated
	}
	err = w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), client.FieldOwner(naming.FieldManager), client.ForceOwnership)
	if apierrors.IsInvalid(err) && have != nil {
		return result, w.overwrite(ctx, desired, want, err)
	}
	if err != nil {
		return "", fmt.Errorf("apply %s %s: %w", kind, key.name, err)
	}
	w.remember(key, want, hash)
	return result, nil
}

// overwrite replaces the lists of an object's spec as a whole. It is for an object that somebody has changed so that ours beside theirs is
// invalid: a port of ours with another number, for example, which keeps the name that ours must have.
func (w *Writer) overwrite(ctx context.Context, seen client.Object, want *unstructured.Unstructured, invalid error) error {
	patch, err := json.Marshal(map[string]any{"spec": want.Object["spec"]})
	if err != nil {
		return fmt.Errorf("overwrite %s %s: %w", want.GetKind(), want.GetName(), err)
	}
	object := seen.DeepCopyObject().(client.Object)
	err = w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(naming.FieldManager))
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", want.GetKind(), want.GetName(), invalid)
	}
	return nil
}

// Forget drops what is remembered of the objects of a cluster that is gone.
func (w *Writer) Forget(cluster types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.memo, func(key memoKey, m memo) bool {
		return key.name.Namespace == cluster.Namespace && m.cluster == cluster.Name
	})
}

// prepare turns an object into what is sent: without status and server-made fields, with the hash of itself as annotation. It returns the
// hash of the whole content too, which differs from the annotation for what holds secrets.
func (w *Writer) prepare(desired client.Object) (*unstructured.Unstructured, string, error) {
	gvk, err := apiutil.GVKForObject(desired, w.client.Scheme())
	if err != nil {
		return nil, "", fmt.Errorf("apply %T %s: %w; its kind must be in the scheme", desired, desired.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired)
	if err != nil {
		return nil, "", fmt.Errorf("apply %s %s: %w", gvk.Kind, desired.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvk)
	strip(u)
	hash, err := hashOf(u.Object)
	if err != nil {
		return nil, "", fmt.Errorf("apply %s %s: %w", gvk.Kind, desired.GetName(), err)
	}
	public, err := hashOf(withoutSecrets(u))
	if err != nil {
		return nil, "", fmt.Errorf("apply %s %s: %w", gvk.Kind, desired.GetName(), err)
	}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationApplied] = public
	u.SetAnnotations(annotations)
	return u, hash, nil
}

// Get reads an object into obj: from the cache, unless the cache does not have it or is behind our own last write; then from the
// API server. What a decision or a secret depends on is read so, lest it be decided or made twice.
func (w *Writer) Get(ctx context.Context, key client.ObjectKey, obj client.Object) error {
	gvk, err := apiutil.GVKForObject(obj, w.client.Scheme())
	if err != nil {
		return fmt.Errorf("read %T %s: %w; its kind must be in the scheme", obj, key, err)
	}
	err = w.client.Get(ctx, key, obj)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s %s: %w", gvk.Kind, key, err)
	}
	if err == nil && !w.behind(obj) {
		return nil
	}
	if err := w.live.Get(ctx, key, obj); err != nil {
		return fmt.Errorf("read %s %s: %w", gvk.Kind, key, err)
	}
	w.confirm(memoKey{kind: gvk.Kind, name: key}, obj)
	return nil
}

// observe returns the live object, nil when there is none. What the cache does not have is asked of the API server, because
// the caches hold labelled objects only: an object of that name may be there and be somebody else's. Nor is a cache believed that is
// behind our own write for longer than lagLimit.
func (w *Writer) observe(ctx context.Context, key memoKey, desired client.Object) (*unstructured.Unstructured, error) {
	have := desired.DeepCopyObject().(client.Object)
	err := w.client.Get(ctx, key.name, have)
	if apierrors.IsNotFound(err) || (err == nil && w.overdue(key, have)) {
		have = desired.DeepCopyObject().(client.Object)
		if err = w.live.Get(ctx, key.name, have); err == nil {
			w.confirm(key, have)
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(have)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// settled says that the live object is as our last Apply of the same content left it, or that the cache has not caught up with it.
func (w *Writer) settled(key memoKey, have *unstructured.Unstructured, hash string) bool {
	w.mu.Lock()
	m, ok := w.memo[key]
	w.mu.Unlock()
	if !ok || m.hash != hash || m.uid != have.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(have.GetResourceVersion(), m.version)
	return err == nil && order <= 0
}

func (w *Writer) remember(key memoKey, have *unstructured.Unstructured, hash string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.memo[key] = memo{
		cluster: have.GetLabels()[naming.LabelCluster], uid: have.GetUID(), version: have.GetResourceVersion(), hash: hash, at: w.now(),
	}
}

// behind says that an object is older than what our own last write of it left.
func (w *Writer) behind(have client.Object) bool {
	gvk, err := apiutil.GVKForObject(have, w.client.Scheme())
	if err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m, known := w.memo[memoKey{kind: gvk.Kind, name: client.ObjectKeyFromObject(have)}]
	return known && m.newerThan(have)
}

// awaited says that an object from the cache is older than what our own last write left, and that it may still catch up.
func (w *Writer) awaited(have client.Object) bool {
	gvk, err := apiutil.GVKForObject(have, w.client.Scheme())
	if err != nil {
		return false
	}
	return w.behind(have) && !w.overdue(memoKey{kind: gvk.Kind, name: client.ObjectKeyFromObject(have)}, have)
}

// overdue says that an object from the cache is older than what our own last write left, and has been for too long.
func (w *Writer) overdue(key memoKey, have client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, known := w.memo[key]
	return known && m.newerThan(have) && w.now().Sub(m.at) >= lagLimit
}

// confirm compares what is remembered with what the API server says: of a version that it does not have any more nothing is remembered.
func (w *Writer) confirm(key memoKey, live client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, known := w.memo[key]
	switch {
	case !known:
	case m.newerThan(live):
		delete(w.memo, key)
	default:
		m.at = w.now()
		w.memo[key] = m
	}
}

// newerThan says that the write left a newer version of the same object.
func (m memo) newerThan(have client.Object) bool {
	if m.uid != have.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(have.GetResourceVersion(), m.version)
	return err == nil && order < 0
}

// rememberWrite keeps the version that a write other than Apply left.
func (w *Writer) rememberWrite(have client.Object) {
	gvk, err := apiutil.GVKForObject(have, w.client.Scheme())
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := memoKey{kind: gvk.Kind, name: client.ObjectKeyFromObject(have)}
	cluster := have.GetLabels()[naming.LabelCluster]
	if gvk.GroupKind() == apiv1.GroupVersion.WithKind("PostgreSQLCluster").GroupKind() {
		cluster = have.GetName()
	}
	w.memo[key] = memo{cluster: cluster, uid: have.GetUID(), version: have.GetResourceVersion(), at: w.now()}
}

// foreign says why an existing object must not be taken over, "" when it may.
func foreign(have, want *unstructured.Unstructured) string {
	cluster := want.GetLabels()[naming.LabelCluster]
	if cluster != "" && have.GetLabels()[naming.LabelCluster] != cluster {
		if have.GetLabels()[naming.LabelCluster] == "" && ownedAlike(have, want) {
			return "" // our own object whose label somebody took away
		}
		return fmt.Sprintf("is not labelled %s=%s, so it is not this cluster's", naming.LabelCluster, cluster)
	}
	for _, owner := range have.GetOwnerReferences() {
		if owner.Controller != nil && *owner.Controller && !ownedAlike(have, want) {
			return fmt.Sprintf("is controlled by %s %q", owner.Kind, owner.Name)
		}
	}
	return ""
}

// ownedAlike says whether both have the same controller.
func ownedAlike(have, want *unstructured.Unstructured) bool {
	for _, w := range want.GetOwnerReferences() {
		for _, h := range have.GetOwnerReferences() {
			if w.UID == h.UID && w.Controller != nil && *w.Controller {
				return true
			}
		}
	}
	return false
}
