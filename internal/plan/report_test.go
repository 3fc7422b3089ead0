package plan

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

func report(v View, f Facts) apiv1.PostgreSQLClusterStatus {
	if f.ConfigHash == "" {
		f.ConfigHash = "hash"
	}
	return Report(v, Decide(v), f)
}

func TestConditions(t *testing.T) {
	const (
		ready, progressing, degraded  = apiv1.ConditionReady, apiv1.ConditionProgressing, apiv1.ConditionDegraded
		valid, failover, suspendedNow = apiv1.ConditionConfigurationValid, apiv1.ConditionFailoverReady, apiv1.ConditionSuspended
	)
	suspended := spec(func(s *apiv1.PostgreSQLClusterSpec) { s.Suspend = true })
	alone := func(v *View) { v.Record.Quorums = nil }
	refusedBy := func(parameter string) func(*Instance) {
		return func(i *Instance) {
			i.Status.ConfigError = &instanceapi.ConfigError{Parameter: parameter, Message: "no", ConfigHash: "hash"}
		}
	}
	newborn := steady(3, with(0, unready), with(1, unready), with(2, unready), func(v *View) {
		v.Record, v.Cluster.Status = nil, apiv1.PostgreSQLClusterStatus{}
	})
	failed := newborn
	failed.Instances = append([]Instance{}, newborn.Instances...)
	failed.Instances[0].Status = &instanceapi.Status{State: instanceapi.StateFailed, Message: `syntax error at or near "CREAT"`}
	for _, c := range []struct {
		name  string
		view  View
		facts Facts
		want  map[string]string
		phase string
	}{
		{name: "steady", view: steady(3), phase: "Ready", want: map[string]string{
			ready: "True AllReady", progressing: "False Applied", degraded: "False Healthy", valid: "True Valid", failover: "True QuorumRecorded", suspendedNow: "False Active",
		}},
		{name: "a single instance", view: steady(1), phase: "Ready", want: map[string]string{ready: "True AllReady", failover: "False SingleInstance"}},
		{name: "primary only", view: steady(3, alone), phase: "Ready", want: map[string]string{ready: "True AllReady", failover: "False PrimaryIsTheOnlyCopy"}},
		{name: "two standbys of which one must answer", view: steady(3, with(1, unready)), want: map[string]string{
			ready: "False InstancesNotReady", failover: "False PrimaryIsTheOnlyCopy", degraded: "False Healthy",
		}, phase: "NotReady"},
		{name: "narrowed quorum", view: steady(3, with(1, unready), func(v *View) {
			v.Record.Quorums = []election.Quorum{{Standbys: []string{"pg-2"}, Num: 1}}
		}), want: map[string]string{failover: "True QuorumRecorded"}, phase: "NotReady"},
		{name: "asynchronous", view: steady(3, alone, func(v *View) { v.Record.Async = true }), phase: "Ready", want: map[string]string{failover: "True QuorumRecorded"}},
		{name: "asynchronous and far behind", view: steady(2, alone, func(v *View) { v.Record.Async = true }, behind("pg-1", 1<<30)),
			phase: "Ready", want: map[string]string{failover: "False ReplicationLag"}},
		{name: "does not stream for long", view: steady(3, behind("pg-1", 1<<30), with(1, unwellFor(time.Hour))), phase: "Degraded",
			want: map[string]string{degraded: "True StandbyNotStreaming", ready: "True AllReady"}},
		{name: "broken for long", view: steady(3, with(1, unreadyForLong)), phase: "Degraded", want: map[string]string{degraded: "True InstancesNotReady"}},
		{name: "nobody leads", view: steady(3, nobodyLeads, with(0, unready)), phase: "NotReady", want: map[string]string{ready: "False NoPrimary", failover: "False NoPrimary"}},
		{name: "new", view: newborn, phase: "Creating", want: map[string]string{ready: "False NoPrimary", progressing: "True Provisioning"}},
		{name: "bootstrap fails", view: failed, phase: "Degraded", want: map[string]string{ready: "False BootstrapFailed", degraded: "True BootstrapFailed"}},
		{name: "configuration on its way", view: steady(3), facts: Facts{ConfigHash: "newer"}, phase: "Updating", want: map[string]string{progressing: "True Reloading"}},
		{name: "parameter refused by PostgreSQL", view: steady(3, with(1, refusedBy("work_mem"))), phase: "Ready", want: map[string]string{valid: "False ParameterRejectedByPostgreSQL"}},
		{name: "pg_hba.conf refused by PostgreSQL", view: steady(3, with(1, refusedBy("pg_hba.conf"))), phase: "Ready", want: map[string]string{valid: "False HBARejectedByPostgreSQL"}},
		{name: "refused before", view: steady(3), facts: Facts{Refused: &Finding{apiv1.ReasonParameterOwned, "x"}}, phase: "Ready", want: map[string]string{valid: "False ParameterOwnedByOperator"}},
		{name: "a pass fails", view: steady(3), facts: Facts{Failed: &Finding{apiv1.ReasonReconcileError, "x"}}, phase: "Degraded", want: map[string]string{ready: "True AllReady", degraded: "True ReconcileError"}},
		{name: "suspending", view: steady(3, suspended), phase: "Suspending", want: map[string]string{ready: "False Suspended", suspendedNow: "False Suspending", failover: "False Suspended"}},
		{name: "suspended", view: steady(3, suspended, with(0, noPod), with(1, noPod), with(2, noPod), func(v *View) { v.Set.Pods = 0 }), phase: "Suspended",
			want: map[string]string{suspendedNow: "True Suspended", degraded: "False Healthy", progressing: "False Applied"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := report(c.view, c.facts)
			for kind, want := range c.want {
				if got := conditionOf(t, s, kind); got != want {
					t.Errorf("%s is %q, want %q: %+v", kind, got, want, s.Conditions)
				}
			}
			if s.Phase != c.phase {
				t.Errorf("phase is %s, want %s", s.Phase, c.phase)
			}
		})
	}
}

func TestObservedGeneration(t *testing.T) {
	generation := func(v *View) { v.Cluster.Generation = 2 }
	for name, c := range map[string]struct {
		view  View
		facts Facts
		want  int64
	}{
		"applied":       {view: steady(3, generation), want: 2},
		"under way":     {view: steady(3, generation, outdated(2)), want: 1},
		"refused":       {view: steady(3, generation), facts: Facts{Refused: &Finding{Reason: "x"}}, want: 1},
		"failed":        {view: steady(3, generation), facts: Facts{Failed: &Finding{Reason: "x"}}, want: 1},
		"not ready":     {view: steady(3, generation, with(1, unready)), want: 1},
		"not reloaded":  {view: steady(3, generation), facts: Facts{ConfigHash: "newer"}, want: 1},
		"lost for long": {view: steady(3, generation, with(1, lostFor(time.Hour))), want: 1},
	} {
		if got := report(c.view, c.facts).ObservedGeneration; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestStatusOfInstances(t *testing.T) {
	s := report(steady(3, behind("pg-1", 5<<20), with(2, silent)), Facts{Engine: Engine{17, "postgres:17"}, Selector: "x=y"})
	if len(s.Instances) != 3 || s.Ready != "3/3" || s.Primary != "pg-0" || s.Term != 3 || s.MajorVersion != "17" || s.Selector != "x=y" {
		t.Errorf("%+v", s)
	}
	primary, standby, lost := s.Instances[0], s.Instances[1], s.Instances[2]
	if primary.Role != apiv1.RolePrimary || primary.State != "Running" || primary.LagBytes != nil {
		t.Errorf("%+v", primary)
	}
	if standby.Role != apiv1.RoleStandby || standby.LagBytes == nil || *standby.LagBytes != 8<<20 || !standby.Synchronous {
		t.Errorf("%+v", standby)
	}
	if lost.State != "Unreachable" {
		t.Errorf("%+v", lost)
	}
}

func TestRoundedLagKeepsStill(t *testing.T) {
	for lag, want := range map[int64]int64{0: 0, 1<<20 - 1: 0, 1 << 20: 1 << 20, 1<<20 + 1: 2 << 20, 3 << 20: 4 << 20, 1 << 40: 1 << 40} {
		if got := roundLag(lag); got != want {
			t.Errorf("%d is rounded to %d, want %d", lag, got, want)
		}
	}
}

// The status of a steady cluster is the same at every look, so it is never written.
func TestSteadyStatusNeverChanges(t *testing.T) {
	v := steady(3)
	v.Cluster.Status = report(v, Facts{})
	later := v
	later.Now = v.Now.Add(time.Hour)
	again := report(later, Facts{})
	if !equality.Semantic.DeepEqual(v.Cluster.Status, again) {
		t.Errorf("before: %+v\nafter: %+v", v.Cluster.Status, again)
	}
}

// One answer that is missing is no news.
func TestAMissingAnswerChangesNothing(t *testing.T) {
	for n := range 3 {
		before := steady(3)
		before.Cluster.Status = report(before, Facts{})
		v := steady(3, with(n, silent), with(n, unwellFor(2*time.Second)))
		v.Cluster.Status = before.Cluster.Status
		if again := report(v, Facts{}); !equality.Semantic.DeepEqual(v.Cluster.Status, again) {
			t.Errorf("pg-%d before: %+v\nafter: %+v", n, v.Cluster.Status, again)
		}
	}
	v := steady(3, with(0, silent), with(0, unwellFor(2*time.Minute)))
	v.Cluster.Status = report(steady(3), Facts{})
	if got := conditionOf(t, report(v, Facts{}), apiv1.ConditionReady); got != "False NoPrimary" {
		t.Errorf("silent for long: %s", got)
	}
}

// Planned work goes on until all are well, so that nobody takes the last step's wait for the end.
func TestProgressLastsUntilAllAreWell(t *testing.T) {
	v := steady(3, outdated(2))
	v.Cluster.Status = report(v, Facts{})
	after := steady(3, with(2, unready))
	after.Cluster.Status = v.Cluster.Status
	s := report(after, Facts{})
	if got := conditionOf(t, s, apiv1.ConditionProgressing); got != "True RollingUpdate" {
		t.Errorf("%q", got)
	}
	done := steady(3)
	done.Cluster.Status = s
	if got := conditionOf(t, report(done, Facts{}), apiv1.ConditionProgressing); got != "False Applied" {
		t.Errorf("%q", got)
	}
}

func TestChooseEngine(t *testing.T) {
	images := map[int]string{15: "postgres:15", 16: "postgres:16", 17: "postgres:17"}
	running := Engine{17, "postgres:17"}
	for _, c := range []struct {
		name           string
		version, image string
		running        Engine
		want           Engine
		reason         string
	}{
		{name: "nothing said", want: Engine{17, "postgres:17"}},
		{name: "nothing said of a running one", running: Engine{15, "postgres:15.3"}, want: Engine{15, "postgres:15"}},
		{name: "version", version: "16", want: Engine{16, "postgres:16"}},
		{name: "image", image: "example.com/postgres:16.2-alpine", want: Engine{16, "example.com/postgres:16.2-alpine"}},
		{name: "image without a version", image: "example.com/mine", reason: apiv1.ReasonVersionUnknown},
		{name: "image and version", image: "example.com/mine", version: "15", want: Engine{15, "example.com/mine"}},
		{name: "no such image", version: "18", reason: apiv1.ReasonNoImage},
		{name: "too old", image: "postgres:13", reason: apiv1.ReasonVersionUnsupported},
		{name: "minor roll-out", image: "postgres:17.9", running: running, want: Engine{17, "postgres:17.9"}},
		{name: "major change", version: "16", running: running, want: running, reason: apiv1.ReasonVersionChange},
		{name: "major change by image", image: "postgres:18", running: running, want: running, reason: apiv1.ReasonVersionChange},
		{name: "unknown while running", image: "postgres:latest", running: running, want: running, reason: apiv1.ReasonVersionUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := &apiv1.PostgreSQLCluster{}
			cluster.Spec.Version, cluster.Spec.Image = c.version, c.image
			got, refused := ChooseEngine(cluster, images, c.running)
			if got != c.want || reason(refused) != c.reason {
				t.Errorf("%+v %+v", got, refused)
			}
		})
	}
}

func TestChooseConfiguration(t *testing.T) {
	derived := map[string]string{"work_mem": "4MB", "shared_buffers": "64MB"}
	last := &instanceapi.Config{Parameters: map[string]string{"work_mem": "7MB"}, HBA: []string{"last"}}
	bad := &apiv1.PostgreSQLConfiguration{
		Parameters: map[string]string{"Work_Mem": "9MB", "listen_addresses": "*", "synchronous_standby_names": ""}, HBA: []string{"new"},
	}
	good := &apiv1.PostgreSQLConfiguration{Parameters: map[string]string{"Work_Mem": "9MB"}, HBA: []string{"new"}}

	c, refused := ChooseConfiguration(good, derived, last)
	if refused != nil || c.Parameters["work_mem"] != "9MB" || c.Parameters["shared_buffers"] != "64MB" || c.HBA[0] != "new" {
		t.Errorf("good: %+v %+v", c, refused)
	}
	c, refused = ChooseConfiguration(bad, derived, last)
	if reason(refused) != apiv1.ReasonParameterOwned || c.Parameters["work_mem"] != "7MB" || c.HBA[0] != "last" {
		t.Errorf("bad: %+v %+v", c, refused)
	}
	for _, part := range []string{"listen_addresses", `"*"`, "synchronous_standby_names", "last good configuration"} {
		if !strings.Contains(refused.Message, part) {
			t.Errorf("the message does not name %s: %s", part, refused.Message)
		}
	}
	c, refused = ChooseConfiguration(bad, derived, nil)
	if refused == nil || c.Parameters["work_mem"] != "9MB" || c.Parameters["listen_addresses"] != "" || c.HBA[0] != "new" {
		t.Errorf("bad from the start: %+v %+v", c, refused)
	}
}
