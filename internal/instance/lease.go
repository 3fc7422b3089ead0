package instance

import (
	"context"
	"errors"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

const (
	// leaseStale: a lease that was neither seen by the watch nor read for so long is read.
	leaseStale = 5 * time.Second
	// podGateSlack between the start of this process and what the kubelet calls the start of its container, on the same clock.
	podGateSlack = 3 * time.Second
	// releaseTimeout of one peer that is asked to let go of the lease.
	releaseTimeout = 800 * time.Millisecond
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
	peers := m.cfg.targets(m.opt.Pod)
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, m.opt.Timing.RenewTimeout)
		defer cancel()
		l, err := m.leases.CAS(ctx, e.Version, e.Record)
		if errors.Is(err, kubelease.ErrUnauthorized) && e.Record.Released != nil {
			m.log.Info("the API server does not know this pod any more; asking a peer to let go of the lease")
			l, err = releaseBy(ctx, m.peers, peers, election.Lease{Version: e.Version, Record: e.Record})
		}
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

// releaseBy has the first of the peers that answers let go of the lease. The token of a pod ends with the pod's object, so a pod that was
// deleted by force has no other way than this, and its lease would have to run out.
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
func releaseBy(ctx context.Context, api instanceapi.Client, peers []instanceapi.Target, l election.Lease) (election.Lease, error) {
	errs := errNobody
	for _, t := range peers {
		call, cancel := context.WithTimeout(ctx, releaseTimeout)
		reply, err := api.Release(call, t, l)
		cancel()
		switch {
		case err != nil:
			errs = errors.Join(errs, err)
		case reply.Conflict:
			return election.Lease{}, kubelease.ErrConflict
		default:
			return reply.Lease, nil
		}
	}
	return election.Lease{}, errs
}

// errNobody: no peer let go of the lease.
var errNobody = errors.New("no peer let go of the lease")

// Release writes the record of a peer that lets go of the lease. The compare-and-swap is as good from here as from there: that the
// peer's PostgreSQL is down is the peer's to know.
func (m *Manager) Release(ctx context.Context, l election.Lease) (instanceapi.ReleaseReply, error) {
	if l.Version == "" || l.Record.Released == nil || l.Record.HolderUID == m.opt.PodUID {
		return instanceapi.ReleaseReply{}, errors.New("this is no release of another instance's lease")
	}
	written, err := m.leases.CAS(ctx, l.Version, l.Record)
	if errors.Is(err, kubelease.ErrConflict) {
		return instanceapi.ReleaseReply{Conflict: true}, nil
	}
	return instanceapi.ReleaseReply{Lease: written}, err
}
