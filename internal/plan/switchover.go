package plan

import (
	"fmt"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

func nodeAny(*Instance) bool { return true }

// switchoverAny leaves the choice of the successor to the operator.
const switchoverAny = "any"

// switchover hands over as a person asked by annotation.
func switchover(v View) *step {
	to := v.annotation(naming.AnnotationSwitchover)
	if to == "" {
		return nil
	}
	p := v.primary()
	say := func(format string, args ...any) *Finding {
		return &Finding{apiv1.ReasonSwitchover, fmt.Sprintf(format, args...)}
	}
	ordinal, ok := naming.Ordinal(v.Cluster.Name, to)
	switch {
	case to != switchoverAny && (!ok || ordinal >= v.members()):
		return &step{action: &Action{Kind: SettleSwitchover, To: to, Why: fmt.Sprintf("%q is no instance of this cluster", to)}}
	case v.members() < 2:
		return &step{action: &Action{Kind: SettleSwitchover, To: to, Why: "the cluster has one instance: nobody can follow it"}}
	case p == nil:
		return &step{progress: say("waiting for a primary")}
	case to == p.Name:
		return &step{action: &Action{Kind: SettleSwitchover, Instance: p.Name, To: to, Done: true, Why: to + " is the primary"}}
	case to == switchoverAny:
		best := v.preferGoodNode(nodeAny)
		if best == nil {
			return &step{progress: say("waiting for a standby that can follow %s", p.Name)}
		}
		return &step{action: &Action{Kind: ChooseSwitchover, Instance: p.Name, To: best.Name}, progress: say("handing over from %s to %s", p.Name, best.Name)}
	}
	target := v.find(to)
	if target == nil {
		return &step{progress: say("waiting for %s: it has no pod", to)}
	}
	if why := v.unhealthy(target); why != "" {
		return &step{progress: say("waiting for %s: %s", to, why)}
	}
	return &step{action: &Action{Kind: Handover, Instance: p.Name, To: to, Why: "switchover"}, progress: say("handing over from %s to %s", p.Name, to)}
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
