package controllers

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/plan"
)

func podsOf(set *appsv1.StatefulSet) int32 {
	if set.Spec.Replicas == nil {
		return 1
	}
	return *set.Spec.Replicas
}

// viewSet compares the StatefulSet with the one that is wanted.
func viewSet(have, want *appsv1.StatefulSet) *plan.Set {
	out := &plan.Set{Pods: podsOf(have), Terminating: !have.DeletionTimestamp.IsZero()}
	if len(have.Spec.VolumeClaimTemplates) != len(want.Spec.VolumeClaimTemplates) {
		out.ClaimsDiffer = true
		return out
	}
	for i := range want.Spec.VolumeClaimTemplates {
		a, b := have.Spec.VolumeClaimTemplates[i].Spec, want.Spec.VolumeClaimTemplates[i].Spec
		if a.Resources.Requests.Storage().Cmp(*b.Resources.Requests.Storage()) != 0 {
			out.ClaimsDiffer = true
		}
	}
	return out
}

func viewPod(pod *corev1.Pod) *plan.Pod {
	out := &plan.Pod{
		UID:         string(pod.UID),
		Terminating: !pod.DeletionTimestamp.IsZero(),
		Template:    pod.Annotations[naming.AnnotationTemplateHash],
		ReadySince:  pod.CreationTimestamp.Time,
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			out.Ready, out.ReadySince = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			out.Unscheduled, out.UnscheduledSince, out.Message = true, c.LastTransitionTime.Time, c.Message
		}
	}
	if out.ReadySince.IsZero() {
		out.ReadySince = pod.CreationTimestamp.Time
	}
	for _, status := range append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...) {
		if status.Name == naming.ContainerDB && status.State.Running != nil {
			out.Running = true
		}
		if w := status.State.Waiting; w != nil && out.Waiting == "" {
			out.Waiting, out.Message = w.Reason, w.Message
		}
	}
	if out.Running { // an init container that is over may show as waiting for a moment
		out.Waiting = ""
	}
	return out
}

// viewNodeOf is the node that a pod runs on; of a pod that no node fits, the node that its data volume is bound to.
func (p *pass) viewNodeOf(ctx context.Context, pod *corev1.Pod) (*plan.Node, error) {
	name := pod.Spec.NodeName
	if name == "" {
		var err error
		if name, err = p.boundNode(ctx, pod); err != nil || name == "" {
			return nil, err
		}
		if err := p.observeNode(ctx, name); err != nil {
			return nil, err
		}
	}
	return viewNode(name, p.seen.nodes[name]), nil
}

func viewNode(name string, node *corev1.Node) *plan.Node {
	if node == nil {
		return &plan.Node{Name: name, Gone: true}
	}
	out := &plan.Node{Name: name, Cordoned: node.Spec.Unschedulable}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready = c.Status == corev1.ConditionTrue
			if !out.Ready {
				out.NotReadySince = c.LastTransitionTime.Time
			}
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			out.OutOfService = true
		}
	}
	return out
}

// boundNode is the node that a waiting pod's data is on, "" when it can go anywhere.
func (p *pass) boundNode(ctx context.Context, pod *corev1.Pod) (string, error) {
	n, _ := naming.Ordinal(p.cluster.Name, pod.Name)
	claim := p.seen.claims[naming.PVC(naming.VolumeData, p.cluster.Name, n)]
	if claim == nil || claim.Spec.VolumeName == "" {
		return "", nil
	}
	volume := &corev1.PersistentVolume{}
	if err := p.r.Live.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, volume); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("read volume %s: %w", claim.Spec.VolumeName, err)
	}
	return nodeOfVolume(volume), nil
}

// nodeOfVolume is the one node that a local volume can be used from, "" when there is more than one.
// https://kubernetes.io/docs/concepts/storage/volumes/#local
func nodeOfVolume(volume *corev1.PersistentVolume) string {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range append(term.MatchExpressions, term.MatchFields...) {
			byName := e.Key == corev1.LabelHostname || e.Key == "metadata.name"
			if byName && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// claimOf splits the name of a volume claim.
func claimOf(cluster, name string) (ordinal int, volume string, ok bool) {
	for _, volume := range []string{naming.VolumeData, naming.VolumeWAL} {
		pod, cut := strings.CutPrefix(name, volume+"-")
		if !cut {
			continue
		}
		if n, ok := naming.Ordinal(cluster, pod); ok {
			return n, volume, true
		}
	}
	return 0, "", false
}

func (p *pass) viewClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume string) plan.Claim {
	out := plan.Claim{
		Name: claim.Name, UID: string(claim.UID), Volume: volume, Terminating: !claim.DeletionTimestamp.IsZero(),
		Created:   claim.CreationTimestamp.Time,
		Requested: *claim.Spec.Resources.Requests.Storage(), Capacity: *claim.Status.Capacity.Storage(),
	}
	size := p.cluster.Spec.Storage.Size
	if volume == naming.VolumeWAL && p.cluster.Spec.Storage.WALStorage != nil {
		size = p.cluster.Spec.Storage.WALStorage.Size
	}
	if out.Requested.Cmp(size) < 0 {
		out.Fixed = p.cannotGrow(ctx, claim)
	}
	return out
}

// cannotGrow says whether the claim's class is known not to let it grow; in doubt it is tried.
func (p *pass) cannotGrow(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	if claim.Spec.StorageClassName == nil {
		return false
	}
	if *claim.Spec.StorageClassName == "" {
		return true
	}
	class := &storagev1.StorageClass{}
	if err := p.r.Live.Get(ctx, client.ObjectKey{Name: *claim.Spec.StorageClassName}, class); err != nil {
		return apierrors.IsNotFound(err)
	}
	return class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion
}
