package pgsql_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// newSingle is a primary alone, with parameters of the test's own.
func newSingle(t *testing.T, params map[string]string) (*testServer, *pgsql.Client) {
	t.Helper()
	s := newPrimary(t, "c-0", params)
	return s, s.client()
}

func (s *testServer) restart() {
	s.t.Helper()
	s.signal(syscall.SIGINT)
	s.start()
}

func observe(g Gomega, c pgsql.Server) pgsql.Observation {
	o, err := c.Observe(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	return o
}

// The connection breaks with every restart, and the caller must not notice.
func TestReconnectsAfterRestart(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, nil)
	before := observe(g, c)
	s.restart()
	after := observe(g, c)
	g.Expect(after.PostmasterStart).To(BeTemporally(">", before.PostmasterStart))
	g.Expect(after.ReplayPaused).To(BeFalse())
}

// A frozen server is neither up nor down: whoever decides must be able to tell.
func TestFrozenServerTimesOut(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, nil)
	observe(g, c)
	g.Expect(s.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := c.Ping(ctx)
	g.Expect(s.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed())
	g.Expect(err).To(MatchError(pgsql.IsTimeout, "IsTimeout"))
	g.Expect(pgsql.IsDown(err)).To(BeFalse())
	g.Eventually(func() error { return c.Ping(t.Context()) }).Should(Succeed())
}

// A server without a free connection is up: Observe goes on over the connection that it has.
func TestFullServer(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, map[string]string{"max_connections": "5"})
	observe(g, c)
	var held []*pgconn.PgConn
	g.Eventually(func() error {
		conn, err := pgconn.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.socket(), s.port))
		if err == nil {
			held = append(held, conn)
		}
		return err
	}).WithPolling(time.Millisecond).ShouldNot(Succeed())
	g.Expect(c.Ping(t.Context())).To(MatchError(pgsql.IsFull, "IsFull"))
	observe(g, c)
	for _, conn := range held {
		g.Expect(conn.Close(t.Context())).To(Succeed())
	}
}

// Neither scripts nor verifiers get into a log that logs everything.
func TestNoSecretsInLog(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, map[string]string{
		"log_statement": "all", "log_min_duration_statement": "0", "log_min_error_statement": "debug5", "log_duration": "on",
		"log_transaction_sample_rate": "1",
	})
	v := verifier(g, "hunter2")
	g.Expect(c.EnsureApp(t.Context(), pgsql.App{Database: "app", Owner: "app", Verifier: v})).To(Succeed())
	g.Expect(c.SetPassword(t.Context(), "nobody", v)).NotTo(Succeed())
	g.Expect(c.ExecScript(t.Context(), "app", "CREATE ROLE x PASSWORD 'hunter2'")).To(Succeed())
	g.Expect(c.ExecScript(t.Context(), "app", "CREATE ROLE x PASSWORD 'hunter2'")).NotTo(Succeed())
	s.psql("SELECT 'this is logged'")
	g.Eventually(s.log.String).Should(ContainSubstring("this is logged"))
	g.Expect(s.log.String()).NotTo(Or(ContainSubstring("hunter2"), ContainSubstring(v), ContainSubstring("SCRAM")))
}

// What SCRAMVerifier computes is what the server's own password check accepts.
func TestVerifierIsAccepted(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, nil)
	for _, password := range []string{"secret", `it's "\ $ # quoted`, "pässwörd ☃", strings.Repeat("long", 60)} {
		v := verifier(g, password)
		g.Expect(c.EnsureApp(t.Context(), pgsql.App{Database: "app", Owner: "app", Verifier: v})).To(Succeed())
		g.Expect(s.psql("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'")).To(Equal(v), "stored as it is, not hashed again")
		cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=app dbname=app sslmode=disable require_auth=scram-sha-256", s.port))
		g.Expect(err).NotTo(HaveOccurred())
		cfg.Password = password
		conn, err := pgconn.ConnectConfig(t.Context(), cfg)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(conn.Close(t.Context())).To(Succeed())
		cfg.Password = password + "x"
		_, err = pgconn.ConnectConfig(t.Context(), cfg)
		g.Expect(err).To(MatchError(ContainSubstring("password authentication failed")))
	}
	g.Expect(postgres.VerifierMatches(s.psql("SET password_encryption = 'scram-sha-256'; CREATE ROLE y PASSWORD 'plain'; SELECT rolpassword FROM pg_authid WHERE rolname = 'y'")[len("SET\nCREATE ROLE\n"):], "plain")).
		To(BeTrue(), "a verifier that the server computed")
}

// PostgreSQL says what is wrong with each kind of parameter; one of a library that is not loaded it cannot judge.
func TestConfigMessages(t *testing.T) {
	s, client := newSingle(t, nil)
	for name, c := range map[string]struct{ value, message string }{
		"nosuch":             {"1", `unrecognized configuration parameter`},
		"max_wal_size":       {"1", `1 MB is outside the valid range for parameter "max_wal_size" (2 `},
		"wal_level":          {"superb", `invalid value for parameter "wal_level": "superb". Available values: minimal, replica, logical`},
		"autovacuum":         {"perhaps", `parameter "autovacuum" requires a Boolean value`},
		"shared_buffers":     {"1XB", `invalid value for parameter "shared_buffers": "1XB". Valid units for this parameter are`},
		"datestyle":          {"x", `invalid value for parameter "DateStyle": "x". Unrecognized key word: "x"`},
		"default_tablespace": {"it's \\ \n odd", "Tablespace \"it's \\ \n odd\" does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s.setParameter(name, c.value)
			problems, err := client.CheckConfig(t.Context())
			delete(s.params, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(problems).To(ConsistOf(And(HaveField("Parameter", name), HaveField("Message", ContainSubstring(c.message)))))
		})
	}
}
