package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
)

// ownKinds are the kinds of a cluster's objects. All of them carry naming.LabelCluster.
func ownKinds() []client.Object {
	return []client.Object{
		&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.PersistentVolumeClaim{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.Secret{},
		&corev1.ServiceAccount{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
		&coordinationv1.Lease{},
	}
}

// NewScheme knows the kinds that the operator reads and writes, and no others.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
		networkingv1.AddToScheme, coordinationv1.AddToScheme, storagev1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make the scheme: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme, nil
}

// CacheOptions keep in memory what the operator watches and nothing else: of its clusters' kinds the objects with our label, so that
// foreign Secrets are neither listed nor held, and of nodes what is decided by.
func CacheOptions(namespaces []string) cache.Options {
	ours, err := labels.NewRequirement(naming.LabelCluster, selection.Exists, nil)
	if err != nil {
		panic("controllers: the label is a constant: " + err.Error())
	}
	selector := labels.NewSelector().Add(*ours)
	byObject := map[client.Object]cache.ByObject{}
	for _, kind := range ownKinds() {
		byObject[kind] = cache.ByObject{Label: selector}
	}
	byObject[&corev1.Node{}] = cache.ByObject{Transform: slimNode}
	options := cache.Options{ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields()}
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range namespaces {
			options.DefaultNamespaces[n] = cache.Config{}
		}
	}
	return options
}

// slimNode keeps of a node what is decided by.
func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	slim := &corev1.Node{TypeMeta: node.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, DeletionTimestamp: node.DeletionTimestamp,
	}}
	slim.Spec.Unschedulable = node.Spec.Unschedulable
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			slim.Spec.Taints = append(slim.Spec.Taints, taint)
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.NodeCondition{
				Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime, // no heartbeat: it would make every one a change
			})
		}
	}
	return slim, nil
}

// SetupWithManager registers the reconciler. workers is how many clusters are reconciled at a time.
func (r *ClusterReconciler) SetupWithManager(mgr ctrl.Manager, workers int) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("postgresqlcluster").
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		For(&apiv1.PostgreSQLCluster{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, deleted{},
		))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.clustersOnNode), builder.WithPredicates(changedNode{}))
	for _, kind := range ownKinds() {
		var filter predicate.Predicate = predicate.ResourceVersionChangedPredicate{}
		if _, lease := kind.(*coordinationv1.Lease); lease {
			filter = changedRecord{}
		}
		b = b.Watches(kind, handler.EnqueueRequestsFromMapFunc(clusterOf), builder.WithPredicates(filter))
	}
	return b.Complete(r)
}

// clusterOf is the cluster that an object belongs to by its label.
func clusterOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[naming.LabelCluster]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

// clustersOnNode are the clusters with a pod on a node.
func (r *ClusterReconciler) clustersOnNode(ctx context.Context, node client.Object) []reconcile.Request {
	pods := &corev1.PodList{}
	if err := r.Client.List(ctx, pods); err != nil {
		return nil // the next periodic look finds it
	}
	var out []reconcile.Request
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == node.GetName() {
			out = append(out, clusterOf(ctx, &pods.Items[i])...)
		}
	}
	return out
}

// deleted lets the beginning of a deletion pass, which changes no generation on every version of Kubernetes.
type deleted struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (deleted) Update(e crevent.UpdateEvent) bool {
	return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
}

// changedNode lets pass what is decided by; a node reports every few minutes without saying anything new.
type changedNode struct{ predicate.Funcs }

// Create implements predicate.Predicate: the periodic look finds what was there before.
func (changedNode) Create(crevent.CreateEvent) bool { return false }

// Update implements predicate.Predicate.
func (changedNode) Update(e crevent.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return !ok || !ok2 || !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !equality.Semantic.DeepEqual(before.Status, after.Status)
}

// changedRecord lets pass a change of leadership, not its renewals: there is one every few seconds in every cluster.
type changedRecord struct{ predicate.Funcs }

// Update implements predicate.Predicate.
func (changedRecord) Update(e crevent.UpdateEvent) bool {
	before, after := essence(e.ObjectOld), essence(e.ObjectNew)
	return before == nil || after == nil || !equality.Semantic.DeepEqual(before, after)
}

// essence is the leadership record without what every renewal changes; nil when there is none.
func essence(lease client.Object) *election.Record {
	record := &election.Record{}
	if err := json.Unmarshal([]byte(lease.GetAnnotations()[naming.AnnotationRecord]), record); err != nil {
		return nil
	}
	record.Renewals, record.Position = 0, election.Position{}
	return record
}
