package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Postgres is one PostgreSQLCluster of a test.
type Postgres struct {
	*Bed
	Namespace, Name string
	// dir holds files for clients: the CA certificate.
	dir string
}

// NewNamespace makes a namespace for a test. It admits only pods that keep to the strictest security level.
func (b *Bed) NewNamespace(ctx context.Context, prefix string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: prefix + "-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "kumki.dev/test": "true"},
	}}
	err := b.Client.Create(ctx, ns)
	return ns.Name, err
}

// DeleteNamespace asks for the deletion of a test's namespace and all in it.
func (b *Bed) DeleteNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return client.IgnoreNotFound(b.Client.Delete(ctx, ns))
}

// NewPostgres makes a PostgreSQLCluster; dir is for files that clients need. Volumes are small, and go with the cluster.
func (b *Bed) NewPostgres(ctx context.Context, namespace, dir string, spec databasesv1.PostgreSQLClusterSpec) (*Postgres, error) {
	p := &Postgres{Bed: b, Namespace: namespace, Name: "pg", dir: dir}
	if spec.Storage.Size.IsZero() {
		spec.Storage.Size = resource.MustParse("1Gi")
	}
	if spec.Storage.ReclaimPolicy == "" {
		spec.Storage.ReclaimPolicy = databasesv1.ReclaimDelete
	}
	return p, b.Client.Create(ctx, &databasesv1.PostgreSQLCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.Name}, Spec: spec,
	})
}

// AdoptPostgres is for a PostgreSQLCluster that was made by other means.
func (b *Bed) AdoptPostgres(namespace, name, dir string) *Postgres {
	return &Postgres{Bed: b, Namespace: namespace, Name: name, dir: dir}
}

func (p *Postgres) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: p.Namespace, Name: name}
}

// Get returns the PostgreSQLCluster.
func (p *Postgres) Get(ctx context.Context) (*databasesv1.PostgreSQLCluster, error) {
	cluster := &databasesv1.PostgreSQLCluster{}
	err := p.Client.Get(ctx, p.key(p.Name), cluster)
	return cluster, err
}

// Change changes the PostgreSQLCluster and returns its new generation.
func (p *Postgres) Change(ctx context.Context, change func(*databasesv1.PostgreSQLCluster)) (int64, error) {
	var generation int64
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		cluster, err := p.Get(ctx)
		if err != nil {
			return err
		}
		change(cluster)
		err = p.Client.Update(ctx, cluster)
		generation = cluster.Generation
		return err
	})
	return generation, err
}

// Condition returns a condition; one that is absent is Unknown.
func (p *Postgres) Condition(ctx context.Context, kind string) (metav1.Condition, error) {
	cluster, err := p.Get(ctx)
	if err != nil {
		return metav1.Condition{}, err
	}
	if c := meta.FindStatusCondition(cluster.Status.Conditions, kind); c != nil {
		return *c, nil
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}, nil
}

// Settled fails unless the newest generation is applied, every declared instance is ready and a failover would lose nothing.
func (p *Postgres) Settled(ctx context.Context) error {
	cluster, err := p.Get(ctx)
	if err != nil {
		return err
	}
	status, wanted := &cluster.Status, cluster.Spec.Replicas
	if status.ObservedGeneration != cluster.Generation {
		return fmt.Errorf("generation %d is not applied yet, %d is: %s", cluster.Generation, status.ObservedGeneration, conditions(cluster))
	}
	if status.ReadyReplicas != wanted || status.Replicas != wanted || len(status.Instances) != int(wanted) {
		return fmt.Errorf("%d of %d pods are ready, want %d: %s", status.ReadyReplicas, status.Replicas, wanted, conditions(cluster))
	}
	if status.SystemIdentifier == "" {
		return errors.New("the status does not name the database yet, so nothing keeps an empty volume from becoming another one")
	}
	if !meta.IsStatusConditionTrue(status.Conditions, databasesv1.ConditionReady) {
		return errors.New("not ready: " + conditions(cluster))
	}
	if wanted > 1 && cluster.Spec.Replication.Durability != databasesv1.DurabilityAsynchronous &&
		!meta.IsStatusConditionTrue(status.Conditions, databasesv1.ConditionFailoverReady) {
		return errors.New("not ready for a failover: " + conditions(cluster))
	}
	if err := p.PodsSettled(ctx, int(wanted)); err != nil {
		return err
	}
	return p.fresh(ctx, cluster)
}

// fresh fails when the status is older than the record of leadership, as it is while the operator is away or cut off; and unless a failover
// could lead to any standby.
func (p *Postgres) fresh(ctx context.Context, cluster *databasesv1.PostgreSQLCluster) error {
	record, err := p.Record(ctx)
	if err != nil {
		return err
	}
	if cluster.Status.Term != record.Term || cluster.Status.Primary != record.Holder {
		return fmt.Errorf("the status tells of term %d with %s, leadership is in term %d with %s",
			cluster.Status.Term, cluster.Status.Primary, record.Term, record.Holder)
	}
	standbys := int(cluster.Spec.Replicas) - 1
	if cluster.Spec.Replication.Durability != databasesv1.DurabilityAsynchronous && standbys > 0 &&
		(len(record.Quorums) != 1 || len(record.Quorums[0].Standbys) != standbys) {
		return fmt.Errorf("the recorded quorums are %v, want one of all %d standbys", record.Quorums, standbys)
	}
	return nil
}

// PodsSettled fails unless that many pods are ready and one of them leads. It does not take the operator's word for it.
func (p *Postgres) PodsSettled(ctx context.Context, wanted int) error {
	pods, err := p.Pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		if !PodReady(&pods[i]) || pods[i].DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is not ready", pods[i].Name)
		}
	}
	if len(pods) != wanted {
		return fmt.Errorf("%d pods, want %d", len(pods), wanted)
	}
	record, err := p.Record(ctx)
	if err != nil {
		return err
	}
	if record.Released != nil {
		return errors.New("leadership is vacant")
	}
	if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return string(pod.UID) == record.HolderUID }) {
		return fmt.Errorf("leadership is still with a former pod of the name %s", record.Holder)
	}
	return nil
}

func conditions(cluster *databasesv1.PostgreSQLCluster) string {
	text := "phase " + cluster.Status.Phase
	for _, c := range cluster.Status.Conditions {
		text += fmt.Sprintf("; %s=%s %s %q", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// Pods returns the pods of the instances, by name.
func (p *Postgres) Pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := p.Client.List(ctx, &list, client.InNamespace(p.Namespace), client.MatchingLabels{
		naming.LabelCluster: p.Name, naming.LabelComponent: naming.ValueDatabase,
	})
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		x, _ := naming.Ordinal(p.Name, a.Name)
		y, _ := naming.Ordinal(p.Name, b.Name)
		return x - y
	})
	return list.Items, err
}

// Pod returns one pod.
func (p *Postgres) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.Client.Get(ctx, p.key(name), pod)
	return pod, err
}

// Record returns the leadership record.
func (p *Postgres) Record(ctx context.Context) (election.Record, error) {
	var lease coordinationv1.Lease
	var record election.Record
	if err := p.Client.Get(ctx, p.key(naming.Lease(p.Name)), &lease); err != nil {
		return record, err
	}
	text := lease.Annotations[naming.AnnotationRecord]
	if text == "" {
		return record, errors.New("the Lease has no leadership record")
	}
	return record, json.Unmarshal([]byte(text), &record)
}

// Primary returns the pod that holds leadership.
func (p *Postgres) Primary(ctx context.Context) (*corev1.Pod, error) {
	record, err := p.Record(ctx)
	if err != nil {
		return nil, err
	}
	if record.Released != nil {
		return nil, errors.New("leadership is vacant")
	}
	pod, err := p.Pod(ctx, record.Holder)
	if err == nil && string(pod.UID) != record.HolderUID {
		err = fmt.Errorf("leadership is still with a former pod of the name %s", pod.Name)
	}
	return pod, err
}

// Standbys returns the pods that do not hold leadership.
func (p *Postgres) Standbys(ctx context.Context) ([]corev1.Pod, error) {
	primary, err := p.Primary(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := p.Pods(ctx)
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.UID == primary.UID }), err
}
