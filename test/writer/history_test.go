package writer

import (
	"testing"
	"time"
)

var (
	origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	old    = Server{Address: "10.0.0.1", Started: origin, Timeline: 1}
	newer  = Server{Address: "10.0.0.2", Started: origin, Timeline: 2}
)

func ackAt(ms int, s Server) Ack {
	at := origin.Add(time.Duration(ms) * time.Millisecond)
	return Ack{Sent: at.Add(-time.Millisecond), At: at, First: int64(ms) * 2, Rows: 2, Server: s}
}

func TestOutage(t *testing.T) {
	acks := []Ack{ackAt(0, old), ackAt(5000, old), ackAt(5010, old), ackAt(8010, newer), ackAt(8020, newer)}
	if got := Outage(acks, origin.Add(5005*time.Millisecond)).Seconds(); got != 3 {
		t.Errorf("the outage after the fault is 3 s, not %v s", got)
	}
	if got := Outage(acks, origin.Add(time.Hour)); got != (Gap{}) {
		t.Errorf("nothing was acknowledged after the fault, so there is no gap: %v", got)
	}
}

func TestAckedByOthers(t *testing.T) {
	var h History
	for _, a := range []Ack{ackAt(0, old), ackAt(10, old), ackAt(20, newer), ackAt(30, newer)} {
		h.ack(a)
	}
	if n := h.AckedByOthers(old, origin.Add(5*time.Millisecond)); n != 2 {
		t.Errorf("2 by the newer server, not %d", n)
	}
	if n := h.AckedSince(origin.Add(5 * time.Millisecond)); n != 3 {
		t.Errorf("3 since then, not %d", n)
	}
}

func TestTwoPrimaries(t *testing.T) {
	restarted := Server{Address: old.Address, Started: origin.Add(time.Minute), Timeline: 3}
	for name, c := range map[string]struct {
		acks []Ack
		want int
	}{
		"one server":                    {[]Ack{ackAt(0, old), ackAt(1, old)}, 0},
		"take-over":                     {[]Ack{ackAt(0, old), ackAt(1, newer)}, 0},
		"there and back, restarted":     {[]Ack{ackAt(0, old), ackAt(1, newer), ackAt(2, restarted)}, 0},
		"the old one goes on":           {[]Ack{ackAt(0, old), ackAt(1, newer), ackAt(2, old)}, 1},
		"the old one without a restart": {[]Ack{ackAt(0, old), ackAt(1, newer), ackAt(2, restarted), ackAt(3, newer)}, 1},
	} {
		if got := len(TwoPrimaries(c.acks)); got != c.want {
			t.Errorf("%s: %d acknowledgements by a second primary, want %d", name, got, c.want)
		}
	}
}

func TestCompare(t *testing.T) {
	w := New(Config{})
	for ms := range 3 { // rows 0 to 5
		w.attempt()
		w.ack(ackAt(ms, old))
	}
	w.attempt() // rows 6 and 7: no answer
	r := w.Compare([]int64{0, 1, 2, 4, 5, 6, 7, idsPerConnection}, origin)
	if r.LostRows != 1 || r.Lost[0] != 3 {
		t.Errorf("row 3 is lost: %+v", r)
	}
	if r.Torn != 2 {
		t.Errorf("two transactions are torn, not %d", r.Torn)
	}
	if r.Unacknowledged != 3 {
		t.Errorf("three rows came without an answer, not %d", r.Unacknowledged)
	}
	if r.Transactions != 4 || r.Acknowledged != 3 {
		t.Errorf("4 sent, 3 acknowledged: %+v", r)
	}
}
