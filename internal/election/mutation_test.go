package election_test

import (
	"strings"
	"testing"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/sim"
)

// violation runs seeds until one breaks an invariant, for a core without the parts.
func violation(unfenced bool, runs uint64, parts ...string) (uint64, error) {
	weak := func(cfg election.Config, promised int64) sim.Machine {
		return election.NewWeak(cfg, promised, parts...)
	}
	for seed := uint64(1); seed <= runs; seed++ {
		if r := sim.Run(sim.Options{Seed: seed, New: weak, Unfenced: unfenced}); r.Violation != nil {
			return seed, r.Violation
		}
	}
	return runs, nil
}

// TestSimulationNotices proves that the simulation would notice if a part of the protocol were missing.
func TestSimulationNotices(t *testing.T) {
	for _, c := range []struct {
		within uint64
		parts  []string
	}{
		{20000, []string{election.WeakSeals}},
		{20000, []string{election.WeakFence}},
		{20000, []string{election.WeakNarrow}},
		{40000, []string{election.WeakPromise}},
		{20000, []string{election.WeakCarry}},
		{20000, []string{election.WeakWiden}},
	} {
		t.Run(strings.Join(c.parts, " and "), func(t *testing.T) {
			t.Parallel()
			seed, err := violation(false, c.within, c.parts...)
			if err == nil {
				t.Fatalf("no violation in %d runs", c.within)
			}
			t.Logf("seed %d: %v", seed, err)
		})
	}
}

// TestSimulationNoticesHaste: a quorum that PostgreSQL shows while its sessions do not wait yet must not count.
func TestSimulationNoticesHaste(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 20000; seed++ {
		if r := sim.Run(sim.Options{Seed: seed, Hasty: true}); r.Violation != nil {
			t.Logf("seed %d: %v", seed, r.Violation)
			return
		}
	}
	t.Error("no violation")
}

// TestSealsAloneKeepCommits: even if no primary ever fenced itself, synchronous replication would lose no acknowledged commit,
// since a primary whose standbys are sealed acknowledges nothing.
func TestSealsAloneKeepCommits(t *testing.T) {
	t.Parallel()
	if seed, err := violation(true, 3000, election.WeakFence); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
}
