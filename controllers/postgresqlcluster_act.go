package controllers

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/plan"
)

// applyVolumes makes volumes go with the cluster or stay, grows them, and deletes those of instances that were scaled away.
func (p *pass) applyVolumes(ctx context.Context) error {
	if err := p.ownVolumes(ctx); err != nil {
		return err
	}
	for _, r := range p.decision.Resizes {
		claim := p.seen.claims[r.Claim]
		p.event(eventGrowingVolume, "Growing volume %s from %s to %s", r.Claim, claim.Spec.Resources.Requests.Storage(), &r.Size)
		err := p.r.Writer.ResizeClaim(ctx, claim, r.Size)
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			p.facts.Troubles = append(p.facts.Troubles, plan.Finding{Reason: apiv1.ReasonVolumeNotGrown, Message: fmt.Sprintf("volume %s: %s", r.Claim, message(err))})
			continue
		}
		if err != nil {
			return err
		}
	}
	for _, name := range p.decision.SurplusClaims {
		p.event(eventDeletingVolume, "Deleting volume %s: its instance was scaled away and the reclaim policy is Delete", name)
		if err := p.r.Writer.Delete(ctx, p.seen.claims[name]); err != nil {
			return err
		}
	}
	return nil
}

// ownVolumes gives the volumes an owner when they are to be deleted with the cluster, and none when they are to stay.
func (p *pass) ownVolumes(ctx context.Context) error {
	mine := metav1.OwnerReference{
		APIVersion: apiv1.GroupVersion.String(), Kind: "PostgreSQLCluster", Name: p.cluster.Name, UID: p.cluster.UID,
	}
	for _, claim := range p.seen.claims {
		if !claim.DeletionTimestamp.IsZero() {
			continue
		}
		owners := []metav1.OwnerReference{}
		for _, o := range claim.OwnerReferences { // an owner of that name with another UID was an earlier cluster
			if o.Kind != mine.Kind || o.Name != mine.Name {
				owners = append(owners, o)
			}
		}
		if p.cluster.Spec.Storage.ReclaimPolicy == apiv1.ReclaimDelete {
			owners = append(owners, mine)
		}
		if _, err := p.r.Writer.SetOwners(ctx, claim, owners); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// act carries out the one action that was decided.
func (p *pass) act(ctx context.Context) error {
	a := p.decision.Action
	if a == nil || p.decision.RecreateSet {
		return nil
	}
	switch a.Kind {
	case plan.DeletePod:
		return p.deletePod(ctx, a)
	case plan.Handover:
		return p.handover(ctx, a)
	case plan.RestartPostgreSQL:
		return p.restart(ctx, a)
	case plan.ReplaceInstance:
		return p.replace(ctx, a)
	case plan.ChooseSwitchover:
		return p.r.Writer.SetAnnotation(ctx, p.before, naming.AnnotationSwitchover, &a.To)
	case plan.SettleSwitchover:
		if a.Done {
			p.event(eventSwitchoverDone, "Switchover is done: %s", a.Why)
		} else {
			p.event(eventSwitchoverRefused, "Switchover to %q is refused: %s", a.To, a.Why)
		}
		return p.r.Writer.SetAnnotation(ctx, p.before, naming.AnnotationSwitchover, nil)
	}
	return fmt.Errorf("unknown action %q: this is a fault of the operator, please report it", a.Kind)
}

func (p *pass) deletePod(ctx context.Context, a *plan.Action) error {
	pod := p.seen.pods[a.Instance]
	if pod == nil {
		return nil
	}
	p.event(eventReplacingPod, "Replacing pod %s: %s", a.Instance, a.Why)
	return p.r.Writer.Delete(ctx, pod)
}

// handover asks the primary to hand over. Its refusal is no failure of ours: the next look decides anew.
func (p *pass) handover(ctx context.Context, a *plan.Action) error {
	pod := p.seen.pods[a.Instance]
	if pod == nil || p.seen.client == nil || p.r.repeated(p.key(), *a) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, err := p.seen.client.Handover(ctx, target(pod), instanceapi.HandoverRequest{To: a.To, Reason: a.Why})
	switch {
	case err != nil:
		p.event(eventHandoverRefused, "%s was asked to hand over to %s: %s", a.Instance, a.To, err.Error())
	case reply.Error != "":
		p.event(eventHandoverRefused, "%s does not hand over to %s: %s", a.Instance, a.To, reply.Error)
	default:
		p.event(eventHandover, "%s hands over to %s: %s", a.Instance, a.To, a.Why)
	}
	return nil
}

func (p *pass) restart(ctx context.Context, a *plan.Action) error {
	pod := p.seen.pods[a.Instance]
	if pod == nil || p.seen.client == nil || p.r.repeated(p.key(), *a) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := p.seen.client.Restart(ctx, target(pod), instanceapi.RestartRequest{Reason: a.Why, PendingOnly: !a.Force}); err != nil {
		p.event(eventRestartRefused, "%s was asked to restart PostgreSQL: %s", a.Instance, err.Error())
		return nil
	}
	p.event(eventRestarting, "Restarting PostgreSQL of %s: %s", a.Instance, a.Why)
	return nil
}

// replace gives up an instance on a lost node. Its claims go first: they stay until the pod is gone, and the new pod must not get them.
func (p *pass) replace(ctx context.Context, a *plan.Action) error {
	n, _ := naming.Ordinal(p.cluster.Name, a.Instance)
	p.event(eventReplacingInstance, "Replacing %s with its volumes: %s", a.Instance, a.Why)
	for _, volume := range []string{naming.VolumeData, naming.VolumeWAL} {
		if claim := p.seen.claims[naming.PVC(volume, p.cluster.Name, n)]; claim != nil {
			if err := p.r.Writer.Delete(ctx, claim); err != nil {
				return err
			}
		}
	}
	if pod := p.seen.pods[a.Instance]; pod != nil {
		return p.r.Writer.DeleteNow(ctx, pod)
	}
	return nil
}

// message is what the API server says, without our own words around it.
func message(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}
