package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func TestBackupOfAnEmptyDatabase(t *testing.T) {
	g := NewWithT(t)
	s := newTestServer(t)
	store := NewMemory(time.Now)
	o := s.options(store)
	var reports []int64
	var total int64
	o.Progress = func(done, all int64) { reports, total = append(reports, done), all }
	b := s.backup(o)
	g.Expect(b.SystemIdentifier).To(Equal(strings.Fields(s.query("SELECT system_identifier FROM pg_control_system()"))[0]))
	g.Expect(*b).To(And(HaveField("Cluster", "orders"), HaveField("Instance", "orders-0"), HaveField("FromStandby", false), HaveField("Level", 1),
		HaveField("WALSegmentSize", int64(16<<20)), HaveField("DataChecksums", true), HaveField("Timeline", uint32(1)),
		HaveField("Encrypted", false), HaveField("PostgresVersion", HavePrefix("15."))))
	g.Expect(b.WALRanges).To(Equal([]WALRange{{1, b.StartLSN, b.StopLSN}}))
	g.Expect(b.StopLSN).To(BeNumerically(">", b.StartLSN))
	g.Expect(b.StoppedAt).To(BeTemporally(">", b.StartedAt))
	g.Expect(len(b.Parts)).To(BeNumerically(">", 2))
	g.Expect(reports[len(reports)-1]).To(BeNumerically("~", b.TotalBytes, len(b.Parts)*tarEnd))
	g.Expect(total).To(BeNumerically("~", b.TotalBytes, 4<<20), "PostgreSQL's estimate is close")

	read, err := ReadBackup(t.Context(), store, testCluster, b.ID)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.encode()).To(Equal(must(b.encode())))
	g.Expect(storedKeys(t, store)).To(HaveLen(len(b.Parts)+2), "parts, manifest and mark")
	for _, p := range b.Parts {
		g.Expect(p.PlainSize).To(BeNumerically("<=", o.PartSize))
	}

	_, err = TakeBackup(t.Context(), o)
	g.Expect(err).NotTo(HaveOccurred(), "a second one")

	r := restoreOptions(t, store, b)
	var done int64
	r.Progress = func(n, all int64) { done = n }
	g.Expect(Restore(t.Context(), r)).To(Succeed())
	g.Expect(done).To(Equal(b.TotalBytes))
	g.Expect(filepath.Join(r.Dir, "recovery.signal")).NotTo(BeAnExistingFile())
	g.Expect(must(os.ReadFile(filepath.Join(r.Dir, "backup_label")))).To(ContainSubstring("LABEL: kumki " + b.ID))
	runPG(t, "/", filepath.Join(pgBin, "pg_verifybackup"), "-n", giveTo(t, r.Dir))
	restored := newRestored(t, r.Dir, s)
	g.Expect(os.WriteFile(filepath.Join(r.Dir, "recovery.signal"), nil, 0o600)).To(Succeed())
	restored.start()
	g.Eventually(func() string { return restored.query("SELECT pg_is_in_recovery()") }, longEnough).Should(Equal("f"))
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func giveTo(t testing.TB, dir string) string {
	giveAway(t, dir)
	return dir
}

// writer inserts rows into the tables by turns until it is stopped, and returns how many were committed.
func (s *testServer) writer(tables ...string) (stop func() int) {
	var ending atomic.Bool
	committed := make(chan int, 1)
	go func() {
		n := 0
		defer func() { committed <- n }()
		for !ending.Load() {
			n++
			if _, err := s.try(fmt.Sprintf("INSERT INTO %s VALUES (%d, repeat('written', 50))", tables[n%len(tables)], n)); err != nil {
				s.t.Errorf("insert: %v", err)
				return
			}
		}
	}()
	return func() int { ending.Store(true); return <-committed }
}

func TestBackupWhileItIsWritten(t *testing.T) {
	g := NewWithT(t)
	s := newTestServer(t)
	var spaces []string
	for i := range 2 {
		dir := filepath.Join(s.dir, fmt.Sprintf("space %d", i))
		runPG(t, s.dir, "mkdir", dir)
		spaces = append(spaces, dir)
		s.exec(fmt.Sprintf("CREATE TABLESPACE ts%d LOCATION '%s'", i, dir))
	}
	s.exec("CREATE TABLE a (id int, body text)", "CREATE TABLE b (id int, body text) TABLESPACE ts0", "CREATE TABLE c (id int, body text) TABLESPACE ts1",
		"INSERT INTO a SELECT -i, repeat(md5(i::text), 6) FROM generate_series(1, 80000) i",
		"INSERT INTO b SELECT -i, repeat(md5(i::text), 6) FROM generate_series(1, 80000) i",
		"INSERT INTO c SELECT -i, repeat(md5(i::text), 6) FROM generate_series(1, 80000) i")
	stop := s.writer("a", "b", "c")
	g.Eventually(func() string { return s.query("SELECT count(*) > 5 FROM b WHERE id > 0") }, longEnough).Should(Equal("t"))
	store := NewMemory(time.Now)
	b := s.backup(s.options(store))
	g.Eventually(func() string {
		return s.query(fmt.Sprintf("SELECT pg_current_wal_flush_lsn() > '%s'", b.StopLSN))
	}, longEnough).Should(Equal("t"))
	committed := stop()
	g.Expect(b.TotalBytes).To(BeNumerically(">", 70<<20))
	g.Expect(b.Tablespaces).To(ConsistOf(HaveField("Path", spaces[0]), HaveField("Path", spaces[1])))
	end, err := postgres.ParseLSN(s.query("SELECT pg_switch_wal()"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.awaitWAL(t.Context(), 1, end, end)).To(Succeed())
	rows := "SELECT count(*), sum(id), md5(string_agg(body, ',' ORDER BY id)) FROM (SELECT * FROM a UNION ALL SELECT * FROM b UNION ALL SELECT * FROM c) x"
	want := s.query(rows)
	g.Expect(s.query("SELECT count(*) FROM (SELECT * FROM a UNION ALL SELECT * FROM b UNION ALL SELECT * FROM c) x WHERE id > 0")).To(Equal(fmt.Sprint(committed)))
	s.stop()
	for _, dir := range spaces {
		g.Expect(os.RemoveAll(dir)).To(Succeed(), "the restored one must not look into these")
	}

	r := restoreOptions(t, store, b)
	g.Expect(Restore(t.Context(), r)).To(Succeed())
	giveAway(t, filepath.Dir(r.Dir))
	runPG(t, "/", filepath.Join(pgBin, "pg_verifybackup"), "-n", "-i", tablespaceMap, r.Dir)
	restored := newRestored(t, r.Dir, s)
	g.Expect(os.WriteFile(filepath.Join(r.Dir, "recovery.signal"), nil, 0o600)).To(Succeed())
	restored.start()
	g.Eventually(func() string { return restored.query("SELECT pg_is_in_recovery()") }, longEnough).Should(Equal("f"))
	g.Expect(restored.query(rows)).To(Equal(want))
	g.Expect(restored.query("SELECT count(*) FROM pg_tablespace WHERE pg_tablespace_location(oid) LIKE '" + filepath.Dir(r.Dir) + "/ts%'")).To(Equal("2"))
	restored.exec("CHECKPOINT", "VACUUM")

	manually(t, store, b)
}

// manually extracts a backup the documented way, by zstd and tar, and lets PostgreSQL verify it.
func manually(t *testing.T, store Store, b *Backup) {
	t.Helper()
	g := NewWithT(t)
	dir := pgTempDir(t)
	runPG(t, dir, "mkdir", "objects", "data")
	for _, key := range storedKeys(t, store) {
		if path.Dir(key) == BackupDir(testCluster, b.ID) {
			g.Expect(os.WriteFile(filepath.Join(dir, "objects", path.Base(key)), contentOf(t, store, key), 0o644)).To(Succeed())
		}
	}
	script := "set -eu; for p in objects/base.*.tar.zst; do zstd -q -d <$p | tar -x -C data; done; cp objects/backup_manifest data/\n"
	for _, ts := range b.Tablespaces {
		script += fmt.Sprintf("mkdir data/pg_tblspc/%[1]d; for p in objects/%[1]d.*.tar.zst; do zstd -q -d <$p | tar -x -C data/pg_tblspc/%[1]d; done\n", ts.OID)
	}
	runPG(t, dir, "bash", "-o", "pipefail", "-c", script+pgBin+"/pg_verifybackup -n data")
}

func TestBackupOfDamagedPagesFails(t *testing.T) {
	g := NewWithT(t)
	s := newTestServer(t)
	s.exec("CREATE TABLE a AS SELECT i, repeat('x', 500) FROM generate_series(1, 1000) i", "CHECKPOINT")
	file := filepath.Join(s.data, s.query("SELECT pg_relation_filepath('a')"))
	s.stop()
	content := must(os.ReadFile(file))
	for _, block := range []int{2, 5} {
		content[block*8192+4000] ^= 0x20
	}
	g.Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	s.start()
	store := NewMemory(time.Now)
	_, err := TakeBackup(t.Context(), s.options(store))
	var damaged *ChecksumError
	g.Expect(errors.As(err, &damaged)).To(BeTrue(), "%v", err)
	g.Expect(damaged.Failures).To(Equal(int64(2)))
	g.Expect(err).To(MatchError(And(ContainSubstring("checksum verification failure during base backup"), ContainSubstring("block 5"))))
	g.Expect(storedKeys(t, store)).To(BeEmpty())
}

// noMark fails if there is a backup, and returns how many objects are left.
func noMark(t *testing.T, store Store) int {
	t.Helper()
	c, err := ListBackups(t.Context(), store, testCluster)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Backups)+len(c.Damaged) > 0 {
		t.Errorf("there is a commit mark: %+v", c)
	}
	return len(storedKeys(t, store))
}

// idle waits until PostgreSQL has no connection for replication any more.
func (s *testServer) idle() {
	s.t.Helper()
	NewWithT(s.t).Eventually(func() string {
		return s.query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'")
	}, longEnough).Should(Equal("0"), "PostgreSQL goes on with a backup that nobody wants")
}

func TestBackupThatIsCancelled(t *testing.T) {
	s := newTestServer(t)
	for name, prepare := range map[string]func(*TakeOptions, *Memory, context.CancelCauseFunc){
		"at the first bytes": func(o *TakeOptions, _ *Memory, cancel context.CancelCauseFunc) {
			o.Progress = func(int64, int64) { cancel(errUnwanted) }
		},
		"in the middle": func(o *TakeOptions, _ *Memory, cancel context.CancelCauseFunc) {
			o.Progress = func(done, _ int64) {
				if done > 12<<20 {
					cancel(errUnwanted)
				}
			}
		},
		"while WAL is awaited": func(o *TakeOptions, _ *Memory, cancel context.CancelCauseFunc) {
			o.AwaitWAL = func(ctx context.Context, _ uint32, _, _ postgres.LSN) error {
				cancel(errUnwanted)
				<-ctx.Done()
				return ctx.Err()
			}
		},
		"before it begins": func(_ *TakeOptions, _ *Memory, cancel context.CancelCauseFunc) { cancel(errUnwanted) },
		"when the manifest is written": func(_ *TakeOptions, m *Memory, cancel context.CancelCauseFunc) {
			m.OnCall(cancelAt("Create", manifestName, cancel))
		},
		"when sizes are compared": func(_ *TakeOptions, m *Memory, cancel context.CancelCauseFunc) {
			m.OnCall(cancelAt("Stat", "base.002.tar.zst", cancel))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			store := NewMemory(time.Now)
			o := s.options(store)
			o.PartSize = 4 << 20
			prepare(&o, store, cancel)
			_, err := TakeBackup(ctx, o)
			g.Expect(err).To(Or(MatchError(errUnwanted), MatchError(context.Canceled)))
			g.Expect(noMark(t, store)).To(BeZero())
			s.idle()
		})
	}
}

var errUnwanted = errors.New("no longer wanted")

func cancelAt(call, name string, cancel context.CancelCauseFunc) func(string, string) error {
	return func(c, key string) error {
		if c == call && path.Base(key) == name {
			cancel(errUnwanted)
		}
		return nil
	}
}

func TestBackupThatIsCancelledWhileTheServerWritesACheckpoint(t *testing.T) {
	g := NewWithT(t)
	s := newTestServer(t, "checkpoint_timeout=1h", "shared_buffers=64MB")
	s.exec("CREATE TABLE a AS SELECT i, repeat('x', 500) FROM generate_series(1, 50000) i")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	store := NewMemory(time.Now)
	o := s.options(store)
	o.Spread = true
	done := make(chan error, 1)
	go func() {
		_, err := TakeBackup(ctx, o)
		done <- err
	}()
	g.Eventually(func() string {
		return s.query("SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'walsender'")
	}, longEnough).Should(Equal("CheckpointDone"))
	cancel(errUnwanted)
	g.Eventually(done, longEnough).Should(Receive(MatchError(errUnwanted)))
	s.idle()
	g.Expect(noMark(t, store)).To(BeZero())
}

var errStore = errors.New("503 slow down")

// Each call of the store fails in turn: alone, or with all that follow. A backup that is reported or found can be restored.
func TestBackupWhileTheStoreFails(t *testing.T) {
	s := newTestServer(t)
	for _, forGood := range []bool{false, true} {
		for n := int64(0); ; n++ {
			g := NewWithT(t)
			store := NewMemory(time.Now)
			var calls atomic.Int64
			store.OnCall(func(call, key string) error {
				if at := calls.Add(1) - 1; at == n || forGood && at > n {
					return errStore
				}
				return nil
			})
			b, err := TakeBackup(t.Context(), s.options(store))
			store.OnCall(nil)
			if err == nil {
				g.Expect(Restore(t.Context(), restoreOptions(t, store, b))).To(Succeed())
				break
			}
			g.Expect(err).To(MatchError(errStore), "call %d fails", n)
			left := noMark(t, store)
			if !forGood && !strings.Contains(err.Error(), "are kept") {
				g.Expect(left).To(BeZero(), "call %d fails: %v", n, err)
			}
		}
	}
}

// lostAnswer does what it is asked, and fails to say so for one object.
type lostAnswer struct {
	*Memory
	name string
}

func (l *lostAnswer) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	err := l.Memory.Create(ctx, key, r, metadata)
	if path.Base(key) == l.name {
		return errors.Join(err, errStore)
	}
	return err
}

func TestBackupWhoseStoreLosesAnAnswer(t *testing.T) {
	s := newTestServer(t)
	for _, name := range []string{"base.001.tar.zst", "base.002.tar.zst", manifestName} {
		store := &lostAnswer{NewMemory(time.Now), name}
		_, err := TakeBackup(t.Context(), s.options(store))
		NewWithT(t).Expect(err).To(MatchError(errStore))
		NewWithT(t).Expect(noMark(t, store)).To(BeZero())
	}
	g := NewWithT(t)
	store := &lostAnswer{NewMemory(time.Now), CommitMark}
	b := s.backup(s.options(store))
	g.Expect(Restore(t.Context(), restoreOptions(t, store, b))).To(Succeed(), "the mark was written, so the backup is one")

	// An object of the same name is another's: it stays as it is, and so does everything that is not ours.
	o := s.options(NewMemory(time.Now))
	o.ID = b.ID
	key := path.Join(BackupDir(testCluster, b.ID), "base.002.tar.zst")
	put(t, o.Store, key, []byte("theirs"))
	_, err := TakeBackup(t.Context(), o)
	g.Expect(err).To(MatchError(ErrExists))
	g.Expect(storedKeys(t, o.Store)).To(Equal([]string{key}))
}

func TestBackupIsRefused(t *testing.T) {
	s := newTestServer(t)
	for name, c := range map[string]struct {
		change func(*TakeOptions)
		err    string
	}{
		"another database":       {func(o *TakeOptions) { o.SystemIdentifier = "1" }, "it is another database"},
		"a rate out of range":    {func(o *TakeOptions) { o.MaxRate = 5 }, "32 to 1048576"},
		"an ID that is a path":   {func(o *TakeOptions) { o.ID = "../x" }, "is not the ID"},
		"WAL that never comes":   {func(o *TakeOptions) { o.AwaitWAL = refuseWAL }, "is not in the archive: archiving is broken"},
		"nobody listens":         {func(o *TakeOptions) { o.DSN = "host=/nowhere password=secret" }, "connect for a base backup"},
		"a broken DSN":           {func(o *TakeOptions) { o.DSN = "port=x password=secret" }, "connection string"},
		"a role without a right": {func(o *TakeOptions) { o.DSN = "host=" + s.dir + " user=nobody dbname=postgres" }, "nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := NewMemory(time.Now)
			o := s.options(store)
			c.change(&o)
			_, err := TakeBackup(t.Context(), o)
			g.Expect(err).To(MatchError(ContainSubstring(c.err)))
			g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
			g.Expect(storedKeys(t, store)).To(BeEmpty())
		})
	}
}

func refuseWAL(context.Context, uint32, postgres.LSN, postgres.LSN) error {
	return errors.New("archiving is broken")
}
