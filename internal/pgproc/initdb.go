package pgproc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// InitDBOptions are the settings of a new database cluster.
type InitDBOptions struct {
	Superuser     string // name of the bootstrap role
	Encoding      string // for example "UTF8"
	Locale        string // for example "C.UTF-8"
	DataChecksums bool
	WALSegmentMB  int // size of WAL segments in MB, a power of two; 0 is PostgreSQL's default of 16
}

// InitDB makes a new database cluster in g, which Volume.Begin made, and flushes it to disk. It refuses (ErrNotEmpty) when g is
// not empty or when another generation of the volume holds data: a database is made once. The caller flips to g afterwards.
func (p *Programs) InitDB(ctx context.Context, g Generation, o InitDBOptions) error {
	if err := refuseSiblings(g); err != nil {
		return err
	}
	if err := refuseContent(g); err != nil {
		return err
	}
	// Only the local superuser may connect until pg_hba.conf is written.
	args := []string{"--pgdata", g.Dir, "--username", o.Superuser, "--encoding", o.Encoding, "--auth-local", "peer", "--auth-host", "reject"}
	if o.Locale != "" {
		args = append(args, "--locale", o.Locale)
	}
	if o.DataChecksums {
		args = append(args, "--data-checksums")
	} else if p.Bin.Major >= 18 {
		args = append(args, "--no-data-checksums")
	}
	if o.WALSegmentMB > 0 {
		args = append(args, "--wal-segsize", strconv.Itoa(o.WALSegmentMB))
	}
	if g.WALDir != "" {
		args = append(args, "--waldir", g.WALDir)
	}
	_, err := p.run(p.command(ctx, "initdb", args...), nil)
	return err
}

// refuseSiblings refuses when another generation beside g was ever complete.
func refuseSiblings(g Generation) error {
	root := filepath.Dir(g.Dir)
	if _, err := os.Lstat(filepath.Join(root, "PG_VERSION")); err == nil {
		return fmt.Errorf("%w: %s is a data directory itself", ErrNotEmpty, root)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return plain(err)
	}
	for _, e := range entries {
		if _, ok := generationNumber(e.Name()); !ok || e.Name() == filepath.Base(g.Dir) {
			continue
		}
		sibling := filepath.Join(root, e.Name())
		if _, err := os.Lstat(filepath.Join(sibling, "PG_VERSION")); err != nil {
			continue
		}
		mark, err := os.ReadFile(sibling + markSuffix)
		if err != nil || strings.TrimSpace(string(mark)) == reasonRewind {
			return fmt.Errorf("%w: %s holds a database", ErrNotEmpty, sibling)
		}
	}
	return nil
}

// refuseContent refuses when a directory of g holds anything.
func refuseContent(g Generation) error {
	for _, dir := range []string{g.Dir, g.WALDir} {
		if dir == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return plain(err)
		}
		if len(entries) > 0 {
			return fmt.Errorf("%w: %s", ErrNotEmpty, dir)
		}
	}
	return nil
}
