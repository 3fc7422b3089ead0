package sim

import (
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// Script is a story: a calm cluster, and what happens to it.
type Script struct {
	Members    int
	Durability election.Durability
	Num        int
	// Start of the story: the cluster has been made and is healthy.
	Acts []Act
	// For is how long the story goes on after the last act.
	For time.Duration
	// Unwell: the story does not end with a healthy cluster.
	Unwell bool
}

// Act happens at a time after the start of the story.
type Act struct {
	At time.Duration
	Do func(*Stage)
}

// Stage lets acts break things.
type Stage struct{ w *world }

// Crash ends the container of an instance for d. newPod: it comes back with another UID; wipe: without its volume.
func (s *Stage) Crash(name string, d time.Duration, newPod, wipe bool) {
	s.w.crash(s.w.byName(name), d, newPod, wipe)
}

// Terminate deletes the pod of an instance; another one comes d after it ended.
func (s *Stage) Terminate(name string, d time.Duration) { s.w.terminate(s.w.byName(name), d) }

// CrashPostgres ends the postmaster of an instance.
func (s *Stage) CrashPostgres(name string) { s.w.crashPostgres(s.w.byName(name)) }

// Freeze stops the manager of an instance for d.
func (s *Stage) Freeze(name string, d time.Duration) { s.w.freeze(s.w.byName(name), d) }

// CutAPI keeps an instance from the API server for d.
func (s *Stage) CutAPI(name string, d time.Duration) { s.w.cutAPI(s.w.byName(name), d) }

// Outage stops the API server for d.
func (s *Stage) Outage(d time.Duration) { s.w.outage(d) }

// Isolate keeps an instance from the others and the API server for d.
func (s *Stage) Isolate(name string, d time.Duration) { s.w.isolate(s.w.byName(name), d, true) }

// Handover asks the holder to hand over.
func (s *Stage) Handover(to string) {
	n := s.w.byName(s.w.store.record.Holder)
	n.feed(n.epoch, election.EventHandover{To: to})
}

// Suspend suspends the cluster for d.
func (s *Stage) Suspend(d time.Duration) { s.w.suspend(d) }

// DeleteLease deletes the Lease.
func (s *Stage) DeleteLease() { s.w.deleteLease() }

// Durability changes it.
func (s *Stage) Durability(d election.Durability) {
	s.w.configure(func(c *election.Config) { c.Durability = d })
}

// runScript plays a story.
func (w *world) runScript(s *Script) {
	w.net = network{typical: 4 * time.Millisecond, worst: 4 * time.Millisecond, calm: true}
	w.cfg = election.Config{Num: s.Num, MaxLag: 1000, Bootstrap: true, Durability: s.Durability, Timing: election.DefaultTiming()}
	for range s.Members {
		w.cfg.Members = append(w.cfg.Members, w.addNode().name)
	}
	for _, n := range w.nodes {
		w.after(time.Duration(n.id)*100*time.Millisecond, n.start)
	}
	w.after(0, w.client)
	w.after(time.Second, w.operator)
	trace := w.trace
	w.trace = nil
	w.runUntil(w.now+20*time.Second, nil)
	w.trace = trace
	if !w.healthy() {
		w.violate("the cluster was never healthy")
		return
	}
	start := w.now
	w.end = start + time.Hour
	w.logf("the story begins")
	last := start
	for _, a := range s.Acts {
		last = max(last, start+a.At)
		w.queue.push(start+a.At, func() { a.Do(&Stage{w}) })
	}
	w.runUntil(last+s.For, nil)
	if w.violation == nil && w.healthy() == s.Unwell {
		w.violate("healthy at the end: %v", w.healthy())
	}
}
