// Package sim runs instances of election's core against a simulated lease store, network, clock and write-ahead log, breaks things
// at random, and checks after each step that the protocol keeps its promises. A run is a function of its seed. Only tests use it.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// Machine is what is tested: election.Core, or a weakened one.
type Machine interface {
	Step(now time.Duration, ev election.Event) []election.Effect
	View(now time.Duration) election.View
}

// NewMachine makes the core of an instance that starts.
type NewMachine func(cfg election.Config, promised int64) Machine

// Options of a run.
type Options struct {
	Seed   uint64
	New    NewMachine // nil: election.New
	Trace  io.Writer  // nil: no transcript
	Script *Script    // nil: faults at random
	// Unfenced: the core never fences itself. Synchronous replication must not lose anything even so, since seals stop a primary
	// from acknowledging; that there are two primaries for a while is tolerated then.
	Unfenced bool
	// Hasty: the driver takes a quorum for being in force as soon as PostgreSQL shows it.
	Hasty bool
}

// Result of a run.
type Result struct {
	// Violation of an invariant, nil when there was none.
	Violation error
	// Seconds that were simulated, steps of cores, acknowledged commits, and promotions.
	Simulated                 time.Duration
	Steps, Commits, Takeovers int
	// Writes of the Lease.
	Writes int
}

// Run simulates one cluster.
func Run(o Options) Result {
	w := newWorld(o)
	if o.Script != nil {
		w.runScript(o.Script)
	} else {
		w.runRandom()
	}
	return Result{
		Violation: w.violation, Simulated: w.now, Steps: w.steps, Commits: len(w.commits), Takeovers: w.takeovers, Writes: w.store.writes,
	}
}

// world is everything of one run.
type world struct {
	rng   *rand.Rand
	now   time.Duration // true time
	end   time.Duration // of the faults
	queue queue
	make  NewMachine

	unfenced bool
	hasty    bool
	trace    io.Writer

	net   network
	store store
	nodes []*node
	cfg   election.Config // as the operator wants it; Self is filled in for each

	commits    []commit
	terms      map[int64]string // holder of each term
	maxTerm    int64
	wiped      bool // a volume was lost
	inits      int
	takeovers  int
	steps      int
	violation  error
	lastAck    time.Duration
	leaderTerm int64 // highest term under which PostgreSQL was made a primary
	leaderNode int
}

// network has the delays and losses of a run.
type network struct {
	typical, worst     time.Duration
	slow, loss, double float64 // share of messages
	apiDown            bool
	calm               bool
}

func newWorld(o Options) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(o.Seed, 0x6b756d6b69)), make: o.New, trace: o.Trace, unfenced: o.Unfenced, hasty: o.Hasty, now: time.Second,
		terms: map[int64]string{}, leaderNode: -1,
	}
	if w.make == nil {
		w.make = func(cfg election.Config, promised int64) Machine { return election.New(cfg, promised) }
	}
	w.queue.events = make([]event, 0, 128)
	return w
}

// event happens at a time; events of one time happen in the order in which they were scheduled.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

// queue is a heap of events.
type queue struct {
	events []event
	seq    uint64
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

func (q *queue) push(at time.Duration, do func()) {
	q.seq++
	q.events = append(q.events, event{at, q.seq, do})
	e := q.events
	for i := len(e) - 1; i > 0; {
		p := (i - 1) / 2
		if !e[i].before(&e[p]) {
			break
		}
		e[i], e[p] = e[p], e[i]
		i = p
	}
}

func (q *queue) pop() event {
	e := q.events
	top := e[0]
	n := len(e) - 1
	e[0] = e[n]
	e[n] = event{}
	q.events = e[:n]
	e = q.events
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && e[c+1].before(&e[c]) {
			c++
		}
		if !e[c].before(&e[i]) {
			break
		}
		e[i], e[c] = e[c], e[i]
		i = c
	}
	return top
}

// after schedules do.
func (w *world) after(d time.Duration, do func()) { w.queue.push(w.now+d, do) }

// runUntil lets time pass. It stops early at a violation or when stop says so.
func (w *world) runUntil(end time.Duration, stop func() bool) {
	for w.violation == nil && len(w.queue.events) > 0 {
		if w.queue.events[0].at > end {
			w.now = end
			return
		}
		e := w.queue.pop()
		w.now = e.at
		e.do()
		if stop != nil && stop() {
			return
		}
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between is a random duration.
func (w *world) between(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(w.rng.Int64N(int64(b-a)))
}

// delay of one message.
func (w *world) delay() time.Duration {
	if w.chance(w.net.slow) {
		return w.between(w.net.typical, w.net.worst)
	}
	return w.between(w.net.typical/8, w.net.typical)
}

func (w *world) logf(format string, args ...any) {
	if w.trace != nil {
		_, _ = fmt.Fprintf(w.trace, "%9.3f  ", w.now.Seconds())
		_, _ = fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// violate ends the run.
func (w *world) violate(format string, args ...any) {
	if w.violation == nil {
		w.violation = fmt.Errorf(format, args...)
		w.logf("VIOLATION: %v", w.violation)
	}
}
