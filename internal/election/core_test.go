package election

import (
	"testing"
	"time"
)

// effects of one kind.
func effects[E Effect](all []Effect) (found []E) {
	for _, e := range all {
		if x, ok := e.(E); ok {
			found = append(found, x)
		}
	}
	return found
}

func standby(promised int64) *Core {
	c := New(Config{Self: "b", SelfUID: "b1", Members: []string{"a", "b", "c"}, Durability: Preferred, Num: 1, Timing: DefaultTiming()}, promised)
	c.Step(time.Second, EventLocal{Local{HasData: true, Running: true, InRecovery: true, Position: Position{1, 90}}})
	return c
}

func held(term, renewals int64) Lease {
	return Lease{Version: "7", Record: Record{
		Term: term, Holder: "a", HolderUID: "a1", Renewals: renewals, Members: []string{"a", "b", "c"}, Quorums: []Quorum{q(1, "b c")},
	}}
}

// TestNoLowerTerm: a sealed instance follows no lower term, and tells its holder.
func TestNoLowerTerm(t *testing.T) {
	c := standby(5)
	out := c.Step(2*time.Second, EventLease{held(4, 1)})
	if f := effects[EffectFollow](out); len(f) != 0 {
		t.Errorf("follows %+v", f)
	}
	if s := effects[EffectSend](out); len(s) != 1 || s[0].Message.Kind != SealRequest || s[0].Message.To != "a" || s[0].Message.Term != 5 {
		t.Errorf("tells %+v", s)
	}
	if f := effects[EffectFollow](c.Step(3*time.Second, EventLease{held(6, 1)})); len(f) != 1 || f[0].Term != 6 {
		t.Errorf("follows %+v", f)
	}
}

// TestFollowsOnce: renewals are no reason to follow again.
func TestFollowsOnce(t *testing.T) {
	c := standby(0)
	for i := int64(1); i < 5; i++ {
		f := effects[EffectFollow](c.Step(time.Duration(4*i)*time.Second, EventLease{held(4, i)}))
		if (len(f) == 1) != (i == 1) {
			t.Errorf("renewal %d: follows %+v", i, f)
		}
	}
}

// TestExpiryNeedsContact: only contact without a gap lets the lease run out, and only a read confirms it.
func TestExpiryNeedsContact(t *testing.T) {
	c := standby(0)
	c.Step(2*time.Second, EventLease{held(4, 1)})
	stalls := func(at time.Duration) bool { return len(effects[EffectSeal](c.Step(at, EventTick{}))) > 0 }
	if stalls(20 * time.Second) {
		t.Fatal("a process that stood still takes old news for expiry")
	}
	c.Step(20*time.Second, EventLease{held(4, 1)})
	for at := 24; at < 32; at += 4 {
		c.Step(time.Duration(at)*time.Second, EventLease{held(4, 1)})
	}
	c.Step(29*time.Second, EventAPIFailed{})
	c.Step(30*time.Second, EventLease{held(4, 1)})
	for at := 34; at < 42; at += 4 {
		if out := c.Step(time.Duration(at)*time.Second, EventLease{held(4, 1)}); len(effects[EffectSeal](out)) > 0 {
			t.Fatalf("expired after %d s of contact", at-30)
		}
	}
	if out := c.Step(42*time.Second, EventLease{held(4, 1)}); len(effects[EffectSeal](out)) != 1 {
		t.Fatal("not expired after 12 s of contact")
	}
}

// TestLateDeath: the proof of an earlier container's death says nothing about a restarted holder with the same UID.
func TestLateDeath(t *testing.T) {
	c := standby(0)
	c.Step(2*time.Second, EventLease{held(4, 1)})
	c.Step(3*time.Second, EventLease{held(5, 1)})
	if out := c.Step(4*time.Second, EventHolderDead{UID: "a1", Term: 4}); len(effects[EffectSeal](out)) != 0 {
		t.Error("an old proof counts")
	}
	if out := c.Step(5*time.Second, EventHolderDead{UID: "a1", Term: 5}); len(effects[EffectSeal](out)) != 1 {
		t.Error("a proof does not count")
	}
}

// TestPromiseBinds: who promised does not seal before the promise is over, even for good reasons.
func TestPromiseBinds(t *testing.T) {
	c := standby(0)
	c.Step(2*time.Second, EventLease{held(4, 1)})
	out := c.Step(3*time.Second, EventMessage{Message{Kind: PromiseRequest, ID: 1, From: "a", To: "b", Term: 4}})
	if s := effects[EffectSend](out); len(s) != 1 || !s[0].Message.OK {
		t.Fatalf("answers %+v", s)
	}
	ask := Message{Kind: SealRequest, ID: 2, From: "c", To: "b", Term: 5, Vacant: vacantHolderDead, RecordTerm: 4}
	out = c.Step(6900*time.Millisecond, EventMessage{ask})
	if s := effects[EffectSend](out); len(s) != 1 || s[0].Message.OK || s[0].Message.Reason != reasonBound {
		t.Errorf("answers %+v", s)
	}
	if out = c.Step(7*time.Second, EventMessage{ask}); len(effects[EffectSeal](out)) != 1 {
		t.Error("bound for longer than it promised")
	}
}

// TestPromiseOutlivesProcess: a process that ended may have promised just before.
func TestPromiseOutlivesProcess(t *testing.T) {
	for at, want := range map[time.Duration]bool{4900 * time.Millisecond: false, 5 * time.Second: true} {
		c := standby(4)
		out := c.Step(at, EventMessage{Message{Kind: SealRequest, ID: 2, From: "c", To: "b", Term: 5, Vacant: vacantExpired}})
		if got := len(effects[EffectSeal](out)) == 1; got != want {
			t.Errorf("%s after the start: seals %v", at-time.Second, got)
		}
	}
}

// TestLateAnswer: a renewal counts from when it was sent, and the fence does not wait for events.
func TestLateAnswer(t *testing.T) {
	c := New(Config{Self: "a", SelfUID: "a2", Members: []string{"a", "b"}, Durability: Asynchronous, Timing: DefaultTiming()}, 4)
	c.Step(time.Second, EventLocal{Local{HasData: true, Position: Position{1, 90}}})
	l := held(4, 1)
	l.Record.Async, l.Record.Quorums, l.Record.Members = true, nil, []string{"a", "b"}
	l.Record.Released = &Release{Clean: true}
	var sent []EffectCAS
	for at := 2 * time.Second; at < 12*time.Second && len(sent) == 0; at += time.Second {
		out := append(c.Step(at, EventLease{l}), c.Step(at, EventTick{})...)
		if s := effects[EffectSeal](out); len(s) == 1 {
			out = c.Step(at, EventSealed{Term: s[0].Term, Position: Position{1, 90}})
		}
		sent = effects[EffectCAS](out)
	}
	if len(sent) != 1 {
		t.Fatal("it never wrote")
	}
	done := Lease{Version: "8", Record: sent[0].Record}
	start := c.cas.sentAt
	out := c.Step(start+3*time.Second, EventCAS{ID: sent[0].ID, OK: true, Lease: done})
	if d := effects[EffectDeadline](out); len(d) != 1 || d[0].At != start+8*time.Second {
		t.Fatalf("deadline %+v, sent at %s", d, start)
	}
	if f := effects[EffectFence](c.Step(start+8*time.Second, EventTick{})); len(f) != 1 {
		t.Error("not fenced at the deadline")
	}
}
