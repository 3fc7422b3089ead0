package election

import (
	"slices"
	"time"
)

// campaignKind is on what ground an instance tries to lead.
type campaignKind int

const (
	campaignOpen      campaignKind = iota // the holder is gone: enough seals have to prove that nothing is lost
	campaignReleased                      // the holder shut down cleanly: whoever has the end of its log may lead
	campaignLast                          // this instance led last
	campaignRecover                       // there is data and no record: everybody has to answer
	campaignBootstrap                     // there is no record and no data
)

// bootstrapWait is how long the first member waits for the others before it makes a new database. In a new cluster their pods may
// not run yet; what counts is that none of those that answer has data.
const bootstrapWait = 3 * time.Second

// lostTerms is how many terms are passed over when the record is lost: it may have had later ones than anybody remembers.
const lostTerms = 1000

// patience is how long a candidate asks often.
const patience = 10 * time.Second

// campaign is one candidacy for one version of the Lease.
type campaign struct {
	active  bool
	kind    campaignKind
	version string
	vacancy string
	since   time.Duration
	term    int64
	heard   int64 // highest term that somebody refused for
	why     string
	// sealedAt is when the own seal was there, fitAt when this instance became eligible; 0: not yet.
	sealedAt, fitAt time.Duration
	askedAt         time.Duration
	rounds          [16]round
	voters          []string
	votes           []vote
}

// vote is the newest answer of another member.
type vote struct {
	seal  Seal
	at    time.Duration // when the request was sent
	ok    bool
	bound bool
	data  bool // it has data, whatever it answered
}

// run is a candidate's turn.
func (c *Core) run(now time.Duration, kind campaignKind, vacancy string) {
	k := &c.camp
	if !k.active || k.kind != kind || k.version != c.api.lease.Version {
		*k = campaign{active: true, kind: kind, since: now, heard: k.heard, voters: others(&c.api.lease.Record, &c.cfg)}
	}
	k.version, k.vacancy = c.api.lease.Version, vacancy
	if c.cas.flying {
		c.say(PhaseCandidate, "waiting for the answer to the compare-and-swap")
		return // what others say now may come of it
	}
	term := c.electionTerm()
	if k.term != term {
		k.term, k.votes, k.sealedAt, k.fitAt = term, nil, 0, 0
	}
	c.startSeal(term)
	c.canvass(now)
	c.say(PhaseCandidate, k.why)
	if c.seal.term != term {
		k.why = "sealing for the new term"
		return
	}
	if k.sealedAt == 0 {
		k.sealedAt = now
	}
	ok, why := c.verdict(now)
	k.why = why
	if !ok {
		k.fitAt = 0
		return
	}
	if k.fitAt == 0 {
		k.fitAt = now
	}
	if c.yields(now) || !c.mayWrite(now) {
		return
	}
	c.acquire(now)
}

// electionTerm is a term that nobody can have used: higher than the record's and than what was promised before this process started.
// A term that was sealed for since then is good for another try: seals are for a term, not for a candidate.
func (c *Core) electionTerm() int64 {
	next := c.floor + 1
	if c.camp.kind == campaignRecover {
		next += lostTerms
	}
	if c.promised > c.floor {
		next = max(next, c.promised)
	}
	return max(next, c.camp.heard+1)
}

// canvass asks the others for their seals.
func (c *Core) canvass(now time.Duration) {
	k := &c.camp
	alone := k.kind == campaignLast || k.kind == campaignReleased && (k.sealedAt == 0 || k.fitAt != 0)
	every := c.cfg.Timing.SealRetry
	if now-k.since > patience {
		every *= 5 // whoever is missing does not come back within moments
	}
	if alone || k.askedAt != 0 && now-k.askedAt < every {
		return
	}
	k.askedAt = now
	id := c.nextID()
	copy(k.rounds[1:], k.rounds[:])
	k.rounds[0] = round{id, now}
	for _, m := range k.voters {
		c.emit(EffectSend{Message{
			Kind: SealRequest, ID: id, From: c.cfg.Self, To: m, Term: k.term,
			Vacant: k.vacancy, Version: k.version, RecordTerm: c.floor,
		}})
	}
}

func (c *Core) onSealReply(m Message) {
	k := &c.camp
	if c.role != follower || !k.active || m.Term != k.term {
		return
	}
	i := slices.IndexFunc(k.rounds[:], func(r round) bool { return r.id == m.ID && r.id != 0 })
	if i < 0 || !slices.Contains(k.voters, m.From) {
		return
	}
	if !m.OK && (m.Promised > k.term || m.Promised == k.term && m.Reason == reasonPromised) {
		k.heard = max(k.heard, m.Promised)
	}
	v := vote{
		at: k.rounds[i].sentAt, ok: m.OK, bound: m.Reason == reasonBound, data: !m.Empty,
		seal: Seal{Member: m.From, Position: m.Position, Empty: m.Empty, Unfit: m.Unfit, SystemIdentifier: m.SystemIdentifier},
	}
	for j := range k.votes {
		if o := &k.votes[j]; o.seal.Member == m.From {
			if v.at >= o.at {
				*o = v
			}
			return
		}
	}
	k.votes = append(k.votes, v)
}

// fresh: an answer counts for a short time only. Who sealed may have followed a new holder since.
func (c *Core) fresh(now time.Duration, v *vote) bool {
	return now-v.at <= c.cfg.Timing.RenewTimeout
}

// standing gathers what is known for the decision.
func (c *Core) standing(now time.Duration) Standing {
	k := &c.camp
	s := Standing{Record: c.api.lease.Record, Self: c.cfg.Self, MaxLag: c.cfg.MaxLag, Answered: true}
	s.Seals = append(make([]Seal, 0, 8), c.seal.ballot)
	s.Seals[0].SystemIdentifier = c.local.SystemIdentifier
	for i := range k.votes {
		v := &k.votes[i]
		if !c.fresh(now, v) {
			continue
		}
		if v.ok {
			s.Seals = append(s.Seals, v.seal)
		}
		s.Bound = s.Bound || v.bound
	}
	for _, m := range k.voters {
		if m == s.Record.Holder && k.vacancy != vacantReleased {
			continue // it is gone; it need not answer
		}
		s.Answered = s.Answered && slices.ContainsFunc(s.Seals, func(t Seal) bool { return t.Member == m })
	}
	s.WaitOver = k.sealedAt != 0 && now-k.sealedAt >= c.cfg.Timing.AsyncSealWait
	if c.weak.fewerSeals {
		s.slack = 1
	}
	return s
}

// verdict says whether this candidate may lead, by the rules of its kind.
func (c *Core) verdict(now time.Duration) (bool, string) {
	k := &c.camp
	switch k.kind {
	case campaignLast:
		return c.canLead(), whyNoData
	case campaignBootstrap:
		return c.virgin(now)
	case campaignRecover:
		s := c.standing(now)
		return s.mostAdvanced(c.cfg.Members)
	}
	s := c.standing(now)
	return s.Eligible()
}

// virgin says whether a new database may be made: nobody who answers has data.
func (c *Core) virgin(now time.Duration) (bool, string) {
	k := &c.camp
	empty := 0
	for i := range k.votes {
		if k.votes[i].data {
			return false, "another member has data: no new database is made"
		}
		if k.votes[i].ok {
			empty++
		}
	}
	return empty == len(k.voters) || now-k.since >= bootstrapWait, "asking the other members whether they have data"
}

// yields says whether an eligible candidate leaves the lead to another one for a moment.
func (c *Core) yields(now time.Duration) bool {
	k := &c.camp
	t := &c.cfg.Timing
	if k.kind != campaignOpen && k.kind != campaignRecover {
		return false
	}
	s := c.standing(now)
	if !s.Answered && now-k.sealedAt < 2*t.SealRetry {
		return true // who answers now will be in the quorum of the new term, and may be more advanced
	}
	better := s.better(c.cfg.Members)
	if better == "" || now-k.fitAt >= t.YieldToBetter {
		return false
	}
	k.why = "leaving the lead to " + better
	return true
}

// acquire sends the compare-and-swap, on the very version that the verdict was on.
func (c *Core) acquire(now time.Duration) {
	k := &c.camp
	old := &c.api.lease.Record
	mine := &c.seal.ballot
	r := Record{
		Term: k.term, Holder: c.cfg.Self, HolderUID: c.cfg.SelfUID, SystemIdentifier: old.SystemIdentifier,
		Members: c.cfg.Members, Position: mine.Position, Renewals: c.serialAfter(old),
		Timeline: max(old.Timeline, old.Position.Timeline, mine.Position.Timeline, 1),
	}
	for i := range k.votes {
		r.Timeline = max(r.Timeline, k.votes[i].seal.Position.Timeline)
	}
	if c.local.HasData {
		r.SystemIdentifier = c.local.SystemIdentifier
		if c.local.InRecovery || c.followedTerm != 0 {
			r.Timeline++ // a standby, or it was told to become one
		}
	}
	sync := initialQuorum(&c.cfg, c.likelyFollowers(now))
	switch {
	case c.cfg.Durability == Asynchronous, old.Async:
		r.Async = true
	case old.Term == 0 || k.kind == campaignBootstrap:
		r.Quorums = primaryOnly // nothing proves yet that others have what is here
	case c.weak.noCarry:
		r.Quorums = []Quorum{sync}
	default:
		// Until the new quorum holds what this instance brings along, a successor has to satisfy the old ones too.
		r.Quorums = Merge(old.effective(), sync)
	}
	t := c.submit(now, writeAcquire, r)
	t.init, t.sync = k.kind == campaignBootstrap && !c.local.HasData, sync
}

// likelyFollowers are the members that will follow at once: those that sealed, and after a clean shutdown those that followed before.
func (c *Core) likelyFollowers(now time.Duration) []string {
	k := &c.camp
	old := &c.api.lease.Record
	var f []string
	for i := range k.votes {
		if v := &k.votes[i]; v.ok && c.fresh(now, v) && !v.seal.Empty && !v.seal.Unfit {
			f = append(f, v.seal.Member)
		}
	}
	if k.kind != campaignReleased && k.kind != campaignLast {
		return f
	}
	for _, q := range old.Quorums {
		f = union(f, q.Standbys, c.cfg.Self)
	}
	if old.Released != nil && old.Released.Clean && old.Holder != c.cfg.Self && len(old.Quorums) > 0 {
		f = append(f, old.Holder)
	}
	return f
}
