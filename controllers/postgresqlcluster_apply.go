package controllers

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/desired"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
	"github.com/kumki-dev/kumki/internal/plan"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// configure chooses engine and configuration, and fills in what the objects follow from.
func (p *pass) configure(ctx context.Context) error {
	engine, refused := plan.ChooseEngine(p.cluster, p.r.PostgreSQLImages, p.runningEngine())
	if engine.Major == 0 {
		p.facts.Refused = refused
		return &refusedError{finding: *refused}
	}
	p.facts.Engine = engine
	config, problem := plan.ChooseConfiguration(&p.cluster.Spec.PostgreSQL, postgres.Derive(p.resources(engine.Major)), p.view.Config)
	if refused == nil {
		refused = problem
	}
	p.facts.Refused = refused
	p.input = desired.Input{
		Cluster: p.cluster, OperatorImage: p.r.OperatorImage, PostgreSQLImage: engine.Image, MajorVersion: engine.Major,
		SystemIdentifier: plan.SystemIdentifier(p.view), NoBootstrap: len(plan.EarlierData(p.view)) > 0, OpenShift: p.r.OpenShift, OperatorNamespace: p.r.OperatorNamespace,
		Primary: plan.Leader(p.view), StandbyReady: plan.StandbyReady(p.view),
		Parameters: config.Parameters, HBA: config.HBA,
		AppPassword:       p.password(naming.SecretApp(p.cluster.Name)),
		SuperuserPassword: p.password(naming.SecretSuperuser(p.cluster.Name)),
	}
	return p.userSecrets(ctx)
}

// refusedError ends a pass because nothing can be made from what is declared.
type refusedError struct{ finding plan.Finding }

func (e *refusedError) Error() string { return e.finding.Message }

// runningEngine is what the instances run, the zero value before there is a database.
func (p *pass) runningEngine() plan.Engine {
	var out plan.Engine
	if plan.SystemIdentifier(p.view) == "" {
		return out
	}
	if major, err := postgres.MajorVersion(p.cluster.Status.MajorVersion); err == nil {
		out.Major = major
	}
	if p.view.Config != nil && out.Major == 0 {
		out.Major = p.view.Config.MajorVersion
	}
	out.Image = p.cluster.Status.Image
	if p.seen.set != nil {
		for _, c := range p.seen.set.Spec.Template.Spec.Containers {
			if c.Name == naming.ContainerDB {
				out.Image = c.Image
			}
		}
	}
	if out.Image == "" {
		return plan.Engine{}
	}
	return out
}

// resources of an instance that settings are derived from.
func (p *pass) resources(major int) postgres.Resources {
	spec := p.cluster.Spec
	memory := spec.Resources.Limits.Memory()
	if memory.IsZero() {
		memory = spec.Resources.Requests.Memory()
	}
	out := postgres.Resources{
		MemoryBytes: memory.Value(), CPUMilli: spec.Resources.Limits.Cpu().MilliValue(), DataBytes: spec.Storage.Size.Value(), Major: major,
	}
	if spec.Storage.WALStorage != nil {
		out.WALBytes = spec.Storage.WALStorage.Size.Value()
	}
	return out
}

// password is the one in the Secret, whoever set it; a new random one when there is none.
func (p *pass) password(secret string) string {
	if s := p.seen.secrets[secret]; s != nil && len(s.Data[desired.KeyPassword]) > 0 {
		return string(s.Data[desired.KeyPassword])
	}
	return rand.Text()
}

// userSecrets reads the Secrets that the spec names. A missing one is told in the status; pods wait for it by themselves.
func (p *pass) userSecrets(ctx context.Context) error {
	tls := p.cluster.Spec.TLS
	for _, use := range []struct {
		name string
		keys []string
		fit  func(map[string][]byte) error
	}{
		{tls.ServerSecret, []string{pki.KeyCert, pki.KeyKey, pki.KeyCA}, func(d map[string][]byte) error {
			return pki.CheckServer(d[pki.KeyCert], d[pki.KeyKey], d[pki.KeyCA])
		}},
		{tls.ClientCASecret, []string{pki.KeyCA}, func(d map[string][]byte) error { return pki.CheckCA(d[pki.KeyCA]) }},
	} {
		if use.name == "" {
			continue
		}
		secret := &corev1.Secret{}
		err := p.r.Live.Get(ctx, types.NamespacedName{Namespace: p.cluster.Namespace, Name: use.name}, secret)
		if apierrors.IsNotFound(err) {
			p.refuse(apiv1.ReasonSecretMissing, fmt.Sprintf("spec.tls names Secret %q, which does not exist: create it with the keys %s", use.name, strings.Join(use.keys, ", ")))
			continue
		}
		if err != nil {
			return fmt.Errorf("read Secret %s: %w", use.name, err)
		}
		for _, key := range use.keys {
			if len(secret.Data[key]) == 0 {
				p.refuse(apiv1.ReasonSecretInvalid, fmt.Sprintf("Secret %q of spec.tls has no key %s: add it", use.name, key))
			}
		}
		if err := use.fit(secret.Data); err != nil {
			p.refuse(apiv1.ReasonSecretInvalid, fmt.Sprintf("Secret %q of spec.tls cannot be used: %v; the last good one stays in use where it is loaded", use.name, err))
		}
		if use.name == tls.ServerSecret {
			p.input.ServerCA = secret.Data[pki.KeyCA]
		}
	}
	return nil
}

// refuse keeps the first refusal.
func (p *pass) refuse(reason, message string) {
	if p.facts.Refused == nil {
		p.facts.Refused = &plan.Finding{Reason: reason, Message: message}
	}
}

// certify makes and renews the certificates.
func (p *pass) certify(context.Context) error {
	services := make([]string, 0, len(p.cluster.Spec.Service.Additional))
	for _, a := range p.cluster.Spec.Service.Additional {
		services = append(services, desired.AdditionalServiceName(p.cluster.Name, a))
	}
	result, err := pki.Ensure(pki.Request{
		Now: p.view.Now, Cluster: p.cluster.Name, Namespace: p.cluster.Namespace, ServiceNames: services,
		ServerByUser: p.cluster.Spec.TLS.ServerSecret != "",
		Rotate:       p.cluster.Annotations[naming.AnnotationRotateCA],
		Settled:      plan.Settled(p.view),
		Found:        p.secretSet(),
	})
	if err != nil {
		return err
	}
	p.certs = result
	p.input.Certificates = result.Set
	p.facts.CertificatesExpire = result.Expires
	return nil
}

// applyObjects makes the objects be as decided.
func (p *pass) applyObjects(ctx context.Context) error {
	p.input.Members = p.decision.Members
	p.input.Pods = int32(p.decision.Pods)
	p.input.Suspend = p.decision.Suspend
	p.facts.ConfigHash = desired.ConfigHash(desired.ConfigText(p.input))
	p.facts.Selector = metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: desired.Selector(p.cluster.Name)})
	if p.decision.RecreateSet {
		p.event(eventRecreatingSet, "Deleting the StatefulSet without its pods: its volume templates change")
		return p.r.Writer.DeleteOrphan(ctx, p.seen.set)
	}
	if err := p.applyLease(ctx); err != nil {
		return err
	}
	for _, object := range desired.Objects(p.input) {
		if _, err := p.r.Writer.Apply(ctx, object.(client.Object)); err != nil {
			return err
		}
	}
	if len(p.certs.Changes) > 0 {
		p.event(eventCertificates, "%s", strings.Join(p.certs.Changes, "; "))
	}
	return p.deleteSurplus(ctx)
}

// applyLease makes the empty Lease: pods may change the one of that name, and create none. It has no owner, because its
// record is needed as long as a volume is there. A Lease of that name that is somebody else's is an error: leadership must not depend on it.
func (p *pass) applyLease(ctx context.Context) error {
	_, err := p.r.Writer.Apply(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: naming.Lease(p.cluster.Name), Namespace: p.cluster.Namespace, Labels: naming.ClusterLabels(p.cluster.Name),
	}})
	return err
}

// deleteSurplus deletes objects of ours that are not declared any more.
func (p *pass) deleteSurplus(ctx context.Context) error {
	for _, object := range desired.Absent(p.input) {
		if err := p.deleteOwn(ctx, object.(client.Object)); err != nil {
			return err
		}
	}
	declared := map[string]bool{}
	for _, s := range desired.Services(p.input) {
		declared[s.GetName()] = true
	}
	services := &corev1.ServiceList{}
	if err := p.r.Client.List(ctx, services, client.InNamespace(p.cluster.Namespace), client.MatchingLabels{naming.LabelCluster: p.cluster.Name}); err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for i := range services.Items {
		s := &services.Items[i]
		if !declared[s.Name] && metav1.IsControlledBy(s, p.cluster) {
			if err := p.r.Writer.Delete(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteOwn deletes the object of that name if this cluster controls it. The cache knows all of ours.
func (p *pass) deleteOwn(ctx context.Context, object client.Object) error {
	err := p.r.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %T %s: %w", object, object.GetName(), err)
	}
	if !metav1.IsControlledBy(object, p.cluster) {
		return nil
	}
	return p.r.Writer.Delete(ctx, object)
}

// markPods tells each pod's role, for people and for reads, and has its kubelet refresh a changed configuration at once.
func (p *pass) markPods(ctx context.Context) error {
	leader := plan.Leader(p.view)
	for name, pod := range p.seen.pods {
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		labels := map[string]string{}
		switch {
		case name == leader:
			labels[naming.LabelRole] = naming.ValuePrimary
		case leader != "":
			labels[naming.LabelRole] = naming.ValueStandby
		}
		_, err := p.r.Writer.MarkPod(ctx, pod, labels, map[string]string{naming.AnnotationConfigHash: p.facts.ConfigHash})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// suspendOnly writes nothing but the configuration that stops PostgreSQL.
func (p *pass) suspendOnly(ctx context.Context, d plan.Decision) error {
	p.input.Members, p.input.Suspend = d.Members, true
	config := desired.ConfigMap(p.input)
	p.facts.ConfigHash = desired.ConfigHash([]byte(config.Data[naming.KeyConfig]))
	_, err := p.r.Writer.Apply(ctx, config)
	return err
}

// refresh has the kubelets deliver the configuration that is in the ConfigMap.
func (p *pass) refresh(ctx context.Context) error {
	if p.facts.ConfigHash == "" {
		p.facts.ConfigHash = desired.ConfigHash([]byte(p.seen.config.Data[naming.KeyConfig]))
	}
	return p.markPods(ctx)
}
