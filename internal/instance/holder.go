package instance

import (
	"context"
	"errors"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// holderProbe looks for proof that the holder of the lease is dead: a state that the kubelet wrote of that pod's container.
// A pod that is NotReady, Unknown or gone proves nothing: its processes may run on behind a partition.
type holderProbe struct {
	// term and uid of the record that container belongs to.
	term int64
	uid  string
	// container that ran when the record was first seen.
	container string
	busy      bool
	last      time.Duration
}

// probeEvery is how often a holder under suspicion is looked at.
const probeEvery = 400 * time.Millisecond

// probeHolder asks for the holder's pod: once for a new record, to remember its container, and repeatedly while suspicious.
func (m *Manager) probeHolder(suspicious bool) {
	r := &m.lease.Record
	if m.lease.Version == "" || r.Holder == "" || r.Released != nil || r.HolderUID == m.opt.PodUID {
		return
	}
	p := &m.probe
	fresh := p.term != r.Term || p.uid != r.HolderUID
	if p.busy || (!fresh && !suspicious) || m.now()-p.last < probeEvery {
		return
	}
	if fresh {
		*p = holderProbe{term: r.Term, uid: r.HolderUID}
	}
	p.busy, p.last = true, m.now()
	holder, term := *r, r.Term
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		found, err := m.kube.getPod(ctx, holder.Holder)
		return func() { m.holderSeen(term, holder.HolderUID, found, err) }
	})
}

func (m *Manager) holderSeen(term int64, uid string, found *pod, err error) {
	p := &m.probe
	p.busy = false
	if err != nil {
		if !errors.Is(err, errNotFound) {
			m.log.Debug("the holder's pod cannot be read", "error", err)
		}
		return
	}
	if p.term != term || p.uid != uid || found.Metadata.UID != uid {
		return
	}
	if dead, container := provenDead(found, p.container); dead {
		m.log.Info("the holder of the lease is proven dead by its container's status", "holderUID", uid, "container", container)
		m.step(election.EventHolderDead{UID: uid, Term: term})
	} else if p.container == "" {
		p.container = container
	}
}

// provenDead: the container is terminated, or the one that was remembered has made way for another.
// Container states are written by the kubelet after it saw the process end. The compare-and-swap of the candidate guards
// against a restarted holder that took the lease again in the meantime.
func provenDead(p *pod, remembered string) (bool, string) {
	c := p.database()
	switch {
	case p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded":
		return c == nil || c.State.Running == nil, ""
	case c == nil:
		return false, ""
	case c.State.Terminated != nil:
		return true, c.ContainerID
	case c.State.Running == nil:
		return c.LastState.Terminated != nil, c.ContainerID
	case remembered != "" && c.ContainerID != remembered:
		return c.LastState.Terminated != nil, c.ContainerID
	}
	return false, c.ContainerID
}
