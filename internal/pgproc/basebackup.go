package pgproc

import (
	"context"
	"fmt"
	"strconv"
)

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
// server's manifest (that every file is there with its size, and that the WAL can be read), and flushes it to disk.
// The caller flips to g afterwards; a failed copy is removed by Volume.RemoveOld.
func (p *Programs) BaseBackup(ctx context.Context, g Generation, o BaseBackupOptions) error {
	if err := refuseContent(g); err != nil {
		return err
	}
	info, err := o.Source.connInfo("")
	if err != nil {
		return err
	}
	args := []string{"--dbname", info, "--pgdata", g.Dir, "--wal-method", "stream", "--checkpoint", "fast", "--no-password", "--progress"}
	if o.Slot != "" {
		args = append(args, "--slot", o.Slot)
	}
	if o.MaxRate > 0 {
		args = append(args, "--max-rate", strconv.Itoa(o.MaxRate))
	}
	if g.WALDir != "" {
		args = append(args, "--waldir", g.WALDir)
	}
	progress := func(line string) bool { return progressLine(line, o.OnProgress) }
	if _, err := p.run(p.command(ctx, "pg_basebackup", args...), progress); err != nil {
		return fmt.Errorf("base backup from %s:%d: %w", o.Source.Host, o.Source.Port, err)
	}
	// The checksums of all files would read the copy a second time; pg_basebackup has them from the same stream.
	if _, err := p.run(p.command(ctx, "pg_verifybackup", "--skip-checksums", "--quiet", g.Dir), nil); err != nil {
		return fmt.Errorf("the copy from %s:%d does not match the server's manifest: %w", o.Source.Host, o.Source.Port, err)
	}
	return nil
}
