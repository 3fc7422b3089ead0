package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// PusherOptions bound a Pusher.
type PusherOptions struct {
	// Parallel uploads at most, besides the one that PostgreSQL waits for. 0: the default, 4.
	Parallel int
	// Ahead of what PostgreSQL has asked for, that many files are made durable at most. 0: the default, 32.
	Ahead int
	// Uploaded, if set, is told of each attempt: the file's name and its error. It must not block.
	Uploaded func(name string, err error)
}

const (
	defaultParallel = 4
	defaultAhead    = 32
)

// Pusher answers PostgreSQL's archive_command, which asks for one file after the other, and uses the time in between: it looks into
// pg_wal/archive_status for what will be asked next and uploads several at once. What it knows is only in memory, and nothing depends on
// it: after a restart, a file that is durable already is compared and acknowledged.
type Pusher struct {
	archive *WALArchive
	dir     string
	options PusherOptions

	life context.Context
	end  context.CancelFunc
	busy sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight
	// durable are files that were uploaded before they were asked for, as they were at that time.
	durable map[string]*landed
	// next are files that archive_status had ready when it was last read, in PostgreSQL's order.
	next    []string
	running int
}

// flight is one upload, which several may wait for.
type flight struct {
	ended chan struct{}
	err   error
}

// landed is a file that is durable in the store.
type landed struct {
	state fileState
	// asked says that PostgreSQL knows.
	asked bool
}

// fileState tells whether a file is still the one that was uploaded. After a rewind, one of the same name may be another.
type fileState struct {
	size     int64
	modified time.Time
	file     fs.FileInfo
}

func (s fileState) same(o fileState) bool {
	return s.size == o.size && s.modified.Equal(o.modified) && os.SameFile(s.file, o.file)
}

// NewPusher archives from that pg_wal directory. Close it.
func NewPusher(archive *WALArchive, dir string, options PusherOptions) *Pusher {
	if options.Parallel <= 0 {
		options.Parallel = defaultParallel
	}
	if options.Ahead <= 0 {
		options.Ahead = defaultAhead
	}
	life, end := context.WithCancel(context.Background())
	return &Pusher{archive: archive, dir: dir, options: options, life: life, end: end,
		flights: map[string]*flight{}, durable: map[string]*landed{}}
}

// Close gives up the uploads that run and waits for their end.
func (p *Pusher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.busy.Wait()
}

var errClosing = errors.New("the archive is closing; PostgreSQL asks again")

// Push returns when the file of that name (without a directory) is durable in the store. An upload goes on when ctx ends, for the next
// time that PostgreSQL asks.
func (p *Pusher) Push(ctx context.Context, name string) error {
	if _, err := ParseWALName(name); err != nil {
		return err
	}
	for {
		state, err := p.state(name)
		if err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
		f, own, err := p.join(name, state)
		if err != nil {
			return err
		}
		p.lookAhead()
		if f == nil {
			return nil
		}
		select {
		case <-f.ended:
		case <-ctx.Done():
			return fmt.Errorf("archive %s: %w", name, ctx.Err())
		}
		if own && f.err != nil {
			return f.err
		}
		// An upload that had begun before this question may be of the file as it was before, or may have failed long ago: ask again.
		// After a successful one that is answered from memory.
	}
}

// join returns the upload to wait for, and whether it was started by this call; none when the file is durable as it is.
func (p *Pusher) join(name string, state fileState) (f *flight, own bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// PostgreSQL asks for one file at a time: what it asked for before is settled.
	for other, l := range p.durable {
		if l.asked && other != name {
			delete(p.durable, other)
		}
	}
	if l, ok := p.durable[name]; ok {
		if l.state.same(state) {
			// It is kept until the next question, lest it is taken for ready once more before PostgreSQL has marked it done.
			l.asked = true
			return nil, false, nil
		}
		delete(p.durable, name)
	}
	if f = p.flights[name]; f != nil {
		return f, false, nil
	}
	if p.closed {
		return nil, false, errClosing
	}
	return p.start(name, false), true, nil
}

func (p *Pusher) state(name string) (fileState, error) {
	info, err := os.Stat(filepath.Join(p.dir, name))
	if err != nil {
		return fileState{}, err
	}
	return fileState{info.Size(), info.ModTime(), info}, nil
}

// start uploads a file. The caller has the lock.
func (p *Pusher) start(name string, ahead bool) *flight {
	f := &flight{ended: make(chan struct{})}
	p.flights[name] = f
	if ahead {
		p.running++
	}
	p.busy.Go(func() {
		state, err := p.state(name)
		if err == nil {
			err = p.archive.Push(p.life, filepath.Join(p.dir, name))
		}
		if p.options.Uploaded != nil {
			p.options.Uploaded(name, err)
		}
		p.mu.Lock()
		f.err = err
		delete(p.flights, name)
		if ahead {
			p.running--
		}
		if err == nil {
			p.durable[name] = &landed{state: state}
		}
		p.mu.Unlock()
		close(f.ended)
		// A store that fails is asked again when PostgreSQL asks, not at once.
		if err == nil {
			p.lookAhead()
		}
	})
	return f
}

// lookAhead starts uploads of what PostgreSQL will ask for next, as far as the bounds allow.
func (p *Pusher) lookAhead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.room() && len(p.next) == 0 {
		p.next = p.ready()
	}
	for p.room() && len(p.next) > 0 {
		name := p.next[0]
		p.next = p.next[1:]
		if _, ok := p.durable[name]; ok || p.flights[name] != nil || !p.isReady(name) {
			continue
		}
		p.start(name, true)
	}
}

func (p *Pusher) room() bool {
	waiting := 0
	for _, l := range p.durable {
		if !l.asked {
			waiting++
		}
	}
	return !p.closed && p.running < p.options.Parallel && p.running+waiting < p.options.Ahead
}

func (p *Pusher) isReady(name string) bool {
	_, err := os.Lstat(filepath.Join(p.dir, "archive_status", name+".ready"))
	return err == nil
}

// ready lists what waits for the archive, in the order in which PostgreSQL asks: histories first, then by name. It forgets what was
// uploaded ahead and is no longer waiting.
func (p *Pusher) ready() []string {
	names := Ready(p.dir)
	for name := range p.durable {
		if !slices.Contains(names, name) {
			delete(p.durable, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, ok := p.durable[name]
		return ok || p.flights[name] != nil
	})
}

// Ready lists the files that wait for archive_command in that pg_wal directory, in the order in which PostgreSQL asks for them. A
// directory that cannot be read has none.
func Ready(dir string) []string {
	entries, err := os.ReadDir(filepath.Join(dir, "archive_status"))
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if name, ok := strings.CutSuffix(entry.Name(), ".ready"); ok {
			if _, err := ParseWALName(name); err == nil {
				names = append(names, name)
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		if ah, bh := strings.HasSuffix(a, ".history"), strings.HasSuffix(b, ".history"); ah != bh {
			if ah {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return names
}
