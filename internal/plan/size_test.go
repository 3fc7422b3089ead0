package plan

import (
	"slices"
	"testing"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

func noConfig(v *View) { v.Config = nil }

func noSet(v *View) { v.Set = nil }

// setKeeps is a StatefulSet with that number of pods; those beyond it are gone.
func setKeeps(n int32) func(*View) {
	return func(v *View) {
		v.Set.Pods = n
		for i := range v.Instances {
			if i >= int(n) {
				noPod(&v.Instances[i])
			}
		}
	}
}

func noRecord(v *View) { v.Record = nil }

// A lost ConfigMap must not turn a lower number of replicas into pods that go without hand-over and quorum.
func TestLostConfigurationKeepsEveryMember(t *testing.T) {
	named := func(v *View) { // nobody leads, nothing runs; only the record knows of the last one
		v.Record.Released = &election.Release{Clean: true}
		v.Record.Members = nil
		v.Record.Quorums = []election.Quorum{{Standbys: []string{"pg-1", "pg-2"}, Num: 1}}
	}
	holder := func(v *View) { v.Record.Holder, v.Record.Members, v.Record.Quorums = "pg-2", nil, nil }
	for name, v := range map[string]View{
		"pods are there":                 steady(3, replicas(1), noConfig),
		"pods are there, no StatefulSet": steady(3, replicas(1), noConfig, noSet),
		"the highest pod is left":        steady(3, replicas(1), noConfig, noSet, with(0, noPod), with(1, noPod)),
		"the StatefulSet keeps them":     steady(3, replicas(1), noConfig, noRecord, with(1, noPod), with(2, noPod)),
		"a quorum names them":            steady(3, replicas(1), noConfig, named, setKeeps(1)),
		"the holder is one of them":      steady(3, replicas(1), noConfig, holder, setKeeps(1)),
	} {
		if d := Decide(v); d.Members != 3 || d.Pods != 3 || len(d.SurplusClaims) > 0 {
			t.Errorf("%s: members %d pods %d claims %v, want all three to stay", name, d.Members, d.Pods, d.SurplusClaims)
		}
	}
	if d := Decide(steady(3, replicas(5), noConfig)); d.Members != 5 || d.Pods != 5 {
		t.Errorf("more than before: members %d pods %d", d.Members, d.Pods)
	}
	asleep := steady(3, replicas(1), noConfig, setKeeps(0), spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Suspend = true }))
	if d := Decide(asleep); d.Members != 3 || d.Pods != 0 {
		t.Errorf("asleep: members %d pods %d", d.Members, d.Pods)
	}
}

// A StatefulSet that is made again must keep the pods of former members until no commit waits for them.
func TestLostStatefulSetKeepsFormerMembers(t *testing.T) {
	shrinking := func(v *View) { v.Config.Members = v.Config.Members[:2] }
	if d := Decide(steady(3, replicas(2), shrinking, noSet)); d.Pods != 3 || d.Members != 2 {
		t.Errorf("members %d pods %d: pg-2 is in the record's quorum", d.Members, d.Pods)
	}
}

// Volumes that a scale-down leaves are deleted only while a healthy primary has the data.
func TestSurplusVolumesNeedAPrimary(t *testing.T) {
	base := []func(*View){replicas(2), with(2, noPod), func(v *View) {
		v.Config.Members, v.Record.Members, v.Set.Pods = v.Config.Members[:2], v.Record.Members[:2], 2
		v.Record.Quorums = []election.Quorum{{Standbys: []string{"pg-1"}, Num: 1}}
		v.Cluster.Spec.Storage.ReclaimPolicy = apiv1.ReclaimDelete
	}}
	for name, c := range map[string]struct {
		change func(*View)
		want   []string
	}{
		"a primary":           {func(*View) {}, []string{"data-pg-2"}},
		"nobody leads":        {nobodyLeads, nil},
		"no record":           {noRecord, nil},
		"a primary not ready": {with(0, func(i *Instance) { i.Pod.Ready = false }), nil},
		"a silent primary":    {with(0, silent), nil},
		"a member of record":  {func(v *View) { v.Record.Members = []string{"pg-0", "pg-1", "pg-2"} }, nil},
		"a quorum of record": {func(v *View) {
			v.Record.Quorums = append(v.Record.Quorums, election.Quorum{Standbys: []string{"pg-1", "pg-2"}, Num: 1})
		}, nil},
	} {
		if got := Decide(steady(3, append(slices.Clone(base), c.change)...)).SurplusClaims; !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Suspension shuts PostgreSQL down before pods go, also when somebody deleted the StatefulSet.
func TestSuspensionWithoutStatefulSet(t *testing.T) {
	suspended := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Suspend = true })
	if d := Decide(steady(3, suspended, noSet)); d.Pods != 3 || reason(d.Progress) != apiv1.ReasonSuspending {
		t.Errorf("PostgreSQL runs, and %d pods are kept: %+v", d.Pods, d.Progress)
	}
	down := func(v *View) {
		for i := range v.Instances {
			v.Instances[i].Pod.Ready, v.Instances[i].Status.Primary, v.Instances[i].Status.State = false, false, instanceapi.StateStopped
		}
		v.Record.Released = &election.Release{Clean: true, Suspended: true}
	}
	if d := Decide(steady(3, suspended, noSet, down)); d.Pods != 0 {
		t.Errorf("PostgreSQL is down, and %d pods are kept", d.Pods)
	}
	ending := func(v *View) {
		for i := range v.Instances {
			v.Instances[i].Pod.Terminating = true
		}
	}
	if d := Decide(steady(3, suspended, noSet, ending)); d.Pods != 0 || reason(d.Progress) != apiv1.ReasonSuspending {
		t.Errorf("all pods are on their way out, and %d are kept: %+v", d.Pods, d.Progress)
	}
}
