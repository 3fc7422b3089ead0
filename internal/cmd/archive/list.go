package archive

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/archive"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// listing is what the archive has, as list prints it.
type listing struct {
	Folder string `json:"folder"`
	// Backups that can be restored, the oldest first; the names of those that are not whole, and of those whose WAL is not.
	Backups    []archive.Backup `json:"backups"`
	Unfinished []string         `json:"unfinished,omitempty"`
	Damaged    []string         `json:"damaged,omitempty"`
	Broken     []string         `json:"broken,omitempty"`
	// Windows are the stretches in which every point can be restored.
	Windows []window `json:"windows"`
	// Missing is WAL that is not there although later WAL is.
	Missing []missing `json:"missing,omitempty"`
}

type window struct {
	FromTime   time.Time    `json:"fromTime"`
	From       postgres.LSN `json:"from"`
	ToTime     time.Time    `json:"toTime"`
	To         postgres.LSN `json:"to"`
	ToTimeline uint32       `json:"toTimeline"`
}

type missing struct {
	First string `json:"first"`
	Last  string `json:"last"`
}

func (c *common) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Tell what backups there are and what can be restored", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				catalogue, wal, err := s.read(ctx)
				if err != nil {
					return err
				}
				return say(out, s.list(catalogue, wal))
			})
		},
	}
}

// read lists backups and WAL.
func (s *session) read(ctx context.Context) (*archive.Catalogue, *archive.WALCatalog, error) {
	catalogue, err := archive.ListBackups(ctx, s.store, s.keys.Dir())
	if err != nil {
		return nil, nil, err
	}
	wal, err := s.wal().ReadCatalog(ctx)
	return catalogue, wal, err
}

func refs(c *archive.Catalogue) []archive.BackupRef {
	var all []archive.BackupRef
	for i := range c.Backups {
		all = append(all, c.Backups[i].Ref())
	}
	return all
}

func (s *session) list(c *archive.Catalogue, wal *archive.WALCatalog) listing {
	l := listing{Folder: s.keys.Dir(), Backups: c.Backups}
	for _, u := range c.Garbage {
		l.Unfinished = append(l.Unfinished, u.ID)
	}
	for _, d := range c.Damaged {
		l.Damaged = append(l.Damaged, d.ID)
	}
	w := wal.RecoveryWindow(refs(c), 0)
	l.Broken = w.Broken
	for _, r := range w.Ranges {
		l.Windows = append(l.Windows, window{r.FromTime, r.From, r.ToTime, r.To, r.ToTimeline})
	}
	for _, g := range w.Gaps {
		l.Missing = append(l.Missing, missing{g.First.String(), g.Last.String()})
	}
	return l
}

func (c *common) pruneCommand() *cobra.Command {
	var policy archive.Policy
	var dryRun bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove backups and WAL that are not needed any more", Args: cobra.NoArgs,
		Long: "prune removes backups beyond --keep and --count and the WAL that no remaining backup needs. The newest backup always stays.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if policy.Keep <= 0 && policy.Count <= 0 {
				return errors.New("give --keep or --count: without a rule nothing would go")
			}
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				catalogue, wal, err := s.read(ctx)
				if err != nil {
					return err
				}
				known := refs(catalogue)
				for _, d := range catalogue.Damaged { // what WAL it needs is not known: all of it stays
					known = append(known, archive.BackupRef{ID: d.ID, Pinned: true})
				}
				plan := wal.PlanRetention(known, catalogue.Garbage, policy, 0, time.Now())
				gone, err := s.wal().Prune(ctx, plan, dryRun)
				return errors.Join(say(out, map[string]any{"dryRun": dryRun, "kept": plan.Kept, "removed": gone}), err)
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&policy.Keep, "keep", 0, "how far back every point has to be restorable, for example 168h")
	f.IntVar(&policy.Count, "count", 0, "how many backups to keep")
	f.BoolVar(&dryRun, "dry-run", false, "only tell what would go")
	return cmd
}
