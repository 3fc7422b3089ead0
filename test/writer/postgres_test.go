package writer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// localServer is a PostgreSQL of its own, run by a user who is not root.
type localServer struct {
	bin, dir   string
	port       int
	credential *syscall.Credential
	postmaster *exec.Cmd
}

func newLocalServer(t *testing.T) *localServer {
	t.Helper()
	g := NewWithT(t)
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	g.Expect(found).NotTo(BeEmpty(), "install a PostgreSQL server, on Debian: apt-get install postgresql-15")
	// Not t.TempDir: another user has to reach it.
	dir, err := os.MkdirTemp("", "kumki-writer")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &localServer{bin: filepath.Dir(slices.Max(found)), dir: dir}
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		g.Expect(err).NotTo(HaveOccurred(), "PostgreSQL does not run as root; the package makes the user postgres")
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		s.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		g.Expect(os.Chown(dir, uid, gid)).To(Succeed())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	s.port = listener.Addr().(*net.TCPAddr).Port
	g.Expect(listener.Close()).To(Succeed())
	out, err := s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "--no-sync", "--no-instructions").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	return s
}

func (s *localServer) data() string { return filepath.Join(s.dir, "data") }

func (s *localServer) dsn() (string, error) {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", s.port), nil
}

func (s *localServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential, Setpgid: true}
	cmd.Dir = s.dir
	return cmd
}

// start starts the server; it may refuse while backends of the killed one are still about.
func (s *localServer) start(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error {
		cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-c", "listen_addresses=127.0.0.1")
		log, err := cmd.StderrPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "ready to accept connections") {
				s.postmaster = cmd
				go func() { _, _ = io.Copy(io.Discard, log) }()
				return nil
			}
		}
		return cmd.Wait()
	}).WithTimeout(20 * time.Second).WithPolling(200 * time.Millisecond).Should(Succeed())
	t.Cleanup(s.kill)
}

func (s *localServer) kill() {
	if s.postmaster != nil {
		_ = s.postmaster.Process.Kill()
		_ = s.postmaster.Wait()
		s.postmaster = nil
	}
}

// TestKilledPostmaster: nothing that was acknowledged is lost when the postmaster is killed, and the outage is seen.
func TestKilledPostmaster(t *testing.T) {
	g := NewWithT(t)
	server := newLocalServer(t)
	server.start(t)
	w := New(Config{Target: Target{DSN: server.dsn}, Pause: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	g.Eventually(func() int { return w.AckedSince(time.Time{}) }).WithTimeout(10 * time.Second).Should(BeNumerically(">", 100))

	killed := time.Now()
	server.kill()
	server.start(t)
	started := time.Now()
	g.Eventually(func() int { return w.AckedSince(started) }).WithTimeout(20 * time.Second).Should(BeNumerically(">", 100))
	stop()
	g.Expect(<-done).To(Succeed())

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	report, err := w.Verify(ctx, killed)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("%d transactions sent, %d acknowledged, outage %.2f s, failures %v",
		report.Transactions, report.Acknowledged, report.OutageS, report.Failures)
	g.Expect(report.LostRows).To(BeZero())
	g.Expect(report.Torn).To(BeZero())
	g.Expect(report.TwoPrimaries).To(BeZero())
	g.Expect(report.Servers).To(HaveLen(2), "the server before and the server after")
	// From the kill to just before the restart nothing can have been acknowledged.
	g.Expect(report.Outage.From).To(BeTemporally("<=", killed.Add(time.Second)))
	g.Expect(report.Outage.To).To(BeTemporally(">", killed))
	g.Expect(report.OutageS).To(BeNumerically(">", 0.05))
}

// TestLostRowIsFound: the client does notice when an acknowledged row is gone.
func TestLostRowIsFound(t *testing.T) {
	g := NewWithT(t)
	server := newLocalServer(t)
	server.start(t)
	w := New(Config{Target: Target{DSN: server.dsn}, Connections: 1})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	g.Eventually(func() int { return w.AckedSince(time.Time{}) }).WithTimeout(10 * time.Second).Should(BeNumerically(">", 2))
	stop()
	g.Expect(<-done).To(Succeed())
	g.Expect(w.tryOnce(t.Context(), "DELETE FROM kumki_writer WHERE id = 1")).To(Succeed())

	report, err := w.Verify(t.Context(), time.Time{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Lost).To(Equal([]int64{1}))
	g.Expect(report.Torn).To(Equal(1))
}
