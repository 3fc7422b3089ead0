package storage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

func TestVolumeNamesItsClaimAndNode(t *testing.T) {
	t.Setenv("KUMKI_STATE", "/state")
	node := layout.Node{Index: 2}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid"},
		Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
	class := &storagev1.StorageClass{
		ObjectMeta:    metav1.ObjectMeta{Name: ClassStandard},
		ReclaimPolicy: new(corev1.PersistentVolumeReclaimRetain),
	}
	v := volume("pvc-uid", node.Dir("volumes", "pvc-uid"), node, claim, class)
	if v.Spec.ClaimRef.UID != "uid" || v.Spec.ClaimRef.Namespace != "ns" || v.Spec.ClaimRef.Name != "data" {
		t.Errorf("another claim could take it: %+v", v.Spec.ClaimRef)
	}
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Error("the class wants its volumes kept")
	}
	if got, err := nodeOf(v); err != nil || got != node {
		t.Errorf("nodeOf = %v, %v; want %v", got, err, node)
	}
}

func TestNodeOfForeignVolume(t *testing.T) {
	t.Setenv("KUMKI_STATE", "/state")
	for _, path := range []string{"/etc", "/state/nodes", "/state/nodes/other/volumes/x", "/state/nodes/../../etc"} {
		v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
		}}
		if n, err := nodeOf(v); err == nil {
			t.Errorf("%s: taken for a volume of %s", path, n.Name())
		}
	}
}

func TestCapacityPatch(t *testing.T) {
	got, err := capacityPatch("status", resource.MustParse("2Gi"))
	if err != nil || string(got) != `{"status":{"capacity":{"storage":"2Gi"}}}` {
		t.Errorf("got %s, %v", got, err)
	}
}
