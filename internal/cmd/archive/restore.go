package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/archive"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// target is how far WAL is replayed. At most one of the first five is set; none: to its end.
type target struct {
	time, lsn, xid, name string
	immediate            bool
	// exclusive stops before the target instead of after it.
	exclusive bool
	timeline  string
	// action is recovery_target_action.
	action string
}

// settings are PostgreSQL's for the target.
// https://www.postgresql.org/docs/current/runtime-config-wal.html#RUNTIME-CONFIG-WAL-RECOVERY-TARGET
func (t *target) settings() (map[string]string, error) {
	s := map[string]string{"recovery_target_timeline": t.timeline}
	for name, value := range map[string]string{"time": t.time, "lsn": t.lsn, "xid": t.xid, "name": t.name} {
		if value != "" {
			s["recovery_target_"+name] = value
		}
	}
	if t.immediate {
		s["recovery_target"] = "immediate"
	}
	switch {
	case len(s) > 2:
		return nil, errors.New("give only one of --target-time, --target-lsn, --target-xid, --target-name and --target-immediate")
	case len(s) == 1:
		return s, nil
	}
	if t.time != "" {
		at, err := time.Parse(time.RFC3339Nano, t.time)
		if err != nil {
			return nil, fmt.Errorf("--target-time %q: write it like 2026-01-02T15:04:05.678Z", t.time)
		}
		// PostgreSQL takes no name of a time zone here, and Z is one.
		s["recovery_target_time"] = at.UTC().Format("2006-01-02 15:04:05.999999") + "+00"
	}
	if t.lsn != "" {
		if _, err := postgres.ParseLSN(t.lsn); err != nil {
			return nil, fmt.Errorf("--target-lsn %q: write it like 16/B374D848", t.lsn)
		}
	}
	if t.exclusive && !t.immediate && t.name == "" {
		s["recovery_target_inclusive"] = "off"
	}
	s["recovery_target_action"] = t.action
	return s, nil
}

func (c *common) restoreCommand() *cobra.Command {
	var backup, dir, command string
	var tablespaces map[string]string
	t := target{}
	o := archive.RestoreOptions{}
	cmd := &cobra.Command{
		Use: "restore", Short: "Put a base backup into an empty directory, ready for the replay of WAL", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := t.settings()
			if err != nil {
				return err
			}
			settings["restore_command"] = command
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				o.Store, o.ClusterDir, o.Codec, o.Dir, o.Progress = s.store, s.keys.Dir(), s.codec, dir, progress(out)
				if o.Backup, err = s.choose(ctx, backup, &t); err != nil {
					return err
				}
				if o.Tablespaces, err = locations(tablespaces); err != nil {
					return err
				}
				if err := archive.Restore(ctx, o); err != nil {
					return err
				}
				if err := prepare(dir, settings); err != nil {
					return err
				}
				return say(out, map[string]any{"restored": o.Backup.ID, "dir": dir})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&backup, "backup", "", "name of the backup; empty: the newest one that ends before the target")
	f.StringVar(&dir, "dir", "", "empty directory that becomes the data directory (required)")
	f.StringVar(&command, "restore-command", "", "restore_command, for example kumki-wal fetch SOCKET %f %p (required)")
	f.StringToStringVar(&tablespaces, "tablespace", nil, "OID=DIRECTORY of each tablespace")
	f.IntVar(&o.Parallel, "parallel", 0, "how many parts are read at the same time; 0: one a processor")
	f.StringVar(&t.time, "target-time", "", "replay up to this time (RFC 3339)")
	f.StringVar(&t.lsn, "target-lsn", "", "replay up to this position of WAL")
	f.StringVar(&t.xid, "target-xid", "", "replay up to this transaction")
	f.StringVar(&t.name, "target-name", "", "replay up to this named point (pg_create_restore_point)")
	f.BoolVar(&t.immediate, "target-immediate", false, "replay only until the data is consistent")
	f.BoolVar(&t.exclusive, "target-exclusive", false, "stop before the target instead of after it")
	f.StringVar(&t.timeline, "target-timeline", "latest", "timeline to follow: latest, current or a number")
	f.StringVar(&t.action, "target-action", "promote", "what then: promote, pause or shutdown")
	_ = cmd.MarkFlagRequired("dir")
	_ = cmd.MarkFlagRequired("restore-command")
	return cmd
}

// choose finds the backup to begin with.
func (s *session) choose(ctx context.Context, id string, t *target) (*archive.Backup, error) {
	if id != "" {
		return archive.ReadBackup(ctx, s.store, s.keys.Dir(), id)
	}
	catalogue, err := archive.ListBackups(ctx, s.store, s.keys.Dir())
	if err != nil {
		return nil, err
	}
	for i := len(catalogue.Backups) - 1; i >= 0; i-- {
		if b := &catalogue.Backups[i]; t.after(b) {
			return b, nil
		}
	}
	if len(catalogue.Backups) == 0 {
		return nil, fmt.Errorf("there is no backup in %s", s.keys.Dir())
	}
	first := &catalogue.Backups[0]
	return nil, fmt.Errorf("the target lies before the end of the first backup, %s: nothing before %s (%s) can be restored",
		first.ID, first.StoppedAt.Format(time.RFC3339), first.StopLSN)
}

// after says that the backup ends before the target, so that the target can be reached from it. Where a transaction or a name lies is not
// known: a backup has to be named for them, unless the newest one will do.
func (t *target) after(b *archive.Backup) bool {
	switch {
	case t.time != "":
		at, err := time.Parse(time.RFC3339Nano, t.time)
		return err == nil && b.StoppedAt.Before(at)
	case t.lsn != "":
		at, err := postgres.ParseLSN(t.lsn)
		return err == nil && b.StopLSN <= at
	}
	return true
}

func locations(flags map[string]string) (map[uint32]string, error) {
	all := map[uint32]string{}
	for oid, dir := range flags {
		n, err := strconv.ParseUint(oid, 10, 32)
		if err != nil || !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("--tablespace %s=%s: write it like 16385=/absolute/directory", oid, dir)
		}
		all[uint32(n)] = dir
	}
	return all, nil
}

// prepare makes the restored directory recover from the archive at its next start.
// https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-PITR-RECOVERY
func prepare(dir string, settings map[string]string) error {
	text, err := postgres.RenderConf(settings)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{"postgresql.auto.conf": text, "recovery.signal": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.TrimLeft(content, "\n")), 0o600); err != nil {
			return err
		}
	}
	return nil
}
