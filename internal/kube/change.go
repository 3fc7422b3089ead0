package kube

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Delete deletes the very object that was looked at: same UID and same resource version. An object that is gone or going
// already is success; one that changed since is an error (apierrors.IsConflict): look again first.
func (w *Writer) Delete(ctx context.Context, seen client.Object, opts ...client.DeleteOption) error {
	if !seen.GetDeletionTimestamp().IsZero() && len(opts) == 0 {
		return nil
	}
	uid, version := seen.GetUID(), seen.GetResourceVersion()
	opts = append(opts, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if err := w.client.Delete(ctx, seen, opts...); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %T %s: %w", seen, seen.GetName(), err)
	}
	return nil
}

// DeleteOrphan deletes an object and leaves what it owns: the pods of a StatefulSet run on and are adopted by the next one.
func (w *Writer) DeleteOrphan(ctx context.Context, seen client.Object) error {
	if !seen.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return w.Delete(ctx, seen, client.PropagationPolicy(metav1.DeletePropagationOrphan))
}

// DeleteNow deletes a pod without waiting for its kubelet, which is known to be lost. The container may still run: only
// leadership tells whether it may serve.
func (w *Writer) DeleteNow(ctx context.Context, seen *corev1.Pod) error {
	uid := seen.GetUID()
	err := w.client.Delete(ctx, seen, client.GracePeriodSeconds(0), client.Preconditions{UID: &uid})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s at once: %w", seen.Name, err)
	}
	return nil
}

// MarkPod sets labels and annotations of a pod, unless it has them. Nothing else of the pod is touched.
func (w *Writer) MarkPod(ctx context.Context, seen *corev1.Pod, labels, annotations map[string]string) (bool, error) {
	if hasAll(seen.Labels, labels) && hasAll(seen.Annotations, annotations) || w.awaited(seen) {
		return false, nil
	}
	patch := map[string]any{"metadata": map[string]any{
		"uid": seen.UID, "labels": labels, "annotations": annotations, // another UID is another pod: refused
	}}
	return true, w.merge(ctx, seen, patch)
}

// ResizeClaim asks for a bigger volume. The error is apierrors.IsForbidden or IsInvalid when its class does not allow it.
func (w *Writer) ResizeClaim(ctx context.Context, seen *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	if have := seen.Spec.Resources.Requests[corev1.ResourceStorage]; have.Cmp(size) >= 0 {
		return nil
	}
	return w.merge(ctx, seen, map[string]any{
		"metadata": map[string]any{"uid": seen.UID},
		"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": size.String()}}},
	})
}

// SetOwners replaces the owner references of an object and, when not nil, sets labels, if that changes anything.
func (w *Writer) SetOwners(ctx context.Context, seen client.Object, owners []metav1.OwnerReference) (bool, error) {
	if equality.Semantic.DeepEqual(seen.GetOwnerReferences(), owners) || len(seen.GetOwnerReferences())+len(owners) == 0 {
		return false, nil
	}
	return true, w.merge(ctx, seen, map[string]any{"metadata": map[string]any{
		"uid": seen.GetUID(), "resourceVersion": seen.GetResourceVersion(), "ownerReferences": owners,
	}})
}

// SetFinalizers replaces the finalizers of an object, if that changes anything.
func (w *Writer) SetFinalizers(ctx context.Context, seen client.Object, finalizers []string) (bool, error) {
	if equality.Semantic.DeepEqual(seen.GetFinalizers(), finalizers) || len(seen.GetFinalizers())+len(finalizers) == 0 {
		return false, nil
	}
	return true, w.merge(ctx, seen, map[string]any{"metadata": map[string]any{
		"uid": seen.GetUID(), "resourceVersion": seen.GetResourceVersion(), "finalizers": finalizers,
	}})
}

// SetAnnotation sets an annotation of an object, or removes it when value is nil.
func (w *Writer) SetAnnotation(ctx context.Context, seen client.Object, key string, value *string) error {
	have, ok := seen.GetAnnotations()[key]
	if (value == nil && !ok) || (value != nil && ok && have == *value) {
		return nil
	}
	return w.merge(ctx, seen, map[string]any{"metadata": map[string]any{
		"uid": seen.GetUID(), "annotations": map[string]any{key: value},
	}})
}

// PatchStatus writes what differs between two states of a cluster's status; nothing is sent when they are alike.
func (w *Writer) PatchStatus(ctx context.Context, before, after *apiv1.PostgreSQLCluster) (bool, error) {
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return false, nil
	}
	written := after.DeepCopy()
	if err := w.client.Status().Patch(ctx, written, client.MergeFrom(before)); err != nil {
		return false, fmt.Errorf("patch status of cluster %s: %w", after.Name, err)
	}
	w.rememberWrite(written)
	return true, nil
}

// merge sends a JSON merge patch. It works on a copy: objects from a cache are shared.
func (w *Writer) merge(ctx context.Context, seen client.Object, patch map[string]any) error {
	encoded, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patch %T %s: %w", seen, seen.GetName(), err)
	}
	object := seen.DeepCopyObject().(client.Object)
	if err := w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, encoded), client.FieldOwner(naming.FieldManager)); err != nil {
		return fmt.Errorf("patch %T %s: %w", seen, seen.GetName(), err)
	}
	w.rememberWrite(object)
	return nil
}

func hasAll(have, want map[string]string) bool {
	for key, value := range want {
		if got, ok := have[key]; !ok || got != value {
			return false
		}
	}
	return true
}
