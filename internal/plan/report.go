package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

// Facts are what the caller knows besides the view once it has acted.
type Facts struct {
	// ConfigHash is that of the instance.json that was written.
	ConfigHash string
	// Refused: the declared configuration is not in force, and why.
	Refused *Finding
	// Failed: something could not be done in this pass.
	Failed *Finding
	// Troubles that came up while acting.
	Troubles []Finding
	Engine   Engine
	Selector string
	// CertificatesExpire is when the first operator-made certificate expires; zero when there is none.
	CertificatesExpire time.Time
}

// Report returns the status that tells what was observed and decided.
func Report(v View, d Decision, f Facts) apiv1.PostgreSQLClusterStatus {
	s := *v.Cluster.Status.DeepCopy()
	if f.Refused == nil {
		f.Refused = rejected(v, f.ConfigHash)
	}
	d.Troubles = append(slices.Clone(f.Troubles), d.Troubles...)
	if d.Progress == nil && !d.Suspend {
		d.Progress = reloading(v, f.ConfigHash)
	}
	observed(v, f, &s)
	conditions := []metav1.Condition{
		readyCondition(v, d, f),
		progressing(d),
		degraded(d, f),
		configurationValid(f),
		failoverReady(v, d),
		suspendedCondition(v, d),
	}
	for _, c := range conditions {
		c.ObservedGeneration = v.Cluster.Generation
		c.LastTransitionTime = metav1.NewTime(v.Now)
		meta.SetStatusCondition(&s.Conditions, c)
	}
	s.Phase = phase(v, d, s.Conditions)
	done := f.Failed == nil && f.Refused == nil && d.Progress == nil && d.Action == nil
	if done && (d.Suspend || meta.IsStatusConditionTrue(s.Conditions, apiv1.ConditionReady)) {
		s.ObservedGeneration = v.Cluster.Generation
	}
	return s
}

// observed fills in what was seen.
func observed(v View, f Facts, s *apiv1.PostgreSQLClusterStatus) {
	s.Selector = f.Selector
	s.Replicas, s.ReadyReplicas = 0, 0
	s.Instances = nil
	for i := range v.Instances {
		n := &v.Instances[i]
		if n.Pod == nil {
			continue
		}
		s.Replicas++
		if n.Pod.Ready && !n.Pod.Terminating {
			s.ReadyReplicas++
		}
		s.Instances = append(s.Instances, instanceStatus(v, n))
	}
	s.Ready = fmt.Sprintf("%d/%d", s.ReadyReplicas, v.declared())
	s.Primary = v.leader()
	if v.Record != nil {
		s.Term = v.Record.Term
	}
	if p := v.primary(); p != nil {
		s.Timeline = int64(p.Status.Position.Timeline)
		s.Version = p.Status.Version
	}
	if s.SystemIdentifier == "" {
		s.SystemIdentifier = SystemIdentifier(v)
	}
	if f.Engine.Major != 0 {
		s.MajorVersion = strconv.Itoa(f.Engine.Major)
		s.Image = f.Engine.Image
	}
	s.CertificatesExpireAt = nil
	if !f.CertificatesExpire.IsZero() {
		at := metav1.NewTime(f.CertificatesExpire.UTC().Truncate(time.Second))
		s.CertificatesExpireAt = &at
	}
}

// SystemIdentifier of the database, "" while there is none. The record has it as soon as the first instance leads.
func SystemIdentifier(v View) string {
	if id := v.Cluster.Status.SystemIdentifier; id != "" {
		return id
	}
	if v.Record != nil && v.Record.SystemIdentifier != "" {
		return v.Record.SystemIdentifier
	}
	if p := v.primary(); p != nil {
		return p.Status.SystemIdentifier
	}
	return ""
}

// serving is the instance that holds leadership and accepts writes as far as is known: one that does not answer for a moment, and whose
// pod its kubelet finds ready, still does. nil when there is none.
func (v View) serving() *Instance {
	leader := v.find(v.leader())
	if leader == nil || leader.Pod == nil || !leader.Pod.Ready || leader.Pod.UID != v.Record.HolderUID {
		return nil
	}
	if leader.Status == nil {
		if v.unwellFor(leader) >= grace {
			return nil
		}
		return leader
	}
	return v.primary()
}

// quiet says that what is known of an instance is a moment old: it, or the primary that sees it, has not answered this time.
func (v View) quiet(i *Instance) bool {
	if i.Pod == nil || !i.Pod.Running {
		return false
	}
	if i.Status == nil {
		return v.unwellFor(i) < grace
	}
	s := v.serving()
	return s != nil && s.Status == nil
}

func instanceStatus(v View, i *Instance) apiv1.InstanceStatus {
	for _, before := range v.Cluster.Status.Instances {
		if before.Name == i.Name && v.quiet(i) {
			before.Ready = i.Pod.Ready && !i.Pod.Terminating
			return before
		}
	}
	return freshStatus(v, i)
}

func freshStatus(v View, i *Instance) apiv1.InstanceStatus {
	out := apiv1.InstanceStatus{Name: i.Name, Role: apiv1.RoleUnknown, State: "Unreachable", Ready: i.Pod.Ready && !i.Pod.Terminating}
	if i.Node != nil {
		out.Node = i.Node.Name
	}
	if i.Status == nil {
		switch {
		case i.Pod.Unscheduled:
			out.State, out.Message = "Starting", i.Pod.Message
		case !i.Pod.Running:
			out.State, out.Message = "Starting", i.Pod.Waiting
		default:
			out.Message = "the instance does not answer"
		}
		return out
	}
	out.State = string(i.Status.State)
	out.Message = i.Status.Message
	out.Timeline = int64(i.Status.Position.Timeline)
	out.ManagerVersion = i.Status.ManagerVersion
	out.PendingRestart = i.Status.PendingRestart
	p := v.primary()
	switch {
	case p != nil && p.Name == i.Name:
		out.Role = apiv1.RolePrimary
	case i.Status.State == instanceapi.StateStreaming || i.Status.State == instanceapi.StateStandby || v.leader() != i.Name && v.leader() != "":
		out.Role = apiv1.RoleStandby
	}
	if seen := v.standby(i.Name); seen != nil {
		out.Synchronous = synchronous(seen)
		lag := roundLag(seen.LagBytes)
		out.LagBytes = &lag
	}
	return out
}

// roundLag rounds up to a power of two, and to 0 below 1 MiB, so that the status of a busy cluster keeps still.
func roundLag(lag int64) int64 {
	if lag < 1<<20 {
		return 0
	}
	return 1 << bits.Len64(uint64(lag-1))
}

func condition(kind string, status metav1.ConditionStatus, f Finding) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: f.Reason, Message: f.Message}
}

func readyCondition(v View, d Decision, f Facts) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return condition(apiv1.ConditionReady, metav1.ConditionFalse, Finding{reason, message})
	}
	if d.Suspend {
		return no(apiv1.ReasonSuspended, "the cluster is suspended: set spec.suspend to false to start it")
	}
	if f.Failed != nil && v.Config == nil {
		return no(f.Failed.Reason, f.Failed.Message)
	}
	if p := v.serving(); p == nil || !p.Pod.Ready {
		for i := range v.Instances {
			if s := v.Instances[i].Status; s != nil && s.State == instanceapi.StateFailed && v.Cluster.Status.SystemIdentifier == "" {
				return no(apiv1.ReasonBootstrapFailed, s.Message)
			}
		}
		if f := earlierData(v); f != nil {
			return no(f.Reason, f.Message)
		}
		return no(apiv1.ReasonNoPrimary, "no instance accepts writes")
	}
	var waiting []string
	for _, i := range v.wanted(v.declared()) {
		if i.Pod == nil || !i.Pod.Ready || i.Pod.Terminating {
			waiting = append(waiting, i.Name)
		}
	}
	if len(waiting) > 0 {
		return no(apiv1.ReasonInstancesNotReady, list("not ready:", waiting))
	}
	return condition(apiv1.ConditionReady, metav1.ConditionTrue, Finding{apiv1.ReasonAllReady, "the primary accepts writes and all instances are ready"})
}

func progressing(d Decision) metav1.Condition {
	if d.Progress != nil {
		return condition(apiv1.ConditionProgressing, metav1.ConditionTrue, *d.Progress)
	}
	return condition(apiv1.ConditionProgressing, metav1.ConditionFalse, Finding{apiv1.ReasonApplied, "everything declared is applied"})
}

func degraded(d Decision, f Facts) metav1.Condition {
	if f.Failed != nil {
		return condition(apiv1.ConditionDegraded, metav1.ConditionTrue, *f.Failed)
	}
	if len(d.Troubles) > 0 {
		return condition(apiv1.ConditionDegraded, metav1.ConditionTrue, worst(d.Troubles))
	}
	return condition(apiv1.ConditionDegraded, metav1.ConditionFalse, Finding{apiv1.ReasonHealthy, "nothing is known to be broken"})
}

// worst gives the first trouble's reason and the messages of the first few.
func worst(troubles []Finding) Finding {
	texts := make([]string, 0, len(troubles))
	for _, t := range troubles {
		if !slices.Contains(texts, t.Message) {
			texts = append(texts, t.Message)
		}
	}
	return Finding{troubles[0].Reason, list("", texts)[1:]}
}

func configurationValid(f Facts) metav1.Condition {
	if f.Refused != nil {
		return condition(apiv1.ConditionConfigurationValid, metav1.ConditionFalse, *f.Refused)
	}
	return condition(apiv1.ConditionConfigurationValid, metav1.ConditionTrue, Finding{apiv1.ReasonValid, "the declared configuration is accepted"})
}

// reloading says that an instance does not yet work by the configuration that was written.
func reloading(v View, hash string) *Finding {
	var waiting []string
	for _, i := range v.wanted(v.members()) {
		if i.Status != nil && i.Status.ConfigHash != "" && i.Status.ConfigHash != hash && i.Status.ConfigError == nil {
			waiting = append(waiting, i.Name)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	return &Finding{apiv1.ReasonReloading, list("new configuration on its way to", waiting)}
}

// failoverReady says whether the primary's death would be followed by a promotion: enough standbys of every recorded quorum have
// to be up, because a candidate needs the seals of so many that every acknowledged commit is on one of them.
func failoverReady(v View, d Decision) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return condition(apiv1.ConditionFailoverReady, metav1.ConditionFalse, Finding{reason, message})
	}
	yes := func(message string) metav1.Condition {
		return condition(apiv1.ConditionFailoverReady, metav1.ConditionTrue, Finding{apiv1.ReasonQuorum, message})
	}
	switch {
	case d.Suspend:
		return no(apiv1.ReasonSuspended, "the cluster is suspended")
	case v.declared() == 1:
		return no(apiv1.ReasonSingleInstance, "there is one instance: raise spec.replicas to have a standby")
	case v.serving() == nil:
		return no(apiv1.ReasonNoPrimary, "no instance accepts writes")
	case v.primary() == nil:
		if before := meta.FindStatusCondition(v.Cluster.Status.Conditions, apiv1.ConditionFailoverReady); before != nil {
			return *before // who streams from it is not known this time
		}
		return no(apiv1.ReasonNoPrimary, "the primary does not answer")
	case v.Record.Async:
		if v.successor(nil) == nil {
			return no(apiv1.ReasonReplicationLag, "no standby has caught up")
		}
		return yes("a standby can take over; with durability Asynchronous the last moments of writes may be lost")
	case len(v.Record.Quorums) == 0:
		return no(apiv1.ReasonPrimaryOnly, "no standby is sure to hold every acknowledged commit: it waits for one to catch up")
	}
	for _, quorum := range v.Record.Quorums {
		if why := quorumMissing(v, quorum); why != "" {
			return no(apiv1.ReasonPrimaryOnly, why)
		}
	}
	return yes("a standby that holds every acknowledged commit can take over")
}

func quorumMissing(v View, q election.Quorum) string {
	if q.Num == 0 || len(q.Standbys) == 0 {
		return "no standby is sure to hold every acknowledged commit: it waits for one to catch up"
	}
	need, up := len(q.Standbys)-q.Num+1, 0
	for _, name := range q.Standbys {
		i := v.find(name)
		if i != nil && (v.healthy(i) || (i.Status == nil && v.quiet(i) && i.Pod.Ready && v.standby(name) != nil)) {
			up++
		}
	}
	if up < need {
		return fmt.Sprintf("%d of the standbys %v must be up for a promotion, %d are", need, q.Standbys, up)
	}
	return ""
}

func suspendedCondition(v View, d Decision) metav1.Condition {
	switch {
	case d.Suspend && podsLeft(v) == 0 && v.pods() == 0:
		return condition(apiv1.ConditionSuspended, metav1.ConditionTrue, Finding{apiv1.ReasonSuspended, "PostgreSQL was shut down and all pods are gone; volumes are kept"})
	case d.Suspend:
		return condition(apiv1.ConditionSuspended, metav1.ConditionFalse, Finding{apiv1.ReasonSuspending, "PostgreSQL is being shut down"})
	}
	return condition(apiv1.ConditionSuspended, metav1.ConditionFalse, Finding{apiv1.ReasonActive, "the cluster is not suspended"})
}

// Phases, one word for people.
const (
	phaseCreating   = "Creating"
	phaseReady      = "Ready"
	phaseUpdating   = "Updating"
	phaseDegraded   = "Degraded"
	phaseNotReady   = "NotReady"
	phaseSuspending = "Suspending"
	phaseSuspended  = "Suspended"
)

func phase(v View, d Decision, conditions []metav1.Condition) string {
	is := func(kind string) bool { return meta.IsStatusConditionTrue(conditions, kind) }
	switch {
	case is(apiv1.ConditionSuspended):
		return phaseSuspended
	case d.Suspend:
		return phaseSuspending
	case is(apiv1.ConditionDegraded):
		return phaseDegraded
	case d.Progress != nil && d.Progress.Reason == apiv1.ReasonProvisioning:
		return phaseCreating
	case is(apiv1.ConditionProgressing):
		return phaseUpdating
	case is(apiv1.ConditionReady):
		return phaseReady
	case v.Cluster.Status.ObservedGeneration == 0:
		return phaseCreating
	}
	return phaseNotReady
}
