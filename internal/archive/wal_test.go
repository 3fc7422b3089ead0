package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	. "github.com/onsi/gomega"
)

const (
	walSystem = uint64(7300000000000000001)
	// walSize is the smallest that PostgreSQL has.
	walSize = int64(1 << 20)
)

func walArchive(s Store, codec *Codec) *WALArchive {
	return &WALArchive{Store: s, Codec: codec, Keys: Keys{Cluster: "orders", SystemIdentifier: walSystem}}
}

// segmentContent is a segment with a right header and content that depends on seed.
func segmentContent(name WALName, seed uint64) []byte {
	b := make([]byte, walSize)
	order := binary.NativeEndian
	order.PutUint16(b, 0xD110)
	order.PutUint16(b[2:], xlpLongHeader)
	order.PutUint32(b[4:], name.Timeline)
	order.PutUint64(b[8:], uint64(name.Position(walSize)))
	order.PutUint64(b[24:], walSystem)
	order.PutUint32(b[32:], uint32(walSize))
	order.PutUint32(b[36:], 8192)
	random := rand.New(rand.NewPCG(seed, name.Number(walSize)))
	for i := 40; i < len(b)/4; i += 8 {
		order.PutUint64(b[i:], random.Uint64())
	}
	return b
}

// pgWAL is a pg_wal directory.
type pgWAL struct {
	t   testing.TB
	dir string
}

func newPGWAL(t testing.TB) *pgWAL {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "archive_status"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &pgWAL{t, dir}
}

func (w *pgWAL) write(name string, content []byte) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "archive_status", name+".ready"), nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// segment writes number n of timeline 1 and returns its name.
func (w *pgWAL) segment(n uint64, seed uint64) string {
	name := SegmentName(1, n, walSize)
	w.write(name.String(), segmentContent(name, seed))
	return name.String()
}

// done is what PostgreSQL does after a success.
func (w *pgWAL) done(name string) {
	status := filepath.Join(w.dir, "archive_status", name)
	if err := os.Rename(status+".ready", status+".done"); err != nil {
		w.t.Fatal(err)
	}
}

func fetched(g Gomega, a *WALArchive, name string) []byte {
	n, err := ParseWALName(name)
	g.Expect(err).NotTo(HaveOccurred())
	dir, err := os.MkdirTemp("", "fetch")
	g.Expect(err).NotTo(HaveOccurred())
	defer os.RemoveAll(dir) //nolint:errcheck // A leftover in the temporary directory harms nobody.
	g.Expect(a.Fetch(context.Background(), n, filepath.Join(dir, "x"))).To(Succeed())
	b, err := os.ReadFile(filepath.Join(dir, "x"))
	g.Expect(err).NotTo(HaveOccurred())
	return b
}

func encrypted(t testing.TB) *Codec {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return &Codec{Recipients: []age.Recipient{identity.Recipient()}, Identities: []age.Identity{identity}}
}

func TestWALNames(t *testing.T) {
	g := NewWithT(t)
	for name, kind := range map[string]WALKind{
		"00000001000000000000002A": Segment, "0000000A00000001000000FF.partial": PartialSegment,
		"000000010000000000000002.00000028.backup": BackupLabel, "00000002.history": TimelineHistory,
	} {
		n, err := ParseWALName(name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(n.Kind).To(Equal(kind))
		g.Expect(n.String()).To(Equal(name))
	}
	for _, name := range []string{"", "00000001000000000000002a", "000000000000000000000001", "0000000100000000000000", "00000002.HISTORY",
		"../00000002.history", "000000010000000000000002.backup", "00000001000000000000002A\n", "RECOVERYXLOG"} {
		_, err := ParseWALName(name)
		g.Expect(err).To(HaveOccurred(), name)
	}
}

func TestSegmentNumbers(t *testing.T) {
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		size := int64(1) << (20 + random.IntN(11))
		number := random.Uint64N(1 << 63 / uint64(size))
		name := SegmentName(1+random.Uint32N(99), number, size)
		again, err := ParseWALName(name.String())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.Number(size)).To(Equal(number))
		g.Expect(SegmentNumber(name.Position(size), size)).To(Equal(number))
	}
}

func TestPushAndFetch(t *testing.T) {
	for name, codec := range map[string]*Codec{"plain": {}, "encrypted": encrypted(t)} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, a := newPGWAL(t), walArchive(NewMemory(time.Now), codec)
			segment := w.segment(7, 1)
			files := map[string]string{segment: w.dir + "/" + segment}
			files["00000002.history"] = w.write("00000002.history", []byte("1\t0/700000\tno recovery target specified\n"))
			label := segment + ".00000028.backup"
			files[label] = w.write(label, []byte("START WAL LOCATION: 0/700028\n"))
			partial := SegmentName(1, 8, walSize)
			partial.Kind = PartialSegment
			files[partial.String()] = w.write(partial.String(), segmentContent(partial, 3))
			for name, path := range files {
				g.Expect(a.Push(context.Background(), path)).To(Succeed())
				g.Expect(a.Push(context.Background(), path)).To(Succeed(), "again")
				want, err := os.ReadFile(path)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(fetched(g, a, name)).To(Equal(want))
			}
		})
	}
}

func TestSegmentsThatAreRefused(t *testing.T) {
	name := SegmentName(3, 5, walSize)
	tests := map[string]func(b []byte) []byte{
		"no header":       func(b []byte) []byte { return make([]byte, walSize) },
		"half of it":      func(b []byte) []byte { return b[:walSize/2+7] },
		"empty":           func([]byte) []byte { return nil },
		"twice as large":  func(b []byte) []byte { return append(b, b...) },
		"another system":  func(b []byte) []byte { binary.NativeEndian.PutUint64(b[24:], 1); return b },
		"another place":   func(b []byte) []byte { binary.NativeEndian.PutUint64(b[8:], 0); return b },
		"later timeline":  func(b []byte) []byte { binary.NativeEndian.PutUint32(b[4:], 4); return b },
		"another's size":  func(b []byte) []byte { binary.NativeEndian.PutUint32(b[32:], 1<<24); return b },
		"not a long page": func(b []byte) []byte { b[2] = 0; return b },
	}
	for what, change := range tests {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			s := NewMemory(time.Now)
			path := newPGWAL(t).write(name.String(), change(segmentContent(name, 1)))
			g.Expect(walArchive(s, &Codec{}).Push(context.Background(), path)).To(MatchError(errNotThisSegment))
			g.Expect(keysOf(g, s, "")).To(BeEmpty())
		})
	}
	g := NewWithT(t)
	earlier := segmentContent(name, 1)
	binary.NativeEndian.PutUint32(earlier[4:], 2)
	path := newPGWAL(t).write(name.String(), earlier)
	g.Expect(walArchive(NewMemory(time.Now), &Codec{}).Push(context.Background(), path)).To(Succeed(), "the segment in which a timeline begins")
}

func TestConflictNamesBoth(t *testing.T) {
	g := NewWithT(t)
	s := NewMemory(time.Now)
	one, other := newPGWAL(t), newPGWAL(t)
	name := one.segment(1, 1)
	other.segment(1, 2)
	a, sealed := walArchive(s, &Codec{}), walArchive(s, encrypted(t))
	g.Expect(a.Push(context.Background(), one.dir+"/"+name)).To(Succeed())
	for _, x := range []*WALArchive{a, sealed} {
		err := x.Push(context.Background(), other.dir+"/"+name)
		g.Expect(err).To(MatchError(ErrConflict))
		g.Expect(err.Error()).To(ContainSubstring("spec.backup.destination"))
		g.Expect(Diagnose(err)).To(Equal(Conflict))
	}
	g.Expect(sealed.Push(context.Background(), one.dir+"/"+name)).To(Succeed(), "the same content, stored before encryption was turned on")
	g.Expect(fetched(g, a, name)).To(Equal(segmentContent(SegmentName(1, 1, walSize), 1)))
}

func TestTwoWritersOfOneArchive(t *testing.T) {
	for _, seeds := range [][2]uint64{{1, 1}, {1, 2}} {
		t.Run(fmt.Sprint(seeds), func(t *testing.T) {
			g := NewWithT(t)
			s := openStore(t, Destination{URL: "file://" + t.TempDir()})
			var mu sync.Mutex
			succeeded := map[string][]uint64{}
			var wg sync.WaitGroup
			for _, seed := range seeds {
				w, a := newPGWAL(t), walArchive(s, &Codec{})
				for n := range uint64(12) {
					name := w.segment(n, seed)
					wg.Go(func() {
						err := a.Push(context.Background(), w.dir+"/"+name)
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							succeeded[name] = append(succeeded[name], seed)
						} else if !errors.Is(err, ErrConflict) {
							t.Error(err)
						}
					})
				}
			}
			wg.Wait()
			for n := range uint64(12) {
				name := SegmentName(1, n, walSize)
				who := succeeded[name.String()]
				if seeds[0] == seeds[1] {
					g.Expect(who).To(HaveLen(2), "both have archived it")
				} else {
					g.Expect(who).To(HaveLen(1), "one has archived it")
				}
				g.Expect(fetched(g, walArchive(s, &Codec{}), name.String())).To(Equal(segmentContent(name, who[0])))
			}
		})
	}
}

func TestDamageIsFound(t *testing.T) {
	for name, codec := range map[string]*Codec{"plain": {}, "encrypted": encrypted(t)} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, s := newPGWAL(t), NewMemory(time.Now)
			a := walArchive(s, codec)
			segment := w.segment(1, 1)
			history := "00000002.history"
			w.write(history, []byte("1\t0/700000\tno recovery target specified\n"))
			for _, file := range []string{segment, history} {
				g.Expect(a.Push(context.Background(), w.dir+"/"+file)).To(Succeed())
				n, _ := ParseWALName(file)
				o, err := a.find(context.Background(), n)
				g.Expect(err).NotTo(HaveOccurred())
				whole := content(g, s, o.Key)
				target := filepath.Join(t.TempDir(), "target")
				for i := range 40 {
					at := i * (len(whole) - 1) / 39
					s.Change(o.Key, func([]byte) []byte { b := []byte(whole); b[at] ^= 0x10; return b })
					// A flipped bit of zstd's frame header may be without an effect.
					if err := a.Fetch(context.Background(), n, target); err == nil {
						g.Expect(os.ReadFile(target)).To(Equal(sure(os.ReadFile(w.dir + "/" + file))))
						g.Expect(os.Remove(target)).To(Succeed())
					} else {
						g.Expect(err).NotTo(MatchError(ErrNotFound))
						g.Expect(target).NotTo(BeAnExistingFile())
					}
					s.Change(o.Key, func([]byte) []byte { return []byte(whole)[:at] })
					err := a.Fetch(context.Background(), n, target)
					g.Expect(err).To(HaveOccurred(), "torn after %d bytes", at)
					g.Expect(err).NotTo(MatchError(ErrNotFound))
					g.Expect(sure(filepath.Glob(target + "*"))).To(BeEmpty())
				}
			}
		})
	}
}

func sure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Each call of the store fails in turn, before or after it had its effect. PostgreSQL asks again; at the end nothing is lost, and what was
// acknowledged was there at that moment.
func TestPushAndFetchUnderFaults(t *testing.T) {
	broken := errors.New("the store broke")
	for failing := range 12 {
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			g := NewWithT(t)
			w, s := newPGWAL(t), NewMemory(time.Now)
			a := walArchive(s, &Codec{})
			var mu sync.Mutex
			calls := 0
			s.OnCall(func(string, string) error {
				mu.Lock()
				defer mu.Unlock()
				if calls++; calls-1 == failing {
					return broken
				}
				return nil
			})
			for n := range uint64(3) {
				name := w.segment(n, 1)
				for {
					err := a.Push(context.Background(), w.dir+"/"+name)
					if err == nil {
						break
					}
					g.Expect(err).To(MatchError(broken))
				}
				_, err := s.Stat(context.Background(), a.Keys.WAL(SegmentName(1, n, walSize))+SuffixCompressed)
				g.Expect(err).To(Or(Not(HaveOccurred()), MatchError(broken)), "acknowledged and not there")
				target := filepath.Join(t.TempDir(), "x")
				for {
					err := a.Fetch(context.Background(), SegmentName(1, n, walSize), target)
					if err == nil {
						break
					}
					g.Expect(err).NotTo(MatchError(ErrNotFound))
					g.Expect(err).To(MatchError(broken))
				}
				g.Expect(os.ReadFile(target)).To(Equal(segmentContent(SegmentName(1, n, walSize), 1)))
				// The end of the WAL is proven or an error, never assumed.
				if err := a.Fetch(context.Background(), SegmentName(1, n+1, walSize), target); !errors.Is(err, broken) {
					g.Expect(err).To(MatchError(ErrNotFound))
				}
			}
		})
	}
}

func TestEmptyDestinationIsNotTheEndOfTheWAL(t *testing.T) {
	g := NewWithT(t)
	s := NewMemory(time.Now)
	err := walArchive(s, &Codec{}).Fetch(context.Background(), SegmentName(1, 1, walSize), filepath.Join(t.TempDir(), "x"))
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(ErrNotFound))
	g.Expect(strings.Contains(err.Error(), "spec.backup.destination")).To(BeTrue())
}
