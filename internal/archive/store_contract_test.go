package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	. "github.com/onsi/gomega"
)

// storeCase is a Store that keeps the contract, and what can be looked at behind it.
type storeCase struct {
	open func(t testing.TB) Store
	// clean proves that nothing is left behind besides the objects.
	clean func(g Gomega, t testing.TB)
}

func openStore(t testing.TB, d Destination) Store {
	t.Helper()
	s, err := Open(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func storeCases(t *testing.T) map[string]storeCase {
	server, volume := startS3(t), t.TempDir()
	return map[string]storeCase{
		"memory": {
			func(testing.TB) Store { return NewMemory(time.Now) },
			func(Gomega, testing.TB) {},
		},
		"file": {
			func(t testing.TB) Store {
				dir := filepath.Join(volume, rand.Text())
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				return openStore(t, Destination{URL: "file://" + dir})
			},
			func(g Gomega, _ testing.TB) {
				left, err := filepath.Glob(filepath.Join(volume, "*", temporaryDir, "*"))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(left).To(BeEmpty(), "temporary files")
			},
		},
		"s3": {
			func(t testing.TB) Store { return openStore(t, server.destination("contract/"+rand.Text())) },
			func(g Gomega, t testing.TB) { g.Expect(server.pendingUploads(t)).To(BeZero(), "unfinished uploads") },
		},
	}
}

func TestStoreContract(t *testing.T) {
	tests := map[string]func(g Gomega, s Store){
		"an object is read as it was written":                  storesWhole,
		"a large object is read as it was written":             storesLarge,
		"an object is written once":                            storesOnce,
		"one of many writers at the same time wins":            oneWriterWins,
		"what is not there is not found":                       tellsMissing,
		"lists are in the order of keys":                       listsInOrder,
		"what is deleted is gone and can be written anew":      deletes,
		"a reader that fails leaves nothing":                   failedReaderLeavesNothing,
		"a cancelled write leaves nothing":                     cancelledWriteLeavesNothing,
		"the check of a destination succeeds":                  checkSucceeds,
		"the check of a destination leaves nothing of its own": checkLeavesNothing,
	}
	for name, c := range storeCases(t) {
		for what, test := range tests {
			t.Run(name+"/"+what, func(t *testing.T) {
				g := NewWithT(t)
				test(g, c.open(t))
				g.Eventually(func(g Gomega) { c.clean(g, t) }).WithTimeout(waitLong).Should(Succeed())
			})
		}
	}
}

func create(s Store, key, content string) error {
	return s.Create(context.Background(), key, strings.NewReader(content), map[string]string{"sha256": "of " + content[:min(len(content), 20)]})
}

func content(g Gomega, s Store, key string) string {
	r, err := s.Read(context.Background(), key)
	g.Expect(err).NotTo(HaveOccurred())
	b, err := io.ReadAll(r)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Close()).To(Succeed())
	return string(b)
}

func keysOf(g Gomega, s Store, prefix string) []string {
	keys := []string{}
	for o, err := range s.List(context.Background(), prefix) {
		g.Expect(err).NotTo(HaveOccurred())
		keys = append(keys, o.Key)
	}
	return keys
}

func storesWhole(g Gomega, s Store) {
	for _, c := range []string{"", "x", "some words"} {
		g.Expect(create(s, "a/b/len"+c, c)).To(Succeed())
		g.Expect(content(g, s, "a/b/len"+c)).To(Equal(c))
		o, err := s.Stat(context.Background(), "a/b/len"+c)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(o.Size).To(BeEquivalentTo(len(c)))
		g.Expect(o.Metadata).To(HaveKeyWithValue("sha256", "of "+c))
		g.Expect(o.Modified).To(BeTemporally("~", time.Now(), time.Minute))
	}
}

func storesLarge(g Gomega, s Store) {
	big := make([]byte, 3*partSize+12345)
	_, _ = rand.Read(big)
	g.Expect(s.Create(context.Background(), "big", io.MultiReader(bytes.NewReader(big)), map[string]string{"k": "v"})).To(Succeed())
	g.Expect(sha256.Sum256([]byte(content(g, s, "big")))).To(Equal(sha256.Sum256(big)))
	g.Expect(s.Create(context.Background(), "big", bytes.NewReader(big), nil)).To(MatchError(ErrExists))
	o, err := s.Stat(context.Background(), "big")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Metadata).To(HaveKeyWithValue("k", "v"))
}

func storesOnce(g Gomega, s Store) {
	g.Expect(create(s, "once", "first")).To(Succeed())
	err := create(s, "once", "second")
	g.Expect(err).To(MatchError(ErrExists))
	g.Expect(Diagnose(err)).To(Equal(Conflict))
	g.Expect(content(g, s, "once")).To(Equal("first"))
	o, err := s.Stat(context.Background(), "once")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Metadata).To(HaveKeyWithValue("sha256", "of first"), "the loser's metadata does not replace the winner's")
}

func oneWriterWins(g Gomega, s Store) {
	const writers = 8
	var wg sync.WaitGroup
	var won atomic.Pointer[string]
	var wins atomic.Int32
	others := make(chan error, writers)
	for i := range writers {
		wg.Go(func() {
			own := strings.Repeat(string(rune('a'+i)), 100_000)
			switch err := create(s, "race", own); {
			case err == nil:
				wins.Add(1)
				won.Store(&own)
			case !errors.Is(err, ErrExists):
				others <- err
			}
		})
	}
	wg.Wait()
	close(others)
	g.Expect(<-others).NotTo(HaveOccurred(), "errors other than ErrExists")
	g.Expect(wins.Load()).To(BeEquivalentTo(1))
	g.Expect(content(g, s, "race")).To(Equal(*won.Load()))
	o, err := s.Stat(context.Background(), "race")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Metadata).To(HaveKeyWithValue("sha256", "of "+(*won.Load())[:20]))
}

func tellsMissing(g Gomega, s Store) {
	g.Expect(create(s, "dir/object-and-more", "x")).To(Succeed())
	for _, key := range []string{"nothing", "dir/object", "dir", "no/such/dir"} {
		_, err := s.Read(context.Background(), key)
		g.Expect(err).To(MatchError(ErrNotFound), key)
		_, err = s.Stat(context.Background(), key)
		g.Expect(err).To(MatchError(ErrNotFound), key)
		g.Expect(s.Delete(context.Background(), key)).To(Succeed(), key)
	}
	g.Expect(keysOf(g, s, "no/such")).To(BeEmpty())
}

func listsInOrder(g Gomega, s Store) {
	keys := []string{"a-b/c", "a/b", "a/c/d", "a0", "b", "wal/00000001/x", "wal/00000001/y", "wal/00000002/x"}
	for _, key := range slices.Backward(keys) {
		g.Expect(create(s, key, "x")).To(Succeed())
	}
	g.Expect(keysOf(g, s, "")).To(Equal(keys))
	g.Expect(keysOf(g, s, "a")).To(Equal(keys[:4]))
	g.Expect(keysOf(g, s, "a/")).To(Equal(keys[1:3]))
	g.Expect(keysOf(g, s, "wal/00000001/")).To(Equal(keys[5:7]))
	g.Expect(keysOf(g, s, "wal/0000000")).To(Equal(keys[5:]))
	g.Expect(keysOf(g, s, "zzz")).To(BeEmpty())
}

func deletes(g Gomega, s Store) {
	g.Expect(create(s, "gone", "first")).To(Succeed())
	g.Expect(s.Delete(context.Background(), "gone")).To(Succeed())
	_, err := s.Stat(context.Background(), "gone")
	g.Expect(err).To(MatchError(ErrNotFound))
	g.Expect(s.Create(context.Background(), "gone", strings.NewReader("second"), nil)).To(Succeed())
	o, err := s.Stat(context.Background(), "gone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Metadata).NotTo(HaveKey("sha256"), "metadata of the one that was deleted")
}

func failedReaderLeavesNothing(g Gomega, s Store) {
	broken := errors.New("the source broke")
	for _, size := range []int64{0, 10, partSize, 2*partSize + 1, 3 * partSize} {
		r := io.MultiReader(io.LimitReader(rand.Reader, size), iotest.ErrReader(broken))
		g.Expect(s.Create(context.Background(), "torn", r, nil)).To(MatchError(broken), "after %d bytes", size)
		g.Expect(keysOf(g, s, "")).To(BeEmpty(), "after %d bytes", size)
	}
	g.Expect(create(s, "torn", "whole")).To(Succeed())
}

func cancelledWriteLeavesNothing(g Gomega, s Store) {
	for _, size := range []int64{10, 3 * partSize} {
		ctx, cancel := context.WithCancel(context.Background())
		r := io.MultiReader(io.LimitReader(rand.Reader, size), readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF }))
		g.Expect(s.Create(ctx, "cancelled", r, nil)).NotTo(Succeed())
		g.Expect(keysOf(g, s, "")).To(BeEmpty())
		cancel()
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func checkSucceeds(g Gomega, s Store) { g.Expect(Check(context.Background(), s)).To(Succeed()) }

func checkLeavesNothing(g Gomega, s Store) {
	g.Expect(Check(context.Background(), s)).To(Succeed())
	g.Expect(keysOf(g, s, "")).To(BeEmpty())
}
