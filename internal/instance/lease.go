package instance

import (
	"context"
	"errors"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
)

const (
	// leaseStale: a lease that was neither seen by the watch nor read for so long is read.
	leaseStale = 5 * time.Second
	// podGateSlack between the start of this process and what the kubelet calls the start of its container, on the same clock.
	podGateSlack = 3 * time.Second
)

// watchLease feeds the core with what becomes of the lease. A watch can be cut without anyone noticing, so a lease that does
// not change is read too.
func (m *Manager) watchLease(ctx context.Context) {
	if !m.opt.NoPodGate {
		if !m.awaitOwnPod(ctx) {
			return
		}
	}
	m.post(func() {
		m.gateOpen = true
		m.readLease()
	})
	for ctx.Err() == nil {
		err := m.leases.Watch(ctx, "", func(l election.Lease) {
			m.post(func() { m.step(election.EventLease{Lease: l}) })
		})
		if err != nil && ctx.Err() == nil {
			m.log.Debug("the watch of the lease ended", "error", err)
			m.post(m.readLease)
		}
		_ = wait(ctx, 500*time.Millisecond)
	}
}

// awaitOwnPod waits until the pod's status tells of this container, not of the one before it: others take a terminated container for
// proof of the holder's death, so this one must not take the lease while its predecessor's end is still to be written.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
func (m *Manager) awaitOwnPod(ctx context.Context) bool {
	earliest := m.started.Add(-podGateSlack)
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		p, err := m.kube.getPod(call, m.opt.Pod)
		cancel()
		if err == nil && p.Metadata.UID == m.opt.PodUID {
			if c := p.database(); c != nil && c.State.Running != nil && !c.State.Running.StartedAt.Before(earliest) {
				return true
			}
		} else if err != nil {
			m.log.Debug("the own pod cannot be read", "error", err)
			m.post(func() { m.step(election.EventAPIFailed{}) })
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
	return false
}

// readLease reads the lease now.
func (m *Manager) readLease() {
	if m.reading || !m.gateOpen {
		return
	}
	m.reading = true
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, m.opt.Timing.RenewTimeout)
		defer cancel()
		l, err := m.leases.Get(ctx)
		return func() {
			m.reading = false
			if err != nil {
				m.leaseAt = m.now() - leaseStale + time.Second
				m.metrics.apiFailures.Inc()
				m.step(election.EventAPIFailed{})
				return
			}
			m.step(election.EventLease{Lease: l})
		}
	})
}

// freshLease reads a lease that was not heard of for long.
func (m *Manager) freshLease() {
	if m.now()-m.leaseAt > leaseStale {
		m.leaseAt = m.now()
		m.readLease()
	}
}

// writeLease carries out a compare-and-swap of the core.
func (m *Manager) writeLease(e election.EffectCAS) {
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, m.opt.Timing.RenewTimeout)
		defer cancel()
		l, err := m.leases.CAS(ctx, e.Version, e.Record)
		return func() {
			answer := election.EventCAS{ID: e.ID, Lease: l, OK: err == nil, Conflict: errors.Is(err, kubelease.ErrConflict)}
			if err != nil {
				m.metrics.apiFailures.Inc()
				m.log.Warn("the lease was not written", "term", e.Record.Term, "conflict", answer.Conflict, "error", err)
			}
			if err == nil {
				m.lease, m.leaseAt = l, m.now()
			}
			m.step(answer)
		}
	})
}
