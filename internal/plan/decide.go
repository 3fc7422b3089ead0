package plan

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

// Finding is a reason (a constant of package api/v1) and what to say about it to people.
type Finding struct {
	Reason, Message string
}

// ActionKind says what to do.
type ActionKind string

// Values of ActionKind.
const (
	// DeletePod: delete the pod of Instance, the StatefulSet makes a new one.
	DeletePod ActionKind = "DeletePod"
	// Handover: ask Instance, the primary, to hand over to To.
	Handover ActionKind = "Handover"
	// RestartPostgreSQL: ask Instance to restart PostgreSQL.
	RestartPostgreSQL ActionKind = "RestartPostgreSQL"
	// ReplaceInstance: delete the volumes of Instance and its pod without waiting for its kubelet.
	ReplaceInstance ActionKind = "ReplaceInstance"
	// SettleSwitchover: the request for a switchover is done or cannot be done; take it off the cluster.
	SettleSwitchover ActionKind = "SettleSwitchover"
	// ChooseSwitchover: the request leaves the choice open; write To into it.
	ChooseSwitchover ActionKind = "ChooseSwitchover"
)

// Action is one thing to do that disturbs the cluster. At most one is under way in a cluster.
type Action struct {
	Kind     ActionKind
	Instance string
	To       string
	// Done: SettleSwitchover after success.
	Done bool
	// Force: RestartPostgreSQL although no parameter waits for it.
	Force bool
	// Why is for events and the instance's log.
	Why string
}

// Resize asks for a bigger volume.
type Resize struct {
	Claim string
	Size  resource.Quantity
}

// Decision is what to do now.
type Decision struct {
	// Members is the number of instances that know of each other.
	Members int
	// Pods is how many pods the StatefulSet is to keep.
	Pods int
	// Suspend asks the instances to stop PostgreSQL.
	Suspend bool
	// RecreateSet: delete the StatefulSet without its pods, because its volume claim templates cannot change; the next one adopts them.
	RecreateSet bool
	// Resizes are volumes to grow.
	Resizes []Resize
	// SurplusClaims are volumes of instances that were scaled away, to be deleted.
	SurplusClaims []string
	// Action to carry out after everything is applied; nil for none.
	Action *Action
	// Progress says what is under way; nil when nothing is.
	Progress *Finding
	// Troubles are what is broken, worst first.
	Troubles []Finding
	// After is when to look again at the latest.
	After time.Duration
}

// How often a cluster is looked at without any event.
const (
	whenSettled = 10 * time.Second
	whenBusy    = time.Second
)

// step is what a check asks for: an action, or to wait, and what to say about it.
type step struct {
	action   *Action
	progress *Finding
	trouble  *Finding
	// again is when the check wants to be asked again; zero: no matter.
	again time.Duration
}

// checks of planned work that disturbs the cluster, in order of precedence. The first that has something to do or to wait for
// decides, so there are never two disturbances at a time.
var checks = []func(View) *step{
	replaceLost,
	unlock,
	switchover,
	rollout,
	restart,
	drain,
}

// Decide returns what to do now.
func Decide(v View) Decision {
	d := Decision{After: whenSettled}
	busy := decideSize(v, &d)
	decideVolumes(v, &d)
	d.Troubles = append(d.Troubles, findTroubles(v, d)...)
	if !busy && !d.Suspend {
		for _, check := range checks {
			if s := check(v); s != nil {
				d.take(s)
				if s.action != nil || s.progress != nil {
					break
				}
			}
		}
	}
	if d.Progress == nil {
		d.Progress = settling(v, d)
	}
	if d.Progress != nil || d.Action != nil {
		d.After = min(d.After, whenBusy)
	}
	return d
}

func (d *Decision) take(s *step) {
	if s.action != nil {
		d.Action = s.action
	}
	if s.progress != nil {
		d.Progress = s.progress
	}
	if s.trouble != nil {
		// What stopped because of an instance says why the instance is not ready, and what to do: it is not said twice.
		d.Troubles = append(slices.DeleteFunc(d.Troubles, func(f Finding) bool {
			return f.Reason == apiv1.ReasonInstancesNotReady && strings.Contains(s.trouble.Message, f.Message)
		}), *s.trouble)
	}
	if s.again > 0 {
		d.After = min(d.After, s.again)
	}
}

// settling tells what the cluster is still waiting for when no planned work is under way.
func settling(v View, d Decision) *Finding {
	if d.Suspend {
		return nil
	}
	var waiting []string
	if v.primary() == nil {
		waiting = append(waiting, "a primary")
	}
	for _, i := range v.wanted(d.Members) {
		if why := v.unhealthy(i); why != "" {
			waiting = append(waiting, i.Name+": "+why)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	before := meta.FindStatusCondition(v.Cluster.Status.Conditions, apiv1.ConditionProgressing)
	switch {
	case v.Cluster.Status.SystemIdentifier == "" && v.Record == nil:
		return &Finding{apiv1.ReasonProvisioning, "the first instance makes the database"}
	case meta.IsStatusConditionTrue(v.Cluster.Status.Conditions, apiv1.ConditionSuspended):
		return &Finding{apiv1.ReasonResuming, list("waiting for", waiting)}
	case before != nil && before.Status == metav1.ConditionTrue:
		return &Finding{before.Reason, list("waiting for", waiting)} // planned work ends when all are well again
	case v.Cluster.Status.ObservedGeneration == 0:
		return &Finding{apiv1.ReasonProvisioning, list("waiting for", waiting)}
	}
	return nil
}
