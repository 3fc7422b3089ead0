package storage

import (
	"context"
	"encoding/json"
	"log"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// expand grows the volume of a claim that asks for more than it has, then says so in the volume and the
// claim. The order matters: a capacity that is reported is there.
func (c *Controller) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	wanted := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	has := claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || wanted.Cmp(has) <= 0 {
		return nil
	}
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	if v.Annotations[provisionedBy] != Provisioner {
		return nil
	}
	node, err := nodeOf(v)
	if err != nil {
		return err
	}
	if err := c.disks.grow(ctx, node, v.Name, v.Spec.StorageClassName, wanted.Value()); err != nil {
		return err
	}
	patch, err := capacityPatch("spec", wanted)
	if err != nil {
		return err
	}
	if _, err := c.client.CoreV1().PersistentVolumes().Patch(
		ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if patch, err = capacityPatch("status", wanted); err != nil {
		return err
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(
		ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		log.Printf("expanded %s from %s to %s for %s/%s", v.Name, has.String(), wanted.String(), claim.Namespace, claim.Name)
	}
	return err
}

func capacityPatch(section string, size resource.Quantity) ([]byte, error) {
	return json.Marshal(map[string]any{
		section: map[string]any{"capacity": corev1.ResourceList{corev1.ResourceStorage: size}},
	})
}

// reclaim deletes a volume whose claim is gone. The data goes first: without the volume object, nothing would
// know of the data any more.
func (c *Controller) reclaim(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Annotations[provisionedBy] != Provisioner || v.Status.Phase != corev1.VolumeReleased ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || v.DeletionTimestamp != nil {
		return nil
	}
	node, err := nodeOf(v)
	if err != nil {
		return err
	}
	if err := c.disks.remove(ctx, node, v.Name, v.Spec.StorageClassName); err != nil {
		return err
	}
	log.Printf("removed %s", v.Name)
	return c.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})
}
