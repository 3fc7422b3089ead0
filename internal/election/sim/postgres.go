package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// branch is a timeline, as it really is: two of one number would be two branches.
type branch struct {
	id     uint32
	parent *branch
	fork   uint64
}

// volume is what survives a crash.
type volume struct {
	promised int64
	data     bool
	system   string
	branch   *branch
	lsn      uint64 // flushed
	standby  bool   // standby.signal is there
	repair   bool   // a rewind was interrupted
}

func (v *volume) position() election.Position {
	if !v.data {
		return election.Position{}
	}
	return election.Position{Timeline: v.branch.id, LSN: v.lsn}
}

func (v *volume) text() string {
	if !v.data {
		return "no data"
	}
	return v.position().String()
}

// has says whether the WAL up to there is part of the volume's history.
func (v *volume) has(b *branch, lsn uint64) bool {
	limit := v.lsn
	for c := v.branch; c != nil; c = c.parent {
		if c == b {
			return lsn <= limit
		}
		limit = min(limit, c.fork)
	}
	return false
}

// at is the branch of a place in the history that ends on b.
func at(b *branch, lsn uint64) *branch {
	for b.parent != nil && lsn < b.fork {
		b = b.parent
	}
	return b
}

type state int

const (
	down state = iota
	standby
	primary
	ending // a primary that shuts down
)

// server is a running PostgreSQL.
type server struct {
	state state
	gen   uint32 // changes whenever it starts or ends

	// Of a standby.
	follow     *election.EffectFollow
	followTerm int64
	leader     int // node that it streams from, -1: none
	leaderGen  uint32
	conn       uint32
	busy       bool // clones or rewinds

	// Of a primary.
	term      int64
	sync, old election.Quorum // commits may be let go by either until settled
	shown     election.Quorum
	settledAt time.Duration
	reload    uint32
	senders   []sender
	waiting   []uint64
	excused   bool // it stood still with everything around it, the guard too
}

type sender struct {
	to      int
	conn    uint32
	flushed uint64
}

// kill ends PostgreSQL on the spot.
func (n *node) kill() {
	n.disconnect()
	n.pg = server{gen: n.pg.gen + 1, leader: -1, conn: n.pg.conn + 1, follow: n.pg.follow, followTerm: n.pg.followTerm, reload: n.pg.reload}
}

func (n *node) disconnect() {
	n.pg.leader = -1
	n.pg.conn++
}

// running says whether PostgreSQL does anything now.
func (n *node) running() bool { return n.pg.state != down && n.haltedUntil <= n.w.now }

func (n *node) reaches(m *node) bool { return !n.cut[m.id] && !m.cut[n.id] }

// picture is what the driver sees of PostgreSQL.
func (n *node) picture() election.Local {
	v := &n.vol
	l := election.Local{
		HasData: v.data, SystemIdentifier: v.system, Running: n.pg.state != down, InRecovery: v.standby, Position: v.position(), NeedsRepair: v.repair,
	}
	if n.pg.state == down && v.data {
		l.Position.LSN -= min(l.Position.LSN, 64) // pg_control's
	}
	if n.pg.state == primary {
		l.SyncInForce = n.pg.shown
		for _, s := range n.pg.senders {
			m := n.w.nodes[s.to]
			if m.pg.conn == s.conn && s.flushed+200 >= v.lsn {
				l.Standbys = append(l.Standbys, m.name)
				l.Flushed = append(l.Flushed, s.flushed)
			}
		}
	}
	return l
}

// follow is what EffectFollow asks for.
func (n *node) follow(e election.EffectFollow) {
	if n.pg.state == primary || n.pg.state == ending {
		n.w.violate("%s follows while PostgreSQL is a primary", n.name)
		return
	}
	n.promise(e.Term)
	n.sealing = 0
	n.disconnect()
	n.pg.follow, n.pg.followTerm = &e, e.Term
	n.pg.busy = false
	if n.vol.data && n.pg.state == down && !n.vol.repair {
		n.pg.state, n.pg.gen = standby, n.pg.gen+1
		n.vol.standby = true
	}
	n.connectSoon(n.pg.conn)
}

func (n *node) connectSoon(conn uint32) {
	n.job(n.w.between(50*time.Millisecond, 500*time.Millisecond), func() { n.connect(conn) })
}

// connect tries to stream from the leader.
func (n *node) connect(conn uint32) {
	w := n.w
	p := &n.pg
	if p.conn != conn || p.follow == nil || p.leader >= 0 || p.busy || n.haltedUntil > w.now {
		if p.conn == conn && n.haltedUntil > w.now {
			n.connectSoon(conn)
		}
		return
	}
	m := w.byName(p.follow.Leader)
	if m == nil || m == n || m.pg.state != primary || !m.running() || !n.reaches(m) {
		n.connectSoon(conn)
		return
	}
	switch {
	case n.vol.data && n.vol.system != m.vol.system:
		w.violate("%s and %s have different databases", n.name, m.name)
	case !n.vol.data || n.vol.repair || !m.vol.has(n.vol.branch, n.vol.lsn):
		n.copyFrom(m, conn)
	default:
		n.stream(m)
	}
}

// copyFrom clones or rewinds.
func (n *node) copyFrom(m *node, conn uint32) {
	w := n.w
	p := &n.pg
	p.busy = true
	if n.vol.data {
		w.checkRewind(n, m)
		if p.state != down {
			p.state, p.gen = down, p.gen+1
		}
		if w.chance(0.3) {
			n.vol.repair = true // in place: what is there cannot be started until it is done
		}
	}
	gen := m.pg.gen
	n.job(w.between(300*time.Millisecond, 2*time.Second), func() {
		if p.conn != conn || p.follow == nil {
			return
		}
		p.busy = false
		if m.pg.state == primary && m.pg.gen == gen && m.running() && n.reaches(m) {
			w.logf("%s copied from %s", n.name, m.name)
			n.vol.data, n.vol.system, n.vol.repair, n.vol.standby = true, m.vol.system, false, true
			n.vol.branch, n.vol.lsn = m.vol.branch, m.vol.lsn
			if p.state == down {
				p.state, p.gen = standby, p.gen+1
			}
		}
		n.connectSoon(conn)
	})
}

// stream begins replication from m.
func (n *node) stream(m *node) {
	p := &n.pg
	if p.state == down {
		p.state, p.gen = standby, p.gen+1
	}
	n.vol.standby = true
	p.conn++
	p.leader, p.leaderGen = m.id, m.pg.gen
	m.pg.senders = slices.DeleteFunc(m.pg.senders, func(s sender) bool { return s.to == n.id })
	m.pg.senders = append(m.pg.senders, sender{to: n.id, conn: p.conn})
	n.w.logf("%s streams from %s", n.name, m.name)
	m.ship(n, p.conn, 0)
}

// ship sends what there is of WAL to a standby.
func (n *node) ship(m *node, conn uint32, tries int) {
	w := n.w
	if n.pg.state != primary && n.pg.state != ending {
		m.reconnect(conn)
		return
	}
	gen, end, b := n.pg.gen, n.vol.lsn, n.vol.branch
	w.after(w.delay()/2, func() {
		if m.pg.conn != conn {
			return
		}
		if m.haltedUntil > w.now || !n.reaches(m) {
			if tries < 8 && n.pg.gen == gen {
				w.after(400*time.Millisecond, func() { n.ship(m, conn, tries+1) })
				return
			}
			m.reconnect(conn)
			return
		}
		m.receive(n, gen, b, end, conn)
	})
}

// reconnect gives up a connection.
func (n *node) reconnect(conn uint32) {
	if n.pg.conn == conn && n.up {
		n.disconnect()
		n.connectSoon(n.pg.conn)
	}
}

// receive flushes WAL on a standby and tells the primary.
func (n *node) receive(m *node, gen uint32, b *branch, end uint64, conn uint32) {
	w := n.w
	if m.pg.gen != gen {
		n.reconnect(conn) // the primary ended; what it sent before still came
	}
	if end > n.vol.lsn || b != n.vol.branch {
		if !w.net.calm && w.chance(0.2) { // in pieces
			end = n.vol.lsn + (end-min(end, n.vol.lsn))/2
		}
		end = max(end, n.vol.lsn)
		n.vol.lsn, n.vol.branch = end, at(b, end)
	}
	flushed := n.vol.lsn
	w.after(w.delay()/2, func() {
		if m.pg.gen != gen || m.haltedUntil > w.now || !n.reaches(m) {
			return
		}
		for i := range m.pg.senders {
			if s := &m.pg.senders[i]; s.to == n.id && s.conn == conn {
				s.flushed = max(s.flushed, flushed)
				m.letGo()
				if s.flushed < m.vol.lsn && n.pg.conn == conn {
					m.ship(n, conn, 0)
				}
				return
			}
		}
	})
}

// clientWrites is a commit of a client on this primary.
func (n *node) clientWrites() {
	n.vol.lsn += 8
	n.pg.waiting = append(n.pg.waiting, n.vol.lsn)
	n.letGo()
	for _, s := range n.pg.senders {
		if n.w.nodes[s.to].pg.conn == s.conn {
			n.ship(n.w.nodes[s.to], s.conn, 0)
		}
	}
}

// letGo acknowledges the commits whose standbys have them.
func (n *node) letGo() {
	if n.pg.state != primary {
		return
	}
	i := 0
	for i < len(n.pg.waiting) && n.confirmed(n.pg.waiting[i]) {
		n.w.acknowledge(n, n.pg.waiting[i])
		i++
	}
	n.pg.waiting = n.pg.waiting[i:]
}

func (n *node) confirmed(lsn uint64) bool {
	return n.flushedBy(&n.pg.sync, lsn) || n.w.now < n.pg.settledAt && n.flushedBy(&n.pg.old, lsn)
}

func (n *node) flushedBy(q *election.Quorum, lsn uint64) bool {
	if q.PrimaryOnly() {
		return true
	}
	have := 0
	for _, s := range n.pg.senders {
		if s.flushed >= lsn && slices.Contains(q.Standbys, n.w.nodes[s.to].name) {
			have++
		}
	}
	return have >= q.Num
}

// setSync reloads synchronous_standby_names: it shows soon, and is in force in all processes a little later.
func (n *node) setSync(q election.Quorum) {
	w := n.w
	gen := n.pg.gen
	n.pg.reload++
	reload := n.pg.reload
	n.job(w.between(10*time.Millisecond, 500*time.Millisecond), func() {
		if n.pg.gen != gen || n.pg.state != primary || n.pg.reload != reload {
			return
		}
		if w.now >= n.pg.settledAt {
			n.pg.old = n.pg.sync
		}
		settle := w.between(0, 900*time.Millisecond)
		n.pg.sync, n.pg.shown = q, q
		if n.pg.old.PrimaryOnly() && !q.PrimaryOnly() {
			// Sessions wait at all only when the checkpointer has told them to, which may be busy for long. The driver does not take the
			// setting for being in force before.
			if !w.net.calm && w.chance(0.2) {
				settle = w.between(0, 30*time.Second)
			}
			if !w.hasty {
				n.pg.shown = election.Quorum{Num: 1}
				n.job(settle, func() {
					if n.pg.gen == gen && n.pg.state == primary && n.pg.reload == reload {
						n.pg.shown = q
					}
				})
			}
		}
		n.pg.settledAt = w.now + settle
		n.letGo()
	})
}

// lead makes PostgreSQL the primary.
func (n *node) lead(term int64, timeline uint32, sync election.Quorum, init bool) {
	w := n.w
	n.disconnect()
	n.pg.follow, n.sealing = nil, 0
	gen := n.pg.gen
	n.job(w.between(50*time.Millisecond, 1200*time.Millisecond), func() {
		if n.fencing || n.guardAt == 0 || n.local() >= n.guardAt {
			return
		}
		if n.pg.gen != gen || !w.net.calm && w.chance(0.02) {
			n.step(election.EventPromoteFailed{Reason: "simulated"})
			return
		}
		n.makePrimary(term, timeline, sync, init)
	})
}

func (n *node) makePrimary(term int64, timeline uint32, sync election.Quorum, init bool) {
	w := n.w
	v := &n.vol
	switch {
	case init:
		w.checkInit(n)
		v.data, v.system, v.branch, v.lsn = true, fmt.Sprint("sys", w.inits), &branch{id: 1}, 100
	case v.standby:
		id := max(v.branch.id+1, timeline)
		w.checkTimeline(n, id)
		v.branch, v.lsn = &branch{id: id, parent: v.branch, fork: v.lsn}, v.lsn+1
	}
	v.standby = false
	n.pg.state, n.pg.gen = primary, n.pg.gen+1
	n.pg.term = term
	n.pg.sync, n.pg.old, n.pg.shown = sync, sync, sync
	w.checkPrimary(n, term)
	n.step(election.EventPromoted{Position: v.position()})
}

// shutDown is what EffectStop asks for.
func (n *node) shutDown() {
	w := n.w
	if n.pg.state != primary {
		n.job(0, func() { n.step(election.EventStopped{}) })
		return
	}
	n.pg.state = ending
	n.pg.waiting = nil
	n.vol.lsn++
	gen := n.pg.gen
	for _, s := range n.pg.senders {
		if w.nodes[s.to].pg.conn == s.conn {
			n.ship(w.nodes[s.to], s.conn, 0)
		}
	}
	n.job(w.between(100*time.Millisecond, 1500*time.Millisecond), func() {
		if n.pg.gen != gen {
			return // killed meanwhile: the driver was told
		}
		clean := w.net.calm || !w.chance(0.1)
		n.kill()
		n.step(election.EventStopped{Clean: clean, End: n.vol.position()})
	})
}
