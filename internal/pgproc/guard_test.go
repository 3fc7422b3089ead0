package pgproc_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgproc/proctree"
)

// managerEnv makes the test binary a manager process with a guard and a server: bin dir, major, guard program, volume, data directory.
const managerEnv = "PGPROC_TEST_MANAGER"

var guardProgram struct {
	once sync.Once
	path string
	err  error
}

// guardBin builds the guard once.
func guardBin(t testing.TB) string {
	t.Helper()
	guardProgram.once.Do(func() {
		guardProgram.path = filepath.Join(os.TempDir(), fmt.Sprintf("kumki-wal-test-%d", os.Getpid()))
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", guardProgram.path, "github.com/kumki-dev/kumki/cmd/kumki-wal")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			guardProgram.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if guardProgram.err != nil {
		t.Fatal(guardProgram.err)
	}
	return guardProgram.path
}

// managerMain is a manager in a process of its own. It obeys lines on stdin: a deadline as a duration from now, or "none".
func managerMain() int {
	if err := manager(strings.Split(os.Getenv(managerEnv), ",")); err != nil {
		say("error:", err)
		return 1
	}
	return 0
}

// say a line to the test.
func say(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }

func manager(args []string) error {
	programs := &pgproc.Programs{Bin: pgproc.Bin{Dir: args[0]}}
	if _, err := fmt.Sscan(args[1], &programs.Bin.Major); err != nil {
		return err
	}
	guard, err := pgproc.StartGuard(pgproc.GuardOptions{Bin: args[2], Root: args[3]})
	if err != nil {
		return err
	}
	go func() {
		for range guard.Fired() {
			say("fired")
		}
	}()
	if os.Geteuid() == 0 {
		u := &pgproc.User{}
		if _, err := fmt.Sscan(args[5], &u.UID, &u.GID); err != nil {
			return err
		}
		programs.User = u
	}
	ctx, cancel := context.WithTimeout(context.Background(), longEnough)
	defer cancel()
	pm, err := programs.Start(pgproc.StartOptions{Dir: args[4], Root: args[3]})
	if err == nil {
		err = pm.WaitReady(ctx)
	}
	if err != nil {
		return err
	}
	say("ready", pm.PID(), guard.PID())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		at := time.Duration(0)
		if in.Text() != "none" {
			d, err := time.ParseDuration(in.Text())
			if err != nil {
				return err
			}
			at = pgproc.Clock() + d
		}
		if err := errors.Join(guard.SetDeadline(at), guard.AwaitAck(ctx)); err != nil {
			return err
		}
		say("set")
	}
	return in.Err()
}

// managed is a server under a manager process.
type managed struct {
	*server
	cmd      *exec.Cmd
	in       io.Writer
	lines    chan string
	guardPID int
}

func newManaged(t *testing.T) *managed {
	t.Helper()
	m := &managed{server: newDatabase(t), lines: make(chan string, 100)}
	owner := ""
	if u := pgUser(t); u != nil {
		owner = fmt.Sprintf("%d %d", u.UID, u.GID)
	}
	bin := m.programs.Bin
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), managerEnv+"="+strings.Join([]string{bin.Dir, fmt.Sprint(bin.Major), guardBin(t),
		m.volume.Root, m.generation().Dir, owner}, ","))
	m.cmd.Stderr = os.Stderr
	m.cmd.Dir = "/"
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.cmd.Process.Kill(), m.cmd.Wait() })
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			m.lines <- s.Text()
		}
	}()
	var pid int
	if _, err := fmt.Sscanf(m.line(), "ready %d %d", &pid, &m.guardPID); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *managed) line() string {
	m.t.Helper()
	select {
	case line := <-m.lines:
		return line
	case <-time.After(longEnough):
		m.t.Fatal("the manager process says nothing")
		return ""
	}
}

// set a deadline from now; returns when it is confirmed.
func (m *managed) set(deadline string) {
	m.t.Helper()
	_, _ = fmt.Fprintln(m.in, deadline)
	NewWithT(m.t).Expect(m.line()).To(Equal("set"))
}

func TestGuardFencesAStoppedManager(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	m := newManaged(t)
	end := m.forkLoad()
	defer end()
	m.set("700ms")
	deadline := time.Now().Add(700 * time.Millisecond)
	m.set("1200ms") // a renewal
	renewed := time.Now().Add(1200 * time.Millisecond)
	g.Expect(m.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
	g.Consistently(m.alive, time.Until(deadline)+100*time.Millisecond, 50*time.Millisecond).ShouldNot(BeEmpty())
	g.Eventually(m.alive, longEnough, 5*time.Millisecond).Should(BeEmpty())
	t.Logf("nothing left %v after the deadline", time.Since(renewed).Round(time.Millisecond))
	g.Expect(time.Since(renewed)).To(BeNumerically("<", 2*time.Second))
	g.Expect(m.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed())
	g.Expect(m.line()).To(Equal("fired"))
}

func TestGuardFencesWhenTheManagerDies(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	m := newManaged(t)
	m.set("none")
	end := m.forkLoad()
	defer end()
	g.Expect(m.cmd.Process.Kill()).To(Succeed())
	g.Eventually(m.alive, longEnough, 5*time.Millisecond).Should(BeEmpty())
	eventually(t, func() bool {
		p, err := proctree.Read(m.guardPID)
		return err != nil || p.Ended()
	}).Should(BeTrue(), "the guard has nothing left to do")
}

func TestGuardHoldsUntilTheNextOrder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	guard := newGuard(t, s, nil)
	s.start()
	g.Expect(guard.SetDeadline(pgproc.Clock() + 50*time.Millisecond)).To(Succeed())
	g.Eventually(guard.Fired(), longEnough).Should(Receive())
	eventually(t, s.pm.Done()).Should(BeClosed())
	// A server that a manager starts that was stopped at the deadline.
	pm, err := s.programs.Start(pgproc.StartOptions{Dir: s.generation().Dir, Root: s.volume.Root})
	g.Expect(err).NotTo(HaveOccurred())
	eventually(t, pm.Done()).Should(BeClosed())
	g.Expect(pm.Err()).To(MatchError(ContainSubstring("killed")))

	g.Expect(guard.SetDeadline(0)).To(Succeed())
	g.Expect(guard.AwaitAck(testContext(t))).To(Succeed())
	s.start()
	g.Consistently(s.pm.Done(), 300*time.Millisecond).ShouldNot(BeClosed())
	g.Expect(guard.Close()).To(Succeed())
	g.Expect(guard.Exited()).To(BeClosed())
	g.Expect(s.query("SELECT 1")).To(Equal("1"), "closing kills nothing")
}

func newGuard(t *testing.T, s *server, onRestart func(error)) *pgproc.Guard {
	t.Helper()
	guard, err := pgproc.StartGuard(pgproc.GuardOptions{Bin: guardBin(t), Root: s.volume.Root, OnRestart: onRestart})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	return guard
}

func TestGuardProcessIsStartedAgainWithTheDeadline(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	restarts := make(chan error, 10)
	guard := newGuard(t, s, func(err error) { restarts <- err })
	s.start()
	g.Expect(guard.SetDeadline(pgproc.Clock() + 800*time.Millisecond)).To(Succeed())
	g.Expect(guard.AwaitAck(testContext(t))).To(Succeed())
	t.Logf("guard process: %s", rss(t, guard.PID()))
	g.Expect(syscall.Kill(guard.PID(), syscall.SIGKILL)).To(Succeed())
	g.Eventually(restarts, longEnough).Should(Receive(MatchError(ContainSubstring("killed"))))
	g.Expect(guard.AwaitAck(testContext(t))).To(Succeed())
	g.Eventually(guard.Fired(), longEnough).Should(Receive())
	g.Expect(s.alive()).To(BeEmpty())
}

func rss(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return ""
}

func TestGuardThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	_, err := pgproc.StartGuard(pgproc.GuardOptions{Bin: "/nonexistent/kumki-wal", Root: t.TempDir()})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("/nonexistent/kumki-wal")))
}
