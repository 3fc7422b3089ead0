package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/archive"
	"github.com/kumki-dev/kumki/internal/postgres"
	"github.com/kumki-dev/kumki/internal/version"
)

// server is the local PostgreSQL.
type server struct {
	socketDir, user string
	port            int
}

func (s server) dsn() string {
	return fmt.Sprintf("host='%s' port=%d user='%s' dbname=postgres application_name=kumki_backup", s.socketDir, s.port, s.user)
}

func (c *common) backupCommand() *cobra.Command {
	var from server
	o := archive.TakeOptions{ToolVersion: version.Version, Now: time.Now}
	var patience time.Duration
	cmd := &cobra.Command{
		Use: "backup", Short: "Take a base backup of the local PostgreSQL, primary or standby", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				o.Store, o.ClusterDir, o.Codec, o.Cluster, o.DSN = s.store, s.keys.Dir(), s.codec, s.cfg.Cluster, from.dsn()
				o.SystemIdentifier = fmt.Sprint(s.keys.SystemIdentifier)
				o.Progress = progress(out)
				o.AwaitWAL = func(ctx context.Context, timeline uint32, start, stop postgres.LSN) error {
					return awaitWAL(ctx, s.wal(), from, walRange{timeline, start, stop, patience})
				}
				b, err := archive.TakeBackup(ctx, o)
				if err != nil {
					return err
				}
				return say(out, map[string]any{"backup": b})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from.socketDir, "socket-dir", "/kumki/run", "directory of PostgreSQL's unix socket")
	f.IntVar(&from.port, "port", 5432, "port of PostgreSQL")
	f.StringVar(&from.user, "user", "postgres", "role to connect as; it needs REPLICATION")
	f.StringVar(&o.ID, "id", "", "name of the backup; empty: from the time")
	f.StringVar(&o.Instance, "instance", "", "name of the instance, noted in the backup")
	f.BoolVar(&o.Spread, "spread", false, "let the checkpoint at the start take its time")
	f.IntVar(&o.MaxRate, "max-rate", 0, "limit of reading in kB/s; 0: none")
	f.DurationVar(&patience, "wal-timeout", 20*time.Minute, "how long to wait for the WAL of the backup to be archived")
	return cmd
}

// progress prints how far it is, at most once a second.
func progress(out io.Writer) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		if time.Since(last) < time.Second && done != total {
			return
		}
		last = time.Now()
		_ = say(out, map[string]int64{"done": done, "total": total})
	}
}

// walRange is WAL that a backup needs, and how long it may take to be archived.
type walRange struct {
	timeline    uint32
	start, stop postgres.LSN
	patience    time.Duration
}

// awaitWAL returns when all segments of the range are in the archive. A primary is asked to switch to a new segment, since only whole ones
// are archived; a standby cannot be, and its primary does so after archive_timeout.
func awaitWAL(ctx context.Context, wal *archive.WALArchive, from server, r walRange) error {
	conn, err := pgconn.Connect(ctx, from.dsn())
	if err != nil {
		return fmt.Errorf("ask for a new segment: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	size, err := switchWAL(ctx, conn)
	if err != nil {
		return fmt.Errorf("ask for a new segment: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.patience, fmt.Errorf("it was not archived within %s: see why archive_command fails, in PostgreSQL's log", r.patience))
	defer cancel()
	for n := archive.SegmentNumber(r.start, size); n <= archive.SegmentNumber(r.stop-1, size); n++ {
		name := archive.SegmentName(r.timeline, n, size)
		for {
			_, err := wal.Written(ctx, name)
			if err == nil {
				break
			}
			if !errors.Is(err, archive.ErrNotFound) {
				return fmt.Errorf("wait for segment %s: %w", name, err)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for segment %s: %w", name, context.Cause(ctx))
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return nil
}

// switchWAL begins a new segment if this is a primary, and returns the size of segments in bytes.
func switchWAL(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	results, err := conn.Exec(ctx, `
SELECT pg_size_bytes(current_setting('wal_segment_size')), CASE WHEN NOT pg_is_in_recovery() THEN pg_switch_wal() END`).ReadAll()
	if err != nil {
		return 0, err
	}
	var size int64
	_, err = fmt.Sscan(string(results[0].Rows[0][0]), &size)
	if err == nil && !archive.ValidSegmentSize(size) {
		err = fmt.Errorf("wal_segment_size is %d", size)
	}
	return size, err
}
