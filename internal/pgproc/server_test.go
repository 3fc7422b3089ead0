package pgproc_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// longEnough bounds every wait for PostgreSQL in these tests.
const longEnough = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(managerEnv) != "" {
		os.Exit(managerMain())
	}
	code := m.Run()
	if template.volume != "" {
		_ = os.RemoveAll(filepath.Dir(template.volume))
	}
	if guardProgram.path != "" {
		_ = os.Remove(guardProgram.path)
	}
	os.Exit(code)
}

// pgUser is whom PostgreSQL runs as: it refuses root.
func pgUser(t testing.TB) *pgproc.User {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatalf("tests as root need the user postgres: %v", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &pgproc.User{UID: uint32(uid), GID: uint32(gid)}
}

func findBin(t testing.TB) pgproc.Bin {
	t.Helper()
	for major := 19; major >= 13; major-- {
		if bin, err := pgproc.FindBin(major); err == nil {
			return bin
		}
	}
	t.Fatal("these tests need an installed PostgreSQL")
	return pgproc.Bin{}
}

func newPrograms(t testing.TB) *pgproc.Programs {
	return &pgproc.Programs{Bin: findBin(t), User: pgUser(t)}
}

// server is an instance in a test: a volume, and the postmaster while it runs.
type server struct {
	t        testing.TB
	programs *pgproc.Programs
	volume   *pgproc.Volume
	run      string // socket directory
	port     int
	log      *logs
	pm       *pgproc.Postmaster
}

type logs struct {
	mu      sync.Mutex
	records []pgproc.LogRecord
}

func (l *logs) add(r pgproc.LogRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
}

func (l *logs) all() []pgproc.LogRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]pgproc.LogRecord(nil), l.records...)
}

// tempDir is a directory of PostgreSQL's user with a short name, for sockets have at most 107 bytes.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgproc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	own(t, dir)
	return dir
}

func own(t testing.TB, path string) {
	t.Helper()
	if u := pgUser(t); u != nil {
		if err := os.Chown(path, int(u.UID), int(u.GID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func subdir(t testing.TB, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, path)
	return path
}

// newServer is an instance with an empty volume.
func newServer(t testing.TB, separateWAL bool) *server {
	t.Helper()
	dir := tempDir(t)
	s := &server{t: t, run: subdir(t, dir, "run"), port: freePort(t), log: &logs{}}
	s.programs = newPrograms(t)
	s.programs.Log = s.log.add
	wal := ""
	if separateWAL {
		wal = subdir(t, dir, "wal")
	}
	var err error
	if s.volume, err = pgproc.OpenVolume(subdir(t, dir, "data"), wal, pgUser(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), longEnough)
		defer cancel()
		if err := pgproc.KillTree(ctx, s.volume.Root); err != nil {
			t.Error(err)
		}
		_ = s.volume.Close()
	})
	return s
}

// template is a database that is copied, because initdb takes its time.
var template struct {
	once   sync.Once
	volume string
}

const testHBA = "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"

// newDatabase is an instance with a new database that is not started yet.
func newDatabase(t testing.TB) *server {
	t.Helper()
	template.once.Do(func() {
		dir, err := os.MkdirTemp("", "pgproc-template")
		if err != nil {
			t.Fatal(err)
		}
		own(t, dir)
		template.volume = subdir(t, dir, "data")
		v, err := pgproc.OpenVolume(template.volume, "", pgUser(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = v.Close() }()
		initDatabase(t, newPrograms(t), v)
	})
	s := newServer(t, false)
	if out, err := exec.Command("cp", "-a", template.volume+"/.", s.volume.Root).CombinedOutput(); err != nil {
		t.Fatalf("copy the template: %v: %s", err, out)
	}
	s.configure(nil)
	return s
}

func initDatabase(t testing.TB, programs *pgproc.Programs, v *pgproc.Volume) pgproc.Generation {
	t.Helper()
	g, err := v.Begin("initdb")
	if err != nil {
		t.Fatal(err)
	}
	options := pgproc.InitDBOptions{Superuser: "postgres", Encoding: "UTF8", Locale: "C.UTF-8", DataChecksums: true}
	if err := programs.InitDB(testContext(t), g, options); err != nil {
		t.Fatal(err)
	}
	if err := v.Flip(g); err != nil {
		t.Fatal(err)
	}
	return g
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), longEnough)
	t.Cleanup(cancel)
	return ctx
}

func (s *server) generation() pgproc.Generation {
	s.t.Helper()
	g, ok, err := s.volume.Current()
	if err != nil || !ok {
		s.t.Fatalf("current generation: %v %v", ok, err)
	}
	return g
}

// configure writes configuration into the generation in force.
func (s *server) configure(more map[string]string) {
	s.t.Helper()
	conf := fmt.Sprintf("listen_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = '%s'\nshared_buffers = '8MB'\n"+
		"max_connections = 60\nlog_line_prefix = '%s'\nlog_timezone = 'UTC'\nlogging_collector = off\nwal_log_hints = on\n"+
		"fsync = off\ndynamic_shared_memory_type = posix\n", s.port, s.run, postgres.LogLinePrefix)
	for k, v := range more {
		conf += k + " = '" + v + "'\n"
	}
	dir := s.generation().Dir
	for name, text := range map[string]string{"postgresql.conf": conf, "pg_hba.conf": testHBA} {
		if err := pgproc.WriteFile(filepath.Join(dir, name), []byte(text), nil); err != nil {
			s.t.Fatal(err)
		}
	}
}

// start the server and wait until it is ready.
func (s *server) start() *pgproc.Postmaster {
	s.t.Helper()
	pm, err := s.programs.Start(pgproc.StartOptions{Dir: s.generation().Dir, Root: s.volume.Root})
	if err != nil {
		s.t.Fatal(err)
	}
	s.pm = pm
	if err := pm.WaitReady(testContext(s.t)); err != nil {
		s.t.Fatal(err)
	}
	return pm
}

func (s *server) stop() {
	s.t.Helper()
	if err := s.pm.StopFast(testContext(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) kill() {
	s.t.Helper()
	if err := s.pm.KillTree(testContext(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

// psql is a command that runs as PostgreSQL's user.
func (s *server) psql(sql ...string) *exec.Cmd {
	args := []string{"-X", "-h", s.run, "-p", strconv.Itoa(s.port), "-U", "postgres", "-d", "postgres", "-Atq", "-v", "ON_ERROR_STOP=1"}
	for _, command := range sql {
		args = append(args, "-c", command)
	}
	return s.client("psql", args...)
}

func (s *server) client(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(s.programs.Bin.Path(program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent"}
	if u := pgUser(s.t); u != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.UID, Gid: u.GID}}
	}
	return cmd
}

// query returns what SQL commands print.
func (s *server) query(sql ...string) string {
	s.t.Helper()
	cmd := s.psql(sql...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s: %v: %s", sql, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// source to copy from this server.
func (s *server) source() pgproc.Source {
	return pgproc.Source{Host: "127.0.0.1", Port: s.port, User: "postgres", SSLMode: "disable", ApplicationName: "test"}
}

// follow makes the stopped instance a standby of another.
func (s *server) follow(primary *server) {
	s.t.Helper()
	s.configure(map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=standby sslmode=disable", primary.port),
	})
	if err := pgproc.SetStandby(s.generation().Dir, true); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

// cloneOf is a streaming standby of a running server.
func cloneOf(t testing.TB, primary *server, separateWAL bool) *server {
	t.Helper()
	s := newServer(t, separateWAL)
	g, err := s.volume.Begin("clone")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.programs.BaseBackup(testContext(t), g, pgproc.BaseBackupOptions{Source: primary.source()}); err != nil {
		t.Fatal(err)
	}
	if err := s.volume.Flip(g); err != nil {
		t.Fatal(err)
	}
	s.follow(primary)
	return s
}

func eventually(t testing.TB, f any) AsyncAssertion {
	return NewWithT(t).Eventually(f, longEnough, 20*time.Millisecond)
}
