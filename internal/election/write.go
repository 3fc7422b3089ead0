package election

import "time"

// writeKind is what a compare-and-swap is for.
type writeKind int

const (
	writeHold    writeKind = iota // of the holder: renewal, quorums, higher term
	writeAcquire                  // of a candidate
	writeRelease                  // of a holder whose PostgreSQL is down
)

// attempt is a compare-and-swap that may have been done. Of all attempts on one version at most one ever is, and a record's holder,
// term and Renewals tell which.
type attempt struct {
	id      uint64
	kind    writeKind
	version string
	record  Record
	sentAt  time.Duration
	init    bool   // acquire: a new database is made
	sync    Quorum // acquire: what PostgreSQL starts with
}

// writes are the compare-and-swaps on their way.
type writes struct {
	flying  bool // the newest attempt is not answered yet
	failed  bool // the last answer was no success
	blocked bool // the version that is known is not the present one: the Lease has to be read first
	id      uint64
	sentAt  time.Duration
	tries   []attempt
	serial  int64 // Renewals of the next acquisition, so that each can be told from the others
}

// retryWrite is how long after a write that failed the next one is tried.
const retryWrite = time.Second

// submit sends a compare-and-swap on the Lease's present version.
func (c *Core) submit(now time.Duration, kind writeKind, record Record) *attempt {
	w := &c.cas
	w.id = c.nextID()
	w.flying, w.sentAt = true, now
	version := c.api.lease.Version
	w.tries = append(w.tries, attempt{id: w.id, kind: kind, version: version, record: record, sentAt: now})
	c.emit(EffectCAS{ID: w.id, Version: version, Record: record, Renew: kind == writeHold})
	return &w.tries[len(w.tries)-1]
}

// mayWrite says that a write may be sent now; after a failed one only a moment later.
func (c *Core) mayWrite(now time.Duration) bool {
	w := &c.cas
	return c.api.seen && !w.flying && !w.blocked && (!w.failed || now-w.sentAt >= retryWrite)
}

func (c *Core) onCAS(now time.Duration, e EventCAS) {
	w := &c.cas
	if w.flying && e.ID == w.id {
		w.flying, w.failed = false, !e.OK
	}
	i := 0
	for i < len(w.tries) && w.tries[i].id != e.ID {
		i++
	}
	if i == len(w.tries) {
		return // the Lease itself already told
	}
	switch {
	case e.OK:
		c.sight(now, e.Lease)
	case e.Conflict:
		w.tries = append(w.tries[:i:i], w.tries[i+1:]...)
		w.blocked, c.api.want = true, true
		c.hold.sure = false
	default:
		c.api.want = c.api.want || !c.holds()
		c.hold.sure = false
	}
}

// expireWrite stops waiting for an answer. The write may still be done.
func (c *Core) expireWrite(now time.Duration) {
	w := &c.cas
	if w.flying && now-w.sentAt > c.cfg.Timing.RenewTimeout+readEvery {
		w.flying, w.failed = false, true
		c.hold.sure = false
	}
}

// resolveWrites finds out, when the version moved, which attempt was done if any. The others never will be.
func (c *Core) resolveWrites(now time.Duration) {
	w := &c.cas
	if len(w.tries) == 0 {
		c.hold.sure = false
		return
	}
	r := &c.api.lease.Record
	tries := w.tries
	w.tries, w.flying = nil, false
	c.hold.sure = false
	for i := range tries {
		t := &tries[i]
		if r.HolderUID == c.cfg.SelfUID && t.record.HolderUID == r.HolderUID && t.record.Term == r.Term && t.record.Renewals == r.Renewals {
			w.failed = false
			c.written(now, t)
			return
		}
	}
}

// written: the attempt was done.
func (c *Core) written(now time.Duration, t *attempt) {
	switch t.kind {
	case writeHold:
		if c.holds() {
			c.renewed(now, t)
		}
	case writeAcquire:
		if c.role == follower {
			c.acquired(now, t)
		}
	case writeRelease:
		c.release = nil
	}
}
