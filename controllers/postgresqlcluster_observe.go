package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/desired"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
	"github.com/kumki-dev/kumki/internal/plan"
)

// seen are the objects of a cluster as they were found; nil where there is none.
type seen struct {
	set     *appsv1.StatefulSet
	config  *corev1.ConfigMap
	lease   *coordinationv1.Lease
	secrets map[string]*corev1.Secret // by name
	pods    map[string]*corev1.Pod    // by name
	claims  map[string]*corev1.PersistentVolumeClaim
	nodes   map[string]*corev1.Node // nil value: there is no such node
	client  instanceapi.Client      // nil while there is no certificate
}

// observe looks at everything once.
func (p *pass) observe(ctx context.Context) error {
	if err := p.observeObjects(ctx); err != nil {
		return err
	}
	if err := p.observePods(ctx); err != nil {
		return err
	}
	p.view = plan.View{Now: p.r.Now(), Cluster: p.cluster}
	if err := p.readRecord(); err != nil {
		return err
	}
	if err := p.dropStaleLease(ctx); err != nil {
		return err
	}
	p.readConfig()
	if p.seen.set != nil {
		p.view.Set = &plan.Set{Pods: podsOf(p.seen.set)}
	}
	answers := p.askInstances(ctx)
	return p.viewInstances(ctx, answers)
}

func (p *pass) observeObjects(ctx context.Context) error {
	name := p.cluster.Name
	p.seen.set = &appsv1.StatefulSet{}
	p.seen.config = &corev1.ConfigMap{}
	p.seen.lease = &coordinationv1.Lease{}
	var err error
	if p.seen.set, err = found(ctx, p, naming.StatefulSet(name), p.seen.set); err != nil {
		return err
	}
	if p.seen.config, err = found(ctx, p, naming.ConfigMap(name), p.seen.config); err != nil {
		return err
	}
	if p.seen.lease, err = found(ctx, p, naming.Lease(name), p.seen.lease); err != nil {
		return err
	}
	p.seen.secrets = map[string]*corev1.Secret{}
	for _, secret := range []string{
		naming.SecretCA(name), naming.SecretServer(name), naming.SecretPeer(name), naming.SecretOperator(name),
		naming.SecretApp(name), naming.SecretSuperuser(name),
	} {
		if !p.secretNeeded(secret) {
			continue
		}
		s, err := found(ctx, p, secret, &corev1.Secret{})
		if err != nil {
			return err
		}
		if s != nil {
			p.seen.secrets[secret] = s
		}
	}
	return nil
}

// secretNeeded spares the question for Secrets that this cluster does not have.
func (p *pass) secretNeeded(name string) bool {
	switch name {
	case naming.SecretServer(p.cluster.Name):
		return p.cluster.Spec.TLS.ServerSecret == ""
	case naming.SecretSuperuser(p.cluster.Name):
		return p.cluster.Spec.Superuser.RemoteAccess
	}
	return true
}

// found reads an object of the cluster's namespace into into, and returns nil when there is none.
func found[T client.Object](ctx context.Context, p *pass, name string, into T) (T, error) {
	var none T
	err := p.r.Writer.Get(ctx, types.NamespacedName{Namespace: p.cluster.Namespace, Name: name}, into)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, err
	}
	return into, nil
}

func (p *pass) observePods(ctx context.Context) error {
	mine := []client.ListOption{client.InNamespace(p.cluster.Namespace), client.MatchingLabels(desired.Selector(p.cluster.Name))}
	pods, claims := &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}
	if err := p.r.Client.List(ctx, pods, mine...); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	volumes := client.Reader(p.r.Client)
	if p.cluster.Status.SystemIdentifier == "" {
		volumes = p.r.Live // whether a new database may be made depends on them: a cache that lags behind must not hide one
	}
	if err := volumes.List(ctx, claims, mine...); err != nil {
		return fmt.Errorf("list volume claims: %w", err)
	}
	p.seen.pods = map[string]*corev1.Pod{}
	p.seen.claims = map[string]*corev1.PersistentVolumeClaim{}
	p.seen.nodes = map[string]*corev1.Node{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if _, ok := naming.Ordinal(p.cluster.Name, pod.Name); !ok {
			continue
		}
		p.seen.pods[pod.Name] = pod
		if err := p.observeNode(ctx, pod.Spec.NodeName); err != nil {
			return err
		}
	}
	for i := range claims.Items {
		p.seen.claims[claims.Items[i].Name] = &claims.Items[i]
	}
	return nil
}

func (p *pass) observeNode(ctx context.Context, name string) error {
	if _, known := p.seen.nodes[name]; known || name == "" {
		return nil
	}
	node := &corev1.Node{}
	err := p.r.Client.Get(ctx, types.NamespacedName{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		p.seen.nodes[name] = nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", name, err)
	default:
		p.seen.nodes[name] = node
	}
	return nil
}

// readRecord reads the leadership record. A damaged one is an error: nothing is decided in doubt.
func (p *pass) readRecord() error {
	if p.seen.lease == nil {
		return nil
	}
	text := p.seen.lease.Annotations[naming.AnnotationRecord]
	if text == "" {
		return nil
	}
	record := &election.Record{}
	if err := json.Unmarshal([]byte(text), record); err != nil {
		return fmt.Errorf("annotation %s of Lease %s is damaged: %w; restore it, or delete the Lease while no primary runs",
			naming.AnnotationRecord, p.seen.lease.Name, err)
	}
	p.view.Record = record
	return nil
}

// dropStaleLease removes the leadership of an earlier cluster of this name whose volumes are gone: its terms and quorums
// speak of data that is no more. While a volume is left, the record is what tells which copy has every commit.
func (p *pass) dropStaleLease(ctx context.Context) error {
	if p.view.Record == nil || p.seen.set != nil || p.seen.config != nil || len(p.seen.pods)+len(p.seen.claims) > 0 || p.cluster.Status.SystemIdentifier != "" {
		return nil
	}
	if err := p.r.Writer.Delete(ctx, p.seen.lease); err != nil {
		return err
	}
	p.event(eventStaleLease, "Removed the leadership record of an earlier cluster of this name, of which no volume is left")
	return errWait
}

// readConfig reads what the instances were last given. What cannot be read is as good as none: it is written anew.
func (p *pass) readConfig() {
	if p.seen.config == nil {
		return
	}
	config := &instanceapi.Config{}
	if err := json.Unmarshal([]byte(p.seen.config.Data[naming.KeyConfig]), config); err == nil && len(config.Members) > 0 {
		p.view.Config = config
	}
}

// askInstances asks the instances whose pods have an address.
func (p *pass) askInstances(ctx context.Context) map[string]answer {
	secret := p.seen.secrets[naming.SecretOperator(p.cluster.Name)]
	if secret == nil {
		return nil
	}
	c, err := p.r.Instances.Client(p.key(), secret.Data)
	if err != nil {
		return nil // the certificate is made anew by the phase that comes
	}
	p.seen.client = c
	var pods []*corev1.Pod
	for _, pod := range p.seen.pods {
		if pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning {
			pods = append(pods, pod)
		}
	}
	return askAll(ctx, c, pods)
}

// viewInstances makes plan's view of every instance that is declared or of which something is left.
func (p *pass) viewInstances(ctx context.Context, answers map[string]answer) error {
	ordinals := map[int]bool{}
	for i := range int(p.cluster.Spec.Replicas) {
		ordinals[i] = true
	}
	for name := range p.seen.pods {
		n, _ := naming.Ordinal(p.cluster.Name, name)
		ordinals[n] = true
	}
	if p.view.Config != nil {
		for i := range p.view.Config.Members {
			ordinals[i] = true
		}
	}
	claims := map[int][]plan.Claim{}
	for _, claim := range p.seen.claims {
		n, volume, ok := claimOf(p.cluster.Name, claim.Name)
		if ok {
			claims[n] = append(claims[n], p.viewClaim(ctx, claim, volume))
			ordinals[n] = true
		}
	}
	for n := range ordinals {
		slices.SortFunc(claims[n], func(a, b plan.Claim) int { return cmp.Compare(a.Name, b.Name) })
		i := plan.Instance{Ordinal: n, Name: naming.Pod(p.cluster.Name, n), Claims: claims[n]}
		if pod := p.seen.pods[i.Name]; pod != nil {
			i.Pod = viewPod(pod)
			node, err := p.viewNodeOf(ctx, pod)
			if err != nil {
				return err
			}
			i.Node = node
		}
		if a, asked := answers[i.Name]; asked {
			i.Status = a.status
			if a.err != nil {
				i.Silence = a.err.Error()
			}
		}
		p.view.Instances = append(p.view.Instances, i)
	}
	slices.SortFunc(p.view.Instances, func(a, b plan.Instance) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return nil
}

// secretSet is the data of the operator-made certificates as found.
func (p *pass) secretSet() pki.Set {
	data := func(name string) map[string][]byte {
		if s := p.seen.secrets[name]; s != nil {
			return s.Data
		}
		return nil
	}
	name := p.cluster.Name
	return pki.Set{
		CA: data(naming.SecretCA(name)), Server: data(naming.SecretServer(name)),
		Peer: data(naming.SecretPeer(name)), Operator: data(naming.SecretOperator(name)),
	}
}
