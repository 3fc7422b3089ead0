package archive

import (
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// BackupRef is what the catalogue needs to know of a base backup.
type BackupRef struct {
	ID string
	// Timeline on which it starts (START TIMELINE of its label).
	Timeline uint32
	// Start is from where on WAL is needed, and Stop where the data is consistent.
	Start, Stop          postgres.LSN
	StartedAt, StoppedAt time.Time
	// Running says that there is no commit mark yet. It needs WAL from Start on.
	Running bool
	// Pinned says that a restore or a drill reads it.
	Pinned bool
}

// Ref is what the catalogue of WAL needs to know of b.
func (b *Backup) Ref() BackupRef {
	return BackupRef{ID: b.ID, Timeline: b.Timeline, Start: b.StartLSN, Stop: b.StopLSN, StartedAt: b.StartedAt, StoppedAt: b.StoppedAt}
}

// Range is a stretch of time in which every point can be restored.
type Range struct {
	// Backups that it stands on, the oldest first.
	Backups []string
	// From is where the oldest of them is consistent.
	From     postgres.LSN
	FromTime time.Time
	// To is where the WAL that follows without a hole ends, on ToTimeline.
	To         postgres.LSN
	ToTimeline uint32
	// LastSegment is the last one with WAL of the range. WALArchive.Written tells how late it is.
	LastSegment WALName
	// ToTime is when LastSegment was stored, which is not before any commit that it has.
	ToTime time.Time
}

// Gap is WAL that is missing although there is later WAL of the same history.
type Gap struct {
	// First and Last names that are missing.
	First, Last WALName
}

// Window tells what can be restored.
type Window struct {
	// Ranges by ascending position. None: nothing can be restored.
	Ranges []Range
	Gaps   []Gap
	// Broken are the committed backups that cannot be used, since the WAL between their start and stop is not whole.
	Broken []string
}

// RecoveryWindow computes from what positions to what others can be restored on the way to the timeline target (0: the latest known).
// Running backups and those from which that timeline does not follow do not count.
func (c *WALCatalog) RecoveryWindow(backups []BackupRef, target uint32) Window {
	var w Window
	if target == 0 {
		target = c.Latest()
	}
	if c.SegmentSize == 0 {
		for _, b := range backups {
			if !b.Running {
				w.Broken = append(w.Broken, b.ID)
			}
		}
		return w
	}
	p := c.route(target)
	backups = slices.Clone(backups)
	slices.SortStableFunc(backups, func(a, b BackupRef) int { return a.StoppedAt.Compare(b.StoppedAt) })
	for _, b := range backups {
		if follows := c.Timelines.leads(b.Timeline, b.Start, target); b.Running || follows == nil || !*follows {
			continue
		}
		r, gap := p.reach(b)
		if gap != nil && !slices.Contains(w.Gaps, *gap) {
			w.Gaps = append(w.Gaps, *gap)
		}
		if r.To < b.Stop {
			w.Broken = append(w.Broken, b.ID)
			continue
		}
		if last := len(w.Ranges) - 1; last >= 0 && w.Ranges[last].To == r.To {
			w.Ranges[last].Backups = append(w.Ranges[last].Backups, b.ID)
			continue
		}
		w.Ranges = append(w.Ranges, r)
	}
	return w
}

// route is the way that a recovery takes to a timeline.
type route struct {
	size int64
	// legs are timelines, the oldest first, with where they end; the last has no end.
	legs []Ancestor
	// stored are the segments that are there, by name.
	stored map[WALName]WALObject
	// highest segment number that is there on the way.
	highest uint64
}

const noEnd = ^postgres.LSN(0)

func (c *WALCatalog) route(target uint32) *route {
	ancestors, _ := c.Timelines.of(target)
	p := &route{size: c.SegmentSize, legs: append(slices.Clone(ancestors), Ancestor{target, noEnd}), stored: map[WALName]WALObject{}}
	for _, w := range c.WAL {
		if w.Name.Kind != Segment {
			continue
		}
		p.stored[w.Name] = w
		number := w.Name.Number(p.size)
		for _, leg := range p.legs {
			if leg.Timeline == w.Name.Timeline && postgres.LSN(number*uint64(p.size)) < leg.End {
				p.highest = max(p.highest, number)
			}
		}
	}
	return p
}

// reach follows the WAL from a backup's start on for as long as there is no hole.
func (p *route) reach(b BackupRef) (Range, *Gap) {
	r := Range{Backups: []string{b.ID}, From: b.Stop, FromTime: b.StoppedAt, To: b.Start, ToTimeline: b.Timeline}
	position := b.Start
	leg := slices.IndexFunc(p.legs, func(a Ancestor) bool { return a.Timeline == b.Timeline })
	for {
		if position >= p.legs[leg].End {
			leg++
			continue
		}
		by, o, ok := p.find(leg, position)
		if !ok {
			return r, p.gap(leg, position)
		}
		leg = by
		position = min(o.Name.Position(p.size)+postgres.LSN(p.size), p.legs[leg].End)
		r.To, r.ToTimeline, r.LastSegment, r.ToTime = position, p.legs[leg].Timeline, o.Name, o.Modified
	}
}

// find looks for the segment with a position of a leg as PostgreSQL does: on the newest timeline first, if that has begun by then. The
// segment in which a timeline begins has the end of the one before too, whose own last segment is often never complete.
func (p *route) find(leg int, position postgres.LSN) (by int, o WALObject, ok bool) {
	number := SegmentNumber(position, p.size)
	for i := len(p.legs) - 1; i >= leg; i-- {
		if i > leg && SegmentNumber(p.legs[i-1].End, p.size) > number {
			continue
		}
		if o, ok = p.stored[SegmentName(p.legs[i].Timeline, number, p.size)]; ok {
			return i, o, true
		}
	}
	return 0, WALObject{}, false
}

// gap is what is missing from a position of a leg on; nil when nothing comes later.
func (p *route) gap(leg int, position postgres.LSN) *Gap {
	var g Gap
	for first := true; ; first = false {
		for position >= p.legs[leg].End {
			leg++
		}
		number := SegmentNumber(position, p.size)
		if number > p.highest {
			return nil
		}
		if _, _, ok := p.find(leg, position); ok {
			return &g
		}
		g.Last = SegmentName(p.legs[leg].Timeline, number, p.size)
		if first {
			g.First = g.Last
		}
		position = min(postgres.LSN((number+1)*uint64(p.size)), p.legs[leg].End)
	}
}
