package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// unborn is a cluster that was just created: its volumes are as old as given, relative to it.
func unborn(ages ...time.Duration) func(*View) {
	return func(v *View) {
		v.Cluster.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
		v.Cluster.Status, v.Record = apiv1.PostgreSQLClusterStatus{}, nil
		for i := range v.Instances {
			unready(&v.Instances[i])
			v.Instances[i].Status.Primary = false
			v.Instances[i].Claims[0].Created = v.Cluster.CreationTimestamp.Add(-ages[i])
		}
	}
}

// No database is made beside volumes that an earlier cluster of the name may have left.
func TestEarlierDataForbidsANewDatabase(t *testing.T) {
	wal := with(1, func(i *Instance) { i.Claims[0].Volume = naming.VolumeWAL })
	for name, c := range map[string]struct {
		view View
		want []string
	}{
		"all volumes are its own":        {steady(3, unborn(0, -time.Second, -time.Hour)), nil},
		"volumes of an earlier one":      {steady(3, unborn(0, time.Second, time.Hour)), []string{"data-pg-1", "data-pg-2"}},
		"a volume that is not data":      {steady(3, unborn(0, time.Second, 0), wal), nil},
		"the status knows a database":    {steady(3, unborn(0, 1e9, 1e9), func(v *View) { v.Cluster.Status.SystemIdentifier = identifier }), nil},
		"the Lease knows a database":     {steady(3, unborn(0, 1e9, 1e9), withRecord), nil},
		"the first one's volume as well": {steady(1, unborn(time.Hour)), []string{"data-pg-0"}},
	} {
		if got := EarlierData(c.view); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func withRecord(v *View) { v.Record = steady(3).Record }

func TestEarlierDataIsTold(t *testing.T) {
	s := report(steady(3, unborn(0, time.Second, time.Hour)), Facts{})
	for _, kind := range []string{apiv1.ConditionReady, apiv1.ConditionDegraded} {
		want := map[string]string{apiv1.ConditionReady: "False ", apiv1.ConditionDegraded: "True "}[kind] + apiv1.ReasonEarlierData
		if got := conditionOf(t, s, kind); got != want {
			t.Errorf("%s is %q, want %q", kind, got, want)
		}
		for _, c := range s.Conditions {
			if c.Type != kind {
				continue
			}
			for _, part := range []string{"data-pg-1", "data-pg-2", "Lease pg", "delete the cluster"} {
				if !strings.Contains(c.Message, part) {
					t.Errorf("the message of %s does not name %q: %s", kind, part, c.Message)
				}
			}
		}
	}
	healthy := steady(3, func(v *View) { v.Cluster.CreationTimestamp = metav1.NewTime(noon) })
	if got := conditionOf(t, report(healthy, Facts{}), apiv1.ConditionDegraded); got != "False Healthy" {
		t.Errorf("a cluster that took its volumes over is %q", got)
	}
}
