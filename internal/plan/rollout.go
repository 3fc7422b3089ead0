package plan

import (
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

// patience is how long an instance may take to become healthy again before people are told.
const patience = 5 * time.Minute

// stuck are reasons of a waiting container that do not go away by waiting.
var stuck = []string{
	"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}

// rollout replaces the pods that were made from another template: first those that do no work anyway, then standbys one at a time,
// each only when all others are healthy; then it hands over to a standby that is done, and the former primary comes last.
func rollout(v View) *step {
	members := v.wanted(v.members())
	outdated := filter(members, v.outdated)
	if len(outdated) == 0 {
		return nil
	}
	say := func(format string, args ...any) *Finding {
		return &Finding{apiv1.ReasonRollingUpdate, fmt.Sprintf("%d of %d instances to go: ", len(outdated), len(members)) + fmt.Sprintf(format, args...)}
	}
	if i := last(filter(outdated, v.useless)); i != nil {
		return &step{
			action:   &Action{Kind: DeletePod, Instance: i.Name, Why: "the pod does not run and its template has changed"},
			progress: say("replacing %s, which does not run", i.Name),
		}
	}
	for _, i := range members {
		if why := v.unhealthy(i); why != "" {
			return &step{progress: say("waiting for %s: %s", i.Name, why), trouble: v.halted(i, why)}
		}
	}
	p := v.primary()
	if p == nil {
		return &step{progress: say("waiting for a primary")}
	}
	if i := last(filter(outdated, func(i *Instance) bool { return i.Name != p.Name })); i != nil {
		return &step{action: &Action{Kind: DeletePod, Instance: i.Name, Why: "its template has changed"}, progress: say("replacing %s", i.Name)}
	}
	if len(members) == 1 {
		return &step{action: &Action{Kind: DeletePod, Instance: p.Name, Why: "its template has changed"}, progress: say("replacing %s", p.Name)}
	}
	to := v.preferGoodNode(func(i *Instance) bool { return !v.outdated(i) })
	if to == nil {
		return &step{progress: say("waiting for a standby that can follow %s", p.Name)}
	}
	return &step{action: &Action{Kind: Handover, Instance: p.Name, To: to.Name, Why: "rolling update"}, progress: say("handing over from %s to %s", p.Name, to.Name)}
}

// preferGoodNode is a successor on a node that takes new pods, else any successor.
func (v View) preferGoodNode(fit func(*Instance) bool) *Instance {
	good := v.successor(func(i *Instance) bool { return nodeGood(i) && fit(i) })
	if good != nil {
		return good
	}
	return v.successor(fit)
}

// useless says that a pod runs no PostgreSQL and will not by waiting, so that nothing is lost by replacing it: its container
// cannot start, or the instance has been failed, silent or starting for longer than our patience. The leader never is while its
// container runs, nor is an instance that copies data.
func (v View) useless(i *Instance) bool {
	if i.Pod == nil || i.Pod.Ready || i.Pod.Terminating {
		return false
	}
	if !i.Pod.Running {
		return i.Pod.Waiting != "" || i.Pod.Unscheduled
	}
	if i.Name == v.leader() || (i.Status != nil && i.Status.Primary) {
		return false
	}
	if i.Status != nil && (i.Status.State == instanceapi.StateCloning || i.Status.State == instanceapi.StateRewinding) {
		return false
	}
	return v.unwellFor(i) >= patience
}

// halted says that planned work has stopped because of an instance, nil while it may still come up.
func (v View) halted(i *Instance, why string) *Finding {
	if i.Pod == nil || i.Pod.Terminating || (!slices.Contains(stuck, i.Pod.Waiting) && v.unwellFor(i) < patience) {
		return nil
	}
	return &Finding{apiv1.ReasonRolloutHalted, fmt.Sprintf("the change stopped at %s: %s; correct the cluster's spec, or the instance, and it goes on", i.Name, why)}
}
