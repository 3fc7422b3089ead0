package election

import "time"

// Phases of an instance, for View.Phase.
const (
	PhaseStarting  = "Starting"  // the lease or the own data are not known yet
	PhaseFollowing = "Following" // another instance leads
	PhaseWaiting   = "Waiting"   // nobody leads, and it is not for this instance to take over (yet): Why says why
	PhaseCandidate = "Candidate" // nobody leads, and this instance tries to
	PhaseTaking    = "Taking"    // leadership was won, PostgreSQL is being made the primary
	PhaseLeading   = "Leading"
	PhaseStopping  = "Stopping" // shutting down for a hand-over
	PhaseFencing   = "Fencing"  // killing PostgreSQL
	PhaseReleasing = "Releasing"
	PhaseSuspended = "Suspended"
)

// role is what the instance's PostgreSQL may be.
type role int

const (
	follower role = iota // down, or a standby
	taking               // becoming the primary
	leading              // the primary
	stopping             // the primary, shutting down
	fencing              // being killed
)

// Core decides about leadership for one instance. It is not safe for concurrent use; the driver serialises Step and View.
type Core struct {
	cfg  Config
	weak weakness
	role role
	// promised is the highest term that was promised, on disk or on its way there. floor is the highest term that may have been
	// used: of the record, or promised before this process started. A new term is higher.
	promised, floor int64

	api   contact
	local Local
	known bool // local was given

	seal  sealing
	bound bound
	hold  holding
	camp  campaign
	cas   writes

	// followed is the leadership that the last EffectFollow named.
	followedUID  string
	followedTerm int64
	noticeAt     time.Duration // last message to a leader of too low a term
	// release to write once PostgreSQL is down; nil: none was decided.
	release *Release
	// leaving: this process is about to end.
	leaving bool
	// failedAt is when this instance last failed to lead, 0: never.
	failedAt time.Duration
	// configuredAt is when Suspended last went away.
	configuredAt time.Duration
	phase, why   string
	ids          uint64
	out          []Effect
}

// weakness leaves parts of the protocol out. Tests set it to prove that the simulation notices; nothing else does.
type weakness struct {
	fewerSeals, noFence, narrowEarly, breakPromises, noCarry, setBeforeRecord bool
}

// sealing is the promise of a term and the end of WAL that goes with it.
type sealing struct {
	pending int64 // term of the EffectSeal that is not answered yet, 0: none
	term    int64 // term that is sealed, 0: none; WAL does not come in
	ballot  Seal
	waiting []Message // requests to answer once it is done, one a peer
}

// bound is a promise to a holder not to seal for a higher term for a while. It is kept in memory only: an instance that starts counts
// as bound, since it may have promised just before its process ended.
type bound struct {
	until time.Duration
	begun bool
}

// New returns the core of an instance that has just started: PostgreSQL is down, the lease was not seen yet.
// promised is the highest term that the instance promised, as EffectSeal, EffectPromise and EffectFollow wrote it to disk; 0 when it never did.
func New(cfg Config, promised int64) *Core {
	return &Core{cfg: cfg, promised: promised, floor: promised, phase: PhaseStarting}
}

// Step takes in what happened at now (the driver's monotonic clock, never 0) and returns what has to be done, in order.
func (c *Core) Step(now time.Duration, ev Event) []Effect {
	c.out = nil
	if !c.bound.begun {
		c.bound.begun = true
		if c.promised > 0 { // who never followed anybody promised nothing
			c.bound.until = now + c.cfg.Timing.PromiseTTL
		}
	}
	c.guard(now)
	switch e := ev.(type) {
	case EventTick:
	case EventConfig:
		c.onConfig(now, e.Config)
	case EventLease:
		c.onLease(now, e.Lease)
	case EventAPIFailed:
		c.api.reading = false
		c.api.in = false
	case EventCAS:
		c.onCAS(now, e)
	case EventHolderDead:
		c.onHolderDead(e)
	case EventMessage:
		c.onMessage(now, e.Message)
	case EventLocal:
		c.local, c.known = e.Local, true
		c.onStandbys(now)
	case EventSealed:
		c.onSealed(now, e)
	default:
		c.stepPostgres(now, ev)
	}
	c.advance(now)
	out := c.out
	c.out = nil
	return out
}

// stepPostgres takes in what became of PostgreSQL.
func (c *Core) stepPostgres(now time.Duration, ev Event) {
	switch e := ev.(type) {
	case EventPromised:
		c.onPromised(e.Term)
	case EventPostgresDied:
		c.onDied(now)
	case EventFenced:
		if c.role == fencing {
			c.down()
		}
	case EventPromoted:
		c.onPromoted(now, e.Position)
	case EventPromoteFailed:
		if c.role == taking {
			c.failedAt = now
			c.fence("PostgreSQL cannot be made the primary: " + e.Reason)
		}
	case EventHandover:
		c.onHandover(e)
	case EventStopped:
		c.onStopped(e)
	}
}

// advance does what is due.
func (c *Core) advance(now time.Duration) {
	c.expireWrite(now)
	c.pollLease(now)
	switch c.role {
	case follower:
		c.advanceFollower(now)
	case taking, leading, stopping:
		c.advanceHolder(now)
	case fencing:
		c.say(PhaseFencing, "waiting until nothing of PostgreSQL is left")
	}
}

// View tells what the core holds true at now.
func (c *Core) View(now time.Duration) View {
	v := View{Term: max(c.promised, c.floor), Phase: c.phase, Why: c.why, PrimaryOnly: c.api.lease.Record.PrimaryOnly()}
	if r := &c.api.lease.Record; r.Released == nil {
		v.Leader = r.Holder
	}
	if c.holds() {
		v.Deadline = c.hold.deadline
		v.Leading = c.role == leading && now < v.Deadline
	}
	return v
}

// holds says that PostgreSQL may be the primary here.
func (c *Core) holds() bool { return c.role == taking || c.role == leading || c.role == stopping }

func (c *Core) emit(e Effect) { c.out = append(c.out, e) }

func (c *Core) say(phase, why string) { c.phase, c.why = phase, why }

func (c *Core) nextID() uint64 {
	c.ids++
	return c.ids
}

func (c *Core) onConfig(now time.Duration, cfg Config) {
	if c.cfg.Suspended && !cfg.Suspended {
		c.configuredAt = now
	}
	c.cfg = cfg
}

// fit says that the data here can be started and is the cluster's.
func (c *Core) fit() bool {
	r := &c.api.lease.Record
	return c.known && c.local.HasData && !c.local.NeedsRepair &&
		(r.SystemIdentifier == "" || c.local.SystemIdentifier == r.SystemIdentifier)
}

// startSeal promises the term; the WAL receiver stops.
func (c *Core) startSeal(term int64) {
	if c.seal.pending == term || c.seal.term == term {
		return
	}
	c.promised = max(c.promised, term)
	c.seal.pending, c.seal.term = term, 0
	c.emit(EffectSeal{Term: term})
}

func (c *Core) onSealed(now time.Duration, e EventSealed) {
	if e.Term != c.seal.pending {
		return
	}
	c.seal.pending, c.seal.term = 0, e.Term
	// Data that cannot be sealed is not the same as none: nobody makes a new database because of it.
	broken := c.local.NeedsRepair || e.Empty && c.local.HasData
	c.seal.ballot = Seal{Member: c.cfg.Self, Position: e.Position, Empty: e.Empty && !broken, Unfit: broken}
	waiting := c.seal.waiting
	c.seal.waiting = nil
	for _, m := range waiting {
		c.answerSeal(now, m)
	}
}
