package sim_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kumki-dev/kumki/internal/election/sim"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "replay the run of this seed and print its transcript")
	firstFlag = flag.Uint64("first", 1, "first seed of the runs")
)

// runs is how many seeds are tried: KUMKI_SIM_RUNS, or few.
func runs(t testing.TB) int {
	text := os.Getenv("KUMKI_SIM_RUNS")
	if text == "" {
		return 5000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("KUMKI_SIM_RUNS=%q is no number of runs", text)
	}
	return n
}

// TestSimulation runs clusters under random faults. A failing seed is replayed with
//
//	go test ./internal/election/sim -run TestSimulation -seed N
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		if r := sim.Run(sim.Options{Seed: *seedFlag, Trace: os.Stdout}); r.Violation != nil {
			t.Fatal(r.Violation)
		}
		return
	}
	n := runs(t)
	var next, failures, commits, takeovers, steps atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for failures.Load() < 5 {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				seed := *firstFlag + uint64(i)
				r := sim.Run(sim.Options{Seed: seed})
				commits.Add(int64(r.Commits))
				takeovers.Add(int64(r.Takeovers))
				steps.Add(int64(r.Steps))
				if r.Violation != nil {
					failures.Add(1)
					t.Errorf("seed %d after %s: %v\n\treplay: go test ./internal/election/sim -run TestSimulation -seed %d", seed, r.Simulated, r.Violation, seed)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d runs: %d steps of cores, %d acknowledged commits, %d take-overs", next.Load(), steps.Load(), commits.Load(), takeovers.Load())
}
