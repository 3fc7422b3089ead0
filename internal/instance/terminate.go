package instance

import (
	"context"
	"errors"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// terminate begins the end of this process (SIGTERM). A primary hands over; a pod that was deleted by force has no time for that.
func (m *Manager) terminate() {
	if m.stopping {
		return
	}
	m.log.Info("asked to end")
	m.stopping = true
	m.stoppingSince = m.now()
	if m.job != nil && m.job.abandonable {
		m.job.cancel()
	}
	if m.lead == nil && !m.holdsLease() {
		m.step(election.EventHandover{Leaving: true})
		m.act()
		return
	}
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		p, err := m.kube.getPod(ctx, m.opt.Pod)
		forced := errors.Is(err, errNotFound) || (err == nil && p.Metadata.UID != m.opt.PodUID)
		return func() {
			if forced && !m.opt.NoPodGate {
				m.kill("the pod was deleted by force: there is no time for a hand-over")
			}
			m.step(election.EventHandover{Leaving: true})
		}
	})
}

// holdsLease: by the record, this process has leadership or let go of nothing yet.
func (m *Manager) holdsLease() bool {
	r := &m.lease.Record
	return m.lease.Version != "" && r.HolderUID == m.opt.PodUID && r.Released == nil
}

// windPatience bounds how long this process stays only to let go of the lease: it expires by itself.
const windPatience = 20 * time.Second

// wind shuts down what still runs, lets go of the lease, and ends the process.
func (m *Manager) wind() {
	patient := m.now()-m.stoppingSince < windPatience
	switch {
	case m.lead != nil && m.lead.done && patient:
		return // the hand-over is on its way
	case m.lead != nil && !m.lead.done:
		m.step(election.EventPromoteFailed{Reason: "this process is about to end"}) // the core fences and lets go of the lease
	case m.pm != nil:
		m.stopPostgres("stop", m.wind)
	case m.holdsLease() && patient:
		return // the core is about to release it
	default:
		m.log.Info("the instance manager ends")
		m.leave(nil)
	}
}
