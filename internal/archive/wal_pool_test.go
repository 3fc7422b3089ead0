package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// slowStore lets a test decide when a write ends.
type slowStore struct {
	*Memory
	gate chan struct{}
	mu   sync.Mutex
	most int
	now  int
}

func (s *slowStore) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.now--
		s.mu.Unlock()
	}()
	select {
	case <-s.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Memory.Create(ctx, key, r, metadata)
}

func TestPusherIsAheadAndNeverEarly(t *testing.T) {
	g := NewWithT(t)
	s := &slowStore{Memory: NewMemory(time.Now), gate: make(chan struct{})}
	w, a := newPGWAL(t), walArchive(s, &Codec{})
	p := NewPusher(a, w.dir, PusherOptions{Parallel: 3, Ahead: 6})
	defer p.Close()
	var names []string
	for n := range uint64(20) {
		names = append(names, w.segment(n, 1))
	}
	first := make(chan error, 1)
	go func() { first <- p.Push(context.Background(), names[0]) }()
	running := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.now }
	g.Eventually(running).WithTimeout(waitLong).Should(Equal(4), "the one that is asked for, and three ahead")
	g.Expect(first).NotTo(Receive(), "acknowledged before it is durable")
	close(s.gate)
	g.Eventually(first).WithTimeout(waitLong).Should(Receive(BeNil()))
	w.done(names[0])
	for _, name := range names[1:] {
		g.Expect(p.Push(context.Background(), name)).To(Succeed())
		_, err := s.Stat(context.Background(), a.Keys.WAL(sure(ParseWALName(name)))+SuffixCompressed)
		g.Expect(err).NotTo(HaveOccurred(), "acknowledged and not there")
		w.done(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Expect(s.most).To(BeNumerically("<=", 4))
}

func TestPusherStopsAhead(t *testing.T) {
	g := NewWithT(t)
	s := NewMemory(time.Now)
	w, a := newPGWAL(t), walArchive(s, &Codec{})
	p := NewPusher(a, w.dir, PusherOptions{Parallel: 2, Ahead: 5})
	defer p.Close()
	for n := range uint64(20) {
		w.segment(n, 1)
	}
	g.Expect(p.Push(context.Background(), SegmentName(1, 0, walSize).String())).To(Succeed())
	g.Eventually(func() int { return len(keysOf(g, s, "")) }).WithTimeout(waitLong).Should(Equal(6))
	g.Consistently(func() int { return len(keysOf(g, s, "")) }, "200ms").Should(Equal(6))
}

// A file that was uploaded ahead and then replaced, as by a rewind, is not acknowledged from memory.
func TestPusherNoticesAReplacedFile(t *testing.T) {
	g := NewWithT(t)
	s := NewMemory(time.Now)
	w, a := newPGWAL(t), walArchive(s, &Codec{})
	p := NewPusher(a, w.dir, PusherOptions{})
	defer p.Close()
	one, two := w.segment(1, 1), w.segment(2, 1)
	g.Expect(p.Push(context.Background(), one)).To(Succeed())
	w.done(one)
	g.Eventually(func() int { return len(keysOf(g, s, "")) }).WithTimeout(waitLong).Should(Equal(2))
	g.Expect(os.Remove(filepath.Join(w.dir, two))).To(Succeed())
	w.segment(2, 99)
	g.Expect(p.Push(context.Background(), two)).To(MatchError(ErrConflict))
}

// The store fails, the process ends, PostgreSQL forgets that it was told: at any point, what is acknowledged is durable, and all gets there.
func TestPusherUnderFaultsAndRestarts(t *testing.T) {
	broken := errors.New("the store broke")
	for failing := range 30 {
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			g := NewWithT(t)
			s := NewMemory(time.Now)
			w, a := newPGWAL(t), walArchive(s, &Codec{})
			var mu sync.Mutex
			calls := 0
			s.OnCall(func(call, _ string) error {
				mu.Lock()
				defer mu.Unlock()
				if calls++; call != "List" && (calls == failing || calls%7 == failing%7) && calls < 60 {
					return broken
				}
				return nil
			})
			var names []string
			for n := range uint64(8) {
				names = append(names, w.segment(n, 1))
			}
			p := NewPusher(a, w.dir, PusherOptions{Parallel: 2, Ahead: 3})
			defer func() { p.Close() }()
			for i, name := range names {
				for tries := 0; ; tries++ {
					err := p.Push(context.Background(), name)
					if err == nil {
						break
					}
					g.Expect(err).To(Or(MatchError(broken)))
					g.Expect(tries).To(BeNumerically("<", 100))
				}
				g.Expect(keysOf(g, s, a.Keys.WAL(sure(ParseWALName(name))))).To(HaveLen(1), "acknowledged and not there")
				if i%3 == failing%3 {
					p.Close()
					p = NewPusher(a, w.dir, PusherOptions{Parallel: 2, Ahead: 3})
				}
				if i%2 == 0 {
					w.done(name)
				}
			}
			for n := range uint64(8) {
				g.Eventually(func() error {
					_, err := a.find(context.Background(), SegmentName(1, n, walSize))
					return err
				}).WithTimeout(waitLong).Should(Succeed())
			}
		})
	}
}

// archived fills an archive with segments of a timeline.
func archived(t testing.TB, a *WALArchive, timeline uint32, from, to uint64) {
	t.Helper()
	w := newPGWAL(t)
	for n := from; n <= to; n++ {
		name := SegmentName(timeline, n, walSize)
		if err := a.Push(context.Background(), w.write(name.String(), segmentContent(name, 1))); err != nil {
			t.Fatal(err)
		}
	}
}

func newPrefetcher(t testing.TB, a *WALArchive, options PrefetchOptions) *Prefetcher {
	t.Helper()
	options.SegmentSize = walSize
	p, err := NewPrefetcher(a, filepath.Join(t.TempDir(), "spool"), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestPrefetcherFollowsTimelines(t *testing.T) {
	g := NewWithT(t)
	a := walArchive(NewMemory(time.Now), &Codec{})
	archived(t, a, 1, 1, 12)
	archived(t, a, 2, 10, 20)
	p := newPrefetcher(t, a, PrefetchOptions{Parallel: 3, Ahead: 4})
	target := filepath.Join(t.TempDir(), "RECOVERYXLOG")
	fetch := func(timeline uint32, n uint64) error {
		return p.Fetch(context.Background(), SegmentName(timeline, n, walSize).String(), target)
	}
	whole := func(timeline uint32, n uint64) {
		g.Expect(fetch(timeline, n)).To(Succeed())
		g.Expect(os.ReadFile(target)).To(Equal(segmentContent(SegmentName(timeline, n, walSize), 1)))
		spool, err := os.ReadDir(p.spool)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(spool)).To(BeNumerically("<=", 4+3), "segments in the spool, and on their way")
	}
	g.Expect(p.Fetch(context.Background(), "00000003.history", target)).To(MatchError(ErrNotFound))
	for n := uint64(1); n < 10; n++ {
		// PostgreSQL may ask on the newer timeline first.
		g.Expect(fetch(2, n)).To(MatchError(ErrNotFound))
		whole(1, n)
	}
	for n := uint64(10); n <= 20; n++ {
		whole(2, n)
	}
	g.Expect(fetch(2, 21)).To(MatchError(ErrNotFound))
	g.Expect(fetch(1, 21)).To(MatchError(ErrNotFound))
	// More WAL comes, as for a standby that reads from the archive; and a recovery that begins anew.
	archived(t, a, 2, 21, 21)
	whole(2, 21)
	whole(1, 3)
}

func TestPrefetcherUnderFaults(t *testing.T) {
	broken := errors.New("the store broke")
	for failing := range 25 {
		t.Run(fmt.Sprint(failing), func(t *testing.T) {
			g := NewWithT(t)
			s := NewMemory(time.Now)
			a := walArchive(s, &Codec{})
			archived(t, a, 1, 1, 8)
			var mu sync.Mutex
			calls := 0
			s.OnCall(func(string, string) error {
				mu.Lock()
				defer mu.Unlock()
				if calls++; (calls == failing || calls%5 == failing%5) && calls < 50 {
					return broken
				}
				return nil
			})
			p := newPrefetcher(t, a, PrefetchOptions{Parallel: 2, Ahead: 3})
			target := filepath.Join(t.TempDir(), "x")
			for n := uint64(1); n <= 9; n++ {
				var err error
				for err = broken; errors.Is(err, broken); {
					err = p.Fetch(context.Background(), SegmentName(1, n, walSize).String(), target)
				}
				if n == 9 {
					g.Expect(err).To(MatchError(ErrNotFound))
					break
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(os.ReadFile(target)).To(Equal(segmentContent(SegmentName(1, n, walSize), 1)))
			}
		})
	}
}
