// Package storage provisions volumes on the nodes: directories, or small file systems of their own.
package storage

import (
	"context"
	"fmt"
	"log"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Names of the provisioner and the classes that it serves.
const (
	Provisioner   = "localkube.kumki.dev/volumes"
	ClassStandard = "standard"
	ClassSmallFS  = "small-fs"

	selectedNode  = "volume.kubernetes.io/selected-node"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
)

// Controller provisions, expands and reclaims volumes. It looks at everything each time something changes:
// a test cluster has few volumes.
type Controller struct {
	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	disks   disks
	wake    chan struct{}
}

// disks makes the volumes themselves. All methods may be called again after they succeeded or were cut short.
type disks interface {
	// create makes a volume that any user may write to and returns its path on the node.
	create(ctx context.Context, n layout.Node, name, class string, bytes int64) (string, error)
	// grow makes an existing volume, which may be in use, at least so large.
	grow(ctx context.Context, n layout.Node, name, class string, bytes int64) error
	// remove removes a volume with its data.
	remove(ctx context.Context, n layout.Node, name, class string) error
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	c := &Controller{
		client:  client,
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		classes: factory.Storage().V1().StorageClasses().Lister(),
		disks:   nodeDisks{},
		wake:    make(chan struct{}, 1),
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().PersistentVolumeClaims().Informer(),
		factory.Core().V1().PersistentVolumes().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { c.trigger() },
			UpdateFunc: func(any, any) { c.trigger() },
			DeleteFunc: func(any) { c.trigger() },
		})
		if err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		if !c.pass(ctx) {
			time.AfterFunc(time.Second, c.trigger)
		}
	}
}

func (c *Controller) trigger() {
	select {
	case c.wake <- struct{}{}:
	default: // a pass is due anyway
	}
}

// pass does what is due, and tells whether all of it succeeded.
func (c *Controller) pass(ctx context.Context) bool {
	ok := true
	report := func(what, name string, err error) {
		// A conflict or a late cache is no failure: the next event brings the next pass.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			log.Printf("%s %s: %v", what, name, err)
			ok = false
		}
	}
	claims, err := c.claims.List(labels.Everything())
	report("list", "claims", err)
	for _, claim := range claims {
		report("provision", claim.Namespace+"/"+claim.Name, c.provision(ctx, claim))
		report("expand", claim.Namespace+"/"+claim.Name, c.expand(ctx, claim))
	}
	volumes, err := c.volumes.List(labels.Everything())
	report("list", "volumes", err)
	for _, volume := range volumes {
		report("reclaim", volume.Name, c.reclaim(ctx, volume))
	}
	return ok
}

// provision makes the volume of a claim for which the scheduler has chosen a node.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	nodeName := claim.Annotations[selectedNode]
	if claim.Spec.VolumeName != "" || nodeName == "" || claim.Spec.StorageClassName == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	class, err := c.classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != Provisioner {
		return err
	}
	name := "pvc-" + string(claim.UID)
	if _, err := c.volumes.Get(name); err == nil {
		return nil // the claim will be bound to it
	}
	node, err := layout.NodeByName(nodeName)
	if err != nil {
		return err
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	path, err := c.disks.create(ctx, node, name, class.Name, size.Value())
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().PersistentVolumes().Create(ctx, volume(name, path, node, claim, class), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err == nil {
		log.Printf("provisioned %s (%s, %s) on %s for %s/%s", name, class.Name, size.String(), nodeName, claim.Namespace, claim.Name)
	}
	return err
}

func volume(
	name, path string, node layout.Node, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
) *corev1.PersistentVolume {
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			VolumeMode:                    new(corev1.PersistentVolumeFilesystem),
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			// Of the types that live on a node, only this one honours fsGroup.
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name()},
				}}}},
			}},
		},
	}
}

// nodeOf returns the node of a volume of ours; its path says it.
func nodeOf(v *corev1.PersistentVolume) (layout.Node, error) {
	if v.Spec.Local == nil {
		return layout.Node{}, fmt.Errorf("it is not a local volume")
	}
	nodesDir := layout.State("nodes")
	rel, err := filepath.Rel(nodesDir, v.Spec.Local.Path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return layout.Node{}, fmt.Errorf("its path %s is not below %s", v.Spec.Local.Path, nodesDir)
	}
	name, _, _ := strings.Cut(rel, "/")
	return layout.NodeByName(name)
}
