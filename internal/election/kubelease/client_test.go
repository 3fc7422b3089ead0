package kubelease_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
	"github.com/kumki-dev/kumki/internal/naming"
)

// servers are the API servers that the suite runs against: the fake, and a real one when its binaries are there.
func servers(t *testing.T) map[string]*rest.Config {
	_, s := newFake(t)
	all := map[string]*rest.Config{"fake": {Host: s.URL}}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return all
	}
	env := &envtest.Environment{ControlPlaneStartTimeout: 3 * time.Minute}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Log(err)
		}
	})
	all["real"] = cfg
	return all
}

// namespace in which the suite works: it has to exist.
func namespace(server string) string {
	if server == "fake" {
		return "ns"
	}
	return "default"
}

func record(term, renewals int64) election.Record {
	return election.Record{
		Term: term, Holder: "c-0", HolderUID: "u0", Renewals: renewals, Members: []string{"c-0", "c-1"},
		Quorums: []election.Quorum{{Standbys: []string{"c-1"}, Num: 1}}, Position: election.Position{Timeline: 1, LSN: 0x3000060}, Timeline: 1,
	}
}

// TestClient is the contract that the core relies on.
func TestClient(t *testing.T) {
	for name, cfg := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Run("compare and swap", func(t *testing.T) { testCAS(t, cfg, namespace(name)) })
			t.Run("watch", func(t *testing.T) { testWatch(t, cfg, namespace(name)) })
			t.Run("a caller whose token has ended", func(t *testing.T) { testUnauthorized(t, cfg, namespace(name)) })
			t.Run("what others wrote stays", func(t *testing.T) { testForeignFields(t, cfg, namespace(name)) })
		})
	}
}

func testUnauthorized(t *testing.T, cfg *rest.Config, ns string) {
	ended := &rest.Config{Host: cfg.Host, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData}, BearerToken: endedToken}
	c := newClient(t, ended, ns, "cas")
	for what, do := range map[string]func() error{
		"read":                                 func() error { _, err := c.Get(t.Context()); return err },
		"write":                                func() error { _, err := c.CAS(t.Context(), "", record(1, 0)); return err },
		"write on a version that was not seen": func() error { _, err := c.CAS(t.Context(), "1", record(1, 0)); return err },
	} {
		if err := do(); !errors.Is(err, kubelease.ErrUnauthorized) || !errors.Is(err, kubelease.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func newClient(t *testing.T, cfg *rest.Config, ns, name string, o ...kubelease.Option) *kubelease.Client {
	t.Helper()
	c, err := kubelease.New(cfg, ns, name, o...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func testCAS(t *testing.T, cfg *rest.Config, ns string) {
	ctx := context.Background()
	a, b := newClient(t, cfg, ns, "cas"), newClient(t, cfg, ns, "cas")
	is := must[election.Lease](t)
	if l := is(a.Get(ctx)); l.Version != "" || l.Record.Term != 0 {
		t.Fatalf("a Lease that does not exist is %+v", l)
	}
	one := is(a.CAS(ctx, "", record(1, 0)))
	if !reflect.DeepEqual(one.Record, record(1, 0)) || one.Version == "" {
		t.Fatalf("created %+v", one)
	}
	if _, err := b.CAS(ctx, "", record(2, 0)); !errors.Is(err, kubelease.ErrConflict) {
		t.Fatalf("second creation: %v", err)
	}
	two := is(b.CAS(ctx, one.Version, record(1, 1))) // b has not seen it yet
	if two.Version == one.Version || two.Record.Renewals != 1 {
		t.Fatalf("renewed %+v", two)
	}
	if _, err := a.CAS(ctx, one.Version, record(2, 0)); !errors.Is(err, kubelease.ErrConflict) {
		t.Fatalf("write on an old version: %v", err)
	}
	if l := is(a.Get(ctx)); !reflect.DeepEqual(l, two) {
		t.Fatalf("read %+v, want %+v", l, two)
	}
	remove(t, cfg, ns, "cas")
	if _, err := a.CAS(ctx, two.Version, record(2, 0)); !errors.Is(err, kubelease.ErrConflict) {
		t.Fatalf("write after the deletion: %v", err)
	}
}

func testWatch(t *testing.T, cfg *rest.Config, ns string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	is := must[election.Lease](t)
	writer, watcher := newClient(t, cfg, ns, "watched"), newClient(t, cfg, ns, "watched")
	other := newClient(t, cfg, ns, "other")
	first := is(writer.CAS(ctx, "", record(1, 0)))
	is(watcher.Get(ctx))
	seen := make(chan election.Lease, 10)
	ended := make(chan error, 1)
	go func() { ended <- watcher.Watch(ctx, first.Version, func(l election.Lease) { seen <- l }) }()
	second := is(writer.CAS(ctx, first.Version, record(1, 1)))
	if got := next(t, seen); !reflect.DeepEqual(got, second) {
		t.Fatalf("saw %+v, want %+v", got, second)
	}
	if ns != "ns" { // the fake does not select by name
		is(other.CAS(ctx, "", record(9, 0)))
	}
	remove(t, cfg, ns, "watched")
	if got := next(t, seen); got.Version != "" {
		t.Fatalf("saw %+v, want the deletion", got)
	}
	third := is(writer.CAS(ctx, "", record(2, 0)))
	if got := next(t, seen); !reflect.DeepEqual(got, third) {
		t.Fatalf("saw %+v, want %+v", got, third)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the watch ended with %v", err)
	}
}

func next(t *testing.T, seen <-chan election.Lease) election.Lease {
	t.Helper()
	select {
	case l := <-seen:
		return l
	case <-time.After(soon):
		t.Fatal("the watch says nothing")
		return election.Lease{}
	}
}

// raw makes a request without the client.
func raw(t *testing.T, cfg *rest.Config, method, ns, name string, body string) map[string]any {
	t.Helper()
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, strings.TrimSuffix(base.String(), "/")+"/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases/"+name, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %v", method, name, out)
	}
	return out
}

func remove(t *testing.T, cfg *rest.Config, ns, name string) {
	t.Helper()
	raw(t, cfg, http.MethodDelete, ns, name, "")
}

func testForeignFields(t *testing.T, cfg *rest.Config, ns string) {
	ctx := context.Background()
	is := must[election.Lease](t)
	owner := kubelease.OwnerReference{APIVersion: "databases.kumki.dev/v1", Kind: "PostgreSQLCluster", Name: "c", UID: "u"}
	c := newClient(t, cfg, ns, "shared", kubelease.WithLabels(naming.ClusterLabels("c")), kubelease.WithOwner(owner))
	is(c.CAS(ctx, "", record(1, 0)))
	l := raw(t, cfg, http.MethodGet, ns, "shared", "")
	meta := l["metadata"].(map[string]any)
	meta["labels"].(map[string]any)["their"] = "label"
	meta["annotations"].(map[string]any)["their"] = "annotation"
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	raw(t, cfg, http.MethodPut, ns, "shared", string(b))
	seen := is(c.Get(ctx))
	is(c.CAS(ctx, seen.Version, record(2, 0)))
	l = raw(t, cfg, http.MethodGet, ns, "shared", "")
	meta = l["metadata"].(map[string]any)
	labels, annotations := meta["labels"].(map[string]any), meta["annotations"].(map[string]any)
	if labels["their"] != "label" || annotations["their"] != "annotation" || labels[naming.LabelCluster] != "c" {
		t.Errorf("metadata is %v", meta)
	}
	if refs := meta["ownerReferences"].([]any); len(refs) != 1 || refs[0].(map[string]any)["name"] != "c" {
		t.Errorf("owners are %v", refs)
	}
	spec := l["spec"].(map[string]any)
	if spec["holderIdentity"] != "c-0/u0/2" || spec["leaseTransitions"] != 2.0 || spec["leaseDurationSeconds"] != 12.0 || spec["renewTime"] == nil {
		t.Errorf("spec is %v", spec)
	}
	r := record(2, 1)
	r.Released = &election.Release{Clean: true}
	is(c.CAS(ctx, is(c.Get(ctx)).Version, r))
	if spec = raw(t, cfg, http.MethodGet, ns, "shared", "")["spec"].(map[string]any); spec["holderIdentity"] != nil {
		t.Errorf("a released lease names %v", spec["holderIdentity"])
	}
}

// TestUnknown: a write whose answer is lost is neither refused nor a conflict, and a read tells that it was done.
func TestUnknown(t *testing.T) {
	f, s := newFake(t)
	c := newClient(t, &rest.Config{Host: s.URL}, "ns", "lost")
	f.before = func(*http.Request) bool { return false }
	start := time.Now()
	_, err := c.CAS(context.Background(), "", record(1, 0))
	if err == nil || errors.Is(err, kubelease.ErrConflict) || errors.Is(err, kubelease.ErrRefused) {
		t.Fatalf("%v", err)
	}
	if took := time.Since(start); took < time.Second || took > 4*time.Second {
		t.Errorf("gave up after %s", took)
	}
	if l := must[election.Lease](t)(c.Get(context.Background())); l.Record.Term != 1 {
		t.Errorf("read %+v", l)
	}
}

// TestRefusals: what an answer means for the write.
func TestRefusals(t *testing.T) {
	for status, want := range map[int]error{
		http.StatusForbidden: kubelease.ErrRefused, http.StatusUnprocessableEntity: kubelease.ErrRefused,
		http.StatusConflict: kubelease.ErrConflict, http.StatusInternalServerError: nil, http.StatusGatewayTimeout: nil,
	} {
		c := newClient(t, &rest.Config{Host: refuse(t, status).URL}, "ns", "x")
		_, err := c.CAS(context.Background(), "", record(1, 0))
		if err == nil || want != nil && !errors.Is(err, want) || want == nil && (errors.Is(err, kubelease.ErrRefused) || errors.Is(err, kubelease.ErrConflict)) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestDamagedRecord: nobody decides by a record that cannot be read.
func TestDamagedRecord(t *testing.T) {
	f, s := newFake(t)
	f.leases["bad"] = object{"metadata": object{
		"name": "bad", "resourceVersion": "7", "annotations": object{naming.AnnotationRecord: "{"},
	}}
	c := newClient(t, &rest.Config{Host: s.URL}, "ns", "bad")
	if l, err := c.Get(context.Background()); err == nil {
		t.Errorf("read %+v", l)
	}
}
