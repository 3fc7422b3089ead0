package sim

import (
	"strconv"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// store is the API server with the one Lease.
type store struct {
	version uint64
	exists  bool
	record  election.Record
	writes  int
}

func (s *store) lease() election.Lease {
	if !s.exists {
		return election.Lease{}
	}
	return election.Lease{Version: strconv.FormatUint(s.version, 10), Record: s.record}
}

// reachesAPI says whether a request of the instance gets through now.
func (w *world) reachesAPI(n *node) bool { return !w.net.apiDown && !n.apiCut }

// read is what EffectRead asks for.
func (n *node) read() {
	w, epoch := n.w, n.epoch
	done := false
	answer := func(ev election.Event) {
		if !done && n.alive(epoch) {
			done = true
			n.feed(epoch, ev)
		}
	}
	w.after(n.fails(), func() { answer(election.EventAPIFailed{}) })
	w.after(w.delay(), func() {
		if !w.reachesAPI(n) || w.chance(w.net.loss) {
			return
		}
		seen, version := w.store.lease(), w.store.version
		w.after(w.delay(), func() {
			if !done && n.alive(epoch) && w.reachesAPI(n) && version >= n.seenVersion {
				n.seenVersion, n.watching, n.lease = version, true, seen
				answer(election.EventLease{Lease: seen})
			}
		})
	})
}

// fails is how long it takes until a call to the API server is given up: at once when it is refused, else its time limit.
func (n *node) fails() time.Duration {
	if !n.w.reachesAPI(n) && n.w.chance(0.5) {
		return n.w.between(time.Millisecond, 50*time.Millisecond)
	}
	return n.w.cfg.Timing.RenewTimeout
}

// write is what EffectCAS asks for. A write that is given up may still be done later.
func (n *node) write(e election.EffectCAS) {
	w, epoch := n.w, n.epoch
	done := false
	answer := func(ev election.EventCAS) {
		if !done && n.alive(epoch) {
			done = true
			ev.ID = e.ID
			n.feed(epoch, ev)
		}
	}
	w.after(n.fails(), func() { answer(election.EventCAS{}) })
	travel := w.delay()
	if w.chance(w.net.slow / 4) {
		travel = w.between(time.Second, 6*time.Second)
	}
	w.after(travel, func() {
		if !w.reachesAPI(n) || w.chance(w.net.loss) {
			return
		}
		ok := w.store.lease().Version == e.Version
		if ok {
			w.put(n, e.Record)
		}
		seen, version := w.store.lease(), w.store.version
		w.after(w.delay(), func() {
			if done || !n.alive(epoch) || !w.reachesAPI(n) || w.chance(w.net.loss) {
				return
			}
			if !ok {
				answer(election.EventCAS{Conflict: true})
				return
			}
			if version >= n.seenVersion {
				n.seenVersion, n.lease = version, seen
			}
			answer(election.EventCAS{OK: true, Lease: seen})
		})
	})
}

// put changes the Lease and tells the watchers.
func (w *world) put(n *node, r election.Record) {
	w.checkWrite(n, &r)
	w.store.version++
	w.store.exists, w.store.record = true, r
	w.store.writes++
	if w.trace != nil {
		w.logf("lease <- %s: %s", n.name, recordText(&r))
	}
	w.notifyWatchers()
}

// deleteLease is a fault.
func (w *world) deleteLease() {
	w.store.version++
	w.store.exists, w.store.record = false, election.Record{}
	w.logf("lease deleted")
	w.notifyWatchers()
}

// notifyWatchers sends the Lease's present state to everybody who watches.
func (w *world) notifyWatchers() {
	seen, version := w.store.lease(), w.store.version
	for _, n := range w.nodes {
		if !n.up || !n.watching {
			continue
		}
		epoch := n.epoch
		w.after(w.delay(), func() {
			switch {
			case !n.alive(epoch):
			case !w.reachesAPI(n) || w.chance(w.net.loss):
				n.watching = false // broken; the next read starts another
			case version > n.seenVersion || w.chance(w.net.double/4):
				n.seenVersion = max(version, n.seenVersion)
				n.lease = seen
				n.feed(epoch, election.EventLease{Lease: seen})
			}
		})
	}
}
