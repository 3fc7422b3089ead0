package instance

import (
	"errors"
	"testing"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

func TestReleaseByAPeer(t *testing.T) {
	lease := election.Lease{Version: "7", Record: election.Record{Term: 3, Released: &election.Release{Clean: true}}}
	peers := []instanceapi.Target{{Pod: "orders-1"}, {Pod: "orders-2"}}
	for name, test := range map[string]struct {
		answering []string
		fail      error
		asked     int
		want      error
	}{
		"the first that answers does it": {answering: []string{"orders-1", "orders-2"}, asked: 1},
		"a peer is down":                 {answering: []string{"orders-2"}, asked: 1},
		"a peer cannot either":           {answering: []string{"orders-1", "orders-2"}, fail: errors.New("no"), asked: 2, want: errNobody},
		"nobody answers":                 {want: errNobody},
	} {
		t.Run(name, func(t *testing.T) {
			api := instanceapi.NewFake()
			for _, p := range test.answering {
				api.Set(p, instanceapi.Status{})
			}
			api.On(func(instanceapi.Call) error { return test.fail })
			got, err := releaseBy(t.Context(), api, peers, lease)
			if !errors.Is(err, test.want) || errors.Is(err, kubelease.ErrConflict) {
				t.Fatalf("error is %v, want %v", err, test.want)
			}
			if err == nil && got.Record.Released == nil {
				t.Errorf("got %+v", got)
			}
			if calls := api.Calls(); len(calls) != test.asked {
				t.Errorf("calls are %v", calls)
			}
		})
	}
}

func TestOnlyReleasesOfOthersAreWritten(t *testing.T) {
	m := &Manager{opt: Options{PodUID: "own"}}
	for name, l := range map[string]election.Lease{
		"no release":     {Version: "7", Record: election.Record{Term: 3, HolderUID: "other"}},
		"no version":     {Record: election.Record{Term: 3, HolderUID: "other", Released: &election.Release{}}},
		"the own record": {Version: "7", Record: election.Record{Term: 3, HolderUID: "own", Released: &election.Release{}}},
	} {
		if _, err := m.Release(t.Context(), l); err == nil {
			t.Errorf("%s: it is written", name)
		}
	}
}
