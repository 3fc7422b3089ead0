package pki

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// Ensure returns the certificates that should be in force now. What was found stays as long as it is good, so that a steady
// cluster's Secrets never change.
//
// A change of the CA goes in steps, one a call, each at least Overlap after the one before and only when the instances are settled:
// the new CA is trusted beside the old one; then it signs new certificates; then the old one is not trusted any more.
func Ensure(r Request) (Result, error) {
	var result Result
	a, err := ensureCA(r, &result)
	if err != nil {
		return Result{}, fmt.Errorf("make a CA: %w", err)
	}
	leaves := []*leaf{
		{spec: peerSpec(r), data: r.Found.Peer, into: &result.Set.Peer},
		{spec: operatorSpec(), data: r.Found.Operator, into: &result.Set.Operator},
	}
	if !r.ServerByUser {
		leaves = append(leaves, &leaf{spec: serverSpec(r), data: r.Found.Server, into: &result.Set.Server})
	}
	for _, l := range leaves {
		if err := l.ensure(r, a, &result); err != nil {
			return Result{}, fmt.Errorf("make the certificate of the %s: %w", l.spec.what, err)
		}
	}
	a.retireOthers(r, leaves, &result)
	for _, l := range leaves {
		*l.into = l.secret(a.bundle)
	}
	result.Set.CA = map[string][]byte{
		KeyCert: encodeCert(a.cert), KeyKey: a.keyPEM, KeyCA: encodeCerts(a.bundle), keyRotation: []byte(a.rotation),
	}
	return result, nil
}

// authority is the signing CA and everything that is trusted.
type authority struct {
	pair
	bundle   []*x509.Certificate // the signing CA first
	rotation string
	reason   string // why the CA is new, when it is
}

func ensureCA(r Request, result *Result) (*authority, error) {
	a := &authority{rotation: r.Rotate}
	found, err := parsePair(r.Found.CA)
	switch {
	case err != nil && len(trusted(r.Found)) == 0:
		a.reason = "CA made"
	case err != nil:
		// The CA's Secret is lost. Instances keep trusting each other by the old CA until they know the new one.
		a.reason = "CA made anew: the Secret " + naming.SecretCA(r.Cluster) + " held no usable one"
	case string(r.Found.CA[keyRotation]) != r.Rotate:
		a.reason = "CA changed on demand"
	case renewAt(found.cert).Before(r.Now):
		a.reason = "CA changed, the old one expires " + found.cert.NotAfter.UTC().Format(time.DateOnly)
	}
	if a.reason == "" {
		a.pair = *found
	} else {
		made, err := newCA(r)
		if err != nil {
			return nil, err
		}
		a.pair = *made
		result.change(a.reason)
	}
	a.bundle = []*x509.Certificate{a.cert}
	for _, c := range trusted(r.Found) {
		if r.Now.Before(c.NotAfter) && !slices.ContainsFunc(a.bundle, c.Equal) {
			a.bundle = append(a.bundle, c)
		}
	}
	result.due(renewAt(a.cert))
	result.expires(a.cert.NotAfter)
	return a, nil
}

// trusted are the CAs that the found Secrets trust.
func trusted(s Set) []*x509.Certificate {
	var all []*x509.Certificate
	for _, data := range []map[string][]byte{s.CA, s.Peer, s.Server, s.Operator} {
		for _, c := range decodeCerts(data[KeyCA]) {
			if c.IsCA && !slices.ContainsFunc(all, c.Equal) {
				all = append(all, c)
			}
		}
		// A bundle that was removed by hand is made good again by what is in force.
		if own := decodeCerts(data[KeyCert]); len(own) == 1 && own[0].IsCA && !slices.ContainsFunc(all, own[0].Equal) {
			all = append(all, own[0])
		}
	}
	return all
}

// signsFrom is when leaves of other CAs are replaced: once everybody can have learnt to trust this one.
func (a *authority) signsFrom() time.Time { return begin(a.cert).Add(Overlap) }

// retireOthers ends the trust in all other CAs once no certificate of theirs has been in force for Overlap.
func (a *authority) retireOthers(r Request, leaves []*leaf, result *Result) {
	if len(a.bundle) == 1 {
		return
	}
	var newest time.Time
	for _, l := range leaves {
		if l.cert.CheckSignatureFrom(a.cert) != nil {
			return
		}
		if b := begin(l.cert); b.After(newest) {
			newest = b
		}
	}
	at := newest.Add(Overlap)
	if r.Now.Before(at) {
		result.due(at)
		return
	}
	if !r.Settled {
		return // a change in the cluster calls again
	}
	a.bundle = a.bundle[:1]
	result.change("the old CA is not trusted any more")
}

// leaf is a certificate that may have to be made.
type leaf struct {
	spec
	pair
	data map[string][]byte
	into *map[string][]byte
}

func (l *leaf) ensure(r Request, a *authority, result *Result) error {
	reason := l.check(r, a, result)
	if reason != "" {
		made, err := newLeaf(r, l.spec, a)
		if err != nil {
			return err
		}
		l.pair = *made
		result.change("certificate of the " + l.what + " " + reason)
	}
	result.due(renewAt(l.cert))
	result.expires(l.cert.NotAfter)
	return nil
}

// check says why the certificate that was found has to be replaced, "" when it is good.
func (l *leaf) check(r Request, a *authority, result *Result) string {
	found, err := parsePair(l.data)
	if err != nil {
		return "made"
	}
	l.pair = *found
	if !l.matches(found.cert) {
		return "made anew: names changed"
	}
	if !renewAt(found.cert).After(r.Now) {
		return "renewed"
	}
	if found.cert.CheckSignatureFrom(a.cert) == nil {
		return ""
	}
	if !slices.ContainsFunc(a.bundle, func(c *x509.Certificate) bool { return found.cert.CheckSignatureFrom(c) == nil }) {
		return "made anew: its CA is not trusted"
	}
	if r.Now.Before(a.signsFrom()) {
		result.due(a.signsFrom())
		return ""
	}
	if !r.Settled {
		return ""
	}
	return "signed by the new CA"
}

func (l *leaf) secret(bundle []*x509.Certificate) map[string][]byte {
	return map[string][]byte{KeyCert: encodeCert(l.cert), KeyKey: l.keyPEM, KeyCA: encodeCerts(bundle)}
}

func (r *Result) change(what string) { r.Changes = append(r.Changes, what) }

func (r *Result) due(at time.Time) {
	if r.Next.IsZero() || at.Before(r.Next) {
		r.Next = at
	}
}

func (r *Result) expires(at time.Time) {
	if r.Expires.IsZero() || at.Before(r.Expires) {
		r.Expires = at
	}
}

// begin is when a certificate was made.
func begin(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

// renewAt is two thirds into a certificate's life.
func renewAt(c *x509.Certificate) time.Time {
	return begin(c).Add(c.NotAfter.Sub(begin(c)) * 2 / 3)
}

func peerSpec(r Request) spec {
	return spec{
		what: "instances", name: instanceapi.CommonNamePeer, hosts: podHosts(r),
		usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func operatorSpec() spec {
	return spec{what: "operator", name: instanceapi.CommonNameOperator, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

func serverSpec(r Request) spec {
	services := []string{
		naming.ServiceRW(r.Cluster), naming.ServiceRO(r.Cluster), naming.ServiceR(r.Cluster), naming.ServiceNodes(r.Cluster),
	}
	var hosts []string
	for _, s := range append(services, r.ServiceNames...) {
		hosts = append(hosts, inCluster(s, r.Namespace)...)
	}
	hosts = append(append(hosts, podHosts(r)...), r.Hosts...)
	return spec{what: "server", name: r.Cluster, hosts: hosts, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

// inCluster are the names that a Service is found by from pods.
func inCluster(service, namespace string) []string {
	full := service + "." + namespace
	return []string{service, full, full + ".svc", full + ".svc.cluster.local"}
}

func podHosts(r Request) []string {
	return append(inCluster("*."+naming.ServiceNodes(r.Cluster), r.Namespace), "localhost", "127.0.0.1", "::1")
}
