package controllers

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/plan"
)

// report writes the status once, whatever became of the pass.
func (p *pass) report(ctx context.Context, failed error) error {
	if failed != nil {
		reason := apiv1.ReasonReconcileError
		var refused *refusedError
		if errors.As(failed, &refused) {
			reason = refused.finding.Reason
		}
		p.facts.Failed = &plan.Finding{Reason: reason, Message: failed.Error()}
	}
	if p.view.Cluster == nil { // it failed before anything was seen
		p.view = plan.View{Now: p.r.Now(), Cluster: p.cluster}
	}
	after := p.before.DeepCopy()
	after.Status = plan.Report(p.view, p.decision, p.facts)
	written, err := p.r.Writer.PatchStatus(ctx, p.before, after)
	if err != nil || !written {
		return err
	}
	p.tell(p.before, after)
	return nil
}

// tell records an event for each condition that turned.
func (p *pass) tell(before, after *apiv1.PostgreSQLCluster) {
	type turn struct {
		kind     string
		yes, no  *event
		atBirth  bool // tell also when there was no such condition before and it is now True
		noAtOnce bool // tell False also when there was none before
	}
	for _, t := range []turn{
		{kind: apiv1.ConditionReady, yes: &eventReady, no: &eventNotReady, atBirth: true},
		{kind: apiv1.ConditionDegraded, yes: &eventDegraded, no: &eventRecovered, atBirth: true},
		{kind: apiv1.ConditionConfigurationValid, yes: &eventConfigurationValid, no: &eventConfigurationBad, noAtOnce: true},
		{kind: apiv1.ConditionSuspended, yes: &eventSuspended, no: &eventResuming, atBirth: true},
	} {
		was := meta.FindStatusCondition(before.Status.Conditions, t.kind)
		is := meta.FindStatusCondition(after.Status.Conditions, t.kind)
		switch {
		case is == nil || (was != nil && was.Status == is.Status):
		case is.Status == metav1.ConditionTrue && (was != nil || t.atBirth):
			p.event(*t.yes, "%s", is.Message)
		case is.Reason == apiv1.ReasonSuspended: // it was asked for; the condition Suspended tells when it is done
		case is.Status == metav1.ConditionFalse && (was != nil || t.noAtOnce):
			p.event(*t.no, "%s", is.Message)
		}
	}
	if primary := after.Status.Primary; primary != "" && after.Status.Term != before.Status.Term {
		p.event(eventPrimaryChanged, "The primary is %s (term %d)", primary, after.Status.Term)
	}
}

// finalizeWithin bounds the wait for a clean shutdown of a cluster that is deleted.
const finalizeWithin = 60

// finalize lets a cluster go: volumes that are kept get a clean shutdown first, for a bounded time; then its volumes are given
// away or left, and Kubernetes collects what it owns. The Lease goes with the volumes and stays with them: its record says
// which copy has every commit.
func (p *pass) finalize(ctx context.Context) (ctrl.Result, error) {
	if err := p.observeForEnd(ctx); err != nil {
		return ctrl.Result{}, err
	}
	keep := p.cluster.Spec.Storage.ReclaimPolicy != apiv1.ReclaimDelete
	age := p.r.Now().Sub(p.cluster.DeletionTimestamp.Time).Seconds()
	if keep && age < finalizeWithin && p.seen.config != nil && p.view.Config != nil {
		stopped, err := p.stop(ctx)
		if err != nil {
			logf.FromContext(ctx).Info("the shutdown of the deleted cluster cannot be asked for", "error", err.Error())
		}
		if err == nil && !stopped {
			return ctrl.Result{RequeueAfter: retrySoon * 5}, nil
		}
	}
	if err := p.ownVolumes(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if !keep && p.seen.lease != nil && p.seen.lease.Labels[naming.LabelCluster] == p.cluster.Name {
		if err := p.r.Writer.Delete(ctx, p.seen.lease); err != nil {
			return ctrl.Result{RequeueAfter: retrySoon}, nil //nolint:nilerr // the holder renewed it in between: look again
		}
	}
	var left []string
	for _, f := range p.cluster.Finalizers {
		if f != naming.Finalizer {
			left = append(left, f)
		}
	}
	_, err := p.r.Writer.SetFinalizers(ctx, p.before, left)
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// observeForEnd looks at the cluster; a leadership record that cannot be read does not keep it from being deleted.
func (p *pass) observeForEnd(ctx context.Context) error {
	err := p.observe(ctx)
	if errors.Is(err, errWait) || (err != nil && p.seen.pods != nil) {
		return nil
	}
	return err
}

// stop asks for the shutdown of all instances, and says whether PostgreSQL is down everywhere.
func (p *pass) stop(ctx context.Context) (bool, error) {
	p.cluster.Spec.Suspend = true
	d := plan.Decide(p.view)
	if d.Pods == 0 {
		return true, nil
	}
	if !p.view.Config.Suspend {
		p.event(eventDeleting, "Shutting PostgreSQL down before the pods go; volumes are kept")
		if err := p.configure(ctx); err != nil {
			return false, err
		}
		if err := p.suspendOnly(ctx, d); err != nil {
			return false, err
		}
	}
	return false, p.refresh(ctx)
}
