package election

import (
	"slices"
	"time"
)

// grant is the newest promise of a member: it is bound until TTL after the request was received, which was after sentAt.
type grant struct {
	member string
	sentAt time.Duration
}

// round is one set of requests for promises.
type round struct {
	id     uint64
	sentAt time.Duration
}

// Reasons of refusals.
const (
	reasonBound    = "bound by a promise to the primary"
	reasonLeads    = "holds leadership"
	reasonPromised = "promised to a higher term"
	reasonHeld     = "the lease is held"
	reasonStarting = "starting"
	reasonLater    = "asked again meanwhile"
	reasonUnknown  = "does not follow that term"
)

// promiseMargin of PromiseTTL is left to the difference of two clocks and the time it takes to kill.
const promiseMargin = 10

// limitless stands for a lease that nobody else can take over.
const limitless = time.Duration(1<<63 - 1)

// askPromises asks the members to promise, when the lease cannot be renewed.
func (c *Core) askPromises(now time.Duration) {
	h := &c.hold
	t := &c.cfg.Timing
	if now-h.renewedAt <= t.RenewEvery+readEvery || now-h.asked < t.PromiseEvery {
		return
	}
	h.asked = now
	id := c.nextID()
	copy(h.rounds[1:], h.rounds[:])
	h.rounds[0] = round{id, now}
	for _, m := range others(&h.record, &c.cfg) {
		c.emit(EffectSend{Message{Kind: PromiseRequest, ID: id, From: c.cfg.Self, To: m, Term: h.term}})
	}
}

// onPromiseRequest binds this instance to the holder, if it knows nothing better.
func (c *Core) onPromiseRequest(now time.Duration, m Message) {
	reply := Message{Kind: PromiseReply, ID: m.ID, From: c.cfg.Self, To: m.From, Term: m.Term, Promised: max(c.promised, c.floor)}
	r := &c.api.lease.Record
	t := &c.cfg.Timing
	valid := c.api.contactAt-c.api.changedAt+t.PromiseTTL <= t.LeaseDuration && now-c.api.changedAt+t.PromiseTTL <= t.LeaseDuration
	switch {
	case c.role != follower || !c.api.seen || r.Holder != m.From || r.Term != m.Term || r.Released != nil || c.holderDead():
		reply.Reason = reasonUnknown
	case c.promised > m.Term:
		reply.Reason = reasonPromised
	case c.api.in && !valid:
		reply.Reason = "the lease is about to run out"
	default:
		reply.OK = true
		c.bound.until = max(c.bound.until, now+t.PromiseTTL)
	}
	c.emit(EffectSend{reply})
}

// isBound says whether a promise holds this instance back. It does not when the holder let go, or is dead, or was this instance itself.
func (c *Core) isBound(now time.Duration) bool {
	if now >= c.bound.until || c.weak.breakPromises {
		return false
	}
	if r := &c.api.lease.Record; r.Term != 0 && r.Holder == c.cfg.Self {
		return false
	}
	v := c.vacancy(now)
	return v != vacantReleased && v != vacantHolderDead
}

func (c *Core) onPromiseReply(m Message) {
	h := &c.hold
	if !c.holds() {
		return
	}
	h.surpass = max(h.surpass, c.overtaken(m.Promised))
	if !m.OK || m.Term != h.term {
		return
	}
	for _, r := range h.rounds {
		if r.id != m.ID || r.id == 0 {
			continue
		}
		i := slices.IndexFunc(h.grants, func(g grant) bool { return g.member == m.From })
		if i < 0 {
			h.grants = append(h.grants, grant{m.From, r.sentAt})
			return
		}
		h.grants[i].sentAt = max(h.grants[i].sentAt, r.sentAt)
	}
}

// overtaken is the term if it is beyond what this instance holds or is about to, else 0.
func (c *Core) overtaken(term int64) int64 {
	if term > max(c.hold.term, c.hold.promising, c.hold.raised) {
		return term
	}
	return 0
}

// setDeadline tells the guard until when this instance is sure that nobody else leads.
func (c *Core) setDeadline(now time.Duration) {
	h := &c.hold
	d := max(h.renewedAt+c.cfg.Timing.FenceAfter, c.covered(now))
	if c.weak.noFence {
		d = now + time.Hour
	}
	if d == h.deadline || d > h.deadline && d-h.deadline < readEvery/2 {
		return
	}
	h.deadline = d
	c.emit(EffectDeadline{At: d})
}

// covered is until when, by the members' promises, nobody can be promoted, whichever of the possible records is in the Lease.
func (c *Core) covered(now time.Duration) time.Duration {
	h := &c.hold
	d := c.coveredUnder(&h.record)
	for i := range c.cas.tries {
		if t := &c.cas.tries[i]; t.kind == writeHold {
			d = min(d, c.coveredUnder(&t.record))
		}
	}
	if d == limitless {
		// Nobody else can: no need to stop. The deadline still moves only while the core runs.
		return now + c.cfg.Timing.FenceAfter
	}
	return d
}

// coveredUnder: a candidate has to satisfy every quorum of the record, so it is enough that one of them is out of its reach.
func (c *Core) coveredUnder(r *Record) time.Duration {
	if r.Async {
		return c.grantedBy(r.Members, len(r.Members)-1)
	}
	best := time.Duration(0)
	for _, q := range r.effective() {
		if q.PrimaryOnly() {
			return limitless
		}
		if q.Num <= len(q.Standbys) {
			best = max(best, c.grantedBy(q.Standbys, q.Num))
		}
	}
	return best
}

// grantedBy is until when at least n of the members, without this instance, are bound; 0 when they never were.
func (c *Core) grantedBy(members []string, n int) time.Duration {
	if n <= 0 {
		return limitless
	}
	ttl := c.cfg.Timing.PromiseTTL
	until := make([]time.Duration, 0, 8)
	for _, g := range c.hold.grants {
		if g.member != c.cfg.Self && slices.Contains(members, g.member) {
			until = append(until, g.sentAt+ttl-ttl/promiseMargin)
		}
	}
	if len(until) < n {
		return 0
	}
	slices.Sort(until)
	return until[len(until)-n]
}
