package pki

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func request(now time.Time, found Set) Request {
	return Request{Now: now, Cluster: "orders", Namespace: "shop", Settled: true, Found: found}
}

func ensure(t *testing.T, r Request) Result {
	t.Helper()
	result, err := Ensure(r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func sameData(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

func equal(a, b Set) bool {
	return sameData(a.CA, b.CA) && sameData(a.Server, b.Server) && sameData(a.Peer, b.Peer) && sameData(a.Operator, b.Operator)
}

func cert(t *testing.T, data map[string][]byte) *x509.Certificate {
	t.Helper()
	p, err := parsePair(data)
	if err != nil {
		t.Fatal(err)
	}
	return p.cert
}

func pool(data map[string][]byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(data[KeyCA])
	return p
}

// trust fails unless all certificates are good under all bundles.
func trust(t *testing.T, now time.Time, bundles, certificates Set) {
	t.Helper()
	for name, bundle := range map[string]map[string][]byte{"server": bundles.Server, "peer": bundles.Peer, "operator": bundles.Operator} {
		for of, data := range map[string]map[string][]byte{"server": certificates.Server, "peer": certificates.Peer, "operator": certificates.Operator} {
			_, err := cert(t, data).Verify(x509.VerifyOptions{
				Roots: pool(bundle), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
			})
			if err != nil {
				t.Errorf("by the bundle of %s, the certificate of %s: %v", name, of, err)
			}
		}
	}
}

func TestNewClusterGetsAllCertificates(t *testing.T) {
	r := ensure(t, request(start, Set{}))
	if len(r.Changes) != 4 {
		t.Errorf("changes are %q", r.Changes)
	}
	trust(t, start, r.Set, r.Set)
	server := cert(t, r.Set.Server)
	for _, host := range []string{
		"orders-rw", "orders-rw.shop", "orders-ro.shop.svc", "orders-r.shop.svc.cluster.local",
		"orders-2.orders-nodes.shop.svc", "localhost", "127.0.0.1",
	} {
		if err := server.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := server.VerifyHostname("orders-rw.other.svc"); err == nil {
		t.Error("the certificate is good in another namespace")
	}
	peer := cert(t, r.Set.Peer)
	if peer.Subject.CommonName != "kumki_replication" || !slices.Contains(peer.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		t.Errorf("peer certificate: %v %v", peer.Subject, peer.ExtKeyUsage)
	}
	operator := cert(t, r.Set.Operator)
	if operator.Subject.CommonName != "kumki-operator" || slices.Contains(operator.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		t.Errorf("operator certificate: %v %v", operator.Subject, operator.ExtKeyUsage)
	}
	if want := start.Add(LifetimeLeaf); !r.Expires.Equal(want) {
		t.Errorf("expires %v, want %v", r.Expires, want)
	}
}

func TestSteadyCertificatesNeverChange(t *testing.T) {
	first := ensure(t, request(start, Set{}))
	later := ensure(t, request(start.Add(59*24*time.Hour), first.Set))
	if len(later.Changes) != 0 || !equal(first.Set, later.Set) {
		t.Errorf("changed: %q", later.Changes)
	}
	if want := start.Add(60 * 24 * time.Hour); !later.Next.Equal(want) {
		t.Errorf("next is %v, want %v", later.Next, want)
	}
}

func TestLeavesAreRenewedAtTwoThirds(t *testing.T) {
	first := ensure(t, request(start, Set{}))
	now := first.Next
	r := request(now, first.Set)
	r.Settled = false // a renewal under the same CA waits for nobody
	later := ensure(t, r)
	if len(later.Changes) != 3 || !sameData(first.Set.CA, later.Set.CA) {
		t.Errorf("changes are %q", later.Changes)
	}
	trust(t, now, first.Set, later.Set)
}

func TestChangedNamesRenewTheServerOnly(t *testing.T) {
	first := ensure(t, request(start, Set{}))
	r := request(start.Add(time.Hour), first.Set)
	r.ServiceNames, r.Hosts = []string{"orders-public"}, []string{"db.example.org", "192.0.2.7"}
	later := ensure(t, r)
	if len(later.Changes) != 1 || !strings.Contains(later.Changes[0], "server") {
		t.Fatalf("changes are %q", later.Changes)
	}
	for _, host := range []string{"orders-public.shop.svc", "db.example.org", "192.0.2.7"} {
		if err := cert(t, later.Set.Server).VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

func TestServerByUser(t *testing.T) {
	r := request(start, Set{})
	r.ServerByUser = true
	if got := ensure(t, r); got.Set.Server != nil {
		t.Error("a server certificate was made")
	}
}

// TestRotationKeepsTrust walks through a change of the CA; at each step instances that still have the step before mounted must get on
// with those that have the new one.
func TestRotationKeepsTrust(t *testing.T) {
	for name, begin := range map[string]func(*Request){
		"on demand": func(r *Request) { r.Rotate = "2026-01" },
		"by age":    func(r *Request) {},
		"lost":      func(r *Request) { r.Found.CA = nil },
	} {
		t.Run(name, func(t *testing.T) {
			now := start.Add(24 * time.Hour)
			first := ensure(t, request(start, Set{}))
			if name == "by age" {
				now = renewAt(cert(t, first.Set.CA)).Add(time.Second)
				before := request(now.Add(-24*time.Hour), first.Set)
				first = ensure(t, before) // leaves that are good still
			}
			step := func(found Set, settled bool) Result {
				r := request(now, found)
				begin(&r)
				r.Settled = settled
				if name == "lost" && !equal(found, first.Set) {
					r.Found = found
				}
				result := ensure(t, r)
				trust(t, now, found, result.Set)
				trust(t, now, result.Set, found)
				return result
			}
			trusting := step(first.Set, true)
			if len(decodeCerts(trusting.Set.Peer[KeyCA])) != 2 || cert(t, trusting.Set.Peer).CheckSignatureFrom(cert(t, trusting.Set.CA)) == nil {
				t.Fatalf("the first step is not trust alone: %q", trusting.Changes)
			}
			if again := step(trusting.Set, true); len(again.Changes) != 0 || !again.Next.Equal(now.Add(Overlap)) {
				t.Fatalf("did not wait: %q, next %v", again.Changes, again.Next)
			}
			now = now.Add(Overlap)
			if waits := step(trusting.Set, false); len(waits.Changes) != 0 {
				t.Fatalf("went on with instances that are not settled: %q", waits.Changes)
			}
			signed := step(trusting.Set, true)
			if len(signed.Changes) != 3 {
				t.Fatalf("changes are %q", signed.Changes)
			}
			if again := step(signed.Set, true); len(again.Changes) != 0 || !again.Next.Equal(now.Add(Overlap)) {
				t.Fatalf("did not wait: %q, next %v", again.Changes, again.Next)
			}
			now = now.Add(Overlap)
			if waits := step(signed.Set, false); len(waits.Changes) != 0 {
				t.Fatalf("dropped the old CA with instances that are not settled: %q", waits.Changes)
			}
			done := step(signed.Set, true)
			if len(decodeCerts(done.Set.Peer[KeyCA])) != 1 || len(done.Changes) != 1 {
				t.Fatalf("the old CA is trusted still: %q", done.Changes)
			}
			if steady := step(done.Set, true); len(steady.Changes) != 0 {
				t.Fatalf("does not come to rest: %q", steady.Changes)
			}
		})
	}
}

func TestBrokenLeafIsMadeAnew(t *testing.T) {
	first := ensure(t, request(start, Set{}))
	found := first.Set
	found.Peer = map[string][]byte{KeyCert: []byte("nonsense"), KeyKey: first.Set.Peer[KeyKey], KeyCA: first.Set.Peer[KeyCA]}
	later := ensure(t, request(start, found))
	if len(later.Changes) != 1 {
		t.Errorf("changes are %q", later.Changes)
	}
	trust(t, start, first.Set, later.Set)
}

func TestTamperedBundleIsMadeGood(t *testing.T) {
	first := ensure(t, request(start, Set{}))
	found := first.Set
	found.Peer = map[string][]byte{KeyCert: first.Set.Peer[KeyCert], KeyKey: first.Set.Peer[KeyKey]}
	later := ensure(t, request(start, found))
	if !equal(first.Set, later.Set) {
		t.Error("the bundle was not made good")
	}
}

func TestCheckServer(t *testing.T) {
	a, b := newSet(t), newSet(t)
	for name, test := range map[string]struct {
		cert, key, ca []byte
		says          string
	}{
		"a pair and its authority": {a[KeyCert], a[KeyKey], a[KeyCA], ""},
		"another authority":        {a[KeyCert], a[KeyKey], b[KeyCA], ""},
		"another key":              {a[KeyCert], b[KeyKey], a[KeyCA], "tls.key"},
		"no certificate":           {[]byte("x"), a[KeyKey], a[KeyCA], "tls.crt"},
		"no authority":             {a[KeyCert], a[KeyKey], []byte("x"), "ca.crt"},
		"nothing":                  {nil, nil, nil, "tls.crt"},
	} {
		err := CheckServer(test.cert, test.key, test.ca)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func newSet(t *testing.T) map[string][]byte {
	t.Helper()
	r, err := Ensure(Request{Now: time.Now(), Cluster: "orders", Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	return r.Set.Server
}
