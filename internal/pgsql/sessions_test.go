package pgsql_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func (s *testServer) session(g Gomega) *pgconn.PgConn {
	conn, err := pgconn.Connect(context.Background(), fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.socket(), s.port))
	g.Expect(err).NotTo(HaveOccurred())
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// commit writes something, and gives up after a moment.
func commit(conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := conn.Exec(ctx, "INSERT INTO t VALUES (1)").ReadAll()
	return err
}

// That a session shows the new synchronous_standby_names does not mean that commits wait: the checkpointer has to have read it, too. This
// is why Observe tells what the checkpointer does.
func TestCommitsWaitWhenTheCheckpointerKnows(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, nil)
	s.psql("CREATE TABLE t (i int)")
	o := observe(g, c)
	g.Expect(o.CheckpointerWait).To(Equal("CheckpointerMain"))
	g.Expect(o.CheckpointerPID).To(BeNumerically(">", 1))

	g.Expect(syscall.Kill(o.CheckpointerPID, syscall.SIGSTOP)).To(Succeed())
	t.Cleanup(func() { _ = syscall.Kill(o.CheckpointerPID, syscall.SIGCONT) })
	names := postgres.SyncStandbyNames(1, []string{"c-1"})
	s.setParameter("synchronous_standby_names", names)
	s.writeConfig()
	g.Expect(c.Reload(t.Context())).To(Succeed())
	g.Expect(observe(g, c).SyncStandbyNames).To(Equal(names))
	g.Expect(commit(s.session(g))).To(Succeed(), "nothing waits, although every session shows the names")

	g.Expect(syscall.Kill(o.CheckpointerPID, syscall.SIGCONT)).To(Succeed())
	g.Eventually(func() error { return commit(s.session(g)) }).WithTimeout(30 * time.Second).ShouldNot(Succeed())
	g.Expect(observe(g, c).CheckpointerWait).To(Equal("CheckpointerMain"))
}

// A library that does not exist keeps every client out. The manager gets in, sees it, and can correct it.
func TestSessionLibraryThatIsMissing(t *testing.T) {
	for _, name := range []string{"session_preload_libraries", "local_preload_libraries"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, c := newSingle(t, nil)
			s.setParameter(name, "nosuchlibrary")
			s.writeConfig()
			g.Expect(c.CheckConfig(t.Context())).To(BeEmpty(), "PostgreSQL does not look for it")
			g.Expect(c.Reload(t.Context())).To(Succeed())
			var said *pgconn.PgError
			err := c.Ping(t.Context())
			g.Expect(err).To(MatchError(ContainSubstring("nosuchlibrary")))
			g.Expect(errors.As(err, &said)).To(BeTrue())
			g.Expect(said.Code).To(HavePrefix("58"))

			delete(s.params, name)
			s.writeConfig()
			c.Close() // a new connection gets in, too
			g.Expect(c.CheckConfig(t.Context())).To(BeEmpty())
			g.Expect(c.Reload(t.Context())).To(Succeed())
			g.Expect(c.Ping(t.Context())).To(Succeed())
		})
	}
}

// A query on the standby may keep replay waiting for ever; a promotion does not wait for it.
func TestPromotionEndsQueriesThatHoldReplayUp(t *testing.T) {
	g := NewWithT(t)
	p, ss := pair(t, map[string]string{"max_standby_streaming_delay": "-1", "hot_standby_feedback": "off"}, "c-1")
	s, sc := ss[0], ss[0].client()
	p.psql("CREATE TABLE t AS SELECT generate_series(1, 1000) i")
	end := observe(g, p.client()).FlushLSN
	g.Eventually(func(g Gomega) { g.Expect(observe(g, sc).ReplayLSN).To(BeNumerically(">=", end)) }).WithTimeout(10 * time.Second).Should(Succeed())
	reader := s.session(g)
	_, err := reader.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t").ReadAll()
	g.Expect(err).NotTo(HaveOccurred())
	p.psql("DELETE FROM t")
	p.psql("VACUUM t")
	end = observe(g, p.client()).FlushLSN
	g.Eventually(func(g Gomega) { g.Expect(observe(g, sc).FlushLSN).To(BeNumerically(">=", end)) }).WithTimeout(10 * time.Second).Should(Succeed())
	g.Consistently(func(g Gomega) { g.Expect(observe(g, sc).ReplayLSN).To(BeNumerically("<", end)) }).WithTimeout(time.Second).Should(Succeed())
	p.stop()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	g.Expect(sc.Promote(ctx)).To(Succeed())
	g.Expect(s.psql("SELECT count(*) FROM t")).To(Equal(strconv.Itoa(0)))
}
