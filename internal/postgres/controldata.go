package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// ControlData is what pg_controldata prints of a stopped or running server's pg_control.
type ControlData struct {
	SystemIdentifier string
	// State is pg_controldata's words: "shut down", "in production", "in archive recovery", …
	State string
	// Timeline, CheckpointLSN and RedoLSN are of the latest checkpoint (on a standby: restartpoint) record.
	Timeline      uint32
	PrevTimeline  uint32
	CheckpointLSN LSN
	RedoLSN       LSN
	// RedoWALFile is the WAL segment that recovery begins with.
	RedoWALFile string
	// MinRecoveryEnd is how far a standby has to replay before its files are consistent; zero on a server that was a primary.
	MinRecoveryEnd         LSN
	MinRecoveryEndTimeline uint32
	// BackupStart, BackupEnd and EndOfBackupRequired: the files are of a base backup whose end was not replayed yet.
	BackupStart         LSN
	BackupEnd           LSN
	EndOfBackupRequired bool
	// Settings of StandbyMustMatch as the primary had them.
	Settings        map[string]int
	WALLevel        string
	WALLogHints     bool
	WALSegmentBytes int64
	WALBlockBytes   int64
	// DataChecksums says that data pages carry checksums.
	DataChecksums bool
	// ControlVersion and CatalogVersion are of the programs that made the files.
	ControlVersion int
	CatalogVersion int
}

// Values of ControlData.State that decide something.
const (
	StateShutDown           = "shut down"
	StateShutDownInRecovery = "shut down in recovery"
	StateInProduction       = "in production"
	StateInRecovery         = "in archive recovery"
)

// ParseControlData reads the output of pg_controldata, standard error included, which has to be run with LC_ALL=C. It is an error when what decides is missing
// or when the control file's checksum is wrong.
func ParseControlData(out string) (ControlData, error) {
	if strings.Contains(out, "CRC checksum does not match") {
		return ControlData{}, fmt.Errorf("the control file is damaged: its checksum does not match its content")
	}
	p := controlParser{fields: map[string]string{}}
	for line := range strings.SplitSeq(out, "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok {
			p.fields[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	c := ControlData{
		SystemIdentifier:       p.text("Database system identifier"),
		State:                  p.text("Database cluster state"),
		Timeline:               uint32(p.number("Latest checkpoint's TimeLineID")),
		PrevTimeline:           uint32(p.number("Latest checkpoint's PrevTimeLineID")),
		CheckpointLSN:          p.lsn("Latest checkpoint location"),
		RedoLSN:                p.lsn("Latest checkpoint's REDO location"),
		RedoWALFile:            p.text("Latest checkpoint's REDO WAL file"),
		MinRecoveryEnd:         p.lsn("Minimum recovery ending location"),
		MinRecoveryEndTimeline: uint32(p.number("Min recovery ending loc's timeline")),
		BackupStart:            p.lsn("Backup start location"),
		BackupEnd:              p.lsn("Backup end location"),
		EndOfBackupRequired:    p.text("End-of-backup record required") == "yes",
		WALLevel:               p.text("wal_level setting"),
		WALLogHints:            p.text("wal_log_hints setting") == "on",
		WALSegmentBytes:        p.number("Bytes per WAL segment"),
		WALBlockBytes:          p.number("WAL block size"),
		DataChecksums:          p.number("Data page checksum version") != 0,
		ControlVersion:         int(p.number("pg_control version number")),
		CatalogVersion:         int(p.number("Catalog version number")),
		Settings: map[string]int{
			"max_connections":           int(p.number("max_connections setting")),
			"max_worker_processes":      int(p.number("max_worker_processes setting")),
			"max_wal_senders":           int(p.number("max_wal_senders setting")),
			"max_prepared_transactions": int(p.number("max_prepared_xacts setting")),
			"max_locks_per_transaction": int(p.number("max_locks_per_xact setting")),
		},
	}
	return c, p.err
}

// controlParser remembers the first field that is missing or unreadable.
type controlParser struct {
	fields map[string]string
	err    error
}

func (p *controlParser) text(key string) string {
	v, ok := p.fields[key]
	if !ok && p.err == nil {
		p.err = fmt.Errorf("pg_controldata printed no %q: run it with LC_ALL=C and with the programs of the data's own major version", key)
	}
	return v
}

func (p *controlParser) number(key string) int64 {
	n, err := strconv.ParseInt(p.text(key), 10, 64)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("pg_controldata: %s: %w", key, err)
	}
	return n
}

func (p *controlParser) lsn(key string) LSN {
	l, err := ParseLSN(p.text(key))
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("pg_controldata: %s: %w", key, err)
	}
	return l
}

// CleanShutdown says that a primary was shut down in order: its WAL ends with the record at CheckpointLSN.
func (c ControlData) CleanShutdown() bool { return c.State == StateShutDown }

// WasStandby says that the server ran in recovery when it last wrote its control file.
func (c ControlData) WasStandby() bool {
	return c.State == StateShutDownInRecovery || c.State == StateInRecovery
}
