// Package plan decides what to do next with a cluster. It is pure: a View of what was observed at one moment goes in, a Decision
// comes out. It knows no client, no clock and no context.
package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// View is what was observed of a cluster at one moment.
type View struct {
	// Now is that moment.
	Now time.Time
	// Cluster is the declared cluster with its last status.
	Cluster *apiv1.PostgreSQLCluster
	// Record is the leadership record; nil when there is none.
	Record *election.Record
	// Config is the configuration that the instances were last given; nil when none was written yet.
	Config *instanceapi.Config
	// Set is the StatefulSet; nil when there is none.
	Set *Set
	// Template is the hash of the pod template that is wanted.
	Template string
	// Instances are all that have a pod or a volume or are declared, by ordinal.
	Instances []Instance
}

// Set is what was observed of the StatefulSet.
type Set struct {
	// Pods is how many it was told to keep.
	Pods int32
	// ClaimsDiffer: its volume claim templates, which cannot change, are not those wanted.
	ClaimsDiffer bool
	Terminating  bool
}

// Instance is what was observed of one instance.
type Instance struct {
	Ordinal int
	Name    string
	// Pod is nil when there is none.
	Pod *Pod
	// Node is where the pod runs, or, while it cannot be scheduled, where its volumes are. nil: not known.
	Node *Node
	// Claims are its volumes that exist.
	Claims []Claim
	// Status is the instance's own word; nil when it did not answer, and Silence says why.
	Status  *instanceapi.Status
	Silence string
	// UnwellSince is when the instance was first seen not to do its work, without a break since; zero when that is not known.
	UnwellSince time.Time
}

// Pod is what was observed of a pod.
type Pod struct {
	UID         string
	Terminating bool
	// Running: the database container runs.
	Running bool
	// Waiting is the reason for which a container does not start, such as ImagePullBackOff; Message is its text.
	Waiting, Message string
	Ready            bool
	// ReadySince is when Ready last changed.
	ReadySince time.Time
	// Unscheduled: no node fits since that time.
	Unscheduled      bool
	UnscheduledSince time.Time
	// Template is the hash of the template that it was made from.
	Template string
}

// Node is what was observed of a node.
type Node struct {
	Name string
	// Gone: there is no such node.
	Gone  bool
	Ready bool
	// NotReadySince is when Ready was last lost; zero when it is not known.
	NotReadySince time.Time
	// Cordoned: no new pods are put there.
	Cordoned bool
	// OutOfService: a person or a controller declared the node shut down.
	OutOfService bool
}

// Claim is what was observed of a volume claim.
type Claim struct {
	Name, UID string
	// Volume is naming.VolumeData or naming.VolumeWAL.
	Volume      string
	Terminating bool
	// Created is when it was made, to the second.
	Created time.Time
	// Requested is what was asked for, Capacity what there is.
	Requested, Capacity resource.Quantity
	// Fixed: its class does not let it grow.
	Fixed bool
}

// declared is the number of instances that are wanted.
func (v View) declared() int { return int(v.Cluster.Spec.Replicas) }

// members is the number of instances that know of each other now; 0 before the first configuration.
func (v View) members() int {
	if v.Config == nil {
		return 0
	}
	return len(v.Config.Members)
}

// pods is how many pods the StatefulSet keeps now. Without one it is how many it has to keep for all pods that are there to stay: a
// StatefulSet that is made again adopts those below that number and deletes the others, whoever leads.
func (v View) pods() int {
	if v.Set != nil {
		return int(v.Set.Pods)
	}
	n := 0
	for _, i := range v.Instances {
		if i.Pod != nil && !i.Pod.Terminating {
			n = max(n, i.Ordinal+1)
		}
	}
	return n
}

// lostMembers is how many members there have to be when nobody knows any more how many there were: those declared, and all that a pod
// or the leadership record still speaks of, because leadership or an acknowledged commit may be theirs.
func (v View) lostMembers() int {
	n := max(v.declared(), v.pods())
	if v.Record == nil {
		return n
	}
	named := append([]string{v.Record.Holder}, v.Record.Members...)
	for _, quorum := range v.Record.Quorums {
		named = append(named, quorum.Standbys...)
	}
	for _, name := range named {
		if ordinal, ok := naming.Ordinal(v.Cluster.Name, name); ok {
			n = max(n, ordinal+1)
		}
	}
	return n
}

// leader is the name of the pod that holds leadership by the record, "" when nobody does.
func (v View) leader() string {
	if v.Record == nil || v.Record.Released != nil {
		return ""
	}
	return v.Record.Holder
}

// primary is the instance that holds leadership and accepts writes by its own word; nil when there is none.
func (v View) primary() *Instance {
	leader := v.find(v.leader())
	if leader == nil || leader.Status == nil || !leader.Status.Primary || leader.Pod == nil {
		return nil
	}
	if leader.Pod.UID != v.Record.HolderUID || leader.Status.Term != v.Record.Term {
		return nil // the pod was replaced, or leadership has moved on
	}
	return leader
}

// find returns the instance of that name, nil when there is none.
func (v View) find(name string) *Instance {
	for i := range v.Instances {
		if v.Instances[i].Name == name {
			return &v.Instances[i]
		}
	}
	return nil
}

// wanted are the instances with an ordinal below n.
func (v View) wanted(n int) []*Instance {
	var out []*Instance
	for i := range v.Instances {
		if v.Instances[i].Ordinal < n {
			out = append(out, &v.Instances[i])
		}
	}
	return out
}

// standby is the primary's own view of a standby; nil when it does not stream.
func (v View) standby(name string) *instanceapi.StandbyStatus {
	p := v.primary()
	if p == nil {
		return nil
	}
	for i := range p.Status.Standbys {
		if p.Status.Standbys[i].Name == name {
			return &p.Status.Standbys[i]
		}
	}
	return nil
}

// caughtUp is how far a standby may be behind, in bytes of WAL, and count as a good copy for planned work: one segment.
const caughtUp = 16 << 20

// unhealthy says why an instance does not do its work, "" when it does: its pod is ready, it answers, and it is the primary
// or a standby that streams and has caught up.
func (v View) unhealthy(i *Instance) string {
	switch {
	case i.Pod == nil:
		return "it has no pod"
	case i.Pod.Terminating:
		return "its pod is terminating"
	case i.Pod.Unscheduled:
		return "its pod cannot be scheduled: " + i.Pod.Message
	case i.Pod.Waiting != "":
		return "its container waits: " + i.Pod.Waiting
	case !i.Pod.Ready && i.Status == nil:
		return "it is not ready and does not answer"
	case i.Status == nil:
		return "it does not answer"
	case i.Status.Pod != "" && i.Status.Pod != i.Name, i.Status.PodUID != "" && i.Status.PodUID != i.Pod.UID:
		return "another pod answers for it"
	case !i.Pod.Ready:
		return "it is not ready (" + string(i.Status.State) + ")"
	}
	if p := v.primary(); p != nil && p.Name == i.Name {
		return ""
	}
	if i.Status.State != instanceapi.StateStreaming {
		return "it is a standby that does not stream (" + string(i.Status.State) + ")"
	}
	if v.primary() == nil {
		return "" // nobody to compare it with
	}
	seen := v.standby(i.Name)
	if seen == nil {
		return "the primary does not see it stream"
	}
	if seen.LagBytes > caughtUp {
		return "it has not caught up with the primary"
	}
	return ""
}

// unwellFor is how long an instance has not done its work. One answer that is missing is soon over, and not worth a word.
func (v View) unwellFor(i *Instance) time.Duration {
	since := i.UnwellSince
	if i.Pod != nil && !i.Pod.Ready && (since.IsZero() || i.Pod.ReadySince.Before(since)) {
		since = i.Pod.ReadySince
	}
	if since.IsZero() {
		return 0
	}
	return v.Now.Sub(since)
}

// Unwell are the names of instances that do not do their work.
func Unwell(v View) []string {
	var out []string
	for i := range v.Instances {
		if !v.healthy(&v.Instances[i]) {
			out = append(out, v.Instances[i].Name)
		}
	}
	return out
}

// healthy says whether an instance does its work.
func (v View) healthy(i *Instance) bool { return v.unhealthy(i) == "" }

// outdated says whether the pod was made from another template than the one wanted.
func (v View) outdated(i *Instance) bool {
	return i.Pod != nil && !i.Pod.Terminating && i.Pod.Template != v.Template
}

// nodeGood says that nothing speaks against the node that an instance runs on.
func nodeGood(i *Instance) bool {
	return i.Node == nil || (!i.Node.Gone && i.Node.Ready && !i.Node.Cordoned && !i.Node.OutOfService)
}

// successor is the standby that should follow the primary: healthy, accepted by fit, first one that commits wait for, then the
// one least behind, then the lowest ordinal. nil when there is none.
func (v View) successor(fit func(*Instance) bool) *Instance {
	p := v.primary()
	if p == nil {
		return nil
	}
	var best *Instance
	for _, i := range v.wanted(v.members()) {
		if i.Name == p.Name || !v.healthy(i) || (fit != nil && !fit(i)) {
			continue
		}
		if best == nil || v.better(i, best) {
			best = i
		}
	}
	return best
}

func (v View) better(a, b *Instance) bool {
	x, y := v.standby(a.Name), v.standby(b.Name)
	if xs, ys := synchronous(x), synchronous(y); xs != ys {
		return xs
	}
	if x.LagBytes/(1<<20) != y.LagBytes/(1<<20) {
		return x.LagBytes < y.LagBytes
	}
	return a.Ordinal < b.Ordinal
}

func synchronous(s *instanceapi.StandbyStatus) bool {
	return s.SyncState == "sync" || s.SyncState == "quorum"
}

// suspended says whether hibernation is declared.
func (v View) suspended() bool { return v.Cluster.Spec.Suspend }

// annotation of the cluster.
func (v View) annotation(key string) string { return v.Cluster.Annotations[key] }

// claimSize is the size that a volume should have.
func (v View) claimSize(volume string) (resource.Quantity, bool) {
	switch storage := v.Cluster.Spec.Storage; {
	case volume == naming.VolumeData:
		return storage.Size, true
	case volume == naming.VolumeWAL && storage.WALStorage != nil:
		return storage.WALStorage.Size, true
	}
	return resource.Quantity{}, false
}

// Leader is the pod that holds leadership by the record, "" when nobody does.
func Leader(v View) string { return v.leader() }

// StandbyReady says whether a standby can serve reads.
func StandbyReady(v View) bool {
	leader := v.leader()
	if leader == "" {
		return false
	}
	for i := range v.Instances {
		n := &v.Instances[i]
		if n.Name != leader && n.Pod != nil && n.Pod.Ready && !n.Pod.Terminating {
			return true
		}
	}
	return false
}

// Settled says whether all declared instances do their work.
func Settled(v View) bool {
	if v.primary() == nil {
		return false
	}
	for _, i := range v.wanted(v.declared()) {
		if !v.healthy(i) {
			return false
		}
	}
	return true
}
