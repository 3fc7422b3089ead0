package election

import (
	"slices"
	"time"
)

// suspendLeases is for how many lease durations after a suspension others than the last holder wait: their configuration may be older.
const suspendLeases = 5

// advanceFollower decides what an instance does that does not lead.
func (c *Core) advanceFollower(now time.Duration) {
	if !c.api.seen || !c.known {
		c.say(PhaseStarting, "waiting for the first look at the lease and at the data")
		return
	}
	r := &c.api.lease.Record
	vacancy := c.vacancy(now)
	switch {
	case vacancy == "" && r.Term == 0:
		c.rest("the API server does not answer")
	case r.HolderUID == c.cfg.SelfUID && r.Released == nil && r.Term != 0:
		c.ownLease(now, vacancy)
	case vacancy == "" && r.Released != nil:
		c.rest("the API server does not answer")
	case vacancy == "" && r.Holder == c.cfg.Self:
		c.rest("an earlier pod of this name holds the lease; waiting until it runs out or the pod is proven dead")
	case vacancy == "":
		c.followHolder(now)
	default:
		c.seek(now, vacancy)
	}
}

// rest drops a candidacy.
func (c *Core) rest(why string) {
	c.camp.active = false
	c.say(PhaseWaiting, why)
}

// followHolder makes this instance a standby of the holder. It never goes back to a lower term than it promised.
func (c *Core) followHolder(now time.Duration) {
	c.camp.active = false
	r := &c.api.lease.Record
	if r.Term < c.promised {
		c.say(PhaseWaiting, "promised to a higher term than the holder's; it was told")
		c.notice(now)
		return
	}
	c.say(PhaseFollowing, "")
	if c.followedUID == r.HolderUID && c.followedTerm == r.Term {
		return
	}
	c.followedUID, c.followedTerm = r.HolderUID, r.Term
	c.promised = max(c.promised, r.Term)
	for _, m := range c.seal.waiting {
		c.refuse(m, reasonPromised)
	}
	c.seal = sealing{}
	c.emit(EffectFollow{Leader: r.Holder, LeaderUID: r.HolderUID, Term: r.Term})
}

func (c *Core) unfollow() { c.followedUID, c.followedTerm = "", 0 }

// ownLease: the lease is this instance's, and PostgreSQL is down. It leads again at once when nobody else could have every commit;
// else it lets go first.
func (c *Core) ownLease(now time.Duration, vacancy string) {
	if c.release == nil && !c.cfg.Suspended && !c.leaving && !c.givesWay() && c.canLead() {
		if c.failedAt != 0 && now-c.failedAt < c.cfg.Timing.HandoverWait {
			c.rest("PostgreSQL could not be made the primary; trying again in a moment")
			return
		}
		kind := campaignLast
		if c.unborn() {
			kind = campaignBootstrap
		}
		c.run(now, kind, vacancy)
		return
	}
	c.camp.active = false
	c.say(PhaseReleasing, "letting go of the lease")
	if !c.mayWrite(now) {
		return
	}
	r := c.api.lease.Record
	r.Renewals = c.serialAfter(&r)
	r.Released = &Release{Suspended: c.cfg.Suspended}
	if c.release != nil {
		*r.Released = *c.release
	}
	if r.Released.Clean && r.Released.End.Compare(r.Position) > 0 {
		r.Position = r.Released.End
	}
	r.Timeline = max(r.Timeline, r.Position.Timeline)
	c.submit(now, writeRelease, r)
}

// serialAfter is a number of an attempt that neither the record nor an earlier attempt of this process has.
func (c *Core) serialAfter(r *Record) int64 {
	c.cas.serial = max(c.cas.serial, r.Renewals) + 1
	return c.cas.serial
}

// lastHolder says that this is the instance that led last, and has its data: every acknowledged commit is here.
// The pod may be another one of the same name. Its volume is the same if it has data at all (whoever cloned a new one did so from a
// later holder) and if the term's promise is on it, which no restored volume has.
func (c *Core) lastHolder() bool {
	r := &c.api.lease.Record
	return r.Term != 0 && r.Holder == c.cfg.Self && c.promised >= r.Term && c.fit()
}

// unborn: this instance made the record in order to make a new database, and there is none yet.
func (c *Core) unborn() bool {
	r := &c.api.lease.Record
	return r.Term != 0 && r.Holder == c.cfg.Self && r.SystemIdentifier == "" && c.bootstraps()
}

// bootstraps says that this instance may make a new database if there is none anywhere.
func (c *Core) bootstraps() bool {
	return c.cfg.Bootstrap && !c.local.HasData && len(c.cfg.Members) > 0 && c.cfg.Members[0] == c.cfg.Self
}

func (c *Core) canLead() bool { return c.lastHolder() || c.unborn() }

// givesWay says whether the last holder lets others try first: somebody else could be sure of every commit. With asynchronous
// replication only the last holder is, so others come first only when it fails.
func (c *Core) givesWay() bool {
	r := &c.api.lease.Record
	switch {
	case c.unborn() || r.PrimaryOnly() || len(others(r, &c.cfg)) == 0:
		return false
	case r.Async:
		return c.failedAt != 0
	}
	return true
}

// seek decides, the lease being vacant, whether and how this instance tries to get it.
func (c *Core) seek(now time.Duration, vacancy string) {
	r := &c.api.lease.Record
	t := &c.cfg.Timing
	since := now - c.api.firstAt
	released := r.Released
	switch {
	case c.cfg.Suspended:
		c.camp.active = false
		c.say(PhaseSuspended, "the cluster is suspended")
	case !slices.Contains(c.cfg.Members, c.cfg.Self):
		c.rest("this instance is no member any more")
	case c.leaving:
		c.rest("this process is about to end")
	case c.isBound(now):
		c.rest("promised to the primary not to take part")
	case vacancy == vacantNoRecord:
		c.seekFirst(now)
	case c.unborn():
		c.run(now, campaignBootstrap, vacancy)
	case !c.fit():
		c.rest(whyNoData)
	case c.lastHolder():
		c.seekLast(now, vacancy)
	case released != nil && released.Suspended && min(since, now-c.configuredAt) < suspendLeases*t.LeaseDuration:
		c.rest("the cluster was suspended; its last primary goes first")
	case released != nil && released.To != "" && released.To != c.cfg.Self && since < t.HandoverWait:
		c.rest("leadership was handed to " + released.To)
	case released != nil && (released.Clean || released.AcceptLoss && released.To == c.cfg.Self):
		c.run(now, campaignReleased, vacancy)
	case r.PrimaryOnly():
		c.rest(whyPrimaryOnly)
	default:
		c.run(now, campaignOpen, vacancy)
	}
}

// seekLast: this instance led last. It may always lead again, after those who come first had their time.
func (c *Core) seekLast(now time.Duration, vacancy string) {
	r := &c.api.lease.Record
	t := &c.cfg.Timing
	wait := time.Duration(0)
	switch released := r.Released; {
	case len(others(r, &c.cfg)) == 0, released != nil && released.Suspended:
	case released != nil && released.AcceptLoss:
		wait = suspendLeases * t.LeaseDuration
	case released != nil && released.Clean && (released.To != "" || !r.PrimaryOnly()):
		wait = t.HandoverWait + t.YieldToBetter
	case c.givesWay():
		wait = t.HandoverWait
	}
	if c.failedAt != 0 && now-c.failedAt < t.HandoverWait {
		wait = max(wait, t.HandoverWait)
	}
	if now-c.api.changedAt < wait {
		c.rest("led last; others come first for a moment")
		return
	}
	c.run(now, campaignLast, vacancy)
}

// seekFirst: there is no record. A new database is made only where there is no data; what data there is decides together.
func (c *Core) seekFirst(now time.Duration) {
	switch {
	case c.bootstraps():
		c.run(now, campaignBootstrap, vacantNoRecord)
	case !c.local.HasData || c.local.NeedsRepair:
		c.rest("there is no leadership record, and no data here")
	case c.api.contactAt-c.api.changedAt < c.cfg.Timing.LeaseDuration:
		// A holder that still lives makes the record again.
		c.rest("the leadership record is missing; giving its holder time to write it again")
	default:
		c.run(now, campaignRecover, vacantNoRecord)
	}
}
