package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

func nodeAny(*Instance) bool { return true }

// switchoverAny leaves the choice of the successor to the operator.
const switchoverAny = "any"

// switchover hands over as a person asked by annotation. It waits for what comes right by itself, and no longer: other planned work waits
// for it, also the work that would mend the instance that it waits for.
func switchover(v View) *step {
	to := v.annotation(naming.AnnotationSwitchover)
	if to == "" {
		return nil
	}
	p := v.primary()
	ordinal, ok := naming.Ordinal(v.Cluster.Name, to)
	switch {
	case to != switchoverAny && (!ok || ordinal >= v.members()):
		return refuseSwitchover(to, "%q is no instance of this cluster", to)
	case v.members() < 2:
		return refuseSwitchover(to, "the cluster has one instance: nobody can follow it")
	case p == nil:
		return v.awaitPrimary(to)
	case to == p.Name:
		return &step{action: &Action{Kind: SettleSwitchover, Instance: p.Name, To: to, Done: true, Why: to + " is the primary"}}
	case to == switchoverAny:
		return v.chooseSwitchover(p)
	}
	target := v.find(to)
	if target == nil {
		return refuseSwitchover(to, "it has neither pod nor volume")
	}
	if why := v.unhealthy(target); why != "" {
		if v.hopeless(target) {
			return refuseSwitchover(to, "%s; ask again when it is well", why)
		}
		return &step{progress: switching("waiting for %s: %s", to, why)}
	}
	return &step{
		action:   &Action{Kind: Handover, Instance: p.Name, To: to, Why: "switchover"},
		progress: switching("handing over from %s to %s", p.Name, to),
	}
}

func switching(format string, args ...any) *Finding {
	return &Finding{apiv1.ReasonSwitchover, fmt.Sprintf(format, args...)}
}

func refuseSwitchover(to, format string, args ...any) *step {
	return &step{action: &Action{Kind: SettleSwitchover, To: to, Why: fmt.Sprintf(format, args...)}}
}

// awaitPrimary waits for a primary, unless there has been none for long or a pod has to be replaced for there to be one.
func (v View) awaitPrimary(to string) *step {
	for _, i := range v.wanted(v.members()) {
		if v.outdated(i) && v.useless(i) {
			return refuseSwitchover(to, "there is no primary, and %s has to be replaced first; ask again when there is one", i.Name)
		}
	}
	ready := meta.FindStatusCondition(v.Cluster.Status.Conditions, apiv1.ConditionReady)
	if ready != nil && ready.Reason == apiv1.ReasonNoPrimary && v.Now.Sub(ready.LastTransitionTime.Time) >= patience {
		return refuseSwitchover(to, "there is no primary that could hand over; ask again when there is one")
	}
	return &step{progress: switching("waiting for a primary")}
}

// chooseSwitchover chooses who follows the primary p when a person leaves it open.
func (v View) chooseSwitchover(p *Instance) *step {
	if best := v.preferGoodNode(nodeAny); best != nil {
		return &step{
			action:   &Action{Kind: ChooseSwitchover, Instance: p.Name, To: best.Name},
			progress: switching("handing over from %s to %s", p.Name, best.Name),
		}
	}
	var why []string
	for _, i := range v.wanted(v.members()) {
		if i.Name == p.Name {
			continue
		}
		if !v.hopeless(i) {
			return &step{progress: switching("waiting for a standby that can follow %s", p.Name)}
		}
		why = append(why, i.Name+": "+v.unhealthy(i))
	}
	return refuseSwitchover(switchoverAny, "%s; ask again when one is well", list("no standby can follow:", why))
}

// hopeless says that an instance that is not healthy does not become so by waiting: its pod has to be replaced or cannot start, or it has
// been unwell for longer than our patience.
func (v View) hopeless(i *Instance) bool {
	return v.outdated(i) || (i.Pod != nil && slices.Contains(stuck, i.Pod.Waiting)) || v.unwellFor(i) >= patience
}

// drain moves the primary from a node that is being emptied to one that is not, before the eviction does it the hard way.
func drain(v View) *step {
	p := v.primary()
	if p == nil || p.Node == nil || (!p.Node.Cordoned && !p.Node.OutOfService) {
		return nil
	}
	to := v.successor(nodeGood)
	if to == nil {
		return nil // nowhere to go is no reason to call for help: the node may come back into use
	}
	return &step{
		action:   &Action{Kind: Handover, Instance: p.Name, To: to.Name, Why: "node " + p.Node.Name + " is being emptied"},
		progress: &Finding{apiv1.ReasonSwitchover, fmt.Sprintf("handing over from %s to %s: node %s is being emptied", p.Name, to.Name, p.Node.Name)},
	}
}
