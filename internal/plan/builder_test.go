package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// noon is the present time of all tests.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

const (
	oldTemplate = "old"
	newTemplate = "new"
	identifier  = "7300000000000000001"
)

// steady is a cluster of n healthy instances, pg-0 first; each change alters it.
func steady(n int, changes ...func(*View)) View {
	cluster := &apiv1.PostgreSQLCluster{}
	cluster.Name, cluster.Namespace, cluster.Generation = "pg", "ns", 1
	cluster.Annotations = map[string]string{}
	cluster.Spec.Replicas = int32(n)
	cluster.Spec.Storage.Size = resource.MustParse("10Gi")
	cluster.Spec.NodeLost.ReplaceAfter = &metav1.Duration{Duration: 30 * time.Minute}
	cluster.Status.SystemIdentifier = identifier
	cluster.Status.ObservedGeneration = 1
	v := View{
		Now: noon, Cluster: cluster, Template: newTemplate, Set: &Set{Pods: int32(n)}, Config: &instanceapi.Config{MajorVersion: 17},
		Record: &election.Record{Term: 3, Holder: "pg-0", HolderUID: "uid-0", SystemIdentifier: identifier},
	}
	for i := range n {
		name := naming.Pod("pg", i)
		v.Config.Members = append(v.Config.Members, instanceapi.Member{Name: name})
		v.Record.Members = append(v.Record.Members, name)
		v.Instances = append(v.Instances, Instance{
			Ordinal: i, Name: name,
			Pod:    &Pod{UID: fmt.Sprint("uid-", i), Running: true, Ready: true, ReadySince: noon.Add(-time.Hour), Template: newTemplate},
			Node:   &Node{Name: fmt.Sprint("node-", i), Ready: true},
			Claims: []Claim{{Name: naming.PVC("data", "pg", i), Volume: "data", Requested: resource.MustParse("10Gi"), Capacity: resource.MustParse("10Gi")}},
			Status: &instanceapi.Status{Pod: name, PodUID: fmt.Sprint("uid-", i), Term: 3, State: instanceapi.StateStreaming, Ready: true, ConfigHash: "hash"},
		})
	}
	leads(0)(&v)
	for _, change := range changes {
		change(&v)
	}
	return v
}

// leads makes the instance with that ordinal the primary and all others its standbys.
func leads(n int) func(*View) {
	return func(v *View) {
		v.Record.Holder, v.Record.HolderUID, v.Record.Released = naming.Pod("pg", n), fmt.Sprint("uid-", n), nil
		v.Record.Quorums = nil
		var standbys []instanceapi.StandbyStatus
		var names []string
		for i := range v.Instances {
			s := v.Instances[i].Status
			s.Primary, s.State, s.Standbys = false, instanceapi.StateStreaming, nil
			if i != n {
				standbys = append(standbys, instanceapi.StandbyStatus{Name: v.Instances[i].Name, State: "streaming", SyncState: "quorum"})
				names = append(names, v.Instances[i].Name)
			}
		}
		s := v.Instances[n].Status
		s.Primary, s.State, s.Standbys = true, instanceapi.StateRunning, standbys
		if len(names) > 0 {
			v.Record.Quorums = []election.Quorum{{Standbys: names, Num: 1}}
		}
	}
}

// with alters one instance.
func with(n int, change func(*Instance)) func(*View) {
	return func(v *View) { change(&v.Instances[n]) }
}

func spec(change func(*apiv1.PostgreSQLClusterSpec)) func(*View) {
	return func(v *View) { change(&v.Cluster.Spec) }
}

func replicas(n int32) func(*View) {
	return spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Replicas = n })
}

func annotated(key, value string) func(*View) {
	return func(v *View) { v.Cluster.Annotations[key] = value }
}

// outdated are pods made from another template.
func outdated(ordinals ...int) func(*View) {
	return func(v *View) {
		for _, n := range ordinals {
			v.Instances[n].Pod.Template = oldTemplate
		}
	}
}

func unready(i *Instance) {
	i.Pod.Ready, i.Pod.ReadySince, i.Status.Ready = false, noon.Add(-10*time.Second), false
	i.Status.State = instanceapi.StateStarting
}

func unreadyForLong(i *Instance) { unready(i); i.Pod.ReadySince = noon.Add(-time.Hour) }

func unwellFor(d time.Duration) func(*Instance) {
	return func(i *Instance) { i.UnwellSince = noon.Add(-d) }
}

func silent(i *Instance) { i.Status = nil }

func noPod(i *Instance) { i.Pod, i.Status = nil, nil }

func behind(name string, lag int64) func(*View) {
	return func(v *View) {
		for i := range v.Instances {
			for j := range v.Instances[i].Status.Standbys {
				if s := &v.Instances[i].Status.Standbys[j]; s.Name == name {
					s.LagBytes = lag
				}
			}
		}
	}
}

func nobodyLeads(v *View) {
	v.Record.Released = &election.Release{Clean: true}
	for i := range v.Instances {
		if s := v.Instances[i].Status; s != nil && s.Primary {
			s.Primary, s.State = false, instanceapi.StateStopped
		}
	}
}

// text of an action for comparison.
func text(a *Action) string {
	if a == nil {
		return ""
	}
	out := string(a.Kind) + " " + a.Instance
	if a.To != "" {
		out += " -> " + a.To
	}
	return out
}

func reason(f *Finding) string {
	if f == nil {
		return ""
	}
	return f.Reason
}

func reasons(all []Finding) []string {
	var out []string
	for _, f := range all {
		out = append(out, f.Reason)
	}
	slices.Sort(out)
	return out
}

// conditionOf is "Status Reason" of a condition of the report.
func conditionOf(t *testing.T, s apiv1.PostgreSQLClusterStatus, kind string) string {
	t.Helper()
	c := meta.FindStatusCondition(s.Conditions, kind)
	if c == nil {
		t.Fatalf("there is no condition %s", kind)
	}
	return string(c.Status) + " " + c.Reason
}
