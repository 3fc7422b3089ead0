package archive

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func at(segment uint64) postgres.LSN { return postgres.LSN(segment*uint64(walSize) + 0x28) }

// backupAt begins in segment from and ends in segment to, days before testNow.
func backupAt(id string, timeline uint32, from, to uint64, days int) BackupRef {
	stopped := testNow().AddDate(0, 0, -days)
	return BackupRef{ID: id, Timeline: timeline, Start: at(from), Stop: at(to), StartedAt: stopped.Add(-time.Hour), StoppedAt: stopped}
}

func catalogOf(timelines Timelines, segments map[uint32][2]uint64, without ...WALName) *WALCatalog {
	c := &WALCatalog{Timelines: timelines, SegmentSize: walSize}
	for timeline, span := range segments {
		for n := span[0]; n <= span[1]; n++ {
			if name := SegmentName(timeline, n, walSize); !slices.Contains(without, name) {
				c.WAL = append(c.WAL, WALObject{Object{Key: "wal/" + name.String(), Modified: testNow()}, name})
			}
		}
	}
	slices.SortFunc(c.WAL, func(a, b WALObject) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	return c
}

func TestRetention(t *testing.T) {
	one := catalogOf(Timelines{}, map[uint32][2]uint64{1: {1, 100}})
	four := []BackupRef{backupAt("a", 1, 10, 11, 20), backupAt("b", 1, 30, 31, 9), backupAt("c", 1, 50, 51, 5), backupAt("d", 1, 70, 71, 1)}
	broken := catalogOf(Timelines{}, map[uint32][2]uint64{1: {1, 100}}, SegmentName(1, 71, walSize))
	forked := catalogOf(Timelines{2: {{1, at(40)}}}, map[uint32][2]uint64{1: {1, 60}, 2: {40, 60}})
	tests := map[string]struct {
		catalog *WALCatalog
		backups []BackupRef
		policy  Policy
		gone    []string
		wal     int
	}{
		"no rule":                              {one, four, Policy{}, nil, 9},
		"a week, and the one before it":        {one, four, Policy{Keep: 7 * 24 * time.Hour}, []string{"a"}, 29},
		"two":                                  {one, four, Policy{Count: 2}, []string{"a", "b"}, 49},
		"either rule":                          {one, four, Policy{Keep: 7 * 24 * time.Hour, Count: 1}, []string{"a"}, 29},
		"the floor":                            {one, four[:1], Policy{Keep: time.Hour}, nil, 9},
		"one that is not whole takes no place": {broken, four, Policy{Count: 1}, []string{"a", "b"}, 49},
		"no backup":                            {one, nil, Policy{Count: 1}, nil, 0},
		"one that cannot lead to now takes no place": {forked,
			[]BackupRef{backupAt("a", 1, 10, 11, 9), backupAt("b", 1, 50, 51, 5)}, Policy{Count: 1}, []string{"b"}, 9},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			plan := c.catalog.PlanRetention(c.backups, nil, c.policy, 0, testNow())
			g.Expect(plan.Backups).To(Equal(c.gone))
			g.Expect(plan.WAL).To(HaveLen(c.wal))
		})
	}
}

func TestRetentionSparesWhatIsInUse(t *testing.T) {
	g := NewWithT(t)
	c := catalogOf(Timelines{}, map[uint32][2]uint64{1: {1, 100}})
	backups := []BackupRef{backupAt("a", 1, 10, 11, 20), backupAt("b", 1, 30, 31, 9), backupAt("c", 1, 50, 51, 1)}
	backups[0].Pinned = true
	running := BackupRef{ID: "running", Running: true}
	garbage := []Unfinished{{ID: "running", Modified: testNow().AddDate(0, 0, -9)}, {ID: "old", Modified: testNow().AddDate(0, 0, -9)}, {ID: "new", Modified: testNow()}}
	plan := c.PlanRetention(append(backups, running), garbage, Policy{Count: 1}, 0, testNow())
	g.Expect(plan.Backups).To(Equal([]string{"b"}))
	g.Expect(plan.Leftovers).To(Equal([]string{"old"}))
	g.Expect(plan.WAL).To(BeEmpty(), "it is not known where the running one starts")
}

// For random histories, whatever can be restored from a kept backup before can be restored from it afterwards.
func TestRetentionKeepsWhatKeptBackupsReach(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		timelines, spans, begin := Timelines{}, map[uint32][2]uint64{}, uint64(1)
		var legs []Ancestor
		var backups []BackupRef
		last := 1 + random.Uint32N(4)
		for timeline := uint32(1); timeline <= last; timeline++ {
			end := begin + 3 + random.Uint64N(20)
			spans[timeline] = [2]uint64{begin, end}
			if timeline > 1 {
				timelines[timeline] = slices.Clone(legs)
			}
			for from := begin + 1; from+1 < end; from += 1 + random.Uint64N(6) {
				backups = append(backups, backupAt(fmt.Sprintf("%d-%d", timeline, from), timeline, from, from+1, 100-int(from)))
			}
			begin += 2 + random.Uint64N(end-begin-2)
			legs = append(legs, Ancestor{timeline, at(begin)})
		}
		c := catalogOf(timelines, spans)
		plan := c.PlanRetention(backups, nil, Policy{Keep: time.Duration(random.IntN(60)) * 24 * time.Hour, Count: random.IntN(4)}, 0, testNow())
		after := &WALCatalog{Timelines: timelines, SegmentSize: walSize}
		for _, w := range c.WAL {
			if !slices.ContainsFunc(plan.WAL, func(o WALObject) bool { return o.Key == w.Key }) {
				after.WAL = append(after.WAL, w)
			}
		}
		kept := slices.DeleteFunc(slices.Clone(backups), func(b BackupRef) bool { return slices.Contains(plan.Backups, b.ID) })
		for target := uint32(1); target <= last; target++ {
			want, got := c.RecoveryWindow(kept, target), after.RecoveryWindow(kept, target)
			if fmt.Sprint(want) != fmt.Sprint(got) {
				t.Fatalf("seed %d, timeline %d:\nbefore %v\nafter  %v", seed, target, want, got)
			}
		}
		if before := c.RecoveryWindow(backups, 0); len(before.Ranges) > 0 && len(after.RecoveryWindow(kept, 0).Ranges) == 0 {
			t.Fatalf("seed %d: nothing can be restored any more", seed)
		}
	}
}

func TestRecoveryWindow(t *testing.T) {
	g := NewWithT(t)
	// Timeline 1 was left in segment 40, which it never completed.
	c := catalogOf(Timelines{2: {{1, at(40)}}}, map[uint32][2]uint64{1: {1, 39}, 2: {40, 60}})
	backups := []BackupRef{backupAt("a", 1, 10, 11, 9), backupAt("b", 2, 50, 51, 5)}
	w := c.RecoveryWindow(backups, 0)
	g.Expect(w.Gaps).To(BeEmpty())
	g.Expect(w.Ranges).To(HaveLen(1))
	g.Expect(w.Ranges[0].Backups).To(Equal([]string{"a", "b"}))
	g.Expect(w.Ranges[0].From).To(Equal(at(11)))
	g.Expect(w.Ranges[0].To).To(Equal(postgres.LSN(61 * walSize)))
	g.Expect(w.Ranges[0].LastSegment).To(Equal(SegmentName(2, 60, walSize)))

	holes := catalogOf(c.Timelines, map[uint32][2]uint64{1: {1, 39}, 2: {40, 60}}, SegmentName(1, 20, walSize), SegmentName(1, 21, walSize), SegmentName(2, 51, walSize))
	w = holes.RecoveryWindow(backups, 0)
	g.Expect(w.Broken).To(Equal([]string{"b"}))
	g.Expect(w.Ranges).To(HaveLen(1))
	g.Expect(w.Ranges[0].To).To(Equal(postgres.LSN(20 * walSize)))
	g.Expect(w.Gaps).To(Equal([]Gap{
		{SegmentName(1, 20, walSize), SegmentName(1, 21, walSize)}, {SegmentName(2, 51, walSize), SegmentName(2, 51, walSize)},
	}))
}

func TestPruneOrderAndDryRun(t *testing.T) {
	g := NewWithT(t)
	s := NewMemory(time.Now)
	a := walArchive(s, &Codec{})
	archived(t, a, 1, 1, 8)
	for _, id := range []string{"old", "new"} {
		for _, name := range []string{"base.001.tar.zst", "backup_manifest", CommitMark} {
			g.Expect(create(s, a.Keys.BackupFolder(id)+name, id)).To(Succeed())
		}
	}
	c, err := a.ReadCatalog(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.SegmentSize).To(Equal(walSize))
	plan := c.PlanRetention([]BackupRef{backupAt("old", 1, 2, 3, 9), backupAt("new", 1, 5, 6, 1)}, nil, Policy{Count: 1}, 0, testNow())
	before := keysOf(g, s, "")
	would, err := a.Prune(context.Background(), plan, true)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(keysOf(g, s, "")).To(Equal(before), "a dry run")
	var order []string
	s.OnCall(func(call, key string) error {
		if call == "Delete" {
			order = append(order, key)
		}
		return nil
	})
	gone, err := a.Prune(context.Background(), plan, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(gone).To(Equal(would))
	g.Expect(order).To(Equal(gone))
	g.Expect(gone).To(HaveLen(3 + 4))
	g.Expect(gone[0]).To(HaveSuffix("/old/" + CommitMark))
	g.Expect(gone[3]).To(ContainSubstring(SegmentName(1, 1, walSize).String()))

	g.Expect(s.Delete(context.Background(), a.Keys.BackupMark("new"))).To(Succeed())
	_, err = a.Prune(context.Background(), plan, false)
	g.Expect(err).To(MatchError(ContainSubstring("nothing is removed")), "the floor is gone")
}

func TestParseHistory(t *testing.T) {
	g := NewWithT(t)
	ancestors, err := ParseHistory(3, "1\t0/5000028\tno recovery target specified\n\n2\t1/A0000000\tbefore 2026-01-01\n")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ancestors).To(Equal([]Ancestor{{1, 0x5000028}, {2, 0x1A0000000}}))
	for _, bad := range []string{"x\t0/1\n", "1\n", "2\t0/1\t\n1\t0/2\t\n", "3\t0/1\n", "1\tnowhere\n"} {
		_, err := ParseHistory(3, bad)
		g.Expect(err).To(HaveOccurred(), bad)
	}
}
