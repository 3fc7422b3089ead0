package instanceapi

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kumki-dev/kumki/internal/election"
)

// Call is a request that a Fake got.
type Call struct {
	Pod     string
	Method  string // Peer, Release, Handover or Restart; reads of the status are not kept
	Request any
}

// Fake is a Client without instances: it answers with what it was told, and keeps what it was asked. Instances that it knows
// no status of do not answer.
type Fake struct {
	mu       sync.Mutex
	statuses map[string]Status
	calls    []Call
	// on is called with every kept call, outside the lock.
	on func(Call) error
	// peer answers messages.
	peer func(Target, election.Message) (election.Message, error)
}

var _ Client = (*Fake)(nil)

// NewFake is a fake whose instances do not answer yet.
func NewFake() *Fake { return &Fake{statuses: map[string]Status{}} }

// Set makes the instance of that pod answer with a status.
func (f *Fake) Set(pod string, s Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statuses[pod] = s
}

// Change changes the status of an instance under the lock; it begins with a zero one when the pod is not known.
func (f *Fake) Change(pod string, change func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.statuses[pod]
	change(&s)
	f.statuses[pod] = s
}

// Remove makes the instance of that pod not answer.
func (f *Fake) Remove(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.statuses, pod)
}

// On sets what happens with each call other than of the status; its error is the call's.
func (f *Fake) On(do func(Call) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = do
}

// OnPeer sets the answer to messages of the election.
func (f *Fake) OnPeer(answer func(Target, election.Message) (election.Message, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peer = answer
}

// Calls are the calls so far, without those of the status.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Status implements Client.
func (f *Fake) Status(ctx context.Context, t Target) (Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.statuses[t.Pod]
	if !ok || ctx.Err() != nil {
		return Status{}, f.silent(t)
	}
	return s, nil
}

// Peer implements Client.
func (f *Fake) Peer(ctx context.Context, t Target, m election.Message) (election.Message, error) {
	if err := f.call(ctx, t, "Peer", m); err != nil {
		return election.Message{}, err
	}
	f.mu.Lock()
	answer := f.peer
	f.mu.Unlock()
	if answer == nil {
		return election.Message{}, f.silent(t)
	}
	return answer(t, m)
}

// Release implements Client. It answers as if the record had been written.
func (f *Fake) Release(ctx context.Context, t Target, l election.Lease) (ReleaseReply, error) {
	if err := f.call(ctx, t, "Release", l); err != nil {
		return ReleaseReply{}, err
	}
	return ReleaseReply{Lease: l}, nil
}

// Handover implements Client. It names the successor that was asked for.
func (f *Fake) Handover(ctx context.Context, t Target, r HandoverRequest) (HandoverReply, error) {
	if err := f.call(ctx, t, "Handover", r); err != nil {
		if Refused(err) {
			return HandoverReply{Error: err.Error()}, nil
		}
		return HandoverReply{}, err
	}
	return HandoverReply{To: r.To}, nil
}

// Restart implements Client.
func (f *Fake) Restart(ctx context.Context, t Target, r RestartRequest) error {
	return f.call(ctx, t, "Restart", r)
}

func (f *Fake) call(ctx context.Context, t Target, method string, request any) error {
	f.mu.Lock()
	_, ok := f.statuses[t.Pod]
	if !ok || ctx.Err() != nil {
		f.mu.Unlock()
		return f.silent(t)
	}
	c := Call{Pod: t.Pod, Method: method, Request: request}
	f.calls = append(f.calls, c)
	on := f.on
	f.mu.Unlock()
	if on == nil {
		return nil
	}
	return on(c)
}

func (f *Fake) silent(t Target) error {
	return fmt.Errorf("call instance %s: no answer", t.Pod)
}
