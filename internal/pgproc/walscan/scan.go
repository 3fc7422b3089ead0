// Package walscan finds the end of the valid WAL in the pg_wal directory of a stopped server.
//
// pg_control tells of a crashed server only where its last checkpoint is, and of a standby how far it replayed; what it received and
// flushed after that counts when it is asked how far it is. So the records are read like recovery would read them.
package walscan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Start is where to begin: a checkpoint record and the timeline that it is on, from pg_control.
type Start struct {
	LSN              uint64
	Timeline         uint32
	SegmentBytes     int64
	SystemIdentifier string
}

// Position is the end of the valid WAL: LSN is where the next record would begin.
type Position struct {
	Timeline uint32
	LSN      uint64
}

// End of the valid WAL in dir. The newest timeline wins that descends from the start's and has a valid record of its own, as in
// recovery with recovery_target_timeline=latest. The segments that count are flushed to disk. The error of a start without a
// valid record names it; an error of reading is never taken for the end.
func End(ctx context.Context, dir string, start Start) (Position, error) {
	systemID, err := strconv.ParseUint(start.SystemIdentifier, 10, 64)
	if err != nil || start.SegmentBytes <= 0 {
		return Position{}, fmt.Errorf("no system identifier or WAL segment size: %+v", start)
	}
	branches, err := branchesFrom(dir, start)
	if err != nil {
		return Position{}, err
	}
	for _, b := range branches {
		end, err := b.scan(ctx, dir, start, systemID)
		if err != nil {
			return Position{}, err
		}
		if end <= b.begin() && len(b) > 1 {
			continue // its history is here, but no WAL of it
		}
		if err := b.flush(dir, start, end); err != nil {
			return Position{}, err
		}
		return Position{Timeline: b.timeline(), LSN: end}, nil
	}
	return Position{}, errors.New("no timeline to read") // not reached: the start's own is always there
}

// stretch of a branch: a timeline and where it began.
type stretch struct {
	timeline uint32
	begin    uint64
}

// branch is a timeline with its ancestors, oldest first.
type branch []stretch

func (b branch) timeline() uint32 { return b[len(b)-1].timeline }
func (b branch) begin() uint64    { return b[len(b)-1].begin }

// branchesFrom are the timelines that may go on from start, newest first, the start's own last.
func branchesFrom(dir string, start Start) ([]branch, error) {
	histories, err := filepath.Glob(filepath.Join(dir, "*.history"))
	if err != nil {
		return nil, err
	}
	branches := []branch{{{timeline: start.Timeline}}}
	for _, path := range histories {
		n, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), ".history"), 16, 32)
		if err != nil || uint32(n) <= start.Timeline {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if b, ok := parseHistory(string(data), uint32(n), start); ok {
			branches = append(branches, b)
		}
	}
	slices.SortFunc(branches, func(a, b branch) int { return int(int64(b.timeline()) - int64(a.timeline())) })
	return branches, nil
}

// parseHistory reads a timeline history file: lines of parent timeline, LSN where it was left, and a reason. False when the
// start is not on that branch.
func parseHistory(text string, timeline uint32, start Start) (branch, bool) {
	b := branch{}
	next := stretch{}
	descends := false
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		parent, err := strconv.ParseUint(fields[0], 10, 32)
		left, errLSN := postgres.ParseLSN(fields[1])
		if err != nil || errLSN != nil {
			return nil, false
		}
		next.timeline = uint32(parent)
		b = append(b, next)
		if next.timeline == start.Timeline {
			descends = uint64(left) > start.LSN
		}
		next = stretch{begin: uint64(left)}
	}
	next.timeline = timeline
	return append(b, next), descends
}

// owner is the timeline that the branch is on at that LSN.
func (b branch) owner(lsn uint64) uint32 {
	for _, s := range slices.Backward(b) {
		if s.begin <= lsn {
			return s.timeline
		}
	}
	return b[0].timeline
}

// open the segment's file of the newest timeline that has one, as recovery does, and say which timeline's it is.
func (b branch) open(dir string, start Start, segment uint64) (*os.File, uint32, error) {
	perID := uint64(1<<32) / uint64(start.SegmentBytes)
	for _, s := range slices.Backward(b) {
		if s.begin/uint64(start.SegmentBytes) > segment {
			continue
		}
		f, err := os.Open(filepath.Join(dir, fmt.Sprintf("%08X%08X%08X", s.timeline, segment/perID, segment%perID)))
		if !errors.Is(err, fs.ErrNotExist) {
			return f, s.timeline, err
		}
	}
	return nil, 0, fs.ErrNotExist
}

// scan from the start to the end of the valid records.
func (b branch) scan(ctx context.Context, dir string, start Start, systemID uint64) (uint64, error) {
	r := &reader{
		ctx: ctx, segBytes: uint64(start.SegmentBytes), systemID: systemID, newest: b.timeline(),
		open: func(segment uint64) (*os.File, uint32, error) { return b.open(dir, start, segment) },
	}
	defer r.close()
	rec, err := r.next(start.LSN, 0)
	if errors.Is(err, errInvalid) {
		return 0, fmt.Errorf("no valid WAL record at the checkpoint %v of timeline %d: WAL files are missing or damaged; clone it",
			postgres.LSN(start.LSN), start.Timeline)
	}
	for err == nil {
		var following record
		following, err = r.next(rec.next, rec.at)
		if err == nil && r.fileTimeline < b.owner(following.at) {
			err = errInvalid // an ancestor's record after the fork: of another future
		}
		if err == nil {
			rec = following
		}
	}
	if !errors.Is(err, errInvalid) {
		return 0, err
	}
	return rec.next, nil
}

// flush the segments from the start to end.
func (b branch) flush(dir string, start Start, end uint64) error {
	size := uint64(start.SegmentBytes)
	for segment := start.LSN / size; segment <= (end-1)/size; segment++ {
		f, _, err := b.open(dir, start, segment)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("flush WAL: %w", err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
