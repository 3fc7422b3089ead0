package pgsql_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

const (
	bin   = "/usr/lib/postgresql/15/bin/"
	major = 15
)

// testServer is a PostgreSQL server with the very files that Kumki writes.
type testServer struct {
	t      *testing.T
	root   string
	port   int
	name   string
	params map[string]string
	hba    []string
	cmd    *exec.Cmd
	done   chan struct{}
	log    *lockedBuffer
	// tls and superuserRemote shape the files.
	tls, superuserRemote bool
}

// lockedBuffer is the server's log: exec's goroutine writes while the test reads.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// credential runs PostgreSQL's programs as somebody else when the test runs as root, which PostgreSQL refuses.
func credential(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		uid, gid := postgresIDs(t)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}
	}
	return attr
}

func postgresIDs(t *testing.T) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatalf("as root the tests need a user postgres to run PostgreSQL: %v", err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr, cmd.Dir = credential(t), "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

func newRoot(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "kumki-pgsql-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	chown(t, root)
	return root
}

// chown gives a path to whom PostgreSQL runs as.
func chown(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	uid, gid := postgresIDs(t)
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// template is a data directory fresh from initdb, made once: a copy is faster.
var template = sync.OnceValues(func() (string, error) { return os.MkdirTemp("/tmp", "kumki-pgsql-") })

func TestMain(m *testing.M) {
	code := m.Run()
	if root, err := template(); err == nil {
		_ = os.RemoveAll(root)
	}
	os.Exit(code)
}

// newPrimary makes a server with these parameters over the derived ones.
func newPrimary(t *testing.T, name string, params map[string]string) *testServer {
	t.Helper()
	s := &testServer{t: t, root: newRoot(t), port: freePort(t), name: name, params: postgres.Merge(params)}
	pristine := filepath.Join(templateRoot(t), "data")
	if _, err := os.Stat(pristine); err != nil {
		segment, err := postgres.WALSegmentMB(s.derived())
		if err != nil {
			t.Fatal(err)
		}
		run(t, bin+"initdb", "-D", pristine, "-U", "postgres", "--auth=peer", "--no-sync", "-k", "--locale=C.UTF-8",
			"--wal-segsize="+strconv.Itoa(segment))
	}
	run(t, "cp", "-a", pristine, s.data())
	s.start()
	return s
}

func templateRoot(t *testing.T) string {
	t.Helper()
	root, err := template()
	if err != nil {
		t.Fatal(err)
	}
	chown(t, root)
	return root
}

// newStandby clones from the primary, which needs the replication role.
func newStandby(t *testing.T, name string, from *testServer) *testServer {
	t.Helper()
	s := &testServer{t: t, root: newRoot(t), port: freePort(t), name: name, params: postgres.Merge(from.params)}
	run(t, bin+"pg_basebackup", "-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(from.port), "-U", "kumki_replication", "-X", "stream",
		"--no-sync", "-c", "fast")
	s.follow(from)
	s.writeFile(filepath.Join(s.data(), "standby.signal"), "")
	s.start()
	return s
}

func (s *testServer) data() string   { return filepath.Join(s.root, "data") }
func (s *testServer) socket() string { return s.root }

// derived are the settings of the smallest instance that is promised to work.
func (s *testServer) derived() map[string]string {
	return postgres.Derive(postgres.Resources{MemoryBytes: 256 << 20, DataBytes: 64 << 20, Major: major})
}

func (s *testServer) follow(from *testServer) {
	conn, err := postgres.ConnInfo(map[string]string{
		"host": "127.0.0.1", "port": strconv.Itoa(from.port), "user": "kumki_replication", "application_name": s.name,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.params["primary_conninfo"] = conn
}

func (s *testServer) writeFile(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// writeConfig writes the three files; the server reads them when it is told to.
func (s *testServer) writeConfig() {
	s.t.Helper()
	in := postgres.OwnInputs{
		Major: major, ClusterName: s.name, ListenAddresses: "127.0.0.1", Port: s.port, SocketDir: s.socket(),
		HBAFile: filepath.Join(s.root, "pg_hba.conf"), IdentFile: filepath.Join(s.root, "pg_ident.conf"),
	}
	if s.tls {
		in.TLSCert, in.TLSKey = filepath.Join(s.root, "tls.crt"), filepath.Join(s.root, "tls.key")
		in.TLSClientCA = filepath.Join(s.root, "ca.crt")
	}
	own := postgres.OwnSettings(in)
	conf, err := postgres.RenderConf(postgres.Merge(s.derived(), own, s.params))
	if err != nil {
		s.t.Fatal(err)
	}
	s.writeFile(filepath.Join(s.root, "postgresql.conf"), conf)
	s.writeFile(filepath.Join(s.root, "pg_hba.conf"), postgres.RenderHBA(postgres.HBAOptions{
		User: s.hba, Plain: !s.tls, SuperuserRemote: s.superuserRemote,
	}))
	me, err := user.Current()
	if err != nil {
		s.t.Fatal(err)
	}
	s.writeFile(filepath.Join(s.root, "pg_ident.conf"), postgres.RenderIdent(me.Username))
}

func (s *testServer) start() {
	s.t.Helper()
	s.writeConfig()
	s.log = &lockedBuffer{}
	s.cmd = exec.Command(bin+"postgres", "-D", s.data(), "-F", "-c", "config_file="+filepath.Join(s.root, "postgresql.conf"))
	s.cmd.SysProcAttr, s.cmd.Dir = credential(s.t), "/"
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	started := make(chan error, 1)
	done := make(chan struct{})
	s.done = done
	go func() {
		// Pdeathsig looks at the thread that started the process, so it has to stay.
		lockThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(done)
	}()
	if err := <-started; err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.stop)
	c := s.client()
	g := NewWithT(s.t)
	g.Eventually(func() error { return c.Ping(s.t.Context()) }).WithTimeout(20*time.Second).WithPolling(50*time.Millisecond).
		Should(Succeed(), func() string { return s.log.String() })
}

// stop ends the server at once.
func (s *testServer) stop() { s.signal(syscall.SIGQUIT) }

func (s *testServer) signal(sig syscall.Signal) {
	select {
	case <-s.done:
		return
	default:
	}
	_ = s.cmd.Process.Signal(sig)
	<-s.done
}

func (s *testServer) client() *pgsql.Client {
	c := pgsql.New(pgsql.Options{SocketDir: s.socket(), Port: s.port, Major: major})
	s.t.Cleanup(c.Close)
	return c
}

// setParameter, setHBA: the side of the contract suite that writes files.
func (s *testServer) setParameter(name, value string) {
	s.params = maps.Clone(s.params)
	s.params[name] = value
	s.writeConfig()
}

func (s *testServer) setHBA(lines ...string) {
	s.hba = lines
	s.writeConfig()
}

// psql runs SQL as the superuser with PostgreSQL's own client: what the suite compares with.
func (s *testServer) psql(sql string) string {
	s.t.Helper()
	cmd := exec.Command("psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", s.socket(), "-p", strconv.Itoa(s.port), "-U", "postgres",
		"-d", "postgres", "-c", sql)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return string(bytes.TrimSpace(out))
}

func (s *testServer) String() string { return fmt.Sprintf("%s on port %d", s.name, s.port) }
