package election

import "slices"

// Seal is what an instance said once it had promised a term and took in no more WAL.
type Seal struct {
	Member   string
	Position Position
	// Empty: it has no data. Unfit: its data cannot be started. Neither says anything about commits.
	Empty, Unfit     bool
	SystemIdentifier string
}

// Standing is what a candidate knows when it asks whether it may lead. Everything in it is of one term and one version of the record.
type Standing struct {
	Record Record
	Self   string
	// Seals for the candidate's term, its own among them.
	Seals []Seal
	// Answered: every member of the record or the configuration sealed, but for a holder that is gone. WaitOver: AsyncSealWait passed.
	Answered, WaitOver bool
	// Bound: a member is bound to the old primary by a promise.
	Bound  bool
	MaxLag int64 // bytes

	slack int // seals that may be missing; only the tests' weakened cores have any
}

// Reasons why a candidate may not lead, for people.
const (
	whyNoData      = "this instance has no data that can be started"
	whyForeign     = "the data here is of another database: its system identifier is not the record's"
	whyPrimaryOnly = "only the last primary is sure to have every acknowledged commit; it has to come back, or a person accepts the loss"
	whyNotEnough   = "not enough standbys are sealed to be sure of every acknowledged commit"
	whyWaitMembers = "waiting for the other members' positions"
	whyBehind      = "another member is more advanced"
	whyLag         = "this instance is behind the primary's recorded position by more than the limit, or on an older timeline"
	whyNotMember   = "the last primary did not know this instance"
	whyBound       = "a member is bound to the primary by a promise"
)

// Eligible says whether the candidate is sure to have every commit that has to survive, and if not why.
// It does not deal with the last holder itself, nor with a cluster that has no record.
func (s *Standing) Eligible() (bool, string) {
	mine := s.own()
	switch r := &s.Record; {
	case mine == nil || mine.Empty || mine.Unfit:
		return false, whyNoData
	case r.SystemIdentifier != "" && mine.SystemIdentifier != r.SystemIdentifier:
		return false, whyForeign
	case r.Released != nil && r.Released.AcceptLoss && r.Released.To == s.Self:
		return true, ""
	case r.Released != nil && r.Released.Clean && mine.Position.Compare(r.Released.End) >= 0:
		return true, ""
	case r.Async:
		return s.eligibleAsync(mine)
	case s.hasHolders(mine):
		return true, ""
	case r.PrimaryOnly():
		return false, whyPrimaryOnly
	}
	for _, q := range s.Record.effective() {
		if !s.satisfies(q, mine.Position) {
			return false, whyNotEnough
		}
	}
	return true, ""
}

func (s *Standing) own() *Seal {
	for i := range s.Seals {
		if s.Seals[i].Member == s.Self {
			return &s.Seals[i]
		}
	}
	return nil
}

// usable: the seal's position tells which commits its member has.
func (s *Standing) usable(seal *Seal) bool {
	return !seal.Empty && !seal.Unfit && (s.Record.SystemIdentifier == "" || seal.SystemIdentifier == s.Record.SystemIdentifier)
}

// hasHolders: the last holder sealed and has nothing that the candidate lacks. It has every commit, so one answer is enough.
func (s *Standing) hasHolders(mine *Seal) bool {
	for i := range s.Seals {
		if t := &s.Seals[i]; t.Member == s.Record.Holder && t.Member != s.Self && s.usable(t) {
			return t.Position.Compare(mine.Position) <= 0
		}
	}
	return false
}

// satisfies: of any Num members of the quorum at least one is sealed and no more advanced than the candidate.
func (s *Standing) satisfies(q Quorum, mine Position) bool {
	if q.PrimaryOnly() {
		return false
	}
	n := 0
	for i := range s.Seals {
		t := &s.Seals[i]
		if s.usable(t) && t.Position.Compare(mine) <= 0 && slices.Contains(q.Standbys, t.Member) {
			n++
		}
	}
	return n+s.slack >= q.SealsNeeded()
}

// eligibleAsync: nothing is sure, so the most advanced of all that can be asked, if it is within the limit.
func (s *Standing) eligibleAsync(mine *Seal) (bool, string) {
	switch {
	case !slices.Contains(s.Record.Members, s.Self):
		// The holder asks only members that it knows for promises: others would not be held back by them.
		return false, whyNotMember
	case s.Bound:
		return false, whyBound
	case !s.Answered && !s.WaitOver:
		return false, whyWaitMembers
	}
	for i := range s.Seals {
		if t := &s.Seals[i]; s.usable(t) && t.Position.Compare(mine.Position) > 0 {
			return false, whyBehind
		}
	}
	p := s.Record.Position
	if mine.Position.Timeline < p.Timeline || mine.Position.Timeline == p.Timeline && lag(p.LSN, mine.Position.LSN) > s.MaxLag {
		return false, whyLag
	}
	return true, ""
}

func lag(ahead, behind uint64) int64 {
	if ahead <= behind {
		return 0
	}
	return int64(ahead - behind)
}

// mostAdvanced decides where there is no record: every member has to answer, and none may have more. Those without data count as
// answers; data of another database is a reason for doubt, and then nobody leads.
func (s *Standing) mostAdvanced(members []string) (bool, string) {
	mine := s.own()
	if mine == nil || mine.Empty || mine.Unfit {
		return false, whyNoData
	}
	for _, m := range members {
		i := slices.IndexFunc(s.Seals, func(t Seal) bool { return t.Member == m })
		if i < 0 {
			return false, whyWaitMembers
		}
		t := &s.Seals[i]
		switch {
		case t.Empty:
		case t.SystemIdentifier != mine.SystemIdentifier:
			return false, "the members' data is of different databases; a person has to decide which one stays"
		case !t.Unfit && t.Position.Compare(mine.Position) > 0:
			return false, whyBehind
		}
	}
	return true, ""
}

// better names a sealed member to which the candidate should leave the lead for a moment: a more advanced one, or one that is as
// advanced and comes first among the members. The last holder is none: it gives way itself.
func (s *Standing) better(members []string) string {
	mine := s.own()
	for i := range s.Seals {
		t := &s.Seals[i]
		if t.Member == s.Self || t.Member == s.Record.Holder || !s.usable(t) {
			continue
		}
		index := slices.Index(members, t.Member)
		if index < 0 {
			continue
		}
		c := t.Position.Compare(mine.Position)
		if c > 0 || c == 0 && index < slices.Index(members, s.Self) {
			return t.Member
		}
	}
	return ""
}
