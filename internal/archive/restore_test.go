package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// smallBackup is a backup of files that are no database, made without PostgreSQL: each group of members is a part.
func smallBackup(t testing.TB, store Store, codec Codec, tablespaces []Tablespace, groups ...group) *Backup {
	t.Helper()
	b := &Backup{ID: NewBackupID(testNow()), SystemIdentifier: "7300000000000000001", Tablespaces: tablespaces, Encrypted: len(codec.Recipients) > 0}
	u := newUploader(context.Background(), &TakeOptions{Store: store, ClusterDir: testCluster, ID: b.ID, Codec: codec, Uploads: 1})
	write := func(p *Part, content []byte, encode encoding) {
		up, err := u.open(p, encode)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := up.Write(content); err != nil {
			t.Fatal(err)
		}
		up.finish()
		if err := u.wait(); err != nil {
			t.Fatal(err)
		}
	}
	var listed []string
	for i, g := range groups {
		p := Part{Name: fmt.Sprintf("base.%03d.tar%s", i+1, codec.Suffix()), Tablespace: g.tablespace}
		for _, m := range g.members {
			if m.Typeflag == tar.TypeReg && !g.unlisted {
				listed = append(listed, string(m.body))
			}
		}
		write(&p, tarOf(t, g.members...), u.codec.Encode)
		b.Parts = append(b.Parts, p)
		b.TotalBytes += p.PlainSize
	}
	b.Manifest.Name = manifestName
	write(&b.Manifest, []byte(manifestOf(listed...)), u.encodeManifest)
	putBackup(t, store, b)
	return b
}

type group struct {
	tablespace uint32
	members    []testMember
	unlisted   bool
}

// file is a member whose content is the name that the manifest has.
func file(name, listed string) testMember {
	return testMember{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o640}, []byte(listed)}
}

func special(name string, kind byte) testMember {
	return testMember{tar.Header{Name: name, Typeflag: kind, Mode: 0o750, Linkname: "/etc"}, nil}
}

func control() testMember { return file(controlFile, controlFile) }

func TestRestoreModesAndPlaces(t *testing.T) {
	g := NewWithT(t)
	store := NewMemory(testNow)
	b := smallBackup(t, store, Codec{}, []Tablespace{{16385, "/old"}},
		group{members: []testMember{file("base/1/2", "base/1/2"), control(), file("standby.signal", "standby.signal"), special("pg_tblspc/16385", tar.TypeSymlink)}},
		group{members: []testMember{special("base/", tar.TypeDir), special("base/1/", tar.TypeDir), special("pg_wal/archive_status/", tar.TypeDir)}},
		group{tablespace: 16385, members: []testMember{special("PG_15/", tar.TypeDir), file("PG_15/5", "pg_tblspc/16385/PG_15/5")}},
		group{members: []testMember{file("pg_wal/0000000100000000", "WAL")}, unlisted: true})
	o := restoreOptions(t, store, b)
	o.Tablespaces[16385] = filepath.Join(filepath.Dir(o.Dir), "a\nb\\c")
	g.Expect(os.Chmod(o.Dir, 0o755)).To(Succeed())
	g.Expect(Restore(t.Context(), o)).To(Succeed())
	mode := func(name string) os.FileMode {
		info, err := os.Lstat(filepath.Join(o.Dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		return info.Mode()
	}
	g.Expect(mode(".")).To(Equal(os.ModeDir | 0o700))
	g.Expect(mode("base/1")).To(Equal(os.ModeDir | 0o750))
	g.Expect(mode("base/1/2")).To(Equal(os.FileMode(0o640)))
	g.Expect(must(os.ReadFile(filepath.Join(o.Dir, controlFile)))).To(BeEquivalentTo(controlFile))
	g.Expect(os.Readlink(filepath.Join(o.Dir, "pg_tblspc/16385"))).To(Equal(o.Tablespaces[16385]))
	g.Expect(filepath.Join(o.Tablespaces[16385], "PG_15/5")).To(BeARegularFile())
	g.Expect(must(os.ReadFile(filepath.Join(o.Dir, tablespaceMap)))).To(BeEquivalentTo(
		"16385 " + filepath.Dir(o.Dir) + "/a\\\nb\\\\c\n"))
	g.Expect(filepath.Join(o.Dir, "standby.signal")).NotTo(BeAnExistingFile())
	g.Expect(filepath.Join(o.Dir, controlFile+heldBack)).NotTo(BeAnExistingFile())
}

func TestRestoreRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		groups []group
		change func(*RestoreOptions)
		err    string
	}{
		"a name that leads out":         {groups: []group{{members: []testMember{control(), file("../x", "../x")}}}, err: "leads out"},
		"an absolute name":              {groups: []group{{members: []testMember{control(), file("/x", "x")}}}, err: "leads out"},
		"a link":                        {groups: []group{{members: []testMember{control(), special("base", tar.TypeSymlink)}}}, err: "neither a file"},
		"a hard link":                   {groups: []group{{members: []testMember{control(), special("base", tar.TypeLink)}}}, err: "neither a file"},
		"a device":                      {groups: []group{{members: []testMember{control(), special("base", tar.TypeChar)}}}, err: "neither a file"},
		"a file that is not listed":     {groups: []group{{members: []testMember{control()}}, {members: []testMember{file("a", "a")}, unlisted: true}}, err: `"a" is not listed`},
		"a file in two parts":           {groups: []group{{members: []testMember{control()}}, {members: []testMember{control()}, unlisted: true}}, err: "too"},
		"another content":               {groups: []group{{members: []testMember{control(), file("a", "b"), file("b", "b")}}}, err: "is there twice"},
		"a listed file that is lost":    {groups: []group{{members: []testMember{control(), file("pg_wal/x", "a")}}}, err: `"a" is in none`},
		"files of no tablespace":        {groups: []group{{members: []testMember{control()}, tablespace: 7}}, err: "tablespace 7"},
		"a directory that is not there": {change: func(o *RestoreOptions) { o.Dir += "x" }, err: "no such file"},
		"a directory with a file": {change: func(o *RestoreOptions) { _ = os.WriteFile(o.Dir+"/PG_VERSION", nil, 0o600) },
			err: "is not empty: it has PG_VERSION"},
		"a relative directory":      {change: func(o *RestoreOptions) { o.Dir = "x" }, err: "absolute"},
		"an object that is missing": {change: func(o *RestoreOptions) { remove(o, 0) }, err: "base.001.tar.zst: the object does not exist"},
		"a tablespace without a place": {change: func(o *RestoreOptions) { o.Backup.Tablespaces = []Tablespace{{7, "/old"}} },
			err: "the tablespace 7, which was at /old"},
		"no identity": {change: func(o *RestoreOptions) { o.Backup.Encrypted = true }, err: "no identity"},
		"a manifest of another system": {change: func(o *RestoreOptions) { o.Backup.SystemIdentifier = "1" },
			err: "of the system identifier 7300000000000000001 instead of 1"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := NewMemory(testNow)
			if c.groups == nil {
				c.groups = []group{{members: []testMember{control()}}}
			}
			o := restoreOptions(t, store, smallBackup(t, store, Codec{}, nil, c.groups...))
			if c.change != nil {
				c.change(&o)
			}
			g.Expect(Restore(t.Context(), o)).To(MatchError(ContainSubstring(c.err)))
			g.Expect(filepath.Join(o.Dir, controlFile)).NotTo(BeAnExistingFile(), "PostgreSQL could start with it")
			g.Expect(filepath.Join(filepath.Dir(o.Dir), "x")).NotTo(BeAnExistingFile())
		})
	}
}

func remove(o *RestoreOptions, part int) {
	_ = o.Store.Delete(context.Background(), path.Join(BackupDir(testCluster, o.Backup.ID), o.Backup.Parts[part].Name))
}

// Whatever byte of a stored object is changed, added or lost, a restore finds it, and says where.
func TestRestoreFindsEveryChange(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, codec := range []Codec{{}, {Recipients: []age.Recipient{identity.Recipient()}, Identities: []age.Identity{identity}}} {
		store := NewMemory(testNow)
		b := smallBackup(t, store, codec, nil, group{members: []testMember{control(), file("a", "a")}}, group{members: []testMember{file("b", "b")}})
		for _, p := range append(b.Parts, b.Manifest) {
			key := path.Join(BackupDir(testCluster, b.ID), p.Name)
			whole := contentOf(t, store, key)
			changes := map[string][]byte{"a byte more": append(bytes.Clone(whole), 0), "a byte less": whole[:len(whole)-1], "empty": nil}
			for i := 0; i < len(whole); i += 1 + i/7 {
				changed := bytes.Clone(whole)
				changed[i] ^= 4
				changes[fmt.Sprint("byte ", i)] = changed
			}
			for name, changed := range changes {
				g := NewWithT(t)
				store.Change(key, func([]byte) []byte { return changed })
				o := restoreOptions(t, store, b)
				o.Codec = codec
				err := Restore(t.Context(), o)
				var damaged *DamagedError
				g.Expect(errors.As(err, &damaged)).To(BeTrue(), "%s of %s: %v", name, key, err)
				g.Expect(damaged.Key).To(Equal(key))
				g.Expect(filepath.Join(o.Dir, controlFile)).NotTo(BeAnExistingFile())
			}
			store.Change(key, func([]byte) []byte { return whole })
		}
		o := restoreOptions(t, store, b)
		o.Codec = codec
		NewWithT(t).Expect(Restore(t.Context(), o)).To(Succeed())
	}
}

// tornReads breaks off reading of each object a number of times.
type tornReads struct {
	*Memory
	times int
	read  map[string]int
}

func (s *tornReads) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := s.Memory.Read(ctx, key)
	if s.read[key]++; err == nil && s.read[key] <= s.times {
		return io.NopCloser(io.MultiReader(io.LimitReader(r, 50), &failingReader{})), nil
	}
	return r, err
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errStore }

func TestRestoreReadsAPartAgain(t *testing.T) {
	g := NewWithT(t)
	store := &tornReads{Memory: NewMemory(testNow), read: map[string]int{}}
	b := smallBackup(t, store, Codec{}, nil, group{members: []testMember{control(), file("a", "a"), file("c", "c")}}, group{members: []testMember{file("b", "b")}})
	o := restoreOptions(t, store, b)
	o.Parallel = 1
	var again []string
	var done int64
	o.Progress = func(n, _ int64) { done = n }
	o.Retry = func(_ context.Context, part string, err error) error {
		g.Expect(err).To(MatchError(errStore))
		again = append(again, part)
		return nil
	}
	store.times = 2
	g.Expect(Restore(t.Context(), o)).To(Succeed())
	g.Expect(again).To(Equal([]string{manifestName, manifestName, "base.001.tar.zst", "base.001.tar.zst", "base.002.tar.zst", "base.002.tar.zst"}))
	g.Expect(done).To(Equal(b.TotalBytes))

	store.times, store.read = 3, map[string]int{}
	fresh := restoreOptions(t, store, b)
	g.Expect(Restore(t.Context(), fresh)).To(MatchError(errStore))

	ctx, cancel := context.WithCancelCause(t.Context())
	fresh = restoreOptions(t, store, b)
	fresh.Retry = func(context.Context, string, error) error { cancel(errUnwanted); return nil }
	store.read = map[string]int{}
	g.Expect(Restore(ctx, fresh)).To(MatchError(errUnwanted))
}

func TestRestoreOfAnEncryptedBackup(t *testing.T) {
	g := NewWithT(t)
	identity, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	other, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	s := newTestServer(t)
	store := NewMemory(time.Now)
	o := s.options(store)
	o.Codec.Recipients = []age.Recipient{identity.Recipient()}
	b := s.backup(o)
	for _, key := range storedKeys(t, store) {
		if path.Base(key) == CommitMark {
			continue
		}
		g.Expect(key).To(HaveSuffix(SuffixEncrypted))
		g.Expect(contentOf(t, store, key)).To(HavePrefix("age-encryption.org/v1\n"))
	}
	r := restoreOptions(t, store, b)
	r.Codec.Identities = []age.Identity{other}
	g.Expect(Restore(t.Context(), r)).To(MatchError(ContainSubstring("decrypt")))
	r = restoreOptions(t, store, b)
	r.Codec.Identities = []age.Identity{identity}
	g.Expect(Restore(t.Context(), r)).To(Succeed())
	runPG(t, "/", pgBin+"/pg_verifybackup", "-n", giveTo(t, r.Dir))
}

// A backup of a standby has its standby.signal; what is restored of it must end its recovery nevertheless.
func TestBackupOfAStandby(t *testing.T) {
	g := NewWithT(t)
	primary := newTestServer(t)
	store := NewMemory(time.Now)
	primary.exec("CREATE TABLE a AS SELECT generate_series(1, 100) i")
	r := restoreOptions(t, store, primary.backup(primary.options(store)))
	g.Expect(Restore(t.Context(), r)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(r.Dir, "standby.signal"), nil, 0o600)).To(Succeed())
	standby := newRestored(t, r.Dir, primary, "primary_conninfo='"+primary.dsn()+"'")
	standby.start()
	primary.exec("INSERT INTO a SELECT generate_series(101, 200)")
	g.Eventually(func() string { return standby.query("SELECT max(i) FROM a") }, longEnough).Should(Equal("200"))

	o := standby.options(store)
	o.AwaitWAL = func(ctx context.Context, timeline uint32, start, stop postgres.LSN) error {
		primary.exec("CREATE TABLE IF NOT EXISTS b (i int)", "SELECT pg_switch_wal()")
		return primary.awaitWAL(ctx, timeline, start, stop)
	}
	b := standby.backup(o)
	g.Expect(b.FromStandby).To(BeTrue())
	g.Expect(strings.Join(storedKeys(t, store), " ")).To(ContainSubstring(b.ID))
	r = restoreOptions(t, store, b)
	g.Expect(Restore(t.Context(), r)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(r.Dir, "recovery.signal"), nil, 0o600)).To(Succeed())
	restored := newRestored(t, r.Dir, primary, "recovery_target='immediate'", "recovery_target_action='promote'")
	restored.start()
	g.Eventually(func() string { return restored.query("SELECT pg_is_in_recovery()") }, longEnough).Should(Equal("f"))
	g.Expect(restored.query("SELECT count(*) FROM a")).To(Equal("200"))
}

// A part whose stored bytes are as backup.json says can still hold a file that is not as the manifest says.
func TestRestoreComparesWithTheManifest(t *testing.T) {
	g := NewWithT(t)
	store := NewMemory(testNow)
	b := smallBackup(t, store, Codec{}, nil, group{members: []testMember{control(), file("a", "a")}})
	changed := []byte(strings.Replace(manifestOf(controlFile, "a"), fmt.Sprintf("%x", sha256.Sum256([]byte("a"))), strings.Repeat("0", 64), 1))
	at := bytes.LastIndex(changed, []byte("\"Manifest-Checksum\""))
	changed = fmt.Appendf(changed[:at], "\"Manifest-Checksum\": \"%x\"}\n", sha256.Sum256(changed[:at]))
	store.Change(path.Join(BackupDir(testCluster, b.ID), manifestName), func([]byte) []byte { return changed })
	b.Manifest.SHA256 = fmt.Sprintf("%x", sha256.Sum256(changed))
	g.Expect(Restore(t.Context(), restoreOptions(t, store, b))).To(MatchError(ContainSubstring(`part base.001.tar.zst: the file "a" (1 bytes) is not as`)))
}
