package sim

import (
	"fmt"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// node is an instance: its pod, its volume, and what runs in it.
type node struct {
	w    *world
	id   int
	name string
	uid  string
	pods int // how many pods of that name there were

	offset time.Duration
	rate   float64 // of its clock

	vol volume
	pg  server

	up    bool   // the container runs
	epoch uint32 // of the process; what belongs to an earlier one is void
	core  Machine
	cfg   election.Config
	gone  bool // scaled away

	frozenUntil time.Duration // the manager stands still
	haltedUntil time.Duration // everything does
	apiCut      bool
	cut         [8]bool // messages to that node do not arrive
	watching    bool
	seenVersion uint64
	lease       election.Lease

	guardAt  time.Duration // own clock; 0: none
	guardSet uint32
	every    time.Duration // of ticks
	localAt  time.Duration
	fencing  bool
	sealing  int64 // newest seal that was asked for, 0: none

	wroteAsync bool // the record that it wrote last makes no claim
}

func (w *world) addNode() *node {
	i := len(w.nodes)
	n := &node{w: w, id: i, name: string(rune('a' + i)), rate: 1}
	if !w.net.calm {
		n.offset = w.between(time.Second, time.Hour)
		n.rate = 0.99 + 0.02*w.rng.Float64()
	}
	n.every = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}[w.rng.IntN(3)]
	n.newPod()
	w.nodes = append(w.nodes, n)
	return n
}

func (n *node) newPod() {
	n.pods++
	n.uid = fmt.Sprintf("%s%d", n.name, n.pods)
}

func (n *node) local() time.Duration { return n.offset + time.Duration(float64(n.w.now)*n.rate) }

// trueTime of a time of its own clock.
func (n *node) trueTime(local time.Duration) time.Duration {
	return time.Duration(float64(local-n.offset)/n.rate) + time.Microsecond
}

func (n *node) alive(epoch uint32) bool { return n.up && n.epoch == epoch }

// config of the cluster for this instance.
func (n *node) config() election.Config {
	c := n.w.cfg
	c.Self, c.SelfUID = n.name, n.uid
	return c
}

// start starts the container.
func (n *node) start() {
	w := n.w
	if n.gone || n.up {
		return
	}
	n.up = true
	n.epoch++
	n.frozenUntil, n.haltedUntil = 0, 0
	n.watching, n.seenVersion, n.lease, n.fencing = false, 0, election.Lease{}, false
	n.pg = server{gen: n.pg.gen + 1, leader: -1, conn: n.pg.conn + 1}
	n.guardAt, n.guardSet = 0, n.guardSet+1
	n.cfg = n.config()
	n.core = w.make(n.cfg, n.vol.promised)
	if w.trace != nil {
		w.logf("%s starts as %s, promised %d, %s", n.name, n.uid, n.vol.promised, n.vol.text())
	}
	epoch := n.epoch
	var tick func()
	tick = func() {
		if !n.alive(epoch) {
			return
		}
		if n.frozenUntil > w.now {
			w.queue.push(n.frozenUntil, tick)
			return
		}
		if w.now >= n.localAt {
			n.localAt = w.now + w.between(300*time.Millisecond, time.Second)
			n.observe(epoch)
		}
		n.step(election.EventTick{})
		w.after(n.every, tick)
	}
	w.after(w.between(0, 300*time.Millisecond), tick)
}

// stop ends the container and everything in it.
func (n *node) stop() {
	n.up = false
	n.epoch++
	n.guardSet++
	n.kill()
}

// whenAwake does something in the process, now or when it runs again.
func (n *node) whenAwake(epoch uint32, do func()) {
	switch {
	case !n.alive(epoch):
	case n.frozenUntil > n.w.now:
		n.w.queue.push(n.frozenUntil, func() { n.whenAwake(epoch, do) })
	default:
		do()
	}
}

// feed gives an event to the process, now or when it runs again.
func (n *node) feed(epoch uint32, ev election.Event) {
	if n.frozenUntil <= n.w.now {
		if n.alive(epoch) {
			n.step(ev)
		}
		return
	}
	n.whenAwake(epoch, func() { n.step(ev) })
}

// died lets the process notice that PostgreSQL ended, if it has not started it again by then.
func (n *node) died() {
	epoch, gen := n.epoch, n.pg.gen
	n.w.after(n.w.between(0, 100*time.Millisecond), func() {
		n.whenAwake(epoch, func() {
			if n.pg.gen == gen {
				n.step(election.EventPostgresDied{})
			}
		})
	})
}

// step runs the core and carries out what it wants.
func (n *node) step(ev election.Event) {
	w := n.w
	w.steps++
	if w.trace != nil {
		if text := eventText(ev); text != "" {
			w.logf("%s < %s", n.name, text)
		}
	}
	effects := n.core.Step(n.local(), ev)
	for _, e := range effects {
		if w.trace != nil {
			if text := effectText(e); text != "" {
				w.logf("%s > %s", n.name, text)
			}
		}
		n.do(e)
		if w.violation != nil {
			return
		}
	}
}

// do carries out one effect.
func (n *node) do(e election.Effect) {
	switch e := e.(type) {
	case election.EffectCAS:
		n.write(e)
	case election.EffectRead:
		n.read()
	case election.EffectSend:
		n.send(e.Message)
	case election.EffectSeal:
		n.seal(e.Term)
	case election.EffectPromise:
		n.job(n.w.between(time.Millisecond, 30*time.Millisecond), func() {
			n.promise(e.Term)
			n.step(election.EventPromised{Term: e.Term})
		})
	case election.EffectFence:
		n.fence()
	case election.EffectDeadline:
		n.setGuard(e.At)
	case election.EffectPromote:
		n.lead(e.Term, e.Timeline, e.Sync, false)
	case election.EffectLead:
		n.lead(e.Term, e.Timeline, e.Sync, e.Init)
	case election.EffectFollow:
		n.follow(e)
	case election.EffectSetSync:
		n.setSync(e.Sync)
	case election.EffectStop:
		n.shutDown()
	}
}

// job is work of the process that ends after d; it stands still with the process.
func (n *node) job(d time.Duration, done func()) {
	epoch := n.epoch
	n.w.after(d, func() { n.whenAwake(epoch, done) })
}

func (n *node) send(m election.Message) {
	w := n.w
	to := w.byName(m.To)
	if to == nil {
		return
	}
	deliver := func() {
		if to.up && !n.cut[to.id] {
			to.feed(to.epoch, election.EventMessage{Message: m})
		}
	}
	if w.chance(w.net.loss) {
		return
	}
	w.after(w.delay(), deliver)
	if w.chance(w.net.double) {
		w.after(w.delay()*4, deliver)
	}
}

func (w *world) byName(name string) *node {
	if len(name) == 1 && int(name[0]-'a') < len(w.nodes) {
		return w.nodes[name[0]-'a']
	}
	return nil
}

func (n *node) promise(term int64) { n.vol.promised = max(n.vol.promised, term) }

// seal is what EffectSeal asks for.
func (n *node) seal(term int64) {
	w := n.w
	d := w.between(2*time.Millisecond, 40*time.Millisecond)
	if n.pg.state == down {
		d += w.between(50*time.Millisecond, 500*time.Millisecond) // WAL is read to the end
	}
	n.pg.follow = nil // no new connection from now on
	n.sealing = term
	n.job(d, func() {
		if n.sealing != term {
			return
		}
		if n.pg.state == primary || n.pg.state == ending {
			w.violate("%s was asked to seal while PostgreSQL is a primary", n.name)
			return
		}
		n.promise(term)
		if n.pg.follow == nil || n.pg.followTerm < term {
			n.disconnect()
		}
		n.step(election.EventSealed{Term: term, Position: n.vol.position(), Empty: !n.vol.data})
	})
}

// setGuard tells the guard its deadline.
func (n *node) setGuard(at time.Duration) {
	w := n.w
	n.guardSet++
	n.guardAt = at
	if at == 0 {
		return
	}
	set, epoch := n.guardSet, n.epoch
	var due func()
	due = func() {
		if n.guardSet != set || !n.alive(epoch) {
			return
		}
		if n.haltedUntil > w.now {
			w.queue.push(n.haltedUntil+w.between(0, 30*time.Millisecond), due)
			return
		}
		if n.pg.state == down {
			return
		}
		w.logf("%s guard kills PostgreSQL", n.name)
		n.kill()
		n.died()
	}
	w.queue.push(max(n.trueTime(at), w.now), due)
}

func (n *node) fence() {
	n.fencing = true
	n.job(n.w.between(time.Millisecond, 40*time.Millisecond), func() {
		n.kill()
		n.fencing = false
		n.step(election.EventFenced{})
	})
}

// observe gives the core a picture of PostgreSQL, which is a little old when it arrives.
func (n *node) observe(epoch uint32) {
	l := n.picture()
	n.w.after(n.w.between(0, 150*time.Millisecond), func() { n.feed(epoch, election.EventLocal{Local: l}) })
}
