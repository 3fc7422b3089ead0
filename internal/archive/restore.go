package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"

	"filippo.io/age"
)

// RestoreOptions say what to restore and where to.
type RestoreOptions struct {
	// Store and the cluster's directory in it.
	Store      Store
	ClusterDir string
	// Backup as ReadBackup returned it.
	Backup *Backup
	// Codec has the identities, if the backup is encrypted.
	Codec Codec
	// Dir becomes the data directory. It has to be there and to be empty.
	Dir string
	// Tablespaces says where each tablespace of the backup goes, by OID: absolute paths of empty directories, made if they are missing.
	Tablespaces map[uint32]string
	// Parallel is how many parts are read at the same time. 0: one a processor, at least 2.
	Parallel int
	// Tries of each part while the store fails to give it, with nothing between two but Retry. 0: 3.
	Tries int
	// Retry, if set, is called before a part is read again, for waiting; its error ends the restore.
	Retry func(ctx context.Context, part string, err error) error
	// Progress, if set, is called about every MiB and at the end, with the plain bytes done and their sum; from one goroutine at a time.
	Progress func(done, total int64)
}

// tablespaceDir of a data directory holds a symbolic link for each tablespace, named by its OID.
const tablespaceDir = "pg_tblspc"

// Restore puts the files of a backup into Dir and the tablespaces' directories and compares each with PostgreSQL's manifest. Then Dir has
// a backup_label and needs WAL from the archive; the caller writes recovery.signal and the settings. A standby.signal of the instance that
// was read is left out. Everything is on disk when it returns without an error. After an error Dir has no global/pg_control, without which
// PostgreSQL does not start; the caller removes Dir and the tablespaces' directories.
func Restore(ctx context.Context, o RestoreOptions) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	r, err := openRestore(&o)
	if err != nil {
		return fmt.Errorf("restore of backup %s: %w", o.Backup.ID, err)
	}
	defer r.close()
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("restore of backup %s: %w", o.Backup.ID, err)
	}
	return nil
}

func (o *RestoreOptions) complete() error {
	if o.Store == nil || o.Backup == nil || !filepath.IsAbs(o.Dir) {
		return errors.New("it needs a store, a backup and an absolute data directory")
	}
	if o.Backup.Encrypted && len(o.Codec.Identities) == 0 {
		return errors.New("the backup is encrypted and there is no identity to decrypt it with; name the Secret that has it")
	}
	for _, t := range o.Backup.Tablespaces {
		if !filepath.IsAbs(o.Tablespaces[t.OID]) {
			return fmt.Errorf("the tablespace %d, which was at %s, has no absolute path to be restored to", t.OID, t.Path)
		}
	}
	if o.Parallel == 0 {
		o.Parallel = max(runtime.GOMAXPROCS(0), 2)
	}
	if o.Tries == 0 {
		o.Tries = 3
	}
	return nil
}

// restore is one restore under way.
type restore struct {
	o     *RestoreOptions
	roots map[uint32]*os.Root // 0: the data directory

	mu    sync.Mutex
	files map[string]*restoredFile
	// last is when Progress was called last, in bytes done.
	done, last int64
}

// restoredFile is a file of the manifest.
type restoredFile struct {
	fileSum
	part string // that has it; empty as long as it was not seen
	good bool
}

func openRestore(o *RestoreOptions) (*restore, error) {
	r := &restore{o: o, roots: map[uint32]*os.Root{}, files: map[string]*restoredFile{}}
	dirs := map[uint32]string{0: o.Dir}
	for _, t := range o.Backup.Tablespaces {
		dirs[t.OID] = o.Tablespaces[t.OID]
		if err := os.MkdirAll(dirs[t.OID], 0o700); err != nil {
			return nil, err
		}
	}
	for oid, dir := range dirs {
		if err := r.open(oid, dir); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

// open takes an empty directory that is PostgreSQL's alone.
func (r *restore) open(oid uint32, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: it has %s", dir, entries[0].Name())
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // PostgreSQL asks for this mode
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	r.roots[oid] = root
	return nil
}

func (r *restore) close() {
	for _, root := range r.roots {
		_ = root.Close()
	}
}

func (r *restore) run(ctx context.Context) error {
	if err := r.try(ctx, &r.o.Backup.Manifest, r.manifest); err != nil {
		return err
	}
	if err := r.parts(ctx); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	if err := r.finish(ctx); err != nil {
		return err
	}
	r.progress(0)
	return nil
}

// parts extracts all parts, several at the same time.
func (r *restore) parts(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	parts := make(chan *Part)
	var wg sync.WaitGroup
	for range r.o.Parallel {
		wg.Go(func() {
			for p := range parts {
				if err := r.try(ctx, p, r.extract); err != nil {
					fail(err)
				}
			}
		})
	}
	for i := range r.o.Backup.Parts {
		select {
		case parts <- &r.o.Backup.Parts[i]:
		case <-ctx.Done():
		}
	}
	close(parts)
	wg.Wait()
	return context.Cause(ctx)
}

// try reads an object, again when the store fails. What is wrong with the object itself stays wrong.
func (r *restore) try(ctx context.Context, p *Part, read func(context.Context, *Part, *partReader) error) error {
	for n := 1; ; n++ {
		err := r.once(ctx, p, read)
		var failed *storeError
		if err == nil || ctx.Err() != nil || !errors.As(err, &failed) || errors.Is(err, ErrNotFound) || n == r.o.Tries {
			return canceledOr(ctx, err)
		}
		if r.o.Retry != nil {
			if err := r.o.Retry(ctx, p.Name, err); err != nil {
				return err
			}
		}
	}
}

func (r *restore) once(ctx context.Context, p *Part, read func(context.Context, *Part, *partReader) error) error {
	key := path.Join(BackupDir(r.o.ClusterDir, r.o.Backup.ID), p.Name)
	stored, err := r.o.Store.Read(ctx, key)
	if err != nil {
		return fmt.Errorf("part %s: %w", p.Name, &storeError{err})
	}
	defer func() { _ = stored.Close() }()
	in := &partReader{r: stored, hash: sha256.New()}
	err = read(ctx, p, in)
	damaged := in.verify(p)
	switch {
	case in.err != nil:
		return fmt.Errorf("part %s: %w", p.Name, &storeError{in.err})
	case damaged != nil: // explains whatever else was found, and is the better message
		return &DamagedError{Key: key, Err: damaged}
	case err != nil:
		return fmt.Errorf("part %s: %w", p.Name, err)
	}
	return nil
}

// storeError says that the store failed, not the object.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// partReader reads stored bytes, and counts and hashes them.
type partReader struct {
	r    io.Reader
	hash hash.Hash
	size int64
	err  error // of the store
}

func (p *partReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.size += int64(n)
	p.hash.Write(b[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		p.err = err
	}
	return n, err
}

// verify reads what is left and compares size and checksum.
func (p *partReader) verify(want *Part) error {
	if _, err := io.Copy(io.Discard, p); err != nil {
		return fmt.Errorf("cannot be read to its end: %w", err)
	}
	if p.size != want.Size {
		return fmt.Errorf("it has %d bytes instead of %d", p.size, want.Size)
	}
	if sum := hex.EncodeToString(p.hash.Sum(nil)); sum != want.SHA256 {
		return fmt.Errorf("it has the SHA-256 %s instead of %s", sum, want.SHA256)
	}
	return nil
}

// manifest reads the manifest and puts it into the data directory, where pg_verifybackup looks for it.
func (r *restore) manifest(_ context.Context, _ *Part, in *partReader) error {
	var plain io.Reader = in
	if r.o.Backup.Encrypted {
		var err error
		if plain, err = age.Decrypt(in, r.o.Codec.Identities...); err != nil {
			return fmt.Errorf("decrypt: %w", err)
		}
	}
	f, err := r.roots[0].OpenFile(manifestName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	clear(r.files)
	listed, err := readManifest(io.TeeReader(plain, f), func(name string, sum fileSum) error {
		if r.files[name] != nil {
			return fmt.Errorf("the file %q is there twice", name)
		}
		r.files[name] = &restoredFile{fileSum: sum}
		return nil
	})
	if err == nil && listed.SystemIdentifier != "" && listed.SystemIdentifier != r.o.Backup.SystemIdentifier {
		err = fmt.Errorf("%s is of the system identifier %s instead of %s", manifestName, listed.SystemIdentifier, r.o.Backup.SystemIdentifier)
	}
	return errors.Join(err, f.Close())
}

// complete says which files of the manifest no part had.
func (r *restore) complete() error {
	var p problems
	for name, f := range r.files {
		if !f.good {
			p.add("%q is in none of the parts", name)
		}
	}
	return p.err()
}

// progress counts plain bytes and calls Progress now and then.
func (r *restore) progress(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += n
	if r.o.Progress != nil && (n == 0 || r.done-r.last >= progressStep) {
		r.last = r.done
		r.o.Progress(r.done, r.o.Backup.TotalBytes)
	}
}
