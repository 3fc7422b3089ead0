package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

const (
	pgBin = "/usr/lib/postgresql/15/bin"
	// longEnough bounds every wait for PostgreSQL in these tests.
	longEnough = 2 * time.Minute
)

// testServer is a PostgreSQL with a socket only, whose WAL is archived by copying.
type testServer struct {
	t    testing.TB
	dir  string // of this server's run: socket, archived WAL
	data string
	wal  string
	cmd  *exec.Cmd
	log  strings.Builder
}

func pgCredential(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return attr
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatalf("tests as root need the user postgres: %v", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr
}

// pgTempDir has a short name, for sockets have at most 107 bytes.
func pgTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kumki")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	giveAway(t, dir)
	return dir
}

// giveAway makes everything below dir PostgreSQL's user's.
func giveAway(t testing.TB, dir string) {
	t.Helper()
	c := pgCredential(t).Credential
	if c == nil {
		return
	}
	if err := filepath.Walk(dir, func(p string, _ os.FileInfo, err error) error {
		return errors.Join(err, os.Lchown(p, int(c.Uid), int(c.Gid)))
	}); err != nil {
		t.Fatal(err)
	}
}

// runPG runs a program as PostgreSQL's user.
func runPG(t testing.TB, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, pgCredential(t), append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// newTestServer makes a database system and starts it.
func newTestServer(t testing.TB, settings ...string) *testServer {
	t.Helper()
	dir := pgTempDir(t)
	s := &testServer{t: t, dir: dir, data: filepath.Join(dir, "data"), wal: filepath.Join(dir, "wal")}
	runPG(t, dir, "mkdir", s.wal)
	runPG(t, dir, filepath.Join(pgBin, "initdb"), "-D", s.data, "-k", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	s.configure("archive_mode=on", "archive_command='cp %p "+s.wal+"/%f.part && mv "+s.wal+"/%f.part "+s.wal+"/%f'", "fsync=off")
	s.configure(settings...)
	s.start()
	return s
}

// newRestored is a server on restored files; it recovers with the WAL that from archived.
func newRestored(t testing.TB, data string, from *testServer, settings ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, dir: pgTempDir(t), data: data, wal: from.wal}
	s.configure("restore_command='cp "+from.wal+"/%f %p'", "archive_mode=off", "fsync=off")
	s.configure(settings...)
	giveAway(t, data)
	return s
}

func (s *testServer) configure(settings ...string) {
	s.t.Helper()
	f, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = f.WriteString("\n" + strings.Join(settings, "\n") + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testServer) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(pgBin, "postgres"), "-D", s.data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+s.dir)
	s.cmd.SysProcAttr, s.cmd.Dir = pgCredential(s.t), s.dir
	s.cmd.Stderr, s.cmd.Env = &s.log, append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.stop)
	NewWithT(s.t).Eventually(func() error {
		_, err := s.try("SELECT 1")
		return err
	}, longEnough, 20*time.Millisecond).Should(Succeed())
}

// stop is a fast shutdown.
func (s *testServer) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	_ = s.cmd.Wait()
	s.cmd = nil
	if s.t.Failed() {
		s.t.Logf("log of PostgreSQL:\n%s", s.log.String())
	}
}

func (s *testServer) dsn() string { return "host=" + s.dir + " user=postgres dbname=postgres" }

// try runs statements and returns the last result's rows, "|" between columns and a line each.
func (s *testServer) try(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), longEnough)
	defer cancel()
	conn, err := pgconn.Connect(ctx, s.dsn())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		lines = append(lines, strings.Join(texts(row), "|"))
	}
	return strings.Join(lines, "\n"), nil
}

func (s *testServer) query(sql string) string {
	s.t.Helper()
	out, err := s.try(sql)
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// exec runs statements that may be in no transaction with others.
func (s *testServer) exec(statements ...string) {
	s.t.Helper()
	for _, sql := range statements {
		s.query(sql)
	}
}

// awaitWAL waits for the segments in the directory that they are copied to.
func (s *testServer) awaitWAL(ctx context.Context, timeline uint32, start, stop postgres.LSN) error {
	const segment = 16 << 20
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for at := start / segment; at <= (stop-1)/segment; at++ {
		name := filepath.Join(s.wal, fmt.Sprintf("%08X%08X%08X", timeline, uint64(at>>8), uint64(at&0xff)))
		for {
			if _, err := os.Stat(name); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	}
	return nil
}

// options are those of a backup of this server.
func (s *testServer) options(store Store) TakeOptions {
	return TakeOptions{DSN: s.dsn(), Store: store, ClusterDir: testCluster, Cluster: "orders", Instance: "orders-0", Codec: Codec{Level: 1},
		PartSize: 8 << 20, ToolVersion: "test", Now: time.Now, AwaitWAL: s.awaitWAL}
}

func (s *testServer) backup(o TakeOptions) *Backup {
	s.t.Helper()
	b, err := TakeBackup(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// restoreOptions restore into a new directory.
func restoreOptions(t testing.TB, store Store, b *Backup) RestoreOptions {
	t.Helper()
	dir := pgTempDir(t)
	o := RestoreOptions{Store: store, ClusterDir: testCluster, Backup: b, Dir: filepath.Join(dir, "data"), Tablespaces: map[uint32]string{}}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, ts := range b.Tablespaces {
		o.Tablespaces[ts.OID] = filepath.Join(dir, fmt.Sprint("ts", ts.OID))
	}
	return o
}

// storedKeys of everything that a store holds.
func storedKeys(t testing.TB, store Store) (out []string) {
	t.Helper()
	for o, err := range store.List(context.Background(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o.Key)
	}
	return out
}

// contentOf is an object's content.
func contentOf(t testing.TB, store Store, key string) []byte {
	t.Helper()
	r, err := store.Read(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
