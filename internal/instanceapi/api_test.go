package instanceapi_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/pki"
)

// instance answers, and counts requests to restart.
type instance struct{ restarts atomic.Int32 }

func (i *instance) Status(context.Context) instanceapi.Status {
	return instanceapi.Status{Pod: "orders-0", State: instanceapi.StateRunning, Primary: true, Term: 7}
}

func (i *instance) Peer(_ context.Context, m election.Message) (election.Message, error) {
	if m.Kind != election.SealRequest {
		return election.Message{}, errors.New("not a request")
	}
	return election.Message{Kind: election.SealReply, ID: m.ID, From: m.To, To: m.From, Term: m.Term, OK: true}, nil
}

func (i *instance) Release(_ context.Context, l election.Lease) (instanceapi.ReleaseReply, error) {
	if l.Record.Released == nil {
		return instanceapi.ReleaseReply{}, errors.New("no release")
	}
	return instanceapi.ReleaseReply{Conflict: l.Version != "12", Lease: l}, nil
}

func (i *instance) Handover(_ context.Context, r instanceapi.HandoverRequest) instanceapi.HandoverReply {
	return instanceapi.HandoverReply{To: r.To}
}

func (i *instance) Restart(_ context.Context, r instanceapi.RestartRequest) error {
	i.restarts.Add(1)
	if r.PendingOnly {
		return errors.New("no parameter waits")
	}
	return nil
}

func certificates(t *testing.T, cluster string) pki.Set {
	t.Helper()
	r, err := pki.Ensure(pki.Request{Now: time.Now(), Cluster: cluster, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	return r.Set
}

func identity(t *testing.T, data map[string][]byte) *instanceapi.Identity {
	t.Helper()
	id, err := instanceapi.ParseIdentity(data[pki.KeyCert], data[pki.KeyKey], data[pki.KeyCA])
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// serve returns the target of a server that ends with the test.
func serve(t *testing.T, source instanceapi.Source, handler instanceapi.Handler) instanceapi.Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- instanceapi.NewServer("orders-0", source, handler).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return instanceapi.Target{Pod: "orders-0", Address: l.Addr().String()}
}

func client(t *testing.T, source instanceapi.Source) *instanceapi.HTTPClient {
	t.Helper()
	c := instanceapi.NewClient(source)
	t.Cleanup(c.Close)
	return c
}

func TestOperatorAndPeersMayDoWhatIsTheirs(t *testing.T) {
	set := certificates(t, "orders")
	handler := &instance{}
	target := serve(t, identity(t, set.Peer), handler)
	ctx := t.Context()
	operator, peer := client(t, identity(t, set.Operator)), client(t, identity(t, set.Peer))

	for name, c := range map[string]*instanceapi.HTTPClient{"operator": operator, "peer": peer} {
		if s, err := c.Status(ctx, target); err != nil || s.Term != 7 {
			t.Errorf("status for the %s: %v, %v", name, s, err)
		}
	}
	request := election.Message{Kind: election.SealRequest, ID: 3, From: "orders-1", To: "orders-0", Term: 8}
	if reply, err := peer.Peer(ctx, target, request); err != nil || !reply.OK || reply.ID != 3 {
		t.Errorf("reply to a peer: %v, %v", reply, err)
	}
	released := election.Lease{Version: "12", Record: election.Record{Term: 7, Released: &election.Release{To: "orders-1"}}}
	if r, err := peer.Release(ctx, target, released); err != nil || r.Conflict || r.Lease.Record.Released.To != "orders-1" {
		t.Errorf("release by a peer: %v, %v", r, err)
	}
	if _, err := peer.Release(ctx, target, election.Lease{Version: "12"}); !instanceapi.Refused(err) {
		t.Errorf("a release that is none: %v", err)
	}
	if r, err := operator.Handover(ctx, target, instanceapi.HandoverRequest{To: "orders-2"}); err != nil || r.To != "orders-2" {
		t.Errorf("hand-over: %v, %v", r, err)
	}
	if err := operator.Restart(ctx, target, instanceapi.RestartRequest{}); err != nil {
		t.Error(err)
	}
	if handler.restarts.Load() != 1 {
		t.Error("it was not asked to restart")
	}
	err := operator.Restart(ctx, target, instanceapi.RestartRequest{PendingOnly: true})
	if !instanceapi.Refused(err) || !strings.Contains(err.Error(), "no parameter waits") {
		t.Errorf("the instance's refusal is %v", err)
	}
}

func TestNobodyMayDoWhatIsNotTheirs(t *testing.T) {
	set := certificates(t, "orders")
	handler := &instance{}
	target := serve(t, identity(t, set.Peer), handler)
	ctx := t.Context()

	peer := client(t, identity(t, set.Peer))
	if err := peer.Restart(ctx, target, instanceapi.RestartRequest{}); !instanceapi.Refused(err) {
		t.Errorf("a peer's restart: %v", err)
	}
	if _, err := peer.Handover(ctx, target, instanceapi.HandoverRequest{}); !instanceapi.Refused(err) {
		t.Errorf("a peer's hand-over: %v", err)
	}
	operator := client(t, identity(t, set.Operator))
	if _, err := operator.Release(ctx, target, election.Lease{}); !instanceapi.Refused(err) {
		t.Errorf("the operator's release: %v", err)
	}
	if _, err := operator.Peer(ctx, target, election.Message{}); !instanceapi.Refused(err) {
		t.Errorf("the operator's message: %v", err)
	}
	// The server's certificate is no client certificate, though the same CA signs it.
	if err := client(t, identity(t, set.Server)).Restart(ctx, target, instanceapi.RestartRequest{}); err == nil {
		t.Error("the server's certificate may restart an instance")
	}
	// Another cluster's CA makes the same names.
	other := certificates(t, "orders")
	if err := client(t, identity(t, other.Operator)).Restart(ctx, target, instanceapi.RestartRequest{}); err == nil {
		t.Error("another cluster's operator certificate may restart an instance")
	}
	if handler.restarts.Load() != 0 {
		t.Error("the instance was asked to restart")
	}
}

func TestAnswerMustComeFromTheRightPod(t *testing.T) {
	set := certificates(t, "orders")
	target := serve(t, identity(t, set.Peer), &instance{})
	target.Pod = "orders-1"
	_, err := client(t, identity(t, set.Operator)).Status(t.Context(), target)
	if !instanceapi.Refused(err) || !strings.Contains(err.Error(), "this is orders-0") {
		t.Errorf("error is %v", err)
	}
}

func TestClientTrustsInstancesOnly(t *testing.T) {
	set := certificates(t, "orders")
	target := serve(t, identity(t, set.Server), &instance{}) // signed by the right CA for another purpose
	_, err := client(t, identity(t, set.Operator)).Status(t.Context(), target)
	if err == nil || !strings.Contains(err.Error(), "kumki_replication") {
		t.Errorf("error is %v", err)
	}
}

// write puts a Secret's data into a folder as a kubelet does: a new folder, and a symbolic link that is replaced.
func write(t *testing.T, dir, version string, data map[string][]byte) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(dir, version, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, name)
		if _, err := os.Lstat(link); err != nil {
			if err := os.Symlink(filepath.Join("..data", name), link); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreReadAgainAndOldClientsAreTurnedAway(t *testing.T) {
	before, after := certificates(t, "orders"), certificates(t, "orders")
	dir := t.TempDir()
	write(t, dir, "v1", before.Peer)
	files := instanceapi.NewFileSource(dir)
	target := serve(t, files, &instance{})
	ctx := t.Context()
	old, fresh := client(t, identity(t, before.Operator)), client(t, identity(t, after.Operator))
	if _, err := old.Status(ctx, target); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "v2", after.Peer)
	// The old client's connection is open still, but its certificate is not trusted any more.
	if _, err := old.Status(ctx, target); err == nil {
		t.Error("a client of the old CA is let in")
	}
	if _, err := fresh.Status(ctx, target); err != nil {
		t.Error(err)
	}
	broken := map[string][]byte{pki.KeyCert: []byte("half"), pki.KeyKey: nil, pki.KeyCA: nil}
	write(t, dir, "v3", broken)
	if _, err := fresh.Status(ctx, target); err != nil {
		t.Errorf("with unreadable files the last good ones are not in force: %v", err)
	}
	if files.LastError() == nil {
		t.Error("nobody learns of the unreadable files")
	}
}

func TestMissingFilesAreAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := instanceapi.NewFileSource(dir).Identity()
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("error is %v", err)
	}
}

func TestCallsEndInTime(t *testing.T) {
	set := certificates(t, "orders")
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client(t, identity(t, set.Operator)).Status(ctx, instanceapi.Target{Pod: "orders-0", Address: l.Addr().String()})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}

func TestFakeAnswersAsTold(t *testing.T) {
	f, target, ctx := instanceapi.NewFake(), instanceapi.Target{Pod: "orders-0"}, t.Context()
	if _, err := f.Status(ctx, target); err == nil {
		t.Error("an unknown instance answers")
	}
	f.Set("orders-0", instanceapi.Status{Term: 2})
	f.Change("orders-0", func(s *instanceapi.Status) { s.Term++ })
	if s, err := f.Status(ctx, target); err != nil || s.Term != 3 {
		t.Errorf("status is %v, %v", s, err)
	}
	if _, err := f.Handover(ctx, target, instanceapi.HandoverRequest{To: "orders-1"}); err != nil {
		t.Error(err)
	}
	f.On(func(instanceapi.Call) error {
		return &instanceapi.RefusedError{Pod: "orders-0", Code: 409, Message: "busy"}
	})
	if err := f.Restart(ctx, target, instanceapi.RestartRequest{}); !instanceapi.Refused(err) {
		t.Errorf("error is %v", err)
	}
	if got := f.Calls(); len(got) != 2 || got[0].Method != "Handover" || got[1].Method != "Restart" {
		t.Errorf("calls are %v", got)
	}
	f.Remove("orders-0")
	if err := f.Restart(ctx, target, instanceapi.RestartRequest{}); err == nil {
		t.Error("a removed instance answers")
	}
}
