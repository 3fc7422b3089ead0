package pgproc_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgproc"
)

func openVolume(t *testing.T, root string) *pgproc.Volume {
	t.Helper()
	v, err := pgproc.OpenVolume(root, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// fill makes a generation look like a database.
func fill(t *testing.T, g pgproc.Generation) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(g.Dir, "global"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"PG_VERSION", "global/pg_control"} {
		if err := os.WriteFile(filepath.Join(g.Dir, name), []byte("15\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := openVolume(t, t.TempDir())
	_, found, err := v.Current()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse())
	g.Expect(v.Virgin()).To(BeTrue())

	first, err := v.Begin("clone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Flip(first)).To(MatchError(pgproc.ErrIncomplete), "an empty one")
	g.Expect(v.Virgin()).To(BeTrue(), "only an unfinished copy")
	fill(t, first)
	g.Expect(v.Flip(first)).To(Succeed())
	g.Expect(v.Virgin()).To(BeFalse())
	current, found, err := v.Current()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	g.Expect(current).To(Equal(pgproc.Generation{N: 1, Dir: first.Dir}))

	second, err := v.Begin("clone")
	g.Expect(err).NotTo(HaveOccurred())
	info, err := os.Stat(second.Dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o700))
	fill(t, second)
	g.Expect(v.Flip(second)).To(Succeed())
	g.Expect(first.Dir).To(BeADirectory(), "the old one goes only when asked")
	g.Expect(v.RemoveOld()).To(Succeed())
	g.Expect(first.Dir).NotTo(BeADirectory())
	g.Expect(second.Dir).To(BeADirectory())

	g.Expect(v.Mark(second, "rewind")).To(Succeed())
	third, err := v.Begin("clone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.N).To(Equal(3))
	g.Expect(v.RemoveOld()).To(Succeed())
	g.Expect(third.Dir).NotTo(BeADirectory(), "never was complete")
	g.Expect(second.Dir).To(BeADirectory(), "the only copy, whatever its state")
}

func TestInitDBOnlyOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newServer(t, true)
	gen := initDatabase(t, s.programs, s.volume)
	g.Expect(os.Readlink(filepath.Join(gen.Dir, "pg_wal"))).To(Equal(gen.WALDir))
	options := pgproc.InitDBOptions{Superuser: "postgres", Encoding: "UTF8", Locale: "C.UTF-8"}
	g.Expect(s.programs.InitDB(testContext(t), gen, options)).To(MatchError(pgproc.ErrNotEmpty))
	another, err := s.volume.Begin("initdb")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.programs.InitDB(testContext(t), another, options)).To(MatchError(pgproc.ErrNotEmpty), "a sibling holds data")
	options.Locale = "xx_XX"
	fresh := newServer(t, false)
	gen, err = fresh.volume.Begin("initdb")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh.programs.InitDB(testContext(t), gen, options)).To(MatchError(ContainSubstring(`invalid locale name "xx_XX"`)))
}

func TestVolumeIsLocked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root := t.TempDir()
	v := openVolume(t, root)
	_, err := pgproc.OpenVolume(root, "", nil)
	g.Expect(err).To(MatchError(pgproc.ErrLocked))
	g.Expect(v.Close()).To(Succeed())
	openVolume(t, root)
}

func TestFirstFlipThatWasCutOff(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root := t.TempDir()
	v := openVolume(t, root)
	gen, err := v.Begin("initdb")
	g.Expect(err).NotTo(HaveOccurred())
	fill(t, gen)
	g.Expect(v.Complete(gen)).To(Succeed()) // the first half of Flip
	g.Expect(os.WriteFile(filepath.Join(root, "current.kumki-tmp"), nil, 0o600)).To(Succeed())
	g.Expect(v.Close()).To(Succeed())
	v = openVolume(t, root)
	_, found, err := v.Current()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	g.Expect(filepath.Join(root, "current.kumki-tmp")).NotTo(BeAnExistingFile())
}

func TestBrokenCurrentIsNeverNone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root := t.TempDir()
	v := openVolume(t, root)
	g.Expect(os.Symlink("gen-7", filepath.Join(root, "current"))).To(Succeed())
	_, _, err := v.Current()
	g.Expect(err).To(MatchError(ContainSubstring("holds no database")))
	g.Expect(v.Virgin()).To(BeFalse())
	g.Expect(v.RemoveOld()).NotTo(Succeed())
}

func TestForeignDataIsNotVirgin(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root := t.TempDir()
	v := openVolume(t, root)
	g.Expect(os.WriteFile(filepath.Join(root, "PG_VERSION"), []byte("15\n"), 0o600)).To(Succeed())
	g.Expect(v.Virgin()).To(BeFalse())
}

func TestPromise(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	root := t.TempDir()
	v := openVolume(t, root)
	g.Expect(v.Promise()).To(BeEquivalentTo(0))
	g.Expect(v.SavePromise(41)).To(Succeed())
	g.Expect(v.SavePromise(42)).To(Succeed())
	g.Expect(v.Promise()).To(BeEquivalentTo(42))
	for _, damage := range []string{"", "x", "-1"} {
		g.Expect(os.WriteFile(filepath.Join(root, "promised"), []byte(damage), 0o600)).To(Succeed())
		_, err := v.Promise()
		g.Expect(err).To(MatchError(ContainSubstring("damaged")))
	}
}

func TestFilesOfTheManager(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := openVolume(t, t.TempDir())
	_, err := v.LoadFile("config")
	g.Expect(err).To(MatchError(fs.ErrNotExist))
	g.Expect(v.SaveFile("config", []byte("a"))).To(Succeed())
	g.Expect(v.LoadFile("config")).To(BeEquivalentTo("a"))
	data, wal, err := v.Space()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(data).To(Equal(wal))
	g.Expect(data.Free).To(BeNumerically(">", 0))
}
