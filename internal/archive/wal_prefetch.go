package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// PrefetchOptions bound a Prefetcher.
type PrefetchOptions struct {
	// Parallel downloads at most, besides the one that PostgreSQL waits for. 0: the default, 4.
	Parallel int
	// Ahead is how many segments are in the spool or on their way to it at most. 0: the default, 16. That many segments' bytes are needed.
	Ahead int
	// SegmentSize of the cluster, in bytes.
	SegmentSize int64
	// Fetched, if set, is told of each attempt: the file's name and its error. It must not block.
	Fetched func(name string, err error)
}

const defaultFetchAhead = 16

// Prefetcher answers PostgreSQL's restore_command, which asks for one segment after the other, and downloads the following ones of the
// same timeline into a spool meanwhile. A segment is in the spool only when it is whole and checked.
type Prefetcher struct {
	archive *WALArchive
	spool   string
	options PrefetchOptions

	life context.Context
	end  context.CancelFunc
	busy sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	flights map[WALName]*flight
	spooled map[WALName]bool
	running int
	// last segment that PostgreSQL got.
	last WALName
}

// NewPrefetcher uses the directory spool, which it empties: what a killed one left there is fetched again. Close it.
func NewPrefetcher(archive *WALArchive, spool string, options PrefetchOptions) (*Prefetcher, error) {
	if !ValidSegmentSize(options.SegmentSize) {
		return nil, fmt.Errorf("a segment's size is a power of two from 1 MiB to 1 GiB, not %d bytes", options.SegmentSize)
	}
	if options.Parallel <= 0 {
		options.Parallel = defaultParallel
	}
	if options.Ahead <= 0 {
		options.Ahead = defaultFetchAhead
	}
	if err := os.RemoveAll(spool); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	return &Prefetcher{archive: archive, spool: spool, options: options, life: life, end: end,
		flights: map[WALName]*flight{}, spooled: map[WALName]bool{}}, nil
}

// Close gives up the downloads that run, waits for their end and removes the spool.
func (p *Prefetcher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.busy.Wait()
	return os.RemoveAll(p.spool)
}

// Fetch puts the file of that name at target, or returns ErrNotFound when it is proven that the archive does not have it. Every other
// error has to keep PostgreSQL from going on: to restore_command, any exit status from 1 to 125 means that there is no such file, and
// the recovery would end there. https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-RESTORE-COMMAND
func (p *Prefetcher) Fetch(ctx context.Context, name, target string) error {
	n, err := ParseWALName(name)
	if err != nil {
		return err
	}
	if n.Kind != Segment {
		return p.direct(ctx, n, target)
	}
	// Others may already be fetched while this one is.
	p.mu.Lock()
	f := p.flights[n]
	p.mu.Unlock()
	if f != nil {
		select {
		case <-f.ended:
		case <-ctx.Done():
			return fmt.Errorf("fetch %s: %w", name, ctx.Err())
		}
	}
	if !p.serve(n, target) {
		// What failed ahead, or was not there yet, is asked again: only an answer to this question counts.
		if err := p.direct(ctx, n, target); err != nil {
			return err
		}
	}
	p.advance(n)
	return nil
}

func (p *Prefetcher) direct(ctx context.Context, n WALName, target string) error {
	err := p.archive.Fetch(ctx, n, target)
	if p.options.Fetched != nil {
		p.options.Fetched(n.String(), err)
	}
	return err
}

// serve moves a segment from the spool to its target, and tells whether that was possible.
func (p *Prefetcher) serve(n WALName, target string) bool {
	p.mu.Lock()
	ok := p.spooled[n]
	delete(p.spooled, n)
	p.mu.Unlock()
	if !ok {
		return false
	}
	return move(p.path(n), target) == nil
}

// move renames, or copies to another volume.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		if err != nil {
			_ = os.Remove(from)
		}
		return err
	}
	defer os.Remove(from) //nolint:errcheck // The spool is emptied in the end.
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // It is only read.
	return writeFile(to, func(f *os.File) error {
		_, err := io.Copy(f, source)
		return err
	})
}

func (p *Prefetcher) path(n WALName) string { return filepath.Join(p.spool, n.String()) }

// advance forgets what is behind n and fetches what follows it. It is called when n was served, not when it was asked for: before the
// segment in which a timeline begins, PostgreSQL asks for the ones before on newer timelines, which are not there.
func (p *Prefetcher) advance(n WALName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = n
	for other := range p.spooled {
		if !p.wanted(other) {
			delete(p.spooled, other)
			_ = os.Remove(p.path(other))
		}
	}
	p.fill()
}

// wanted tells whether PostgreSQL may soon ask for n. The caller has the lock.
func (p *Prefetcher) wanted(n WALName) bool {
	at, number := p.last.Number(p.options.SegmentSize), n.Number(p.options.SegmentSize)
	return n.Timeline == p.last.Timeline && number > at && number <= at+uint64(p.options.Ahead)
}

// fill starts what the bounds allow. The caller has the lock.
func (p *Prefetcher) fill() {
	at, size := p.last.Number(p.options.SegmentSize), p.options.SegmentSize
	for i := uint64(1); i <= uint64(p.options.Ahead); i++ {
		if p.closed || p.running >= p.options.Parallel || p.running+len(p.spooled) >= p.options.Ahead {
			return
		}
		next := SegmentName(p.last.Timeline, at+i, size)
		if !p.spooled[next] && p.flights[next] == nil {
			p.start(next)
		}
	}
}

// start fetches a segment ahead. The caller has the lock.
func (p *Prefetcher) start(next WALName) {
	f := &flight{ended: make(chan struct{})}
	p.flights[next] = f
	p.running++
	p.busy.Go(func() {
		err := p.archive.Fetch(p.life, next, p.path(next))
		if p.options.Fetched != nil {
			p.options.Fetched(next.String(), err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		f.err = err
		p.running--
		delete(p.flights, next)
		close(f.ended)
		switch {
		case err != nil:
			// The end of the WAL, or a store that fails: PostgreSQL's next question decides.
		case p.wanted(next):
			p.spooled[next] = true
			p.fill()
		default:
			_ = os.Remove(p.path(next))
			p.fill()
		}
	})
}
