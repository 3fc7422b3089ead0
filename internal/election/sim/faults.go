package sim

import (
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// quiet is how long a cluster without faults may take until it is as it should be.
const quiet = 60 * time.Second

// runRandom makes a cluster by chance, breaks it by chance, heals it, and expects it to recover.
func (w *world) runRandom() {
	w.draw()
	for _, n := range w.nodes {
		w.after(w.between(0, 2*time.Second), n.start)
	}
	w.after(0, w.client)
	w.after(time.Second, w.operator)
	calmUntil := w.now + w.between(2*time.Second, 14*time.Second)
	end := calmUntil + w.between(5*time.Second, 30*time.Second)
	w.end = end
	for range 1 + w.rng.IntN(8) {
		w.queue.push(w.between(calmUntil, end), w.fault)
	}
	w.runUntil(end, nil)
	if w.violation != nil {
		return
	}
	since := time.Duration(0)
	patience := quiet
	if r := w.store.record.Released; w.cfg.Suspended || r != nil && r.Suspended {
		patience *= 2 // whoever did not lead last waits for an older configuration to be gone
	}
	w.heal()
	w.runUntil(w.now+patience, func() bool {
		if !w.healthy() {
			since = 0
			return false
		}
		if since == 0 {
			since = w.now
		}
		return w.now-since > 3*time.Second
	})
	if w.violation == nil && !w.healthy() && w.recoverable() {
		w.violate("the cluster is not back %s after the last fault", patience)
	}
}

// draw chooses the cluster.
func (w *world) draw() {
	w.net = network{typical: w.between(2*time.Millisecond, 60*time.Millisecond), worst: w.between(100*time.Millisecond, 3*time.Second)}
	w.net.slow, w.net.double = 0.1*w.rng.Float64(), 0.05
	if w.chance(0.3) {
		w.net.loss = 0.05 * w.rng.Float64()
	}
	count := []int{1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 5, 5}[w.rng.IntN(15)]
	c := election.Config{Num: 1, MaxLag: 1000, Bootstrap: true, Timing: election.DefaultTiming()}
	c.Durability = []election.Durability{election.Preferred, election.Preferred, election.Required, election.Asynchronous}[w.rng.IntN(4)]
	if w.unfenced && c.Durability == election.Asynchronous {
		c.Durability = election.Preferred
	}
	if count == 1 && c.Durability == election.Required {
		c.Durability = election.Preferred
	}
	if count > 2 && w.chance(0.3) {
		c.Num = 2
	}
	w.cfg = c
	for range count {
		w.cfg.Members = append(w.cfg.Members, w.addNode().name)
	}
}

// client writes to every primary, again and again.
func (w *world) client() {
	for _, n := range w.nodes {
		if n.pg.state == primary && n.running() {
			n.clientWrites()
		}
	}
	w.after(w.between(150*time.Millisecond, 700*time.Millisecond), w.client)
}

// operator notices the new database and says so in the configuration.
func (w *world) operator() {
	if w.store.record.SystemIdentifier != "" {
		w.configure(func(c *election.Config) { c.Bootstrap = false })
		return
	}
	w.after(time.Second, w.operator)
}

// configure changes the configuration; instances see it at different times.
func (w *world) configure(change func(*election.Config)) {
	change(&w.cfg)
	for _, n := range w.nodes {
		w.tell(n, w.between(0, 3*time.Second))
	}
}

func (w *world) tell(n *node, after time.Duration) {
	if !n.up {
		return
	}
	epoch := n.epoch
	w.after(after, func() {
		n.whenAwake(epoch, func() { n.step(election.EventConfig{Config: n.config()}) })
	})
}

// fault breaks something.
func (w *world) fault() {
	n := w.victim()
	for_ := w.between(500*time.Millisecond, 25*time.Second)
	switch w.rng.IntN(26) {
	case 0, 1:
		w.crash(n, for_/3, false, false)
	case 2, 3:
		w.crash(n, for_, w.chance(0.5), false)
	case 4:
		w.crash(n, for_, true, true)
	case 5, 6:
		w.crashPostgres(n)
	case 7, 8:
		w.freeze(n, for_)
	case 9:
		w.halt(n, for_)
	case 10, 11:
		w.cutAPI(n, for_)
	case 12:
		w.outage(for_)
	case 13, 14:
		w.isolate(n, for_, w.chance(0.5))
	case 15:
		w.cutLink(n, w.victim(), for_)
	case 16:
		w.lossy(for_)
	case 17, 18:
		w.handover()
	case 19:
		w.rare(for_)
	case 20:
		w.reconfigure(for_)
	case 21, 22:
		w.terminate(n, for_/3)
	case 23, 24:
		w.partAPI(n, for_)
	case 25:
		w.crash(n, for_/8, false, false)
		w.crash(w.victim(), for_/8, false, false)
	}
}

// rare are faults that people cause.
func (w *world) rare(d time.Duration) {
	switch w.rng.IntN(3) {
	case 0:
		// Without a fence a holder that missed its successor would write the record again. And who deletes the record of a cluster that
		// lost a volume, when the other copies went with a member that was taken away, deletes the only sign that something is missing.
		if !w.unfenced && !(w.wiped && w.shrunk()) {
			w.deleteLease()
		}
	case 1:
		w.suspend(d)
	case 2:
		for _, n := range w.nodes {
			w.crash(n, w.between(0, d), false, false)
		}
	}
}

// reconfigure changes what the user declares.
func (w *world) reconfigure(time.Duration) {
	switch w.rng.IntN(3) {
	case 0:
		to := []election.Durability{election.Preferred, election.Required, election.Asynchronous}[w.rng.IntN(3)]
		if to == election.Required && len(w.cfg.Members) <= w.cfg.Num || to == election.Asynchronous && w.unfenced {
			return
		}
		w.logf("durability %s", to)
		w.configure(func(c *election.Config) { c.Durability = to })
	case 1:
		w.scaleUp()
	case 2:
		w.scaleDown()
	}
}

func (w *world) scaleUp() {
	if len(w.nodes) > 5 {
		return
	}
	n := w.addNode()
	w.logf("%s is added", n.name)
	w.configure(func(c *election.Config) { c.Members = append(slices.Clone(c.Members), n.name) })
	w.after(w.between(time.Second, 4*time.Second), n.start)
}

func (w *world) scaleDown() {
	last := len(w.cfg.Members) - 1
	n := w.byName(w.cfg.Members[last])
	h := w.byName(w.store.record.Holder)
	if h == nil || h.pg.state != primary {
		return // the operator takes no member away while nobody leads
	}
	if last < 1 || h == n || w.cfg.Durability == election.Required && last <= w.cfg.Num {
		return
	}
	w.logf("%s is removed", n.name)
	w.configure(func(c *election.Config) {
		c.Members = slices.Clone(c.Members[:last])
		c.Num = min(c.Num, max(last-1, 1))
	})
	w.after(w.between(0, 4*time.Second), func() {
		if w.store.record.Holder != n.name {
			n.gone = true
			n.stop()
			return
		}
		w.configure(func(c *election.Config) { c.Members = append(slices.Clone(c.Members), n.name) }) // it became the holder: it stays
	})
}

// victim is often the primary.
func (w *world) victim() *node {
	if w.leaderNode >= 0 && w.chance(0.5) {
		return w.nodes[w.leaderNode]
	}
	return w.nodes[w.rng.IntN(len(w.nodes))]
}

// crash ends a container or, with a new pod, everything of it. The kubelet may tell.
func (w *world) crash(n *node, d time.Duration, newPod, wipe bool) {
	if !n.up || n.gone {
		return
	}
	if wipe && (w.store.record.SystemIdentifier == "" || !w.store.exists && w.shrunk()) {
		return
	}
	w.logf("%s crashes for %s (new pod %v, volume lost %v)", n.name, d, newPod, wipe)
	n.stop()
	w.proveDeath(n, n.uid)
	if wipe {
		w.wiped = true
		n.vol = volume{}
	}
	w.after(d, func() {
		if n.up {
			return
		}
		if newPod {
			n.newPod()
		}
		n.start()
	})
}

// terminate deletes a pod in order: it is told, and has some time.
func (w *world) terminate(n *node, d time.Duration) {
	if !n.up || n.gone {
		return
	}
	w.logf("%s is asked to end", n.name)
	epoch := n.epoch
	n.feed(epoch, election.EventHandover{Leaving: true})
	grace := w.between(200*time.Millisecond, 6*time.Second)
	if w.net.calm {
		grace = 2 * time.Second
	}
	w.after(grace, func() {
		if n.alive(epoch) {
			w.crash(n, d, true, false)
		}
	})
}

// proveDeath lets the others learn from the kubelet's status, if they look while the container is dead.
func (w *world) proveDeath(n *node, uid string) {
	if w.chance(0.4) {
		return
	}
	epoch := n.epoch
	for _, m := range w.nodes {
		e := m.epoch
		if m == n || !m.up {
			continue
		}
		w.after(w.between(300*time.Millisecond, 2*time.Second), func() {
			// The Lease was read first; then the container was seen dead.
			r := &m.lease.Record
			if n.up || n.epoch != epoch || !m.alive(e) || !w.reachesAPI(m) || r.HolderUID != uid {
				return
			}
			term := r.Term
			w.after(w.delay(), func() { m.feed(e, election.EventHolderDead{UID: uid, Term: term}) })
		})
	}
}

func (w *world) crashPostgres(n *node) {
	if n.pg.state == down {
		return
	}
	w.logf("%s PostgreSQL crashes", n.name)
	was := n.pg.state
	n.kill()
	if was == standby {
		n.connectSoon(n.pg.conn)
		return
	}
	n.died()
}

func (w *world) freeze(n *node, d time.Duration) {
	w.logf("%s manager stands still for %s", n.name, d)
	n.frozenUntil = max(n.frozenUntil, min(w.now+d, w.end))
}

func (w *world) halt(n *node, d time.Duration) {
	w.logf("%s stands still for %s", n.name, d)
	until := min(w.now+d, w.end)
	n.frozenUntil, n.haltedUntil = max(n.frozenUntil, until), max(n.haltedUntil, until)
	n.pg.excused = true
	epoch := n.epoch
	w.queue.push(until+60*time.Millisecond, func() {
		if n.alive(epoch) && n.haltedUntil <= w.now {
			n.pg.excused = false
		}
	})
}

func (w *world) cutAPI(n *node, d time.Duration) {
	w.logf("%s does not reach the API server for %s", n.name, d)
	n.apiCut = true
	w.after(d, func() { n.apiCut = false })
}

// partAPI keeps an instance and some others from the API server.
func (w *world) partAPI(n *node, d time.Duration) {
	for _, m := range w.nodes {
		if m == n || w.chance(0.5) {
			w.cutAPI(m, d+w.between(0, d/2))
		}
	}
}

func (w *world) outage(d time.Duration) {
	w.logf("the API server is down for %s", d)
	w.net.apiDown = true
	w.after(d, func() { w.net.apiDown = false })
}

func (w *world) isolate(n *node, d time.Duration, api bool) {
	w.logf("%s is isolated for %s (API server too: %v)", n.name, d, api)
	for _, m := range w.nodes {
		n.cut[m.id], m.cut[n.id] = true, true
	}
	n.apiCut = n.apiCut || api
	w.after(d, func() {
		for _, m := range w.nodes {
			n.cut[m.id], m.cut[n.id] = false, false
		}
		n.apiCut = false
	})
}

func (w *world) cutLink(n, m *node, d time.Duration) {
	w.logf("messages to %s do not arrive from %s for %s", n.name, m.name, d)
	n.cut[m.id] = true
	w.after(d, func() { n.cut[m.id] = false })
}

func (w *world) lossy(d time.Duration) {
	before := w.net
	w.net.loss, w.net.slow, w.net.double = 0.3, 0.4, 0.2
	w.logf("bad network for %s", d)
	w.after(min(d, w.end-w.now), func() { w.net.loss, w.net.slow, w.net.double = before.loss, before.slow, before.double })
}

func (w *world) handover() {
	n := w.byName(w.store.record.Holder)
	if n == nil || !n.up {
		return
	}
	to := ""
	if w.chance(0.5) {
		to = w.nodes[w.rng.IntN(len(w.nodes))].name
	}
	n.feed(n.epoch, election.EventHandover{To: to})
}

// shrunk says whether a member was taken away.
func (w *world) shrunk() bool { return len(w.cfg.Members) < len(w.nodes) }

func (w *world) suspend(d time.Duration) {
	w.logf("suspended for %s", d)
	w.configure(func(c *election.Config) { c.Suspended = true })
	w.after(d, func() { w.configure(func(c *election.Config) { c.Suspended = false }) })
}

// heal ends all faults.
func (w *world) heal() {
	w.logf("all faults end")
	w.net.apiDown, w.net.loss, w.net.slow = false, 0, min(w.net.slow, 0.02)
	w.net.worst = min(w.net.worst, time.Second)
	if w.cfg.Suspended {
		w.configure(func(c *election.Config) { c.Suspended = false })
	}
	for _, n := range w.nodes {
		n.apiCut = false
		n.cut = [8]bool{}
		n.start()
		w.tell(n, w.between(0, 3*time.Second))
	}
}
