package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Policy says which backups have to stay. A backup that any of its rules wants stays; with no rule, all do.
type Policy struct {
	// Keep is how far back every point has to be restorable: all backups of that time, and the last one before it. 0: no rule.
	Keep time.Duration
	// Count of newest backups to keep. 0: no rule.
	Count int
}

// LeftoverAge is how old the newest object of a backup without a commit mark has to be, before it is taken for what a killed one left.
const LeftoverAge = 48 * time.Hour

// RetentionPlan is what goes. It is safe to carry out late: what is archived meanwhile is not in it.
type RetentionPlan struct {
	// Backups that are no longer needed, the oldest first, and Leftovers of killed ones.
	Backups, Leftovers []string
	// WAL that no kept backup can reach, the oldest first.
	WAL []WALObject
	// Kept are the committed backups that stay, the oldest first.
	Kept []string
}

// PlanRetention decides what goes. It never lets go of the newest committed backup from which the current timeline follows (the floor), of
// a running or pinned one, of WAL that any of the kept ones can reach, of WAL on timelines whose history is not known, or of histories.
// Pass a damaged backup as a pinned one without a timeline: then all WAL stays, until somebody has looked at it.
// A current timeline of 0 is the latest one that is known.
func (c *WALCatalog) PlanRetention(backups []BackupRef, garbage []Unfinished, policy Policy, current uint32, now time.Time) RetentionPlan {
	if current == 0 {
		current = c.Latest()
	}
	backups = slices.Clone(backups)
	slices.SortStableFunc(backups, func(a, b BackupRef) int {
		return cmp.Or(a.StoppedAt.Compare(b.StoppedAt), cmp.Compare(a.ID, b.ID))
	})
	var plan RetentionPlan
	var kept []BackupRef
	keep := c.keep(backups, policy, current, now)
	running := map[string]bool{}
	for _, b := range backups {
		running[b.ID] = b.Running
		if !keep[b.ID] {
			plan.Backups = append(plan.Backups, b.ID)
			continue
		}
		kept = append(kept, b)
		if !b.Running {
			plan.Kept = append(plan.Kept, b.ID)
		}
	}
	for _, l := range garbage {
		if !running[l.ID] && now.Sub(l.Modified) > LeftoverAge {
			plan.Leftovers = append(plan.Leftovers, l.ID)
		}
	}
	slices.Sort(plan.Leftovers)
	plan.WAL = c.unreachable(kept, current)
	return plan
}

// keep tells which backups stay; they are sorted by age, the oldest first.
func (c *WALCatalog) keep(backups []BackupRef, policy Policy, current uint32, now time.Time) map[string]bool {
	keep := map[string]bool{}
	cutoff := now.Add(-policy.Keep)
	// One whose WAL is not whole, perhaps only not yet, takes no other's place.
	broken := c.RecoveryWindow(backups, current).Broken
	// The newest first: how many good ones there were, and whether one was from before the cutoff.
	count, before := 0, false
	for _, b := range slices.Backward(backups) {
		switch follows := c.Timelines.leads(b.Timeline, b.Start, current); {
		case b.Running || b.Pinned || policy.Keep <= 0 && policy.Count <= 0:
			keep[b.ID] = true
		case follows == nil || !*follows:
			// It cannot lead to where the cluster is now. It has its time, but takes no other's place.
			keep[b.ID] = policy.Keep > 0 && b.StoppedAt.After(cutoff) || follows == nil
			continue
		default:
			keep[b.ID] = count == 0 || count < policy.Count || policy.Keep > 0 && (b.StoppedAt.After(cutoff) || !before)
		}
		if b.Running || slices.Contains(broken, b.ID) {
			continue
		}
		if follows := c.Timelines.leads(b.Timeline, b.Start, current); follows != nil && *follows {
			count++
			before = before || !b.StoppedAt.After(cutoff)
		}
	}
	return keep
}

// unreachable is the WAL that none of the kept backups needs.
func (c *WALCatalog) unreachable(kept []BackupRef, current uint32) []WALObject {
	if len(kept) == 0 || c.SegmentSize == 0 {
		// The first backup is still to come, and may have begun.
		return nil
	}
	covered := slices.ContainsFunc(kept, func(b BackupRef) bool {
		follows := c.Timelines.leads(b.Timeline, b.Start, current)
		return follows == nil || *follows
	})
	var gone []WALObject
	for _, w := range c.WAL {
		number := w.Name.Number(c.SegmentSize)
		needed := !covered && w.Name.Timeline == current || slices.ContainsFunc(kept, func(b BackupRef) bool {
			if number < SegmentNumber(b.Start, c.SegmentSize) {
				return false
			}
			follows := c.Timelines.leads(b.Timeline, b.Start, w.Name.Timeline)
			return follows == nil || *follows
		})
		if !needed {
			gone = append(gone, w)
		}
	}
	slices.SortStableFunc(gone, func(x, y WALObject) int {
		return cmp.Or(cmp.Compare(x.Name.Number(c.SegmentSize), y.Name.Number(c.SegmentSize)), cmp.Compare(x.Name.Timeline, y.Name.Timeline))
	})
	return gone
}

// Prune carries a plan out: first the commit marks, so that no backup counts whose parts are going, then their parts, then WAL from the
// oldest on, so that what stays has no hole. It returns the keys that went; with dryRun, those that would go. After an error it is safe
// to plan and prune again.
func (a *WALArchive) Prune(ctx context.Context, plan RetentionPlan, dryRun bool) (gone []string, err error) {
	if err := a.checkFloor(ctx, plan); err != nil {
		return nil, err
	}
	remove := func(key string) error {
		if !dryRun {
			if err := a.Store.Delete(ctx, key); err != nil {
				return fmt.Errorf("retention: %w", err)
			}
		}
		gone = append(gone, key)
		return nil
	}
	for _, id := range plan.Backups {
		if err := remove(a.Keys.BackupMark(id)); err != nil {
			return gone, err
		}
	}
	for _, id := range slices.Concat(plan.Backups, plan.Leftovers) {
		for o, err := range a.Store.List(ctx, a.Keys.BackupFolder(id)) {
			if err != nil {
				return gone, fmt.Errorf("retention: %w", err)
			}
			if o.Key == a.Keys.BackupMark(id) {
				if slices.Contains(plan.Leftovers, id) {
					return gone, fmt.Errorf("retention: backup %s was committed in the meantime; plan again", id)
				}
				continue
			}
			if err := remove(o.Key); err != nil {
				return gone, err
			}
		}
	}
	for _, w := range plan.WAL {
		if err := remove(w.Key); err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// checkFloor refuses to remove anything when what the plan relies on is not there any more.
func (a *WALArchive) checkFloor(ctx context.Context, plan RetentionPlan) error {
	if len(plan.Backups)+len(plan.WAL) > 0 && len(plan.Kept) == 0 {
		return errors.New("retention: no committed backup would stay; nothing is removed")
	}
	for _, id := range plan.Kept {
		if _, err := a.Store.Stat(ctx, a.Keys.BackupMark(id)); err != nil {
			return fmt.Errorf("retention: the backup %s, which has to stay, is not proven to be there; nothing is removed: %w", id, err)
		}
	}
	return nil
}

// Position of a segment's first byte, with segments of size bytes.
func (n WALName) Position(size int64) postgres.LSN {
	return postgres.LSN(n.Number(size) * uint64(size))
}
