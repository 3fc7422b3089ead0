package writer

import (
	"slices"
	"sync"
	"time"
)

// Server is one life of one PostgreSQL server. A server that becomes a standby is started anew for that, so one life
// acknowledges commits in one stretch, or two primaries were there.
type Server struct {
	// Address is the server's own idea of the address that the client is connected to; empty on a unix socket.
	Address string `json:"address"`
	// Started is when its postmaster started.
	Started time.Time `json:"started"`
	// Timeline that it writes.
	Timeline uint32 `json:"timeline"`
}

// Ack is one acknowledged transaction: rows First to First+Rows-1.
type Ack struct {
	// Sent and At are the client's clock before the statement and after its answer.
	Sent, At time.Time
	First    int64
	Rows     int
	Server   Server
}

// History is what a client remembers. It is safe for use by many connections.
type History struct {
	mu       sync.Mutex
	acks     []Ack
	sent     int
	failures map[string]int
}

func (h *History) attempt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent++
}

func (h *History) ack(a Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acks = append(h.acks, a)
}

func (h *History) fail(kind string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures == nil {
		h.failures = map[string]int{}
	}
	h.failures[kind]++
}

// Acks returns a copy of all acknowledged transactions, in the order of their acknowledgement.
func (h *History) Acks() []Ack {
	h.mu.Lock()
	acks := slices.Clone(h.acks)
	h.mu.Unlock()
	slices.SortStableFunc(acks, func(a, b Ack) int { return a.At.Compare(b.At) })
	return acks
}

// AckedSince counts the transactions that were sent after t and acknowledged.
func (h *History) AckedSince(t time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, a := range h.acks {
		if a.Sent.After(t) {
			n++
		}
	}
	return n
}

// AckedByOthers counts the transactions that servers other than this one acknowledged since t. A killed server's sessions may go on
// for a moment, so this is what tells that the fault was felt and is over.
func (h *History) AckedByOthers(server Server, t time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, a := range h.acks {
		if a.Server != server && a.Sent.After(t) {
			n++
		}
	}
	return n
}

// Last returns the last acknowledged transaction; false when there is none.
func (h *History) Last() (Ack, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.acks) == 0 {
		return Ack{}, false
	}
	return h.acks[len(h.acks)-1], true
}

// Failures counts what went wrong, by kind: SQLSTATE and a few words.
func (h *History) Failures() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]int, len(h.failures))
	for k, v := range h.failures {
		out[k] = v
	}
	return out
}

// Gap is a time without an acknowledgement.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Seconds is the length of the gap.
func (g Gap) Seconds() float64 { return g.To.Sub(g.From).Seconds() }

// Outage is the longest gap between two acknowledgements in a row of which the second came after t. Acks are in order.
// Zero when nothing was acknowledged after t: then the outage never ended, which AckedSince tells.
func Outage(acks []Ack, t time.Time) Gap {
	var longest Gap
	for i := 1; i < len(acks); i++ {
		if !acks[i].At.After(t) {
			continue
		}
		if g := (Gap{acks[i-1].At, acks[i].At}); g.To.Sub(g.From) > longest.To.Sub(longest.From) {
			longest = g
		}
	}
	return longest
}

// Stale is an acknowledgement by a server after another one, which began to acknowledge later, had already acknowledged.
type Stale struct {
	Ack   Ack    `json:"-"`
	By    Server `json:"by"`
	Newer Server `json:"newer"`
	// After is how long after the newer server's first acknowledgement this one came.
	After time.Duration `json:"afterNanoseconds"`
}

// TwoPrimaries finds acknowledgements that prove two primaries at one time. Acks are in order.
func TwoPrimaries(acks []Ack) []Stale {
	var servers []Server
	first := map[Server]time.Time{}
	var out []Stale
	for _, a := range acks {
		if _, known := first[a.Server]; !known {
			first[a.Server] = a.At
			servers = append(servers, a.Server)
		}
		if newest := servers[len(servers)-1]; newest != a.Server {
			out = append(out, Stale{Ack: a, By: a.Server, Newer: newest, After: a.At.Sub(first[newest])})
		}
	}
	return out
}
