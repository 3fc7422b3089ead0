package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// WALObject is a file of the WAL's archive as the store lists it.
type WALObject struct {
	Object
	Name WALName
}

// Ancestor is a timeline that leads to another.
type Ancestor struct {
	Timeline uint32
	// End is where it was left.
	End postgres.LSN
}

// Timelines are the known histories: of each timeline, the ones that lead to it, the oldest first. One that begins the cluster's life has
// none and is known anyhow.
type Timelines map[uint32][]Ancestor

// of returns the ancestors of a timeline, and false when they are not known.
func (t Timelines) of(timeline uint32) ([]Ancestor, bool) {
	if timeline == 1 {
		return nil, true
	}
	ancestors, ok := t[timeline]
	return ancestors, ok
}

// leads tells whether timeline continues what was at position l of the timeline from; nil: that is not known.
func (t Timelines) leads(from uint32, l postgres.LSN, timeline uint32) *bool {
	yes, no := true, false
	if from == 0 || timeline == 0 {
		return nil
	}
	if from == timeline {
		return &yes
	}
	if timeline < from {
		// A new timeline always has a higher number than all that were known.
		return &no
	}
	ancestors, ok := t.of(timeline)
	if !ok {
		return nil
	}
	for _, a := range ancestors {
		if a.Timeline == from {
			reached := a.End > l
			return &reached
		}
	}
	return &no
}

// ParseHistory reads a timeline's history file: a line an ancestor, with its number, where it was left, and why.
// https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES
func ParseHistory(timeline uint32, content string) ([]Ancestor, error) {
	var ancestors []Ancestor
	last := uint64(0)
	for i, line := range strings.Split(content, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		bad := func(what string) ([]Ancestor, error) {
			return nil, fmt.Errorf("line %d of %08X.history: %s", i+1, timeline, what)
		}
		if len(fields) < 2 {
			return bad("there is no position behind the timeline")
		}
		number, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil || number <= last || number >= uint64(timeline) {
			return bad(fmt.Sprintf("%q is not an ancestor's number between %d and %d", fields[0], last, timeline))
		}
		end, err := postgres.ParseLSN(fields[1])
		if err != nil {
			return bad(err.Error())
		}
		last = number
		ancestors = append(ancestors, Ancestor{uint32(number), end})
	}
	return ancestors, nil
}

// WALCatalog is what a store has of a cluster's WAL.
type WALCatalog struct {
	// WAL by timeline and position, with partial segments and backup labels, without histories.
	WAL       []WALObject
	Timelines Timelines
	// SegmentSize in bytes; 0 when there is no segment.
	SegmentSize int64
	// Strange are keys below wal/ that are none of ours.
	Strange []string
}

// maxHistory bounds a history file: a line of PostgreSQL's has some 60 bytes.
const maxHistory = 1 << 20

// ReadCatalog lists the WAL and reads the histories.
func (a *WALArchive) ReadCatalog(ctx context.Context) (*WALCatalog, error) {
	c := &WALCatalog{Timelines: Timelines{}}
	for o, err := range a.Store.List(ctx, a.Keys.WALFolder()) {
		if err != nil {
			return nil, err
		}
		name, _, ok := StoredWAL(o.Key)
		switch {
		case !ok:
			c.Strange = append(c.Strange, o.Key)
		case name.Kind == TimelineHistory:
			if err := a.readHistory(ctx, c, name); err != nil {
				return nil, err
			}
		default:
			c.WAL = append(c.WAL, WALObject{o, name})
		}
	}
	slices.SortStableFunc(c.WAL, func(x, y WALObject) int { return strings.Compare(x.Name.String(), y.Name.String()) })
	return c, a.readSegmentSize(ctx, c)
}

func (a *WALArchive) readHistory(ctx context.Context, c *WALCatalog, name WALName) error {
	key := a.Keys.WAL(name)
	r, err := a.Store.Read(ctx, key)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // It is only read.
	content, err := io.ReadAll(io.LimitReader(r, maxHistory))
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	c.Timelines[name.Timeline], err = ParseHistory(name.Timeline, string(content))
	return err
}

func (a *WALArchive) readSegmentSize(ctx context.Context, c *WALCatalog) error {
	for _, w := range c.WAL {
		if w.Name.Kind != Segment {
			continue
		}
		o, err := a.Store.Stat(ctx, w.Key)
		if errors.Is(err, ErrNotFound) {
			continue // Retention was faster.
		}
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(o.Metadata[MetaSize], 10, 64)
		if err != nil || !ValidSegmentSize(size) {
			return fmt.Errorf("%s: %w: its metadata has the size %q", w.Key, ErrCorrupt, o.Metadata[MetaSize])
		}
		c.SegmentSize = size
		return nil
	}
	return nil
}

// Latest is the highest timeline that the catalogue knows, 0 when it knows none.
func (c *WALCatalog) Latest() uint32 {
	latest := uint32(0)
	for timeline := range maps.Keys(c.Timelines) {
		latest = max(latest, timeline)
	}
	for _, w := range c.WAL {
		latest = max(latest, w.Name.Timeline)
	}
	return latest
}

// Written returns when PostgreSQL last wrote a segment, which is no earlier than any commit in it. Without that metadata it is when the
// object was stored.
func (a *WALArchive) Written(ctx context.Context, name WALName) (time.Time, error) {
	o, err := a.find(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	if t, err := time.Parse(time.RFC3339Nano, o.Metadata[MetaWritten]); err == nil {
		return t, nil
	}
	return o.Modified, nil
}
