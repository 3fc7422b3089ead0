package pgproc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgproc/proctree"
)

func TestServerLifecycle(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	pm := s.start()
	g.Expect(pm.State()).To(Equal(pgproc.ProcRunning))
	g.Expect(s.query("SELECT 1")).To(Equal("1"))
	_, err := s.programs.Start(pgproc.StartOptions{Dir: s.generation().Dir, Root: s.volume.Root})
	g.Expect(err).To(MatchError(pgproc.ErrTreeAlive), "a second server on the volume")

	s.configure(map[string]string{"work_mem": "5MB"})
	g.Expect(pm.Reload()).To(Succeed())
	eventually(t, func() string { return s.query("SHOW work_mem") }).Should(Equal("5MB"))

	g.Expect(syscall.Kill(pm.PID(), syscall.SIGSTOP)).To(Succeed())
	eventually(t, pm.State).Should(Equal(pgproc.ProcStopped))
	g.Expect(syscall.Kill(pm.PID(), syscall.SIGCONT)).To(Succeed())
	eventually(t, pm.State).Should(Equal(pgproc.ProcRunning))

	g.Expect(pm.StopFast(testContext(t))).To(Succeed())
	g.Expect(pm.Err()).To(Succeed())
	g.Expect(pm.State()).To(Equal(pgproc.ProcGone))

	control, err := s.programs.ControlData(testContext(t), s.generation().Dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(control.DataChecksums).To(BeTrue())
	g.Expect(control.CleanShutdown()).To(BeTrue())
	last, err := s.programs.LastWAL(testContext(t), s.generation().Dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(last.LSN-uint64(control.CheckpointLSN)).To(BeNumerically("~", 120, 64), "the shutdown checkpoint is the last record")
	g.Expect(last.LSN).To(Equal(s.waldumpEnd(last)), "as pg_waldump sees it")
}

func TestStartAfterFSGroupWasApplied(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	g.Expect(os.Chmod(s.generation().Dir, 0o770|os.ModeSetgid)).To(Succeed())
	s.start()
	g.Expect(s.query("SELECT 1")).To(Equal("1"))
}

func TestLogRecordsOfARealServer(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	s.start()
	g.Expect(s.psql("SELECT 'a\nb' FROM nowhere").Run()).NotTo(Succeed())
	eventually(t, s.log.all).Should(ContainElement(And(
		HaveField("Severity", "ERROR"), HaveField("SQLState", "42P01"), HaveField("Backend", "client backend"),
		HaveField("User", "postgres"), HaveField("Message", ContainSubstring(`"nowhere" does not exist`)),
		HaveField("Time", BeTemporally("~", time.Now(), time.Minute)))))
	eventually(t, s.log.all).Should(ContainElement(And(HaveField("Severity", "STATEMENT"), HaveField("Message", "SELECT 'a\nb' FROM nowhere"))))
}

func TestStartTellsPostgresqlsOwnReason(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	s.configure(map[string]string{"max_connections": "many"})
	pm, err := s.programs.Start(pgproc.StartOptions{Dir: s.generation().Dir, Root: s.volume.Root})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(pm.WaitReady(testContext(t))).To(MatchError(ContainSubstring(`invalid value for parameter "max_connections": "many"`)))
	eventually(t, pm.Done()).Should(BeClosed())
}

func TestStartAfterThePIDWasTakenByAnother(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	pm := s.start()
	dir := s.generation().Dir
	lock := filepath.Join(s.run, fmt.Sprintf(".s.PGSQL.%d.lock", s.port))
	s.kill()
	g.Expect(lock).To(BeARegularFile())
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: credential(t)}
	g.Expect(other.Start()).To(Succeed())
	defer func() { _, _ = other.Process.Kill(), other.Wait() }()
	for _, path := range []string{filepath.Join(dir, "postmaster.pid"), lock} {
		data, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		tail := data[len(strconv.Itoa(pm.PID())):]
		g.Expect(pgproc.WriteFile(path, append([]byte(strconv.Itoa(other.Process.Pid)), tail...), nil)).To(Succeed())
	}
	s.start()
	g.Expect(s.query("SELECT 1")).To(Equal("1"))
}

func credential(t testing.TB) *syscall.Credential {
	u := pgUser(t)
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID}
}

// forkLoad makes the server fork and end backends as fast as it can, until the returned function is called.
func (s *server) forkLoad() func() {
	s.t.Helper()
	s.query("CREATE TABLE load (n bigint)")
	script := filepath.Join(s.run, "load.sql")
	if err := os.WriteFile(script, []byte("INSERT INTO load VALUES (1);\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	cmd := s.client("pgbench", "-h", s.run, "-p", strconv.Itoa(s.port), "-U", "postgres", "-n", "-C", "-c", "10", "-T", "60", "-f", script, "postgres")
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	// A program of the server's, which itself starts programs and leaves the data directory.
	program := s.psql("COPY load FROM PROGRAM 'cd / && while true; do sleep 0.01; done'")
	if err := program.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, func() string { return s.query("SELECT count(*) > 100 FROM load") }).Should(Equal("t"))
	return func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_, _, _ = program.Process.Kill(), cmd.Wait(), program.Wait()
	}
}

// alive are the living processes of the server's tree, found independently of how it is killed.
func (s *server) alive() []string {
	s.t.Helper()
	all, err := proctree.Scan()
	if err != nil {
		s.t.Fatal(err)
	}
	var found []string
	for _, p := range all {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.PID))
		if err == nil && len(cwd) >= len(s.volume.Root) && cwd[:len(s.volume.Root)] == s.volume.Root && !p.Ended() {
			found = append(found, p.String())
		}
	}
	return found
}

func TestKillTreeUnderForkLoad(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, other := newDatabase(t), newDatabase(t)
	s.start()
	other.start()
	end := s.forkLoad()
	defer end()
	eventually(t, func() int { return len(s.alive()) }).Should(BeNumerically(">", 8))
	before := time.Now()
	s.kill()
	t.Logf("killed in %v", time.Since(before).Round(time.Millisecond))
	g.Expect(s.alive()).To(BeEmpty())
	g.Expect(s.pm.Err()).To(MatchError(ContainSubstring("killed")))
	g.Expect(other.query("SELECT 1")).To(Equal("1"), "another instance on the host")
}

func TestKillTreeFindsOrphans(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	pm := s.start()
	session := s.psql("SELECT pg_sleep(60)")
	g.Expect(session.Start()).To(Succeed())
	defer func() { _ = session.Wait() }()
	eventually(t, func() string { return s.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") }).Should(Equal("1"))
	// Stopped backends cannot notice that the postmaster is gone.
	for _, p := range mustScan(t) {
		if p.PPID == pm.PID() {
			g.Expect(syscall.Kill(p.PID, syscall.SIGSTOP)).To(Succeed())
		}
	}
	g.Expect(syscall.Kill(pm.PID(), syscall.SIGKILL)).To(Succeed())
	eventually(t, pm.Done()).Should(BeClosed())
	g.Expect(s.alive()).NotTo(BeEmpty())
	_, err := s.programs.Start(pgproc.StartOptions{Dir: s.generation().Dir, Root: s.volume.Root})
	g.Expect(err).To(MatchError(pgproc.ErrTreeAlive))
	g.Expect(pgproc.KillTree(testContext(t), s.volume.Root)).To(Succeed())
	g.Expect(s.alive()).To(BeEmpty())
	s.start()
}

func mustScan(t testing.TB) []proctree.Process {
	t.Helper()
	all, err := proctree.Scan()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReapOrphans(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() { done <- pgproc.Reap(ctx) }()
	defer func() { cancel(); g.Expect(<-done).To(Succeed()) }()
	// The shell ends at once; its child comes to this process and ends a moment later.
	out, err := exec.Command("sh", "-c", "sleep 0.2 >/dev/null 2>&1 & echo $!").Output()
	g.Expect(err).NotTo(HaveOccurred())
	orphan, err := strconv.Atoi(string(out[:len(out)-1]))
	g.Expect(err).NotTo(HaveOccurred())
	eventually(t, func() bool { _, err := proctree.Read(orphan); return errors.Is(err, os.ErrNotExist) }).Should(BeTrue(), "reaped")
	// Children of others keep their exit status although Reap looks at them all the time.
	child := exec.Command("sh", "-c", "exit 7")
	g.Expect(child.Run()).To(MatchError("exit status 7"))
}
