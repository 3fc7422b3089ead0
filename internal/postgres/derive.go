package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// Resources is what an instance has.
type Resources struct {
	// MemoryBytes is the container's memory limit, else its request; 0 counts as DefaultMemoryBytes.
	MemoryBytes int64
	// DataBytes is the size of the data volume; WALBytes that of the WAL volume, 0 when the log is on the data volume.
	DataBytes, WALBytes int64
	// CPUMilli is the container's CPU limit in thousandths; 0 when there is none.
	CPUMilli int64
	Major    int
}

const (
	mib = int64(1) << 20
	gib = int64(1) << 30

	// DefaultMemoryBytes is what is reckoned with when nothing is requested.
	DefaultMemoryBytes = 256 * mib
	// defaultVolumeBytes is the API's default size of the data volume.
	defaultVolumeBytes = 10 * gib
)

// Derive returns the settings that follow from the resources, and those that Kumki sets for every cluster; the user's win over them. The
// rule is documented in docs/settings.md. What standbys must match (StandbyMustMatch) is the same for all sizes, so that a change of
// resources never makes a standby refuse to follow.
func Derive(r Resources) map[string]string {
	out := map[string]string{
		"max_connections":              strconv.Itoa(deriveConnections),
		"max_worker_processes":         "16",
		"max_wal_senders":              "48",
		"max_replication_slots":        "48",
		"max_prepared_transactions":    "0",
		"max_locks_per_transaction":    "64",
		"wal_level":                    "replica",
		"wal_compression":              "on",
		"wal_sender_timeout":           "10s",
		"wal_receiver_timeout":         "10s",
		"wal_receiver_status_interval": "1s",
		"wal_retrieve_retry_interval":  "250ms",
		"tcp_keepalives_idle":          "60",
		"tcp_keepalives_interval":      "10",
		"tcp_keepalives_count":         "6",
		"password_encryption":          "scram-sha-256",
		"random_page_cost":             "1.1",
	}
	deriveMemory(out, r.MemoryBytes)
	deriveWAL(out, r)
	deriveParallel(out, r.CPUMilli)
	return out
}

const deriveConnections = 100

// deriveMemory shares memory out: a quarter to shared_buffers, a quarter to what all sessions sort and hash with at once, a
// sixteenth to each maintenance task; the rest is left to the operating system's cache and to what processes need to exist.
func deriveMemory(out map[string]string, memory int64) {
	if memory <= 0 {
		memory = DefaultMemoryBytes
	}
	out["shared_buffers"] = megabytes(clamp(memory/4, 16*mib, 64*gib))
	out["effective_cache_size"] = megabytes(max(memory*3/4, 32*mib))
	out["maintenance_work_mem"] = megabytes(clamp(memory/16, 8*mib, 2*gib))
	out["work_mem"] = megabytes(clamp(memory/4/deriveConnections, mib, 256*mib))
}

// deriveWAL bounds the log by its volume. The sum of what checkpoints, slots and wal_keep_size may hold stays below the volume even when
// max_wal_size is overrun by half under load, so that a standby that is gone for good never fills the disk.
func deriveWAL(out map[string]string, r Resources) {
	data := r.DataBytes
	if data <= 0 {
		data = defaultVolumeBytes
	}
	size, slots := data/10, data/5
	if r.WALBytes > 0 {
		size, slots = r.WALBytes/4, r.WALBytes*2/5
	}
	size = clamp(size, 4*mib, 8*gib)
	least := size / 4
	if size >= 96*mib {
		least = max(least, 32*mib) // two segments of the usual 16 MB
	}
	out["max_wal_size"] = megabytes(size)
	out["min_wal_size"] = megabytes(clamp(least, 2*mib, gib))
	out["max_slot_wal_keep_size"] = megabytes(max(slots, 8*mib))
	out["wal_keep_size"] = megabytes(clamp(slots/4, 2*mib, 4*gib))
}

// deriveParallel lets queries use the CPUs that are there; without a limit PostgreSQL's own defaults stay.
func deriveParallel(out map[string]string, milli int64) {
	if milli <= 0 {
		return
	}
	cpus := (milli + 999) / 1000
	out["max_parallel_workers"] = strconv.FormatInt(clamp(cpus, 1, 16), 10)
	out["max_parallel_workers_per_gather"] = strconv.FormatInt(clamp(cpus/2, 0, 4), 10)
	out["max_parallel_maintenance_workers"] = strconv.FormatInt(clamp(cpus/2, 0, 4), 10)
}

// WALSegmentMB is the size of WAL segments, in MB, that initdb has to be given so that the server starts with these settings:
// min_wal_size has to hold two. 16, PostgreSQL's default, unless the volume is small. Volumes only grow, so the value stays right.
func WALSegmentMB(settings map[string]string) (int, error) {
	v, ok := settings["min_wal_size"]
	if !ok {
		return 16, nil
	}
	least, err := parseMegabytes(v)
	if err != nil {
		return 0, fmt.Errorf("min_wal_size: %w", err)
	}
	for _, mb := range []int{16, 8, 4, 2} {
		if least >= int64(2*mb) {
			return mb, nil
		}
	}
	return 1, nil
}

// parseMegabytes reads a size that PostgreSQL counts in MB: "80", "80MB", "1GB", "0.5GB", "1TB", "65536kB", "1048576B".
func parseMegabytes(v string) (int64, error) {
	units := []struct {
		suffix string
		mb     float64
	}{{"kB", 1.0 / 1024}, {"MB", 1}, {"GB", 1024}, {"TB", 1024 * 1024}, {"B", 1.0 / 1024 / 1024}}
	number, factor := strings.TrimSpace(v), 1.0
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(n), u.mb
			break
		}
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size like 80MB", v)
	}
	return int64(f * factor), nil
}

func megabytes(bytes int64) string { return strconv.FormatInt(bytes/mib, 10) + "MB" }

func clamp(v, low, high int64) int64 { return min(max(v, low), high) }
