package archive

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names in a fileStore that are no objects begin with a dot.
const (
	temporaryDir = ".tmp"
	lockName     = ".lock"
	metaSuffix   = ".meta"
)

// fileStore is a Store in a directory of a volume, that may be shared by several nodes.
//
// An object is written to a temporary file, forced to disk, and linked to its name, which the file system refuses when the name is
// taken: gocloud.dev's fileblob does neither (it asks whether the name is free and then renames, and forces nothing to disk).
// Metadata is in a file beside it, .<name>.meta, which is there before the object is; a lock on the directory keeps two writers of one
// name from mixing theirs.
type fileStore struct {
	// root stays open, so that a volume that is unmounted and mounted elsewhere never looks empty.
	root *os.Root
	path string

	mu sync.Mutex
	// durable are directories whose own entries are known to be on disk.
	durable map[string]bool
}

var _ Store = (*fileStore)(nil)

func openFiles(dir string) (*fileStore, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("%s: %w", dir, errNoDirectory)
	}
	if err != nil {
		return nil, err
	}
	s := &fileStore{root: root, path: dir, durable: map[string]bool{".": true}}
	s.sweep()
	return s, nil
}

// sweep removes temporary files of writers that were killed. A living one holds a lock on its file.
func (s *fileStore) sweep() {
	entries, err := fs.ReadDir(s.root.FS(), temporaryDir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := path.Join(temporaryDir, entry.Name())
		f, err := s.root.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = s.root.Remove(name)
		}
		_ = f.Close()
	}
}

// Create implements Store.
func (s *fileStore) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	if err := s.create(ctx, key, r, metadata); err != nil {
		return fmt.Errorf("create %s in %s: %w", key, s.path, err)
	}
	return nil
}

func (s *fileStore) create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	// A name that is taken needs no write; whether it is still free at the end is asked again.
	if _, err := s.root.Lstat(key); err == nil {
		return ErrExists
	}
	if err := s.makeDirs(temporaryDir); err != nil {
		return err
	}
	if err := s.makeDirs(path.Dir(key)); err != nil {
		return err
	}
	object, err := s.temporary(&contextReader{ctx, r})
	if err != nil {
		return err
	}
	defer s.discard(object)
	var meta *os.File
	if len(metadata) > 0 {
		encoded, err := json.Marshal(metadata)
		if err != nil {
			return err
		}
		if meta, err = s.temporary(strings.NewReader(string(encoded) + "\n")); err != nil {
			return err
		}
		defer s.discard(meta)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.publish(key, object, meta)
}

// temporary writes r to a file without a place yet and forces it to disk.
func (s *fileStore) temporary(r io.Reader) (*os.File, error) {
	f, err := s.root.OpenFile(path.Join(temporaryDir, rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
		if _, err = io.Copy(f, r); err == nil {
			err = f.Sync()
		}
	}
	if err != nil {
		s.discard(f)
		return nil, err
	}
	return f, nil
}

func (s *fileStore) discard(f *os.File) {
	_ = s.root.Remove(temporaryName(f))
	_ = f.Close()
}

func temporaryName(f *os.File) string { return path.Join(temporaryDir, path.Base(f.Name())) }

// publish gives an object and its metadata their names and forces these to disk.
func (s *fileStore) publish(key string, object, meta *os.File) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.root.Lstat(key); err == nil {
		return ErrExists
	}
	// What is there without an object is of a writer that was killed here.
	if meta != nil {
		err = s.root.Rename(temporaryName(meta), metaName(key))
	} else if err = s.root.Remove(metaName(key)); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	if err := s.link(object, key); err != nil {
		return err
	}
	return s.syncDir(path.Dir(key))
}

// link gives a file its name unless that is taken.
func (s *fileStore) link(f *os.File, key string) error {
	err := s.root.Link(temporaryName(f), key)
	switch {
	case errors.Is(err, fs.ErrExist):
		// An NFS server may have done what an answer that got lost told: two names of our file say so.
		if own, statErr := f.Stat(); statErr == nil && own.Sys().(*syscall.Stat_t).Nlink > 1 {
			return nil
		}
		return ErrExists
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EMLINK):
		// No hard links, as on SMB shares.
		return s.renameIfFree(f, key)
	}
	return err
}

func (s *fileStore) renameIfFree(f *os.File, key string) error {
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // It was only read.
	fd := int(dir.Fd())
	err = unix.Renameat2(fd, temporaryName(f), fd, key, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, fs.ErrExist):
		return ErrExists
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		return fmt.Errorf("%w: the volume has neither hard links nor an exclusive rename", ErrNoConditions)
	}
	return err
}

// lock keeps other writers of this directory away, on this and on other nodes.
func (s *fileStore) lock() (unlock func(), err error) {
	f, err := s.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// makeDirs makes a directory and those above it, and forces their names to disk: an object is no more durable than the path to it.
func (s *fileStore) makeDirs(dir string) error {
	s.mu.Lock()
	known := s.durable[dir]
	s.mu.Unlock()
	if known {
		return nil
	}
	if err := s.makeDirs(path.Dir(dir)); err != nil {
		return err
	}
	if err := s.root.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.syncDir(path.Dir(dir)); err != nil {
		return err
	}
	s.mu.Lock()
	s.durable[dir] = true
	s.mu.Unlock()
	return nil
}

func (s *fileStore) syncDir(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read implements Store.
func (s *fileStore) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	if _, err := s.stat(ctx, key); err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", key, s.path, err)
	}
	f, err := s.root.Open(key)
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", key, s.path, missing(err))
	}
	return f, nil
}

// Stat implements Store.
func (s *fileStore) Stat(ctx context.Context, key string) (Object, error) {
	info, err := s.stat(ctx, key)
	if err != nil {
		return Object{}, fmt.Errorf("stat %s in %s: %w", key, s.path, err)
	}
	o := Object{Key: key, Size: info.Size(), Modified: info.ModTime()}
	encoded, err := s.root.ReadFile(metaName(key))
	if err == nil {
		err = json.Unmarshal(encoded, &o.Metadata)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return Object{}, fmt.Errorf("read the metadata of %s in %s: %w", key, s.path, err)
	}
	return o, nil
}

func (s *fileStore) stat(ctx context.Context, key string) (fs.FileInfo, error) {
	if err := errors.Join(ctx.Err(), checkKey(key)); err != nil {
		return nil, err
	}
	info, err := s.root.Lstat(key)
	if err != nil {
		return nil, missing(err)
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNotFound
	}
	return info, nil
}

// missing is ErrNotFound for what is not there, and err for all else.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return ErrNotFound
	}
	return err
}

// List implements Store.
func (s *fileStore) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) { s.walk(ctx, path.Dir(prefix+"x"), prefix, yield) }
}

// walk yields what is below dir and begins with prefix, and tells whether to go on.
func (s *fileStore) walk(ctx context.Context, dir, prefix string, yield func(Object, error) bool) bool {
	failed := func(err error) bool {
		yield(Object{}, fmt.Errorf("list %s in %s: %w", prefix, s.path, err))
		return false
	}
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	entries, err := fs.ReadDir(s.root.FS(), dir)
	if err != nil {
		if missing(err) == ErrNotFound { //nolint:errorlint // It returns exactly this.
			return true
		}
		return failed(err)
	}
	// A directory's name takes part in the order of keys with the "/" behind it.
	inKeys := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(inKeys(a), inKeys(b)) })
	for _, entry := range entries {
		key := path.Join(dir, inKeys(entry))
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if entry.IsDir() {
			if key += "/"; strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, key) {
				if !s.walk(ctx, path.Clean(key), prefix, yield) {
					return false
				}
			}
			continue
		}
		if !entry.Type().IsRegular() || !strings.HasPrefix(key, prefix) {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // Deleted in the meantime.
		}
		if err != nil {
			return failed(err)
		}
		if !yield(Object{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil) {
			return false
		}
	}
	return true
}

// Delete implements Store. It is durable when it returns, so that what is deleted first is gone first after a crash too.
func (s *fileStore) Delete(ctx context.Context, key string) error {
	err := errors.Join(ctx.Err(), checkKey(key))
	if err == nil {
		err = s.remove(key)
	}
	if err != nil {
		return fmt.Errorf("delete %s in %s: %w", key, s.path, err)
	}
	return nil
}

func (s *fileStore) remove(key string) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if info, err := s.root.Lstat(key); err == nil && !info.Mode().IsRegular() {
		return nil // A directory is no object.
	}
	for _, name := range []string{key, metaName(key)} {
		if err := s.root.Remove(name); err != nil && missing(err) != ErrNotFound { //nolint:errorlint // It returns exactly this.
			return err
		}
	}
	if err := s.syncDir(path.Dir(key)); missing(err) != ErrNotFound { //nolint:errorlint // It returns exactly this.
		return err
	}
	return nil
}

// Close implements Store.
func (s *fileStore) Close() error { return s.root.Close() }

// checkKey refuses keys that are no plain path.
func checkKey(key string) error {
	if !fs.ValidPath(key) || key == "." {
		return fmt.Errorf("%q is not a key", key)
	}
	for part := range strings.SplitSeq(key, "/") {
		if strings.HasPrefix(part, ".") {
			return fmt.Errorf("%q is not a key: no part of it may begin with a dot", key)
		}
	}
	return nil
}

func metaName(key string) string { return path.Join(path.Dir(key), "."+path.Base(key)+metaSuffix) }

// contextReader ends when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(p)
	if ctxErr := r.ctx.Err(); ctxErr != nil {
		return n, ctxErr
	}
	return n, err
}
