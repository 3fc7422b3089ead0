package plan

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

// replaceLost replaces an instance whose node has been lost for longer than declared: its volumes and its pod go, and a new pod
// clones the primary. The primary must be up, so what is lost is never a copy that is needed, and the leader is never replaced.
func replaceLost(v View) *step {
	limit := v.Cluster.Spec.NodeLost.ReplaceAfter
	if limit == nil || limit.Duration == 0 || v.Cluster.Status.SystemIdentifier == "" {
		return nil
	}
	p := v.primary()
	if p == nil || !v.healthy(p) {
		return nil // every copy counts as long as nobody leads
	}
	soonest := time.Duration(0)
	for _, i := range v.wanted(v.members()) {
		since, lost := lostSince(i)
		if !lost || since.IsZero() || i.Name == v.leader() {
			continue
		}
		wait := since.Add(limit.Duration).Sub(v.Now)
		if wait <= 0 {
			return &step{
				action: &Action{Kind: ReplaceInstance, Instance: i.Name,
					Why: fmt.Sprintf("node %s has been lost since %s", i.Node.Name, since.UTC().Format(time.RFC3339))},
				progress: &Finding{apiv1.ReasonNodeLost, fmt.Sprintf("replacing %s: its node %s is lost", i.Name, i.Node.Name)},
			}
		}
		if soonest == 0 || wait < soonest {
			soonest = wait
		}
	}
	if soonest == 0 {
		return nil
	}
	return &step{again: soonest}
}

// lostSince says whether the node of an instance is lost, and since when; a zero time when that is not known.
func lostSince(i *Instance) (time.Time, bool) {
	if i.Node == nil || i.Pod == nil {
		return time.Time{}, false
	}
	switch {
	case i.Node.Gone:
		if i.Pod.Unscheduled {
			return i.Pod.UnscheduledSince, true
		}
		return i.Pod.ReadySince, !i.Pod.Ready
	case !i.Node.Ready:
		return i.Node.NotReadySince, true
	}
	return time.Time{}, false
}

// findTroubles tells what is broken, worst first. An instance that was just restarted is not: it gets a minute.
func findTroubles(v View, d Decision) []Finding {
	if d.Suspend || v.Config == nil {
		return nil
	}
	var out []Finding
	if f := earlierData(v); f != nil {
		out = append(out, *f)
	}
	for _, i := range v.wanted(d.Members) {
		if f := trouble(v, i); f != nil {
			out = append(out, *f)
		}
	}
	return out
}

// grace is how long an instance may be unwell without being called broken.
const grace = time.Minute

func trouble(v View, i *Instance) *Finding {
	why := v.unhealthy(i)
	if why == "" || (i.Pod != nil && i.Pod.Terminating && nodeReady(i)) {
		return nil
	}
	if _, lost := lostSince(i); lost {
		return &Finding{apiv1.ReasonNodeLost, fmt.Sprintf("%s is on node %s, which is lost", i.Name, i.Node.Name)}
	}
	if i.Status != nil && i.Status.State == "Failed" {
		return &Finding{failedReason(v), fmt.Sprintf("%s has failed: %s", i.Name, i.Status.Message)}
	}
	if i.Pod == nil || (v.unwellFor(i) < grace && !v.known(i)) {
		return nil
	}
	reason := apiv1.ReasonInstancesNotReady
	switch {
	case i.Pod.Ready && i.Status == nil:
		reason = apiv1.ReasonUnreachable
	case i.Pod.Ready:
		reason = apiv1.ReasonStandbyNotStreaming
	}
	return &Finding{reason, i.Name + ": " + why}
}

// known says that people were told of the instance before, perhaps by an operator process that is gone: the grace is over.
func (v View) known(i *Instance) bool {
	c := meta.FindStatusCondition(v.Cluster.Status.Conditions, apiv1.ConditionDegraded)
	return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, i.Name+": ")
}

func failedReason(v View) string {
	if v.Cluster.Status.SystemIdentifier == "" {
		return apiv1.ReasonBootstrapFailed
	}
	return apiv1.ReasonInstancesNotReady
}

func nodeReady(i *Instance) bool { return i.Node == nil || (i.Node.Ready && !i.Node.Gone) }
