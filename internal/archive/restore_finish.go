package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// finish does what has to come after all files: links of tablespaces, syncing, and pg_control at the very end.
func (r *restore) finish(ctx context.Context) error {
	for name := range leftOut {
		if err := r.roots[0].Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := r.linkTablespaces(); err != nil {
		return err
	}
	for _, root := range r.roots {
		if err := r.sync(ctx, root.Name()); err != nil {
			return err
		}
	}
	if err := r.roots[0].Rename(controlFile+heldBack, controlFile); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(r.o.Dir, filepath.Dir(controlFile)), r.o.Dir, filepath.Dir(r.o.Dir)} {
		if err := syncFile(dir); err != nil {
			return err
		}
	}
	return nil
}

// linkTablespaces says where the tablespaces are now: in tablespace_map, by which PostgreSQL makes the links when recovery begins, and by
// links as well, for programs that look before that.
func (r *restore) linkTablespaces() error {
	if len(r.o.Backup.Tablespaces) == 0 {
		return nil
	}
	var lines strings.Builder
	for _, t := range r.o.Backup.Tablespaces {
		dir := r.o.Tablespaces[t.OID]
		fmt.Fprintf(&lines, "%d %s\n", t.OID, escapeTablespacePath(dir))
		link := filepath.Join(r.o.Dir, tablespaceDir, fmt.Sprint(t.OID))
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(dir, link); err != nil {
			return err
		}
	}
	f, err := r.roots[0].OpenFile(tablespaceMap, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(lines.String())
	return errors.Join(err, f.Close())
}

// escapeTablespacePath writes a path as tablespace_map has it: the characters that could end it have a backslash before them.
func escapeTablespacePath(dir string) string {
	return strings.NewReplacer("\\", "\\\\", "\n", "\\\n", "\r", "\\\r").Replace(dir)
}

// startWriting lets the kernel begin to write a file, so that there is less to wait for in sync. It promises nothing, so neither do its errors.
func startWriting(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

// syncers is how many files are synced at the same time: file systems put several into one write of their journal.
const syncers = 8

// sync brings all files and directories below dir to the disk. PostgreSQL relies on that for what WAL does not rewrite.
func (r *restore) sync(ctx context.Context, dir string) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	paths := make(chan string)
	var wg sync.WaitGroup
	for range syncers {
		wg.Go(func() {
			for p := range paths {
				if err := syncFile(p); err != nil {
					fail(err)
				}
			}
		})
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		select {
		case paths <- p:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(paths)
	wg.Wait()
	if err != nil {
		return err
	}
	return context.Cause(ctx)
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
