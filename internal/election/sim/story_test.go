package sim_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/sim"
)

var update = flag.Bool("update", false, "write the transcripts in testdata anew")

// act is an act at a number of seconds after the start.
func act(seconds float64, do func(*sim.Stage)) sim.Act {
	return sim.Act{At: time.Duration(seconds * float64(time.Second)), Do: do}
}

// The main stories. Their transcripts are the protocol in examples.
var stories = map[string]sim.Script{
	"primary-dies": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 25 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Crash("a", 18*time.Second, true, false) })},
	},
	"hand-over": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 10 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Handover("c") })},
	},
	"api-server-down": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 22 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Outage(14 * time.Second) })},
	},
	"primary-isolated": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 30 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Isolate("a", 20*time.Second) })},
	},
	"manager-wedged": {
		Members: 2, Num: 1, Durability: election.Required, For: 30 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Freeze("a", 20*time.Second) })},
	},
	"primary-only": {
		Members: 2, Num: 1, Durability: election.Preferred, For: 42 * time.Second,
		Acts: []sim.Act{
			act(1, func(s *sim.Stage) { s.Crash("b", 11*time.Second, false, false) }),
			act(10, func(s *sim.Stage) { s.Crash("a", 18*time.Second, false, false) }),
		},
	},
	"postgres-crashes": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 10 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.CrashPostgres("a") })},
	},
	"asynchronous-crash": {
		Members: 2, Num: 1, Durability: election.Asynchronous, For: 10 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.CrashPostgres("a") })},
	},
	"lease-deleted": {
		Members: 3, Num: 1, Durability: election.Preferred, For: 8 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.DeleteLease() })},
	},
	"suspended": {
		Members: 2, Num: 1, Durability: election.Preferred, For: 25 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Suspend(12 * time.Second) })},
	},
	"one-instance-restarts": {
		Members: 1, Num: 1, Durability: election.Preferred, For: 20 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Crash("a", 2*time.Second, true, false) })},
	},
	"one-instance-moves": {
		Members: 1, Num: 1, Durability: election.Preferred, For: 12 * time.Second,
		Acts: []sim.Act{act(1, func(s *sim.Stage) { s.Terminate("a", 2*time.Second) })},
	},
	"to-asynchronous-and-back": {
		Members: 2, Num: 1, Durability: election.Preferred, For: 15 * time.Second,
		Acts: []sim.Act{
			act(1, func(s *sim.Stage) { s.Durability(election.Asynchronous) }),
			act(10, func(s *sim.Stage) { s.Durability(election.Preferred) }),
		},
	},
}

// TestStories plays the main stories and compares their transcripts.
func TestStories(t *testing.T) {
	for name, script := range stories {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			r := sim.Run(sim.Options{Seed: 1, Script: &script, Trace: &got})
			if r.Violation != nil {
				t.Error(r.Violation)
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("the transcript differs from %s (run with -update and look at the difference):\n%s", file, got.String())
			}
		})
	}
}

// TestSteadyState: without trouble the Lease is written once every 4 s.
func TestSteadyState(t *testing.T) {
	script := sim.Script{Members: 3, Num: 1, Durability: election.Preferred, For: 80 * time.Second, Acts: []sim.Act{act(40, func(*sim.Stage) {})}}
	short := script
	short.For = 0
	writes := sim.Run(sim.Options{Seed: 1, Script: &script}).Writes - sim.Run(sim.Options{Seed: 1, Script: &short}).Writes
	if writes < 18 || writes > 20 {
		t.Errorf("%d writes in 80 s", writes)
	}
}
