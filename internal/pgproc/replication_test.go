package pgproc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// lsn that a server's SQL function returns.
func (s *server) lsn(function string) uint64 {
	s.t.Helper()
	lsn, err := postgres.ParseLSN(s.query("SELECT " + function))
	if err != nil {
		s.t.Fatal(err)
	}
	return uint64(lsn)
}

func (s *server) lastWAL() election.Position {
	s.t.Helper()
	last, err := s.programs.LastWAL(testContext(s.t), s.generation().Dir)
	if err != nil {
		s.t.Fatal(err)
	}
	return last
}

// write some rows of different sizes and return where the WAL was flushed to.
func (s *server) write() uint64 {
	s.t.Helper()
	s.query("CREATE TABLE IF NOT EXISTS t (x text)",
		"INSERT INTO t SELECT repeat('x', n * 37 % 9000) FROM generate_series(1, 300) n")
	return s.lsn("pg_current_wal_flush_lsn()")
}

func TestEndOfWALAfterACrash(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	s.start()
	s.write()
	s.query("SELECT pg_switch_wal()", "CHECKPOINT")
	s.write()
	s.query("SELECT pg_switch_wal()")
	flushed := s.write()
	s.kill()
	last := s.lastWAL()
	g.Expect(last.Timeline).To(BeEquivalentTo(1))
	g.Expect(last.LSN).To(BeNumerically(">=", flushed))
	g.Expect(last.LSN).To(Equal(s.waldumpEnd(last)), "as pg_waldump sees it")
	s.start()
	g.Expect(s.query("SELECT count(*) FROM t")).To(Equal("900"))
}

// waldumpEnd is where pg_waldump finds no further record, from the segment of that position on.
func (s *server) waldumpEnd(p election.Position) uint64 {
	s.t.Helper()
	start := p.LSN - p.LSN%(16<<20)
	out, _ := s.client("pg_waldump", "-p", filepath.Join(s.generation().Dir, "pg_wal"), "-t", fmt.Sprint(p.Timeline),
		"-s", postgres.LSN(start).String()).CombinedOutput()
	_, tail, ok := strings.Cut(string(out), "error in WAL record at ")
	_, at, ok2 := strings.Cut(tail, "invalid record length at ")
	if !ok || !ok2 {
		s.t.Fatalf("pg_waldump: %s", out[max(0, len(out)-500):])
	}
	text, _, _ := strings.Cut(at, ":")
	lsn, err := postgres.ParseLSN(strings.TrimSpace(text))
	if err != nil {
		s.t.Fatal(err)
	}
	return uint64(lsn)
}

func TestEndOfWALOfAKilledStandby(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	primary := newDatabase(t)
	primary.start()
	standby := cloneOf(t, primary, false)
	flushed := primary.write()
	eventually(t, func() uint64 { return standby.lsn("pg_last_wal_receive_lsn()") }).Should(BeNumerically(">=", flushed))
	standby.kill()
	last := standby.lastWAL()
	g.Expect(last.Timeline).To(BeEquivalentTo(1))
	g.Expect(last.LSN).To(BeNumerically(">=", flushed))
	dir := filepath.Join(standby.generation().Dir, "pg_wal")
	for _, segment := range walFiles(t, dir) {
		g.Expect(os.Truncate(segment, 0)).To(Succeed())
	}
	_, err := standby.programs.LastWAL(testContext(t), standby.generation().Dir)
	g.Expect(err).To(MatchError(ContainSubstring("no valid WAL record at the checkpoint")), "unknown is never zero")
}

func walFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "0*[0-9A-F]"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no WAL in %s: %v", dir, err)
	}
	return files
}

// A primary, and a standby with a WAL volume of its own; the standby is promoted, the primary writes on alone, is killed and rewound.
func TestRewindOfADivergedPrimary(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	old := newDatabase(t)
	old.start()
	old.query("CREATE TABLE t (x text)")
	leader := cloneOf(t, old, true)
	eventually(t, func() string { return leader.query("SELECT status FROM pg_stat_wal_receiver") }).Should(Equal("streaming"))
	g.Expect(os.Readlink(filepath.Join(leader.generation().Dir, "pg_wal"))).To(Equal(leader.generation().WALDir))

	leader.query("SELECT pg_promote()")
	old.query("INSERT INTO t SELECT 'lost' FROM generate_series(1, 1000)")
	old.kill()
	before := old.lastWAL()
	g.Expect(before.Timeline).To(BeEquivalentTo(1))

	source, volume, dir := leader.source(), old.volume, old.generation()
	_, err := old.programs.Rewind(testContext(t), volume, dir, pgproc.RewindOptions{Source: source, SourceTimeline: 1})
	g.Expect(err).To(MatchError(pgproc.ErrSameTimeline))
	leader.query("CHECKPOINT", "INSERT INTO t SELECT 'kept' FROM generate_series(1, 10)")
	unreachable := source
	unreachable.Port = freePort(t)
	_, err = old.programs.Rewind(testContext(t), volume, dir, pgproc.RewindOptions{Source: unreachable, SourceTimeline: 2})
	g.Expect(err).To(MatchError(ContainSubstring("nothing was changed")))
	g.Expect(err).To(MatchError(pgproc.ErrSourceUnreachable), "that is no reason to clone")
	g.Expect(old.generation().Incomplete).To(BeEmpty())

	result, err := old.programs.Rewind(testContext(t), volume, dir, pgproc.RewindOptions{Source: source, SourceTimeline: 2})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.Rewound).To(BeTrue())
	g.Expect(result.DivergedTimeline).To(BeEquivalentTo(1))
	g.Expect(result.DivergedAt).To(BeNumerically("<", before.LSN))
	g.Expect(old.generation().Incomplete).To(BeEmpty())
	old.follow(leader)
	eventually(t, func() string { return old.query("SELECT string_agg(DISTINCT x, ' ') FROM t") }).Should(Equal("kept"))

	flushed := leader.write()
	eventually(t, func() uint64 { return old.lsn("pg_last_wal_receive_lsn()") }).Should(BeNumerically(">=", flushed))
	old.kill()
	last := old.lastWAL()
	g.Expect(last.Timeline).To(BeEquivalentTo(2))
	g.Expect(last.LSN).To(BeNumerically(">=", flushed))
}

// A standby follows a new timeline by streaming; its last checkpoint is still on the old one when it is killed.
func TestEndOfWALOverATimelineSwitch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	primary := newDatabase(t)
	primary.start()
	second, third := cloneOf(t, primary, false), cloneOf(t, primary, false)
	primary.write()
	primary.stop()
	second.query("SELECT pg_promote()")
	third.stop()
	third.follow(second)
	flushed := second.write()
	eventually(t, func() uint64 { return third.lsn("pg_last_wal_receive_lsn()") }).Should(BeNumerically(">=", flushed))
	third.kill()
	control, err := third.programs.ControlData(testContext(t), third.generation().Dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(control.Timeline).To(BeEquivalentTo(1), "the case that this test is for")
	last := third.lastWAL()
	g.Expect(last.Timeline).To(BeEquivalentTo(2))
	g.Expect(last.LSN).To(BeNumerically(">=", flushed))
}

// A crashed standby has received what nobody else has; it is rewound although single-user recovery refuses standby.signal.
func TestRewindOfACrashedStandby(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	primary := newDatabase(t)
	primary.start()
	ahead, leader := cloneOf(t, primary, false), cloneOf(t, primary, false)
	leader.stop()
	flushed := primary.write()
	eventually(t, func() uint64 { return ahead.lsn("pg_last_wal_receive_lsn()") }).Should(BeNumerically(">=", flushed))
	primary.kill()
	ahead.kill()
	g.Expect(pgproc.SetStandby(leader.generation().Dir, true)).To(Succeed())
	leader.start()
	leader.query("SELECT pg_promote()")
	leader.query("CHECKPOINT")

	options := pgproc.RewindOptions{Source: leader.source(), SourceTimeline: 2}
	result, err := ahead.programs.Rewind(testContext(t), ahead.volume, ahead.generation(), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.Rewound).To(BeTrue())
	ahead.follow(leader)
	eventually(t, func() string { return ahead.query("SELECT status FROM pg_stat_wal_receiver") }).Should(Equal("streaming"))
}

func TestRewindThatIsCutOffLeadsToAClone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newDatabase(t)
	gen := s.generation()
	g.Expect(s.volume.Mark(gen, "rewind")).To(Succeed())
	gen = s.generation()
	g.Expect(gen.Incomplete).To(Equal("rewind"))
	_, err := s.programs.Rewind(testContext(t), s.volume, gen, pgproc.RewindOptions{SourceTimeline: 2})
	g.Expect(err).To(MatchError(pgproc.ErrIncomplete))
	g.Expect(s.volume.Virgin()).To(BeFalse(), "it once held a database")
	g.Expect(s.volume.RemoveOld()).To(Succeed())
	g.Expect(gen.Dir).To(BeADirectory(), "no good copy is here yet")
}

func TestBaseBackupProgressAndFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	primary, s := newDatabase(t), newServer(t, false)
	primary.start()
	gen, err := s.volume.Begin("clone")
	g.Expect(err).NotTo(HaveOccurred())
	options := pgproc.BaseBackupOptions{Source: primary.source(), Slot: "missing"}
	g.Expect(s.programs.BaseBackup(testContext(t), gen, options)).To(MatchError(ContainSubstring(`replication slot "missing" does not exist`)))
	g.Expect(s.volume.RemoveOld()).To(Succeed())
	g.Expect(gen.Dir).NotTo(BeADirectory())

	primary.query("SELECT pg_create_physical_replication_slot('s', true)")
	var last pgproc.Progress
	options.Slot, options.OnProgress = "s", func(p pgproc.Progress) { last = p }
	gen, err = s.volume.Begin("clone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.programs.BaseBackup(testContext(t), gen, options)).To(Succeed())
	g.Expect(last.Done).To(BeNumerically(">", 1<<20))
	g.Expect(s.programs.BaseBackup(testContext(t), gen, options)).To(MatchError(pgproc.ErrNotEmpty))
	_, found, err := s.volume.Current()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse(), "not in force before the flip")
}
