package pgproc

import (
	"context"
	"time"
)

// Source is the server to copy from.
type Source struct {
	Host string
	Port int
	User string
	// Database is used by pg_rewind; "postgres" if empty.
	Database string
	// SSLMode, and the files of the client certificate. Everything is empty in a test without TLS (SSLMode "disable").
	SSLMode, SSLCert, SSLKey, SSLRootCert string
	ApplicationName                       string
	// ConnectTimeout of one attempt; 10s if zero.
	ConnectTimeout time.Duration
}

// Progress of a copy, in bytes; Total is the server's estimate and may be 0 or too low.
type Progress struct{ Done, Total int64 }

// BaseBackupOptions of a base backup into a new generation.
type BaseBackupOptions struct {
	Source Source
	// Slot that keeps the WAL until the clone streams by itself; it must exist. Empty: a temporary one.
	Slot string
	// MaxRate in kB/s; 0: no limit.
	MaxRate int
	// OnProgress may be nil. It is called about once a second.
	OnProgress func(Progress)
}

// BaseBackup copies the source into g (which Volume.Begin made) with the WAL that makes it consistent, checks it against the
// server's manifest, and flushes it to disk. The caller flips to g afterwards; a failed copy is removed by Volume.RemoveOld.
func (p *Programs) BaseBackup(ctx context.Context, g Generation, o BaseBackupOptions) error {
	return errUnfinished
}

// RewindOptions of a rewind.
type RewindOptions struct {
	Source Source
	// SourceTimeline is what the source leads on. A target on that timeline is refused (ErrSameTimeline): it needs no rewind, and a
	// wrong one would end its recovery.
	SourceTimeline uint32
	// RestoreTargetWAL lets pg_rewind fetch missing WAL of the target by its restore_command.
	RestoreTargetWAL bool
	OnProgress       func(Progress)
}

// RewindResult says what was done.
type RewindResult struct {
	// Rewound: the target had diverged. False: it was a plain ancestor of the source.
	Rewound bool
	// DivergedAt is the LSN of the fork on timeline DivergedTimeline.
	DivergedAt       uint64
	DivergedTimeline uint32
}

// Rewind makes the stopped data directory g a copy of the source again by pg_rewind, after crash recovery where needed. g is marked
// incomplete before the first change and unmarked after the last: a rewind that was cut off leads to a new clone, never to a start.
// The source must have made a checkpoint on its timeline. Configuration files in g are overwritten by the source's.
// The caller writes configuration and standby.signal afterwards. Nothing is changed when the common ancestor cannot be found.
func (p *Programs) Rewind(ctx context.Context, v *Volume, g Generation, o RewindOptions) (RewindResult, error) {
	return RewindResult{}, errUnfinished
}
