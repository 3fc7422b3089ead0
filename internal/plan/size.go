package plan

import (
	"fmt"
	"slices"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// decideSize sets how many members and pods there are to be, and whether PostgreSQL is to stop. It says whether other planned
// work has to wait.
func decideSize(v View, d *Decision) bool {
	switch {
	case v.suspended():
		suspend(v, d)
		return true
	case v.members() == 0: // a new cluster, or its configuration was lost
		d.Members = v.lostMembers()
		d.Pods = d.Members
		return false
	case v.declared() >= v.members():
		d.Members, d.Pods = v.declared(), v.declared()
		if v.pods() > d.Pods {
			return leave(v, d)
		}
		if v.declared() > v.members() {
			d.Progress = &Finding{apiv1.ReasonScaling, fmt.Sprintf("from %d to %d instances", v.members(), v.declared())}
		}
		if leaving := surplusPods(v); len(leaving) > 0 {
			d.Progress = &Finding{apiv1.ReasonScaling, list("waiting for the end of", leaving)}
		}
		d.SurplusClaims = surplusClaims(v)
		return false
	default:
		d.Pods = max(v.pods(), v.members())
		if v.pods() == 0 { // it is waking up: first all that there were, then fewer
			d.Pods = v.members()
		}
		return shrink(v, d)
	}
}

// shrink lets the surplus instances go from the membership as soon as the primary is one of those that stay, and
// those that stay are fit to carry on.
func shrink(v View, d *Decision) bool {
	d.Members = v.members()
	d.Progress = &Finding{Reason: apiv1.ReasonScaling}
	p := v.primary()
	if p == nil {
		d.Progress.Message = fmt.Sprintf("from %d to %d instances: waiting for a primary", v.members(), v.declared())
		return true
	}
	stays := func(i *Instance) bool { return i.Ordinal < v.declared() }
	if !stays(p) {
		to := v.successor(stays)
		if to == nil {
			d.Progress.Message = fmt.Sprintf("the primary %s is to go, and no instance that stays is ready to follow it", p.Name)
			return true
		}
		d.Action = &Action{Kind: Handover, Instance: p.Name, To: to.Name, Why: "scale-down"}
		d.Progress.Message = fmt.Sprintf("handing over from %s to %s, which stays", p.Name, to.Name)
		return true
	}
	if v.declared() > 1 && v.successor(stays) == nil && v.successor(nil) != nil {
		d.Progress.Message = "waiting until a standby that stays has caught up: the only good copies besides the primary are on instances that are to go"
		return true
	}
	d.Members = v.declared()
	d.Progress.Message = fmt.Sprintf("from %d to %d instances: taking the others out of the quorum", v.members(), v.declared())
	return true
}

// leave takes the pods of former members away once no commit waits for them any more and leadership cannot be theirs.
func leave(v View, d *Decision) bool {
	d.Progress = &Finding{Reason: apiv1.ReasonScaling}
	keep := v.pods()
	p := v.primary()
	switch {
	case p == nil:
		d.Progress.Message = "waiting for a primary before pods of former members go"
	case p.Ordinal >= d.Members:
		to := v.successor(nil)
		if to == nil {
			d.Progress.Message = fmt.Sprintf("the primary %s is to go, and no instance that stays is ready to follow it", p.Name)
			break
		}
		d.Action = &Action{Kind: Handover, Instance: p.Name, To: to.Name, Why: "scale-down"}
		d.Progress.Message = fmt.Sprintf("handing over from %s to %s, which stays", p.Name, to.Name)
	case !v.recordWithout(d.Members):
		d.Progress.Message = "waiting until the primary's quorum is without the instances that go"
	default:
		d.Progress.Message = fmt.Sprintf("removing pods from %s on", naming.Pod(v.Cluster.Name, d.Members))
		d.Pods = d.Members
		return true
	}
	d.Pods = keep
	return true
}

// recordWithout says whether neither the members nor any quorum of the record names an instance with an ordinal from n on.
func (v View) recordWithout(n int) bool {
	goes := func(name string) bool {
		ordinal, ok := naming.Ordinal(v.Cluster.Name, name)
		return !ok || ordinal >= n
	}
	if slices.ContainsFunc(v.Record.Members, goes) {
		return false
	}
	for _, quorum := range v.Record.Quorums {
		if slices.ContainsFunc(quorum.Standbys, goes) {
			return false
		}
	}
	return true
}

// surplusPods are those of instances that are not declared.
func surplusPods(v View) []string {
	var out []string
	for _, i := range v.Instances {
		if i.Ordinal >= v.declared() && i.Pod != nil {
			out = append(out, i.Name)
		}
	}
	return out
}

// surplusClaims are the volumes of instances that were scaled away and whose pods are gone, if the policy is to delete them. Nothing is
// deleted unless a healthy primary that stays has the data at this moment, and no quorum of the record needs the others.
func surplusClaims(v View) []string {
	if v.Cluster.Spec.Storage.ReclaimPolicy != apiv1.ReclaimDelete || v.Set == nil || v.pods() > v.declared() {
		return nil
	}
	if p := v.primary(); p == nil || p.Ordinal >= v.declared() || !v.healthy(p) || !v.recordWithout(v.declared()) {
		return nil
	}
	var out []string
	for _, i := range v.Instances {
		if i.Ordinal < v.declared() || i.Pod != nil {
			continue
		}
		for _, c := range i.Claims {
			if !c.Terminating {
				out = append(out, c.Name)
			}
		}
	}
	return out
}

// suspend stops PostgreSQL everywhere, and takes the pods away once it is down. The membership stays as it is.
func suspend(v View, d *Decision) {
	d.Suspend = true
	d.Members = v.members()
	if d.Members == 0 {
		d.Members = v.lostMembers()
	}
	d.Pods = v.pods()
	if v.pods() == 0 {
		if left := podsLeft(v); left > 0 {
			d.Progress = &Finding{apiv1.ReasonSuspending, fmt.Sprintf("%d pods are still there", left)}
		}
		return
	}
	var waiting []string
	for i := range v.Instances {
		if why := running(v, &v.Instances[i]); why != "" {
			waiting = append(waiting, v.Instances[i].Name+": "+why)
		}
	}
	if len(waiting) > 0 {
		d.Progress = &Finding{apiv1.ReasonSuspending, list("waiting for a clean shutdown of", waiting)}
		return
	}
	d.Pods = 0
	d.Progress = &Finding{apiv1.ReasonSuspending, "PostgreSQL is down everywhere; removing the pods"}
}

// running says why PostgreSQL may still run in an instance, "" when it does not. A pod that is on a lost node or whose container never
// started does not keep the others waiting; the one that leads always does.
func running(v View, i *Instance) string {
	if i.Pod == nil {
		return ""
	}
	leads := v.leader() == i.Name && v.Record.HolderUID == i.Pod.UID
	switch {
	case i.Status != nil && i.Status.Primary:
		return "it is still the primary"
	case leads && i.Pod.Running:
		return "it still holds leadership"
	case i.Status != nil:
		switch i.Status.State {
		case instanceapi.StateStopped, instanceapi.StateFenced, instanceapi.StateFailed:
			return ""
		}
		return "it is " + string(i.Status.State)
	case !i.Pod.Running, i.Node != nil && (i.Node.Gone || !i.Node.Ready):
		return ""
	}
	return "it does not answer"
}

func podsLeft(v View) int {
	n := 0
	for _, i := range v.Instances {
		if i.Pod != nil {
			n++
		}
	}
	return n
}
