package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// decision is what a case expects; the numbers default to those of the steady cluster.
type decision struct {
	action        string
	progress      string // reason
	members, pods int
	troubles      []string
}

type decisionCase struct {
	name string
	view View
	want decision
}

func checkDecisions(t *testing.T, cases []decisionCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.want.members == 0 {
				c.want.members = c.view.members()
			}
			if c.want.pods == 0 {
				c.want.pods = c.view.pods()
			}
			d := Decide(c.view)
			if got := text(d.Action); got != c.want.action {
				t.Errorf("action is %q, want %q", got, c.want.action)
			}
			if got := reason(d.Progress); got != c.want.progress {
				t.Errorf("progress is %q, want %q (%+v)", got, c.want.progress, d.Progress)
			}
			if d.Members != c.want.members || d.Pods != c.want.pods {
				t.Errorf("members %d pods %d, want %d and %d", d.Members, d.Pods, c.want.members, c.want.pods)
			}
			if got := reasons(d.Troubles); !slices.Equal(got, c.want.troubles) {
				t.Errorf("troubles are %v, want %v: %+v", got, c.want.troubles, d.Troubles)
			}
		})
	}
}

func TestSteadyClusterIsLeftAlone(t *testing.T) {
	for _, n := range []int{1, 2, 3, 32} {
		d := Decide(steady(n))
		if d.Action != nil || d.Progress != nil || len(d.Troubles) > 0 || d.RecreateSet || len(d.Resizes)+len(d.SurplusClaims) > 0 {
			t.Errorf("%d instances: %+v", n, d)
		}
		if d.Members != n || d.Pods != n || d.After != whenSettled {
			t.Errorf("%d instances: %+v", n, d)
		}
	}
}

func TestNewClusterStartsAllAtOnce(t *testing.T) {
	v := steady(3)
	v.Config, v.Set, v.Record, v.Instances, v.Cluster.Status = nil, nil, nil, nil, apiv1.PostgreSQLClusterStatus{}
	checkDecisions(t, []decisionCase{{"new", v, decision{progress: apiv1.ReasonProvisioning, members: 3, pods: 3}}})
}

func TestRollout(t *testing.T) {
	checkDecisions(t, []decisionCase{
		{"last standby first", steady(3, outdated(0, 1, 2)), decision{action: "DeletePod pg-2", progress: apiv1.ReasonRollingUpdate}},
		{"next standby when it is back", steady(3, outdated(0, 1)), decision{action: "DeletePod pg-1", progress: apiv1.ReasonRollingUpdate}},
		{"hand-over before the primary's turn", steady(3, outdated(0)), decision{action: "Handover pg-0 -> pg-1", progress: apiv1.ReasonRollingUpdate}},
		{"former primary last", steady(3, leads(1), outdated(0)), decision{action: "DeletePod pg-0", progress: apiv1.ReasonRollingUpdate}},
		{"single instance", steady(1, outdated(0)), decision{action: "DeletePod pg-0", progress: apiv1.ReasonRollingUpdate}},
		{"waits for one that is gone", steady(3, outdated(0, 1), with(2, noPod)), decision{progress: apiv1.ReasonRollingUpdate}},
		{"waits for one that terminates", steady(3, outdated(0, 1), with(2, func(i *Instance) { i.Pod.Terminating = true })), decision{progress: apiv1.ReasonRollingUpdate}},
		{"waits for one that is not ready", steady(3, outdated(0, 1), with(2, unready)), decision{progress: apiv1.ReasonRollingUpdate}},
		{"waits for one that does not answer", steady(3, outdated(0, 1), with(2, silent)), decision{progress: apiv1.ReasonRollingUpdate}},
		{"halts at one that does not answer for long", steady(3, outdated(0, 1), with(2, silent), with(2, unwellFor(time.Hour))),
			decision{progress: apiv1.ReasonRollingUpdate, troubles: []string{apiv1.ReasonUnreachable, apiv1.ReasonRolloutHalted}}},
		{"waits for one that has not caught up", steady(3, outdated(0, 1), behind("pg-2", caughtUp+1)), decision{progress: apiv1.ReasonRollingUpdate}},
		{"waits while nobody leads", steady(3, outdated(0, 1), nobodyLeads), decision{progress: apiv1.ReasonRollingUpdate}},
		{"halts at one that stays unready", steady(3, outdated(0, 1), with(2, unreadyForLong)),
			decision{progress: apiv1.ReasonRollingUpdate, troubles: []string{apiv1.ReasonRolloutHalted}}},
		{"halts at once when the image is not there", steady(3, outdated(0, 1), with(2, func(i *Instance) {
			unready(i)
			i.Pod.Running, i.Pod.Waiting = false, "ImagePullBackOff"
		})), decision{progress: apiv1.ReasonRollingUpdate, troubles: []string{apiv1.ReasonRolloutHalted}}},
		{"replaces first what cannot run", steady(3, outdated(0, 1, 2), with(1, func(i *Instance) {
			unready(i)
			i.Pod.Running, i.Pod.Waiting = false, "ImagePullBackOff"
		})), decision{action: "DeletePod pg-1", progress: apiv1.ReasonRollingUpdate}},
		{"leaves an outdated standby that copies data alone", steady(3, outdated(0, 1, 2), with(1, func(i *Instance) {
			unreadyForLong(i)
			i.Status.State = instanceapi.StateCloning
		})), decision{progress: apiv1.ReasonRollingUpdate, troubles: []string{apiv1.ReasonRolloutHalted}}},
		{"prefers a successor on a good node", steady(3, outdated(0), with(1, func(i *Instance) { i.Node.Cordoned = true })),
			decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonRollingUpdate}},
		{"a synchronous successor comes first", steady(3, outdated(0), func(v *View) { v.Instances[0].Status.Standbys[0].SyncState = "async" }),
			decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonRollingUpdate}},
	})
}

// An outage of all instances whose pods cannot run must not be locked in by the order of a rollout.
func TestRolloutFreesAClusterThatCannotRun(t *testing.T) {
	cannot := func(i *Instance) { unready(i); i.Pod.Running, i.Pod.Waiting, i.Status = false, "ErrImagePull", nil }
	v := steady(3, outdated(0, 1), with(0, cannot), with(1, cannot), with(2, unready), nobodyLeads)
	if got := text(Decide(v).Action); got != "DeletePod pg-1" {
		t.Errorf("action is %q", got)
	}
}

func pending(names ...string) func(*Instance) {
	return func(i *Instance) { i.Status.PendingRestart = names }
}

func has(connections string) func(*Instance) {
	return func(i *Instance) { i.Status.Settings = map[string]string{"max_connections": connections} }
}

func TestRestart(t *testing.T) {
	settings := func(inForce, wanted string) func(*View) {
		return func(v *View) {
			v.Instances[0].Status.Settings = map[string]string{"max_connections": inForce}
			v.Config.Parameters = map[string]string{"max_connections": wanted}
		}
	}
	all := func(v *View) {
		for i := range v.Instances {
			pending("max_connections")(&v.Instances[i])
		}
	}
	checkDecisions(t, []decisionCase{
		{"raised: standbys first", steady(3, all, settings("100", "200")), decision{action: "RestartPostgreSQL pg-2", progress: apiv1.ReasonRestarting}},
		{"raised: then a hand-over", steady(3, with(0, pending("max_connections")), settings("100", "200")), decision{action: "Handover pg-0 -> pg-1", progress: apiv1.ReasonRestarting}},
		{"lowered: primary first, in place", steady(3, all, settings("200", "100")), decision{action: "RestartPostgreSQL pg-0", progress: apiv1.ReasonRestarting}},
		{"lowered: standbys then", steady(3, with(1, pending("max_connections")), settings("100", "100")), decision{action: "RestartPostgreSQL pg-1", progress: apiv1.ReasonRestarting}},
		{"another parameter", steady(3, with(0, pending("shared_buffers"))), decision{action: "Handover pg-0 -> pg-1", progress: apiv1.ReasonRestarting}},
		{"single instance in place", steady(1, all, settings("100", "200")), decision{action: "RestartPostgreSQL pg-0", progress: apiv1.ReasonRestarting}},
		{"waits for one that is not ready", steady(3, all, settings("100", "200"), with(2, unready)), decision{progress: apiv1.ReasonRestarting}},
		{"lowered: standbys that do not know it yet", steady(3, settings("100", "100"), with(1, has("200"))), decision{progress: apiv1.ReasonRestarting}},
		{"a higher setting that is not declared lower", steady(3, settings("100", "200"), with(1, has("200"))), decision{}},
		{"a standby that has too little", steady(3, settings("200", "200"), with(1, has("100")), with(1, func(i *Instance) {
			i.Pod.Ready, i.Pod.ReadySince, i.Status.State = false, noon, instanceapi.StateStandby
		})), decision{action: "RestartPostgreSQL pg-1", progress: apiv1.ReasonRestarting}},
		{"a rollout comes first", steady(3, all, outdated(0, 1, 2)), decision{action: "DeletePod pg-2", progress: apiv1.ReasonRollingUpdate}},
	})
}

func TestSwitchover(t *testing.T) {
	to := func(name string) func(*View) { return annotated(naming.AnnotationSwitchover, name) }
	checkDecisions(t, []decisionCase{
		{"to a standby", steady(3, to("pg-2")), decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonSwitchover}},
		{"to any", steady(3, to("any")), decision{action: "ChooseSwitchover pg-0 -> pg-1", progress: apiv1.ReasonSwitchover}},
		{"done", steady(3, to("pg-2"), leads(2)), decision{action: "SettleSwitchover pg-2 -> pg-2"}},
		{"to a stranger", steady(3, to("pg-7")), decision{action: "SettleSwitchover  -> pg-7"}},
		{"to nobody", steady(3, to("other-1")), decision{action: "SettleSwitchover  -> other-1"}},
		{"of a single instance", steady(1, to("any")), decision{action: "SettleSwitchover  -> any"}},
		{"waits until the standby is well", steady(3, to("pg-2"), with(2, unready)), decision{progress: apiv1.ReasonSwitchover}},
		{"waits until somebody leads", steady(3, to("pg-2"), nobodyLeads), decision{progress: apiv1.ReasonSwitchover}},
		{"comes before a rollout", steady(3, to("pg-2"), outdated(1)), decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonSwitchover}},
	})
	if d := Decide(steady(3, to("pg-7"))); d.Action.Done {
		t.Error("a refused switchover is called done")
	}
}

// A switchover that waits keeps all other planned work waiting, so it does not wait for what only that work can mend.
func TestSwitchoverDoesNotWaitForARepair(t *testing.T) {
	to := func(name string) func(*View) { return annotated(naming.AnnotationSwitchover, name) }
	cannot := func(i *Instance) { unready(i); i.Pod.Running, i.Pod.Waiting, i.Status = false, "ImagePullBackOff", nil }
	lately := func(d time.Duration) func(*View) {
		return func(v *View) {
			v.Cluster.Status.Conditions = []metav1.Condition{{
				Type: apiv1.ConditionReady, Status: metav1.ConditionFalse, Reason: apiv1.ReasonNoPrimary, LastTransitionTime: metav1.NewTime(noon.Add(-d)),
			}}
		}
	}
	broken := []string{apiv1.ReasonInstancesNotReady}
	checkDecisions(t, []decisionCase{
		{"the image cannot be pulled", steady(3, to("pg-2"), with(2, cannot)), decision{action: "SettleSwitchover  -> pg-2"}},
		{"the image was corrected", steady(3, to("pg-2"), with(2, cannot), outdated(2)), decision{action: "SettleSwitchover  -> pg-2"}},
		{"outdated and not ready", steady(3, to("pg-2"), with(2, unready), outdated(2)), decision{action: "SettleSwitchover  -> pg-2"}},
		{"outdated and well", steady(3, to("pg-2"), outdated(2)), decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonSwitchover}},
		{"not ready for long", steady(3, to("pg-2"), with(2, unreadyForLong)), decision{action: "SettleSwitchover  -> pg-2", troubles: broken}},
		{"behind for long", steady(3, to("pg-2"), behind("pg-2", 1<<30), with(2, unwellFor(patience))),
			decision{action: "SettleSwitchover  -> pg-2", troubles: []string{apiv1.ReasonStandbyNotStreaming}}},
		{"no pod for long", steady(3, to("pg-2"), with(2, noPod), with(2, unwellFor(patience))), decision{action: "SettleSwitchover  -> pg-2"}},
		{"starts", steady(3, to("pg-2"), with(2, cannot), with(2, func(i *Instance) { i.Pod.Waiting = "PodInitializing" })), decision{progress: apiv1.ReasonSwitchover}},
		{"no pod for a moment", steady(3, to("pg-2"), with(2, noPod), with(2, unwellFor(time.Second))), decision{progress: apiv1.ReasonSwitchover}},
		{"any, and none ever can", steady(3, to("any"), with(1, cannot), outdated(1), with(2, unreadyForLong)),
			decision{action: "SettleSwitchover  -> any", troubles: broken}},
		{"any, and one still may", steady(3, to("any"), with(1, cannot), outdated(1), with(2, unready)), decision{progress: apiv1.ReasonSwitchover}},
		{"no primary, and a pod to replace for one", steady(3, to("pg-2"), nobodyLeads, with(1, cannot), outdated(1)), decision{action: "SettleSwitchover  -> pg-2"}},
		{"no primary for long", steady(3, to("pg-2"), nobodyLeads, lately(patience)), decision{action: "SettleSwitchover  -> pg-2"}},
		{"no primary lately", steady(3, to("pg-2"), nobodyLeads, lately(patience-time.Second)), decision{progress: apiv1.ReasonSwitchover}},
		{"then the repair goes on", steady(3, with(2, cannot), outdated(2)), decision{action: "DeletePod pg-2", progress: apiv1.ReasonRollingUpdate}},
	})
	if d := Decide(steady(3, to("pg-2"), with(2, cannot))); d.Action.Done || !strings.Contains(d.Action.Why, "ImagePullBackOff") {
		t.Errorf("the refusal does not say why: %+v", d.Action)
	}
}

func TestDrain(t *testing.T) {
	cordon := func(i *Instance) { i.Node.Cordoned = true }
	checkDecisions(t, []decisionCase{
		{"the primary's node", steady(3, with(0, cordon)), decision{action: "Handover pg-0 -> pg-1", progress: apiv1.ReasonSwitchover}},
		{"past other cordoned nodes", steady(3, with(0, cordon), with(1, cordon)), decision{action: "Handover pg-0 -> pg-2", progress: apiv1.ReasonSwitchover}},
		{"all nodes", steady(3, with(0, cordon), with(1, cordon), with(2, cordon)), decision{}},
		{"a standby's node", steady(3, with(1, cordon)), decision{}},
		{"a single instance", steady(1, with(0, cordon)), decision{}},
	})
}

func TestScale(t *testing.T) {
	shrunk := func(members int, record ...string) func(*View) { // the configuration has fewer members already
		return func(v *View) {
			v.Config.Members = v.Config.Members[:members]
			v.Record.Members = record
			v.Record.Quorums = nil
		}
	}
	checkDecisions(t, []decisionCase{
		{"up", steady(3, replicas(5)), decision{progress: apiv1.ReasonScaling, members: 5, pods: 5}},
		{"down: out of the membership first", steady(3, replicas(2)), decision{progress: apiv1.ReasonScaling, members: 2, pods: 3}},
		{"down: pods stay while the record names them", steady(3, replicas(2), shrunk(2, "pg-0", "pg-1", "pg-2")), decision{progress: apiv1.ReasonScaling, members: 2, pods: 3}},
		{"down: pods stay while a quorum names them", steady(3, replicas(2), shrunk(2, "pg-0", "pg-1"), func(v *View) {
			v.Record.Quorums = []election.Quorum{{Standbys: []string{"pg-1", "pg-2"}, Num: 1}}
		}), decision{progress: apiv1.ReasonScaling, members: 2, pods: 3}},
		{"down: then pods go", steady(3, replicas(2), shrunk(2, "pg-0", "pg-1")), decision{progress: apiv1.ReasonScaling, members: 2, pods: 2}},
		{"down: primary that is to go hands over", steady(3, replicas(2), leads(2)), decision{action: "Handover pg-2 -> pg-0", progress: apiv1.ReasonScaling, members: 3, pods: 3}},
		{"down: nobody to hand over to", steady(3, replicas(1), leads(2), with(0, unready)), decision{progress: apiv1.ReasonScaling, members: 3, pods: 3}},
		{"down: waits for a primary", steady(3, replicas(2), nobodyLeads), decision{progress: apiv1.ReasonScaling, members: 3, pods: 3}},
		{"down: the last good copies are to go", steady(3, replicas(2), with(1, unready)), decision{progress: apiv1.ReasonScaling, members: 3, pods: 3}},
		{"down to one", steady(3, replicas(1)), decision{progress: apiv1.ReasonScaling, members: 1, pods: 3}},
		{"down: former member leads by surprise", steady(3, replicas(2), leads(2), shrunk(2, "pg-0", "pg-1")), decision{action: "Handover pg-2 -> pg-0", progress: apiv1.ReasonScaling, members: 2, pods: 3}},
		{"down: waits for the end of pods", steady(3, replicas(2), shrunk(2, "pg-0", "pg-1"), func(v *View) { v.Set.Pods = 2 }), decision{progress: apiv1.ReasonScaling, members: 2, pods: 2}},
	})
}

func TestSurplusVolumes(t *testing.T) {
	gone := func(policy apiv1.ReclaimPolicy) View {
		return steady(3, replicas(2), with(2, noPod), func(v *View) {
			v.Config.Members, v.Record.Members, v.Record.Quorums, v.Set.Pods = v.Config.Members[:2], v.Record.Members[:2], nil, 2
			v.Cluster.Spec.Storage.ReclaimPolicy = policy
		})
	}
	if got := Decide(gone(apiv1.ReclaimDelete)).SurplusClaims; !slices.Equal(got, []string{"data-pg-2"}) {
		t.Errorf("with Delete %v", got)
	}
	if got := Decide(gone(apiv1.ReclaimRetain)).SurplusClaims; got != nil {
		t.Errorf("with Retain %v", got)
	}
	early := gone(apiv1.ReclaimDelete)
	early.Set.Pods = 3
	if got := Decide(early).SurplusClaims; got != nil {
		t.Errorf("while the StatefulSet still keeps the pod %v", got)
	}
	asleep := gone(apiv1.ReclaimDelete)
	asleep.Cluster.Spec.Suspend = true
	if got := Decide(asleep).SurplusClaims; got != nil {
		t.Errorf("while suspended %v", got)
	}
}

func TestSuspend(t *testing.T) {
	suspended := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Suspend = true })
	stopped := func(i *Instance) {
		i.Pod.Ready, i.Status.Primary, i.Status.State = false, false, instanceapi.StateStopped
	}
	down := func(v *View) {
		for i := range v.Instances {
			stopped(&v.Instances[i])
		}
		v.Record.Released = &election.Release{Clean: true, Suspended: true}
	}
	lostNode := func(i *Instance) { silent(i); i.Node.Ready = false }
	empty := steady(3, suspended, down, with(0, noPod), with(1, noPod), with(2, noPod), func(v *View) { v.Set.Pods = 0 })
	checkDecisions(t, []decisionCase{
		{"asks first", steady(3, suspended), decision{progress: apiv1.ReasonSuspending}},
		{"pods stay while one runs", steady(3, suspended, down, with(1, func(i *Instance) { i.Status.State = instanceapi.StateStreaming })), decision{progress: apiv1.ReasonSuspending}},
		{"pods stay while leadership is held", steady(3, suspended, down, func(v *View) { v.Record.Released = nil }), decision{progress: apiv1.ReasonSuspending}},
		{"pods stay while one does not answer", steady(3, suspended, down, with(1, silent)), decision{progress: apiv1.ReasonSuspending}},
		{"a lost node does not keep them", steady(3, suspended, down, with(1, lostNode)), decision{progress: apiv1.ReasonSuspending, pods: -1}},
		{"a rollout waits", steady(3, suspended, outdated(0, 1, 2)), decision{progress: apiv1.ReasonSuspending}},
		{"asleep", empty, decision{}},
	}[:4])
	for name, v := range map[string]View{"all down": steady(3, suspended, down), "a lost node": steady(3, suspended, down, with(1, lostNode))} {
		if d := Decide(v); d.Pods != 0 || d.Members != 3 || !d.Suspend {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := Decide(empty); d.Progress != nil || d.Pods != 0 || d.Members != 3 || len(d.Troubles) > 0 {
		t.Errorf("asleep: %+v", d)
	}
	awake := empty
	awake.Cluster = empty.Cluster.DeepCopy()
	awake.Cluster.Spec.Suspend, awake.Cluster.Spec.Replicas = false, 2
	if d := Decide(awake); d.Pods != 3 || d.Members != 3 || d.Suspend {
		t.Errorf("waking with fewer: all have to be there first: %+v", d)
	}
}

func lostFor(d time.Duration) func(*Instance) {
	return func(i *Instance) {
		silent(i)
		i.Pod.Ready, i.Pod.ReadySince = false, noon.Add(-d)
		i.Node.Ready, i.Node.NotReadySince = false, noon.Add(-d)
	}
}

func TestLostNode(t *testing.T) {
	off := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.NodeLost.ReplaceAfter = &metav1.Duration{} })
	lost := []string{apiv1.ReasonNodeLost}
	bound := func(i *Instance) { // the node object is gone, and the new pod waits for the volume on it
		lostFor(time.Hour)(i)
		i.Node = &Node{Name: "node-2", Gone: true}
		i.Pod.Running, i.Pod.Unscheduled, i.Pod.UnscheduledSince = false, true, noon.Add(-time.Hour)
	}
	checkDecisions(t, []decisionCase{
		{"for a while", steady(3, with(2, lostFor(29*time.Minute))), decision{troubles: lost}},
		{"for long", steady(3, with(2, lostFor(31*time.Minute))), decision{action: "ReplaceInstance pg-2", progress: apiv1.ReasonNodeLost, troubles: lost}},
		{"the node is gone", steady(3, with(2, bound)), decision{action: "ReplaceInstance pg-2", progress: apiv1.ReasonNodeLost, troubles: lost}},
		{"one of two", steady(2, with(1, lostFor(time.Hour))), decision{action: "ReplaceInstance pg-1", progress: apiv1.ReasonNodeLost, troubles: lost}},
		{"turned off", steady(3, off, with(2, lostFor(time.Hour))), decision{troubles: lost}},
		{"the leader's", steady(3, with(0, lostFor(time.Hour))), decision{troubles: lost}},
		{"nobody leads", steady(3, nobodyLeads, with(2, lostFor(time.Hour))), decision{troubles: lost}},
		{"no database yet", steady(3, with(2, lostFor(time.Hour)), func(v *View) { v.Cluster.Status.SystemIdentifier = "" }), decision{troubles: lost}},
		{"a broken pod on a good node", steady(3, with(2, unreadyForLong)), decision{troubles: []string{apiv1.ReasonInstancesNotReady}}},
	})
	if d := Decide(steady(3, with(2, lostFor(30*time.Minute-3*time.Second)))); d.After != 3*time.Second {
		t.Errorf("looks again in %v, when replacement is due", d.After)
	}
}

func TestVolumes(t *testing.T) {
	bigger := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Storage.Size = resource.MustParse("20Gi") })
	d := Decide(steady(2, bigger))
	if len(d.Resizes) != 2 || d.Resizes[0].Claim != "data-pg-0" || d.Resizes[0].Size.String() != "20Gi" || reason(d.Progress) != apiv1.ReasonGrowingVolumes {
		t.Errorf("%+v", d)
	}
	asked := with(0, func(i *Instance) { i.Claims[0].Requested = resource.MustParse("20Gi") })
	if d := Decide(steady(1, bigger, asked)); len(d.Resizes) != 0 || reason(d.Progress) != apiv1.ReasonGrowingVolumes {
		t.Errorf("asked already: %+v", d)
	}
	fixed := with(0, func(i *Instance) { i.Claims[0].Fixed = true })
	if d := Decide(steady(1, bigger, fixed)); len(d.Resizes) != 0 || !slices.Equal(reasons(d.Troubles), []string{apiv1.ReasonVolumeNotGrown}) {
		t.Errorf("cannot grow: %+v", d)
	}
	smaller := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Storage.Size = resource.MustParse("5Gi") })
	if d := Decide(steady(1, smaller)); len(d.Resizes) != 0 || d.Progress != nil {
		t.Errorf("a volume never shrinks: %+v", d)
	}
	if !Decide(steady(1, func(v *View) { v.Set.ClaimsDiffer = true })).RecreateSet {
		t.Error("templates of claims cannot change: the StatefulSet has to be made anew")
	}
	if Decide(steady(1, func(v *View) { v.Set.ClaimsDiffer, v.Set.Terminating = true, true })).RecreateSet {
		t.Error("a StatefulSet that is on its way out is deleted again")
	}
}
