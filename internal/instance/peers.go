package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

// peerTimeout of one message to another instance.
const peerTimeout = 2 * time.Second

// replyKey finds the caller who waits for a reply of the core.
type replyKey struct {
	to string
	id uint64
}

// send carries a message of the core: a request is sent to the peer and its answer fed back; a reply goes to the waiting caller.
func (m *Manager) send(msg election.Message) {
	if msg.Kind == election.SealReply || msg.Kind == election.PromiseReply {
		key := replyKey{msg.To, msg.ID}
		if waiting, ok := m.replies[key]; ok {
			delete(m.replies, key)
			waiting <- msg
		}
		return
	}
	member := m.cfg.member(msg.To)
	if member == nil {
		return
	}
	target := member.Target()
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, peerTimeout)
		defer cancel()
		reply, err := m.peers.Peer(ctx, target, msg)
		if err != nil {
			m.log.Debug("no answer of a peer", "peer", msg.To, "kind", msg.Kind, "error", err)
			return nil
		}
		return func() { m.step(election.EventMessage{Message: reply}) }
	})
}

// Peer takes a request of another instance into the loop and waits for the core's reply.
func (m *Manager) Peer(ctx context.Context, msg election.Message) (election.Message, error) {
	if msg.To != m.opt.Pod {
		return election.Message{}, fmt.Errorf("the message is for %s, this is %s", msg.To, m.opt.Pod)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	waiting := make(chan election.Message, 1)
	key := replyKey{msg.From, msg.ID}
	m.post(func() {
		m.replies[key] = waiting
		m.step(election.EventMessage{Message: msg})
	})
	select {
	case reply := <-waiting:
		return reply, nil
	case <-ctx.Done():
		m.post(func() { delete(m.replies, key) })
		return election.Message{}, errors.New("no decision in time")
	}
}

// peerStatusEvery is how often the others are asked for their positions, for the slots that standbys keep.
const peerStatusEvery = 20 * time.Second

// askPeers refreshes what is known of the others.
func (m *Manager) askPeers() {
	if m.cfg == nil || m.now()-m.peersAsked < peerStatusEvery || m.asking {
		return
	}
	m.peersAsked, m.asking = m.now(), true
	targets := m.cfg.targets(m.opt.Pod)
	m.spawn(func(ctx context.Context) func() {
		seen := map[string]instanceapi.Status{}
		for _, t := range targets {
			if s, err := m.peerStatus(ctx, t); err == nil {
				seen[t.Pod] = s
			}
		}
		return func() { m.peerStatuses, m.asking = seen, false }
	})
}

func (m *Manager) peerStatus(ctx context.Context, t instanceapi.Target) (instanceapi.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return m.peers.Status(ctx, t)
}
