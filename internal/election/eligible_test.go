package election

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func q(num int, standbys string) Quorum { return Quorum{Standbys: strings.Fields(standbys), Num: num} }

// seals are written "a:1/100 b:1/90 c:empty d:unfit".
func seals(text string) (all []Seal) {
	for _, f := range strings.Fields(text) {
		member, place, _ := strings.Cut(f, ":")
		s := Seal{Member: member, Empty: place == "empty", Unfit: place == "unfit"}
		if strings.Contains(place, "/") {
			if _, err := fmt.Sscanf(place, "%d/%d", &s.Position.Timeline, &s.Position.LSN); err != nil {
				panic(err)
			}
		}
		all = append(all, s)
	}
	return all
}

func TestEligible(t *testing.T) {
	async := Record{Term: 4, Holder: "a", Async: true, Members: []string{"a", "b", "c"}, Position: Position{1, 1000}}
	sync := func(qs ...Quorum) Record { return Record{Term: 4, Holder: "a", Quorums: qs} }
	released := func(r Record, l Release) Record { r.Released = &l; return r }
	for name, c := range map[string]struct {
		record Record
		seals  string // the first is the candidate's
		change func(*Standing)
		want   string // reason; "": eligible
	}{
		"one of one":                               {sync(q(1, "b")), "b:1/90", nil, ""},
		"one of two is not enough":                 {sync(q(1, "b c")), "b:1/90", nil, whyNotEnough},
		"two of two":                               {sync(q(1, "b c")), "b:1/90 c:1/80", nil, ""},
		"the less advanced of two":                 {sync(q(1, "b c")), "c:1/80 b:1/90", nil, whyNotEnough},
		"as advanced":                              {sync(q(1, "b c")), "c:1/90 b:1/90", nil, ""},
		"two on which all commits are":             {sync(q(2, "b c")), "b:1/90", nil, ""},
		"three with two":                           {sync(q(2, "b c d")), "b:1/90", nil, whyNotEnough},
		"three with two, one seal":                 {sync(q(2, "b c d")), "b:1/90 d:1/10", nil, ""},
		"the middle of three with two":             {sync(q(2, "b c d")), "c:1/90 b:1/95 d:1/80", nil, ""},
		"not in the quorum, with all seals":        {sync(q(1, "b c")), "d:1/90 b:1/90 c:1/80", nil, ""},
		"not in the quorum, with too few":          {sync(q(1, "b c")), "d:1/90 c:1/80", nil, whyNotEnough},
		"every quorum counts":                      {sync(q(1, "b"), q(1, "c")), "b:1/90", nil, whyNotEnough},
		"every quorum is satisfied":                {sync(q(1, "b"), q(1, "c")), "b:1/90 c:1/90", nil, ""},
		"a newer timeline is more advanced":        {sync(q(1, "b c")), "b:1/990 c:2/80", nil, whyNotEnough},
		"a newer timeline wins":                    {sync(q(1, "b c")), "c:2/80 b:1/990", nil, ""},
		"a lost volume says nothing":               {sync(q(1, "b c")), "b:1/90 c:empty", nil, whyNotEnough},
		"an interrupted rewind says nothing":       {sync(q(1, "b c")), "b:1/90 c:unfit", nil, whyNotEnough},
		"primary only":                             {sync(Quorum{}), "b:1/90 c:1/90", nil, whyPrimaryOnly},
		"no quorum is primary only":                {sync(), "b:1/90 c:1/90", nil, whyPrimaryOnly},
		"primary only, but it has the holder's":    {sync(Quorum{}), "b:1/90 a:1/90", nil, ""},
		"primary only, and the holder has more":    {sync(Quorum{}), "b:1/90 a:1/91", nil, whyPrimaryOnly},
		"the holder has no more, one seal will do": {sync(q(1, "b c")), "b:1/90 a:1/90", nil, ""},
		"the holder has more, but never told":      {sync(q(1, "b")), "b:1/90 a:1/99", nil, ""},
		"the holder lost its volume":               {sync(q(1, "b c")), "b:1/90 a:empty", nil, whyNotEnough},
		"clean end":                                {released(sync(q(1, "b c")), Release{Clean: true, End: Position{1, 90}}), "b:1/90", nil, ""},
		"clean end of a primary-only cluster":      {released(sync(Quorum{}), Release{Clean: true, End: Position{1, 90}}), "b:1/90", nil, ""},
		"before the clean end":                     {released(sync(q(1, "b c")), Release{Clean: true, End: Position{1, 91}}), "b:1/90", nil, whyNotEnough},
		"before the clean end, with seals":         {released(sync(q(1, "b c")), Release{Clean: true, End: Position{1, 91}}), "b:1/90 c:1/90", nil, ""},
		"not clean":                                {released(sync(q(1, "b c")), Release{}), "b:1/90", nil, whyNotEnough},
		"a person accepts the loss":                {released(sync(Quorum{}), Release{To: "b", AcceptLoss: true}), "b:1/9", nil, ""},
		"a person accepts the loss for another":    {released(sync(Quorum{}), Release{To: "b", AcceptLoss: true}), "c:1/9", nil, whyPrimaryOnly},
		"no data":                                  {sync(q(1, "b")), "b:empty", nil, whyNoData},
		"not to be started":                        {sync(q(1, "b")), "b:unfit", nil, whyNoData},
		"data of another database":                 {sync(q(1, "b")), "b:1/90", func(s *Standing) { s.Record.SystemIdentifier = "7" }, whyForeign},
		"async: all answered":                      {async, "b:1/990 c:1/980", func(s *Standing) { s.Answered = true }, ""},
		"async: not all answered yet":              {async, "b:1/990", nil, whyWaitMembers},
		"async: waited":                            {async, "b:1/990", func(s *Standing) { s.WaitOver = true }, ""},
		"async: another has more":                  {async, "b:1/980 c:1/990", func(s *Standing) { s.Answered = true }, whyBehind},
		"async: too far behind":                    {async, "b:1/899", func(s *Standing) { s.Answered = true }, whyLag},
		"async: just near enough":                  {async, "b:1/900", func(s *Standing) { s.Answered = true }, ""},
		"async: on an older timeline": {async, "b:1/990", func(s *Standing) {
			s.Answered, s.Record.Position.Timeline = true, 2
		}, whyLag},
		"async: unknown to the holder": {async, "d:1/990", func(s *Standing) { s.Answered = true }, whyNotMember},
		"async: a member is bound":     {async, "b:1/990", func(s *Standing) { s.WaitOver, s.Bound = true, true }, whyBound},
	} {
		t.Run(name, func(t *testing.T) {
			s := Standing{Record: c.record, Seals: seals(c.seals), MaxLag: 100}
			s.Self = s.Seals[0].Member
			if c.change != nil {
				c.change(&s)
			}
			ok, why := s.Eligible()
			if ok != (c.want == "") || !ok && why != c.want {
				t.Errorf("eligible %v: %s", ok, why)
			}
		})
	}
}

func TestMostAdvanced(t *testing.T) {
	members := []string{"a", "b", "c"}
	for seal, want := range map[string]string{
		"b:1/90 a:1/90 c:1/80":  "",
		"b:1/90 a:empty c:1/80": "",
		"b:1/90 a:unfit c:1/80": "",
		"b:1/90 a:1/91 c:1/80":  whyBehind,
		"b:1/90 a:1/90":         whyWaitMembers,
		"b:empty a:1/1 c:1/1":   whyNoData,
	} {
		s := Standing{Self: "b", Seals: seals(seal)}
		if ok, why := s.mostAdvanced(members); ok != (want == "") || !ok && why != want {
			t.Errorf("%s: %v %s", seal, ok, why)
		}
	}
	s := Standing{Self: "b", Seals: seals("b:1/90 a:1/90 c:1/80")}
	s.Seals[2].SystemIdentifier = "other"
	if ok, _ := s.mostAdvanced(members); ok {
		t.Error("data of two databases, and one of them leads")
	}
}

func TestBetter(t *testing.T) {
	members := []string{"a", "b", "c", "d"}
	for seal, want := range map[string]string{
		"b:1/90 c:1/91":        "c",
		"b:1/90 c:1/90":        "",
		"c:1/90 b:1/90":        "b",
		"b:1/90 a:1/99":        "", // the last holder gives way
		"b:1/90 c:unfit":       "",
		"b:1/90 x:1/99":        "", // no member any more
		"d:2/90 b:1/99 c:1/99": "",
	} {
		s := Standing{Record: Record{Holder: "a"}, Seals: seals(seal)}
		s.Self = s.Seals[0].Member
		if got := s.better(members); got != want {
			t.Errorf("%s: %q, want %q", seal, got, want)
		}
	}
}

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		have []Quorum
		add  Quorum
		want []Quorum
	}{
		{nil, q(1, "b"), []Quorum{q(1, "b")}},
		{[]Quorum{q(1, "b")}, q(1, "b"), []Quorum{q(1, "b")}},
		{[]Quorum{q(1, "b")}, q(1, "c"), []Quorum{q(1, "b"), q(1, "c")}},
		{[]Quorum{q(1, "b c")}, q(1, "b"), []Quorum{q(1, "b c")}},
		{[]Quorum{q(1, "b")}, q(1, "c b"), []Quorum{q(1, "c b")}},
		{[]Quorum{q(1, "b c")}, q(2, "b c"), []Quorum{q(1, "b c")}},
		{[]Quorum{q(2, "b c")}, q(1, "b"), []Quorum{q(2, "b c"), q(1, "b")}},
		{[]Quorum{q(1, "b"), q(2, "c d")}, Quorum{}, []Quorum{{}}},
		{[]Quorum{{}}, q(1, "b"), []Quorum{{}}},
	} {
		if got := Merge(c.have, c.add); !slices.EqualFunc(got, c.want, Quorum.Equal) {
			t.Errorf("%v and %v: %v", c.have, c.add, got)
		}
	}
}

// TestMergeKeepsMeaning tries all small quorums: whoever satisfies the merged list satisfies each of its parts.
func TestMergeKeepsMeaning(t *testing.T) {
	names := []string{"b", "c", "d"}
	var all []Quorum
	for set := range 8 {
		for num := range 4 {
			x := Quorum{Num: num}
			for i, n := range names {
				if set&(1<<i) != 0 {
					x.Standbys = append(x.Standbys, n)
				}
			}
			all = append(all, x)
		}
	}
	satisfied := func(sealed int, qs ...Quorum) bool {
		s := Standing{}
		for i, n := range names {
			if sealed&(1<<i) != 0 {
				s.Seals = append(s.Seals, Seal{Member: n})
			}
		}
		for _, x := range qs {
			if !s.satisfies(x, Position{}) {
				return false
			}
		}
		return true
	}
	for _, x := range all {
		for _, y := range all {
			for sealed := range 8 {
				if both, merged := satisfied(sealed, x, y), satisfied(sealed, Merge([]Quorum{x}, y)...); both != merged {
					t.Fatalf("%v and %v with seals %b: %v, merged %v", x, y, sealed, both, merged)
				}
			}
		}
	}
}

func TestInitialQuorum(t *testing.T) {
	for _, c := range []struct {
		durability Durability
		num        int
		members    string
		followers  string
		want       Quorum
	}{
		{Preferred, 1, "a b c", "b c", q(1, "b c")},
		{Preferred, 2, "a b c", "b", q(1, "b")},
		{Preferred, 1, "a b c", "", Quorum{}},
		{Preferred, 1, "a b c", "b x", q(1, "b")},
		{Required, 1, "a b c", "", q(1, "b c")},
		{Required, 2, "a b c", "b", q(2, "b c")},
		{Asynchronous, 1, "a b c", "b c", Quorum{}},
		{Preferred, 1, "a", "", Quorum{}},
	} {
		cfg := Config{Self: "a", Members: strings.Fields(c.members), Durability: c.durability, Num: c.num}
		if got := initialQuorum(&cfg, strings.Fields(c.followers)); !got.Equal(c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestOldAnswersDoNotCount: who sealed may have followed another holder since.
func TestOldAnswersDoNotCount(t *testing.T) {
	c := New(Config{Self: "b", Members: []string{"a", "b", "c"}, Timing: DefaultTiming()}, 0)
	c.api.lease.Record = Record{Term: 1, Holder: "a", Quorums: []Quorum{q(1, "b c")}}
	c.seal.ballot = Seal{Member: "b"}
	c.camp = campaign{voters: []string{"a", "c"}, votes: []vote{{seal: Seal{Member: "c"}, ok: true, at: 10 * time.Second}}}
	for at, want := range map[time.Duration]bool{11 * time.Second: true, 13 * time.Second: false} {
		s := c.standing(at)
		if ok, why := s.Eligible(); ok != want {
			t.Errorf("after %s: %v %s", at-10*time.Second, ok, why)
		}
	}
}
