package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// ClusterState is "Database cluster state" of pg_controldata.
type ClusterState string

// Values of ClusterState that decisions hang on.
const (
	StateShutDown           ClusterState = "shut down"
	StateShutDownInRecovery ClusterState = "shut down in recovery"
	StateShuttingDown       ClusterState = "shutting down"
	StateCrashRecovery      ClusterState = "in crash recovery"
	StateArchiveRecovery    ClusterState = "in archive recovery"
	StateInProduction       ClusterState = "in production"
)

// ControlData is what pg_controldata says of a data directory. LSNs are byte positions in the WAL.
type ControlData struct {
	SystemIdentifier string
	State            ClusterState
	// CheckpointLSN is where the latest checkpoint record begins; of a cluster that is "shut down" it is the last record.
	CheckpointLSN uint64
	RedoLSN       uint64
	Timeline      uint32
	PrevTimeline  uint32
	// MinRecoveryEnd is how far a standby must replay before it is consistent; zero when no recovery is under way.
	MinRecoveryEnd         uint64
	MinRecoveryEndTimeline uint32
	// BackupStart is set while a base backup has not been replayed to its end: WAL of it may be missing.
	BackupStart uint64
	WALLevel    string
	WALLogHints bool
	Checksums   bool
	// WALSegmentBytes is the size of a WAL file.
	WALSegmentBytes int64
	// Settings that a standby must match: the values in force when the server last ran as primary.
	Settings map[string]string
}

// CleanlyShutDown says that no crash recovery is needed at the next start.
func (c ControlData) CleanlyShutDown() bool {
	return c.State == StateShutDown || c.State == StateShutDownInRecovery
}

// WasPrimary says that the server last ran as primary (or was shut down as one).
func (c ControlData) WasPrimary() bool {
	switch c.State {
	case StateShutDown, StateShuttingDown, StateInProduction, StateCrashRecovery:
		return true
	}
	return false
}

var controlSettings = map[string]string{
	"max_connections setting":      "max_connections",
	"max_worker_processes setting": "max_worker_processes",
	"max_wal_senders setting":      "max_wal_senders",
	"max_prepared_xacts setting":   "max_prepared_transactions",
	"max_locks_per_xact setting":   "max_locks_per_transaction",
}

// ParseControlData reads the output of pg_controldata, run with LC_ALL=C. An error names the line that is missing or wrong.
func ParseControlData(output string) (ControlData, error) {
	p := controlParser{lines: map[string]string{}}
	for line := range strings.Lines(output) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			p.lines[key] = strings.TrimSpace(value)
		}
	}
	c := ControlData{
		SystemIdentifier:       p.text("Database system identifier"),
		State:                  ClusterState(p.text("Database cluster state")),
		CheckpointLSN:          p.lsn("Latest checkpoint location"),
		RedoLSN:                p.lsn("Latest checkpoint's REDO location"),
		Timeline:               uint32(p.number("Latest checkpoint's TimeLineID", 32)),
		PrevTimeline:           uint32(p.number("Latest checkpoint's PrevTimeLineID", 32)),
		MinRecoveryEnd:         p.lsn("Minimum recovery ending location"),
		MinRecoveryEndTimeline: uint32(p.number("Min recovery ending loc's timeline", 32)),
		BackupStart:            p.lsn("Backup start location"),
		WALLevel:               p.text("wal_level setting"),
		WALLogHints:            p.text("wal_log_hints setting") == "on",
		Checksums:              p.number("Data page checksum version", 32) != 0,
		WALSegmentBytes:        int64(p.number("Bytes per WAL segment", 63)),
		Settings:               map[string]string{},
	}
	for key, name := range controlSettings {
		c.Settings[name] = p.text(key)
	}
	if p.err != nil {
		return ControlData{}, p.err
	}
	return c, nil
}

// controlParser keeps the first error.
type controlParser struct {
	lines map[string]string
	err   error
}

func (p *controlParser) text(key string) string {
	value, ok := p.lines[key]
	if (!ok || value == "") && p.err == nil {
		p.err = fmt.Errorf("pg_controldata printed no %q; is it of the data directory's version, and LC_ALL=C?", key)
	}
	return value
}

func (p *controlParser) number(key string, bits int) uint64 {
	n, err := strconv.ParseUint(p.text(key), 10, bits)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("pg_controldata, %q: %w", key, err)
	}
	return n
}

func (p *controlParser) lsn(key string) uint64 {
	text := p.text(key)
	high, low, ok := strings.Cut(text, "/")
	h, errHigh := strconv.ParseUint(high, 16, 32)
	l, errLow := strconv.ParseUint(low, 16, 32)
	if (!ok || errHigh != nil || errLow != nil) && p.err == nil {
		p.err = fmt.Errorf("pg_controldata, %q: %q is no WAL position", key, text)
	}
	return h<<32 | l
}
