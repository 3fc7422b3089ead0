package postgres_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func mb(t *testing.T, settings map[string]string, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSuffix(settings[name], "MB"), 10, 64)
	if err != nil {
		t.Fatalf("%s = %q: %v", name, settings[name], err)
	}
	return n
}

// The examples of docs/settings.md.
func TestDeriveExamples(t *testing.T) {
	const mi, gi = int64(1) << 20, int64(1) << 30
	for _, c := range []struct {
		r    postgres.Resources
		want string
	}{
		{postgres.Resources{}, "64MB 192MB 16MB 1MB | 1024MB 256MB 2048MB 512MB"},
		{postgres.Resources{MemoryBytes: 256 * mi, DataBytes: 64 * mi}, "64MB 192MB 16MB 1MB | 6MB 2MB 12MB 3MB"},
		{postgres.Resources{MemoryBytes: 256 * mi, DataBytes: gi}, "64MB 192MB 16MB 1MB | 102MB 32MB 204MB 51MB"},
		{postgres.Resources{MemoryBytes: 4 * gi, DataBytes: 100 * gi}, "1024MB 3072MB 256MB 10MB | 8192MB 1024MB 20480MB 4096MB"},
		{postgres.Resources{MemoryBytes: 64 * gi, DataBytes: gi, WALBytes: 20 * gi}, "16384MB 49152MB 2048MB 163MB | 5120MB 1024MB 8192MB 2048MB"},
	} {
		g := NewWithT(t)
		s := postgres.Derive(c.r)
		got := fmt.Sprintf("%s %s %s %s | %s %s %s %s", s["shared_buffers"], s["effective_cache_size"], s["maintenance_work_mem"], s["work_mem"],
			s["max_wal_size"], s["min_wal_size"], s["max_slot_wal_keep_size"], s["wal_keep_size"])
		g.Expect(got).To(Equal(c.want), "%+v", c.r)
	}
	g := NewWithT(t)
	g.Expect(postgres.Derive(postgres.Resources{})).NotTo(HaveKey("max_parallel_workers"))
	one := postgres.Derive(postgres.Resources{CPUMilli: 500})
	g.Expect(one).To(HaveKeyWithValue("max_parallel_workers_per_gather", "0"))
	g.Expect(postgres.Derive(postgres.Resources{CPUMilli: 8000})).To(HaveKeyWithValue("max_parallel_workers_per_gather", "4"))
}

// For any size: memory is not promised twice, the log stays on its volume, and what standbys must match is the same everywhere.
func TestDeriveInvariants(t *testing.T) {
	base := postgres.Derive(postgres.Resources{})
	for shift := range 21 {
		size := int64(64<<20) << shift
		for _, wal := range []int64{0, 64 << 20, size} {
			g := NewWithT(t)
			r := postgres.Resources{MemoryBytes: size, DataBytes: size, WALBytes: wal}
			s := postgres.Derive(r)
			memory := size >> 20
			g.Expect(mb(t, s, "shared_buffers")).To(BeNumerically("<=", memory/4))
			if memory >= 256 {
				g.Expect(mb(t, s, "shared_buffers")+3*mb(t, s, "maintenance_work_mem")+100*mb(t, s, "work_mem")).
					To(BeNumerically("<=", memory), "buffers, three autovacuum workers and every session's one sort")
			}
			volume := size >> 20
			if wal > 0 {
				volume = wal >> 20
			}
			high := mb(t, s, "max_wal_size")*3/2 + max(mb(t, s, "max_slot_wal_keep_size"), mb(t, s, "wal_keep_size"))
			share := volume * 4 / 10
			if wal > 0 {
				share = volume * 8 / 10
			}
			g.Expect(high).To(BeNumerically("<=", share), "%+v", r)
			segment, err := postgres.WALSegmentMB(s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(mb(t, s, "min_wal_size")).To(BeNumerically(">=", 2*segment))
			g.Expect(mb(t, s, "max_wal_size")).To(BeNumerically(">=", mb(t, s, "min_wal_size")))
			for _, name := range append(postgres.StandbyMustMatch, "max_replication_slots") {
				g.Expect(s[name]).To(Equal(base[name]))
			}
			g.Expect(postgres.CheckParameters(s)).To(BeEmpty(), "derived settings are no owned ones")
		}
	}
}

func TestWALSegments(t *testing.T) {
	g := NewWithT(t)
	for v, want := range map[string]int{"": 16, "80": 16, "2MB": 1, "1": 1, "4MB": 2, "8 MB": 4, "0.03125GB": 16, "1TB": 16, "32768kB": 16, "33554432B": 16, "31MB": 8} {
		settings := map[string]string{"min_wal_size": v}
		if v == "" {
			settings = nil
		}
		g.Expect(postgres.WALSegmentMB(settings)).To(Equal(want), v)
	}
	_, err := postgres.WALSegmentMB(map[string]string{"min_wal_size": "lots"})
	g.Expect(err).To(MatchError(ContainSubstring("min_wal_size")))
	fit := postgres.FitSegments(map[string]string{"min_wal_size": "2MB", "max_wal_size": "6MB", "x": "1"}, postgres.ControlData{WALSegmentBytes: 16 << 20})
	g.Expect(fit).To(Equal(map[string]string{"min_wal_size": "32MB", "max_wal_size": "32MB", "x": "1"}))
	same := map[string]string{"min_wal_size": "1GB"}
	g.Expect(postgres.FitSegments(same, postgres.ControlData{WALSegmentBytes: 16 << 20})).To(Equal(same))
}
