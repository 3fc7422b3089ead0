package pgsql_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgsql"
)

// authority signs the test's certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	k := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// enableTLS gives the server a certificate, and lets in whom the HBA lines of a real cluster let in.
func (s *testServer) enableTLS(ca *authority) {
	s.t.Helper()
	cert, key := ca.issue(s.t, "localhost")
	for name, data := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.pem} {
		path := filepath.Join(s.root, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.t.Fatal(err)
		}
		chown(s.t, path)
	}
	s.tls = true
	s.writeConfig()
}

// login is one way in.
type login struct {
	user, database, password string
	plain, replication       bool
	cert                     *tls.Certificate
}

func (s *testServer) login(l login) error {
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", s.port, l.user, l.database))
	if err != nil {
		return err
	}
	cfg.Password = l.password
	if !l.plain {
		cfg.TLSConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the test is about what the server lets in
		if l.cert != nil {
			cfg.TLSConfig.Certificates = []tls.Certificate{*l.cert}
		}
	}
	if l.replication {
		cfg.RuntimeParams["replication"] = "true"
	}
	conn, err := pgconn.ConnectConfig(s.t.Context(), cfg)
	if err != nil {
		return err
	}
	return conn.Close(s.t.Context())
}

// Who gets in, and who does not, by the lines that every cluster has.
func TestAccess(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, nil)
	ca, foreign := newAuthority(t), newAuthority(t)
	g.Expect(c.EnsureReplicationRole(t.Context())).To(Succeed())
	g.Expect(c.EnsureApp(t.Context(), pgsql.App{Database: "app", Owner: "app", Verifier: verifier(g, "secret")})).To(Succeed())
	g.Expect(c.SetPassword(t.Context(), "postgres", verifier(g, "super"))).To(Succeed())
	s.enableTLS(ca)
	g.Expect(c.Reload(t.Context())).To(Succeed())
	g.Expect(c.CheckConfig(t.Context())).To(BeEmpty())

	certOf := func(a *authority, name string) *tls.Certificate {
		cert, key := a.issue(t, name)
		pair, err := tls.X509KeyPair(cert, key)
		g.Expect(err).NotTo(HaveOccurred())
		return &pair
	}
	peer := certOf(ca, "kumki_replication")
	in := map[string]login{
		"the application over TLS":                      {user: "app", database: "app", password: "secret"},
		"a peer for replication":                        {user: "kumki_replication", replication: true, cert: peer},
		"a peer for pg_rewind":                          {user: "kumki_replication", database: "postgres", cert: peer},
		"the application with certificate and password": {user: "app", database: "app", password: "secret", cert: certOf(ca, "app")},
	}
	out := map[string]login{
		"the application without TLS":            {user: "app", database: "app", password: "secret", plain: true},
		"the application with a wrong password":  {user: "app", database: "app", password: "wrong"},
		"the application for replication":        {user: "app", replication: true, password: "secret"},
		"the superuser from outside":             {user: "postgres", database: "postgres", password: "super"},
		"the superuser for replication":          {user: "postgres", replication: true, password: "super"},
		"replication without a certificate":      {user: "kumki_replication", replication: true},
		"replication with another's certificate": {user: "kumki_replication", replication: true, cert: certOf(ca, "app")},
		"replication with a foreign certificate": {user: "kumki_replication", replication: true, cert: certOf(foreign, "kumki_replication")},
		"replication without TLS":                {user: "kumki_replication", replication: true, plain: true},
		"a peer in the application's database":   {user: "kumki_replication", database: "app", cert: peer},
	}
	for what, l := range in {
		g.Expect(s.login(l)).To(Succeed(), what)
	}
	for what, l := range out {
		g.Expect(s.login(l)).NotTo(Succeed(), what)
	}

	s.superuserRemote = true
	s.setHBA("hostssl all kumki_replication all trust", "host all postgres all trust", "hostssl app app all reject")
	g.Expect(c.Reload(t.Context())).To(Succeed())
	g.Eventually(func() error { return s.login(out["the superuser from outside"]) }).Should(Succeed(), "superuser.remoteAccess")
	g.Expect(s.login(login{user: "postgres", database: "postgres", plain: true})).NotTo(Succeed(), "a user's line does not open the superuser")
	g.Expect(s.login(out["replication without a certificate"])).NotTo(Succeed(), "a user's line does not open replication")
	g.Expect(s.login(out["a peer in the application's database"])).NotTo(Succeed())
	g.Expect(s.login(in["the application over TLS"])).NotTo(Succeed(), "a user's line wins over the last one")
	g.Expect(observe(g, c).InRecovery).To(BeFalse())
}
