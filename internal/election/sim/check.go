package sim

import (
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// commit that a client was told of.
type commit struct {
	branch *branch
	lsn    uint64
	// kept: it has to survive whatever happens, since it was acknowledged under synchronous replication.
	kept bool
}

// acknowledge records a commit and checks that the primary may still say so.
func (w *world) acknowledge(n *node, lsn uint64) {
	b := at(n.vol.branch, lsn)
	if w.leaderNode >= 0 && w.leaderNode != n.id && n.pg.term < w.leaderTerm && !w.mayStill(n, b, lsn) {
		w.violate("%s acknowledges a commit under term %d although %s leads under term %d", n.name, n.pg.term, w.nodes[w.leaderNode].name, w.leaderTerm)
	}
	if !n.pg.excused && n.local() > n.guardAt+time.Millisecond {
		w.violate("%s acknowledges a commit %s after its fence deadline", n.name, n.local()-n.guardAt)
	}
	w.commits = append(w.commits, commit{b, lsn, !n.wroteAsync && !w.store.record.Async})
	w.lastAck = w.now
}

// mayStill: a primary that stood still with its guard may let go of an asynchronous commit; and without fences a commit that
// the new primary has does no harm.
func (w *world) mayStill(n *node, b *branch, lsn uint64) bool {
	return n.wroteAsync && n.pg.excused || w.unfenced && w.nodes[w.leaderNode].vol.has(b, lsn)
}

// checkPrimary: PostgreSQL of n has become the primary.
func (w *world) checkPrimary(n *node, term int64) {
	w.takeovers++
	w.logf("%s is primary under term %d at %s", n.name, term, n.vol.text())
	if n.vol.promised < term {
		w.violate("%s leads under term %d without its promise on disk", n.name, term)
	}
	if w.terms[term] != n.uid {
		w.violate("%s leads under term %d, which is %q's", n.name, term, w.terms[term])
	}
	if w.unfenced && term < w.leaderTerm {
		return // a promotion that came late; what counts is that it acknowledges nothing
	}
	if term < w.leaderTerm {
		w.violate("%s leads under term %d after %d", n.name, term, w.leaderTerm)
	}
	for _, m := range w.nodes {
		if !w.unfenced && m != n && (m.pg.state == primary || m.pg.state == ending) && !m.pg.excused && m.haltedUntil <= w.now {
			w.violate("%s and %s are both primaries", n.name, m.name)
		}
	}
	w.leaderTerm, w.leaderNode = term, n.id
	for i := range w.commits {
		c := &w.commits[i]
		if c.kept && !n.vol.has(c.branch, c.lsn) && w.exists(c) {
			w.violate("%s leads under term %d without the acknowledged commit at %d/%d", n.name, term, c.branch.id, c.lsn)
		}
	}
}

// exists says whether any volume still has the commit.
func (w *world) exists(c *commit) bool {
	return !w.wiped || slices.ContainsFunc(w.nodes, func(n *node) bool { return n.vol.data && n.vol.has(c.branch, c.lsn) })
}

// checkWrite: the Lease is about to become r.
func (w *world) checkWrite(n *node, r *election.Record) {
	before := &w.store.record
	holder := w.terms[r.Term]
	switch {
	case r.Term < w.maxTerm:
		w.violate("%s writes term %d after %d", n.name, r.Term, w.maxTerm)
	case holder != "" && holder != r.HolderUID:
		w.violate("term %d has two holders: %s and %s", r.Term, holder, r.HolderUID)
	case r.Released != nil && (n.pg.state == primary || n.pg.state == ending):
		w.violate("%s releases the lease while PostgreSQL is a primary", n.name)
	}
	w.maxTerm = max(w.maxTerm, r.Term)
	w.terms[r.Term] = r.HolderUID
	switch {
	case r.Async:
		for i := range w.commits {
			w.commits[i].kept = false
		}
	case before.Async:
		for i := range w.commits {
			w.commits[i].kept = n.vol.has(w.commits[i].branch, w.commits[i].lsn)
		}
	}
	n.wroteAsync = r.Async
}

// checkTimeline: n is about to begin a timeline. No other of that number may exist.
func (w *world) checkTimeline(n *node, id uint32) {
	for _, m := range w.nodes {
		for b := m.vol.branch; b != nil; b = b.parent {
			if b.id == id {
				w.violate("%s begins timeline %d, which %s has already", n.name, id, m.name)
			}
		}
	}
}

// checkInit: n is about to make a new database.
func (w *world) checkInit(n *node) {
	w.inits++
	for _, m := range w.nodes {
		if m.vol.data {
			w.violate("%s makes a new database although %s has data", n.name, m.name)
		}
	}
	if len(w.commits) > 0 && !w.wiped {
		w.violate("%s makes a second database", n.name)
	}
}

// checkRewind: n is about to replace what it has by what m has.
func (w *world) checkRewind(n, m *node) {
	for i := range w.commits {
		c := &w.commits[i]
		if c.kept && n.vol.has(c.branch, c.lsn) && !m.vol.has(c.branch, c.lsn) {
			w.violate("%s gives up the acknowledged commit at %d/%d to follow %s", n.name, c.branch.id, c.lsn, m.name)
			return
		}
	}
}

// healthy says whether the cluster is as it should be when nothing is broken.
func (w *world) healthy() bool {
	r := &w.store.record
	h := w.byName(r.Holder)
	if !w.store.exists || r.Released != nil || h == nil || h.pg.state != primary || h.uid != r.HolderUID {
		return false
	}
	if w.now-w.lastAck > 2*time.Second {
		return false
	}
	standbys := 0
	for _, n := range w.nodes {
		if n.gone || n == h {
			continue
		}
		if n.pg.leader != h.id {
			return false
		}
		standbys++
	}
	if w.cfg.Durability == election.Asynchronous {
		return r.Async
	}
	return !r.Async && len(r.Quorums) == 1 && r.Quorums[0].Num == min(max(w.cfg.Num, 1), standbys) && len(r.Quorums[0].Standbys) == standbys
}

// recoverable says whether somebody is surely able to lead: no volume that matters was lost.
func (w *world) recoverable() bool {
	r := &w.store.record
	if !w.store.exists {
		return !w.wiped
	}
	h := w.byName(r.Holder)
	if h.gone {
		return false
	}
	return h.vol.data && h.vol.promised >= r.Term || r.SystemIdentifier == "" && !w.wiped
}
