// Package controllers reconciles Kumki's kinds: observe once, decide purely (internal/plan), then apply, act and report.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/desired"
	"github.com/kumki-dev/kumki/internal/kube"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
	"github.com/kumki-dev/kumki/internal/plan"
)

// Settings of the operator that hold for all clusters.
type Settings struct {
	// OperatorImage holds the binaries that database pods run.
	OperatorImage string
	// PostgreSQLImages are the default images by major version.
	PostgreSQLImages map[int]string
	// OpenShift: the platform chooses user and groups of pods.
	OpenShift bool
	// OperatorNamespace is where the operator runs, "" outside of Kubernetes.
	OperatorNamespace string
}

// ClusterReconciler makes PostgreSQLClusters be what they are declared to be.
type ClusterReconciler struct {
	Settings
	// Client reads from the cache, Live from the API server; all writes go through Writer.
	Client client.Client
	Live   client.Reader
	Writer *kube.Writer
	// Instances reaches the instances of clusters.
	Instances Instances
	Recorder  events.EventRecorder
	Now       func() time.Time

	mu     sync.Mutex
	recent map[types.NamespacedName]attempt
	unwell map[types.NamespacedName]map[string]time.Time
}

// attempt is the last action that was asked of an instance.
type attempt struct {
	action plan.Action
	at     time.Time
}

// The operator can only give the database pods' Role what it may do itself: update of Leases and Services is for them.
// +kubebuilder:rbac:groups=databases.kumki.dev,resources=postgresqlclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=databases.kumki.dev,resources=postgresqlclusters/status,verbs=patch
// +kubebuilder:rbac:groups=databases.kumki.dev,resources=postgresqlclusters/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile looks at one cluster, does the next thing, and reports.
func (r *ClusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster := &apiv1.PostgreSQLCluster{}
	if err := r.Writer.Get(ctx, req.NamespacedName, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	p := &pass{r: r, before: cluster, cluster: cluster.DeepCopy()}
	if !cluster.DeletionTimestamp.IsZero() {
		return p.finalize(ctx)
	}
	return p.run(ctx)
}

// pass is one look at one cluster, with what was found and decided.
type pass struct {
	r       *ClusterReconciler
	before  *apiv1.PostgreSQLCluster // shared with the cache, never changed
	cluster *apiv1.PostgreSQLCluster // its status is filled in as the pass goes

	seen     seen
	view     plan.View
	input    desired.Input
	decision plan.Decision
	facts    plan.Facts
	certs    pki.Result
}

// phase is one step of a pass. An error ends the pass; the status says so.
type phase struct {
	name string
	do   func(*pass, context.Context) error
}

// phases in their order. What a phase needs, an earlier one has filled in.
var phases = []phase{
	{"finalizer", (*pass).claimFinalizer},
	{"observe", (*pass).observe},
	{"configuration", (*pass).configure},
	{"certificates", (*pass).certify},
	{"decide", (*pass).decide},
	{"objects", (*pass).applyObjects},
	{"pods", (*pass).markPods},
	{"volumes", (*pass).applyVolumes},
	{"action", (*pass).act},
}

// errWait ends a pass early without being a failure: what was begun has to be seen first.
var errWait = errors.New("waiting")

func (p *pass) run(ctx context.Context) (ctrl.Result, error) {
	var failed error
	for _, step := range phases {
		if failed = step.do(p, ctx); failed != nil {
			if !errors.Is(failed, errWait) {
				failed = fmt.Errorf("%s: %w", step.name, failed)
			}
			break
		}
	}
	if apierrors.IsConflict(failed) { // somebody was faster: look again, nothing is wrong
		logf.FromContext(ctx).V(1).Info("looking again", "because", failed.Error())
		return ctrl.Result{RequeueAfter: retrySoon}, nil
	}
	if errors.Is(failed, errWait) {
		return ctrl.Result{RequeueAfter: retrySoon}, nil
	}
	if apierrors.HasStatusCause(failed, corev1.NamespaceTerminatingCause) { // the cluster's own deletion comes next
		return ctrl.Result{RequeueAfter: retrySoon * 10}, nil
	}
	if err := p.report(ctx, failed); err != nil {
		return ctrl.Result{}, errors.Join(failed, err)
	}
	if failed != nil {
		return ctrl.Result{}, failed
	}
	return ctrl.Result{RequeueAfter: p.next()}, nil
}

// retrySoon is when a pass that was overtaken looks again.
const retrySoon = 200 * time.Millisecond

// next is when to look again at the latest.
func (p *pass) next() time.Duration {
	after := p.decision.After
	if due := p.certs.Next; !due.IsZero() {
		after = min(after, max(due.Sub(p.view.Now), time.Second))
	}
	return after
}

// claimFinalizer makes sure that a deletion waits for us.
func (p *pass) claimFinalizer(ctx context.Context) error {
	for _, f := range p.cluster.Finalizers {
		if f == naming.Finalizer {
			return nil
		}
	}
	_, err := p.r.Writer.SetFinalizers(ctx, p.before, append(p.cluster.Finalizers, naming.Finalizer))
	if err != nil {
		return err
	}
	return errWait
}

// decide asks plan what to do.
func (p *pass) decide(context.Context) error {
	p.view.Template = desired.TemplateHash(p.input)
	if p.seen.set != nil {
		p.view.Set = viewSet(p.seen.set, desired.StatefulSet(p.input))
	}
	p.r.rememberUnwell(p.key(), &p.view)
	p.decision = plan.Decide(p.view)
	return nil
}

// forget drops what is remembered of a cluster that is gone.
func (r *ClusterReconciler) forget(key types.NamespacedName) {
	r.Writer.Forget(key)
	r.Instances.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.recent, key)
	delete(r.unwell, key)
}

// rememberUnwell tells since when each instance has not done its work: what is seen once may be over at the next look.
func (r *ClusterReconciler) rememberUnwell(key types.NamespacedName, v *plan.View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := map[string]time.Time{}
	for _, name := range plan.Unwell(*v) {
		since[name] = v.Now
		if before, ok := r.unwell[key][name]; ok {
			since[name] = before
		}
	}
	if r.unwell == nil {
		r.unwell = map[types.NamespacedName]map[string]time.Time{}
	}
	r.unwell[key] = since
	for i := range v.Instances {
		v.Instances[i].UnwellSince = since[v.Instances[i].Name]
	}
}

// repeated says whether the same action was asked for shortly before; if not, it is remembered. An instance takes a moment until its
// state shows what it was asked.
func (r *ClusterReconciler) repeated(key types.NamespacedName, action plan.Action) bool {
	const moment = 5 * time.Second
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	if last, ok := r.recent[key]; ok && last.action == action && now.Sub(last.at) < moment {
		return true
	}
	if r.recent == nil {
		r.recent = map[types.NamespacedName]attempt{}
	}
	r.recent[key] = attempt{action: action, at: now}
	return false
}

func (p *pass) key() types.NamespacedName { return client.ObjectKeyFromObject(p.before) }

// event records an event about the cluster.
func (p *pass) event(e event, format string, args ...any) {
	kind := corev1.EventTypeNormal
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	p.r.Recorder.Eventf(p.before, nil, kind, e.reason, e.action, format, args...)
}
