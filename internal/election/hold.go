package election

import (
	"slices"
	"time"
)

// holding is the state of an instance that holds leadership.
type holding struct {
	term      int64
	record    Record // last one that this instance is sure to have written
	sure      bool   // nothing else may be in the Lease
	renewals  int64  // of the last attempt
	renewedAt time.Duration
	deadline  time.Duration // as the guard was told
	tookAt    time.Duration // PostgreSQL accepts writes since

	// surpass is a term that members are promised to, or that was lost with the Lease: this one must be higher. promising and raised
	// are the term that is being written to disk, and was.
	surpass, promising, raised int64

	sync   syncing
	grants []grant
	rounds [8]round
	asked  time.Duration
}

// acquired: the compare-and-swap that makes this instance the holder was done.
func (c *Core) acquired(now time.Duration, t *attempt) {
	deadline := t.sentAt + c.cfg.Timing.FenceAfter
	if c.promised != t.record.Term || c.seal.term != t.record.Term || now >= deadline-c.cfg.Timing.RenewTimeout || c.isBound(now) {
		return // too late to begin under it; what becomes of a lease that is held and not used is decided elsewhere
	}
	c.hold = holding{term: t.record.Term, record: t.record, sure: true, renewals: t.record.Renewals, renewedAt: t.sentAt}
	c.hold.sync.begin(now, t.sync)
	c.role = taking
	c.release = nil
	c.seal = sealing{}
	c.camp = campaign{}
	c.unfollow()
	c.setDeadline(now)
	c.emit(EffectPointService{Term: t.record.Term})
	switch {
	case t.init:
		c.emit(EffectLead{Term: t.record.Term, Timeline: t.record.Timeline, Sync: t.sync, Init: true})
	case c.local.Running && c.local.InRecovery:
		c.emit(EffectPromote{Term: t.record.Term, Timeline: t.record.Timeline, Sync: t.sync})
	default:
		c.emit(EffectLead{Term: t.record.Term, Timeline: t.record.Timeline, Sync: t.sync})
	}
}

// renewed: a write of the holder was done. The lease counts from when it was sent.
func (c *Core) renewed(now time.Duration, t *attempt) {
	h := &c.hold
	raised := t.record.Term > h.term
	h.term, h.record, h.sure = t.record.Term, t.record, true
	h.renewedAt = max(h.renewedAt, t.sentAt)
	if raised {
		h.promising, h.raised = 0, 0
		h.grants = nil
		c.emit(EffectPointService{Term: h.term})
	}
	c.setDeadline(now)
}

// checkHeld fences the instance when the Lease is not its own any more.
func (c *Core) checkHeld() {
	if !c.holds() {
		return
	}
	r := &c.api.lease.Record
	switch {
	case r.Term == 0:
		c.hold.surpass = max(c.hold.surpass, c.hold.term) // deleted: it is made again, under a higher term
	case r.HolderUID != c.cfg.SelfUID || r.Term != c.hold.term:
		c.fence("another instance holds the lease")
	case r.Released != nil:
		c.fence("the lease was released by somebody else")
	}
}

// guard fences the instance when its time is up, before anything else is done.
func (c *Core) guard(now time.Duration) {
	if c.holds() && now >= c.hold.deadline && !c.weak.noFence {
		c.fence("the lease could not be renewed in time")
	}
}

// fence has PostgreSQL killed. The guard's deadline stays until nothing of it is left.
func (c *Core) fence(reason string) {
	c.role = fencing
	c.release = nil
	c.emit(EffectFence{Reason: reason})
}

// down: PostgreSQL was the primary here, and is down.
func (c *Core) down() {
	c.role = follower
	c.hold = holding{}
	c.unfollow()
	c.emit(EffectDeadline{})
}

// crashWindow is how soon after it took the lead a crash counts as a failure to lead.
const crashWindow = 30 * time.Second

func (c *Core) onDied(now time.Duration) {
	if !c.holds() {
		return
	}
	if c.role == taking || now-c.hold.tookAt < crashWindow {
		c.failedAt = now
	}
	c.release = nil
	c.down()
}

func (c *Core) onPromoted(now time.Duration, at Position) {
	if c.role != taking {
		return
	}
	c.role = leading
	c.hold.tookAt = now
	if at.Compare(c.local.Position) > 0 {
		c.local.Position = at
	}
}

// advanceHolder renews the lease and keeps its record true.
func (c *Core) advanceHolder(now time.Duration) {
	if c.role == leading && (c.cfg.Suspended || c.leaving) {
		c.onHandover(EventHandover{Suspend: c.cfg.Suspended})
	}
	c.raise()
	c.askPromises(now)
	c.setDeadline(now)
	c.setSync()
	c.renew(now)
	switch c.role {
	case taking:
		c.say(PhaseTaking, "waiting for PostgreSQL to accept writes")
	case stopping:
		c.say(PhaseStopping, "shutting PostgreSQL down for a hand-over")
	default:
		c.say(PhaseLeading, "")
	}
}

// renew writes the record when it is time to, or when it has to say something else.
func (c *Core) renew(now time.Duration) {
	h := &c.hold
	if !c.mayWrite(now) {
		return
	}
	gone := c.api.lease.Record.Term == 0
	if gone && h.raised == 0 {
		return
	}
	due := gone || h.raised > h.term || !h.sure || now-h.renewedAt >= c.cfg.Timing.RenewEvery
	async, quorums, differs := c.claim()
	if !due && !differs {
		return
	}
	r := h.record
	r.Async, r.Quorums = async, quorums
	r.Members = c.cfg.Members
	if c.local.Position.Compare(r.Position) > 0 && !c.local.InRecovery {
		r.Position = c.local.Position
	}
	r.Timeline = max(r.Timeline, r.Position.Timeline)
	if c.local.SystemIdentifier != "" && c.local.HasData {
		r.SystemIdentifier = c.local.SystemIdentifier
	}
	r.Term = max(r.Term, h.raised)
	h.renewals++
	r.Renewals = h.renewals
	c.submit(now, writeHold, r)
}

// raise writes a promise of a higher term when members are bound to one, so that they may follow again.
func (c *Core) raise() {
	h := &c.hold
	if h.surpass < h.term || h.raised > h.surpass || h.promising > h.surpass {
		return
	}
	h.promising = h.surpass + 1
	c.promised = max(c.promised, h.promising)
	c.emit(EffectPromise{Term: h.promising})
}

func (c *Core) onPromised(term int64) {
	if c.holds() && term == c.hold.promising {
		c.hold.raised, c.hold.promising = term, 0
	}
}

func (c *Core) onHandover(e EventHandover) {
	c.leaving = c.leaving || e.Leaving
	if c.role != leading {
		return
	}
	to := ""
	if !e.Suspend {
		if to = c.successor(e.To); to == "" && !c.leaving {
			return
		}
	}
	c.role = stopping
	c.release = &Release{To: to, Suspended: e.Suspend}
	c.emit(EffectStop{Successor: to})
}

// successor is the named standby if it streams, or the most advanced one on which commits wait; "": there is none.
func (c *Core) successor(name string) string {
	l := &c.local
	best, at := "", uint64(0)
	for i, s := range l.Standbys {
		if !slices.Contains(c.cfg.Members, s) || s == c.cfg.Self || name != "" && name != s {
			continue
		}
		if name == "" && !c.hold.sync.set.PrimaryOnly() && !slices.Contains(c.hold.sync.set.Standbys, s) {
			continue
		}
		flushed := uint64(0)
		if i < len(l.Flushed) {
			flushed = l.Flushed[i]
		}
		if best == "" || flushed > at {
			best, at = s, flushed
		}
	}
	return best
}

func (c *Core) onStopped(e EventStopped) {
	if c.role != stopping || c.release == nil {
		return
	}
	r := *c.release
	if e.Clean {
		r.Clean, r.End = true, e.End
	} else {
		r.To = ""
	}
	c.down()
	c.release = &r
}
