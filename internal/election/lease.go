package election

import "time"

// contact is what is known of the Lease, and since when.
type contact struct {
	lease Lease
	seen  bool // the Lease was read, or seen not to exist
	// in: the API server answers. A watcher's clock of the lease runs only while it does.
	in        bool
	contactAt time.Duration // last news
	changedAt time.Duration // the record changed, or contact was regained
	firstAt   time.Duration // the record changed
	reading   bool
	readAt    time.Duration
	want      bool // a read is needed at once
	// dead is the pod UID, in the term, whose death is proven.
	deadUID  string
	deadTerm int64
}

// Kinds of vacancy, as they go into Message.Vacant.
const (
	vacantExpired    = "Expired"
	vacantReleased   = "Released"
	vacantHolderDead = "HolderDead"
	vacantNoRecord   = "NoRecord"
)

// readEvery is how often the Lease is read while there is no other news of it; at once reads are no closer than readAtOnce.
const (
	readEvery  = time.Second
	readAtOnce = 200 * time.Millisecond
)

// maxGap is how far apart two pieces of news may be without contact having been lost: a renewal, and a read that timed out.
func (t *Timing) maxGap() time.Duration { return t.RenewEvery + t.RenewTimeout + readEvery }

// onLease takes in a Lease that was read or seen by the watch.
func (c *Core) onLease(now time.Duration, l Lease) {
	asked := c.api.reading
	c.api.reading = false
	// An old state that was on its way for long is passed over. Terms can only go back when somebody restored the API server's
	// store; then a read says so, and a holder fences itself first.
	if c.outdated(&l.Record) && (c.holds() || !asked) {
		return
	}
	c.sight(now, l)
}

// outdated says that the record was written before the one that is known.
func (c *Core) outdated(r *Record) bool {
	k := &c.api.lease.Record
	return r.Term != 0 && (r.Term < k.Term || r.Term == k.Term && r.HolderUID == k.HolderUID && r.Renewals < k.Renewals)
}

// sight makes l the Lease that this instance goes by.
func (c *Core) sight(now time.Duration, l Lease) {
	a := &c.api
	regained := !a.in || now-a.contactAt > c.cfg.Timing.maxGap()
	changed := !a.seen || !sameRecord(&a.lease.Record, &l.Record)
	moved := !a.seen || a.lease.Version != l.Version
	if changed || regained {
		a.changedAt = now
	}
	if changed {
		a.firstAt = now
	}
	a.in, a.seen, a.contactAt, a.lease = true, true, now, l
	c.cas.blocked = false
	c.floor = max(c.floor, l.Record.Term)
	if moved {
		c.resolveWrites(now)
	}
	c.checkHeld()
}

// sameRecord says that nothing was written between the two.
func sameRecord(a, b *Record) bool {
	return a.Term == b.Term && a.HolderUID == b.HolderUID && a.Renewals == b.Renewals && (a.Released == nil) == (b.Released == nil)
}

func (c *Core) onHolderDead(e EventHolderDead) {
	term := e.Term
	if term == 0 {
		term = c.api.lease.Record.Term
	}
	c.api.deadUID, c.api.deadTerm = e.UID, term
}

func (c *Core) holderDead() bool {
	r := &c.api.lease.Record
	return r.Term != 0 && c.api.deadUID == r.HolderUID && c.api.deadTerm == r.Term && r.HolderUID != ""
}

// vacancy says why nobody holds the lease; "" when somebody does, or may.
func (c *Core) vacancy(now time.Duration) string {
	a := &c.api
	r := &a.lease.Record
	switch {
	case !a.seen || !a.in || now-a.contactAt > c.cfg.Timing.maxGap():
		return ""
	case r.Term == 0:
		return vacantNoRecord
	case r.Released != nil:
		return vacantReleased
	case c.holderDead():
		return vacantHolderDead
	case a.contactAt-a.changedAt >= c.cfg.Timing.LeaseDuration:
		return vacantExpired
	}
	return ""
}

// pollLease asks for a read when there was no news for long, or when one is needed.
func (c *Core) pollLease(now time.Duration) {
	a := &c.api
	t := &c.cfg.Timing
	if a.reading && now-a.readAt < t.RenewTimeout+readEvery {
		return
	}
	since := now - a.readAt
	due := !a.seen && a.readAt == 0 || a.want && since >= readAtOnce || since >= readEvery && c.readDue(now)
	if !due {
		return
	}
	a.want = false
	a.reading, a.readAt = true, now
	c.emit(EffectRead{})
}

func (c *Core) readDue(now time.Duration) bool {
	a := &c.api
	t := &c.cfg.Timing
	switch {
	case !a.seen || !a.in:
		return true
	case now-a.contactAt > t.RenewEvery+readEvery:
		return true
	case c.role == follower && a.lease.Record.Released == nil && a.contactAt-a.changedAt < t.LeaseDuration:
		// The lease runs out in this instance's view as soon as a read confirms it.
		return now-a.changedAt >= t.LeaseDuration
	}
	return false
}
