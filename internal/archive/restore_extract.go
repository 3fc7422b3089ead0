package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// Files that are treated in their own way.
const (
	// controlFile is put into place last: PostgreSQL does not start without it.
	controlFile = "global/pg_control"
	// heldBack is appended to its name until then.
	heldBack = ".restored"
	// tablespaceMap says where tablespaces are; PostgreSQL makes the symbolic links by it when it reads backup_label.
	tablespaceMap = "tablespace_map"
)

// leftOut are signal files of a standby that was read. PostgreSQL would follow standby.signal rather than the recovery.signal of a restore:
// https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-PITR-RECOVERY
var leftOut = map[string]bool{"standby.signal": true, "recovery.signal": true}

// extract puts the files of a part into place.
func (r *restore) extract(ctx context.Context, p *Part, in *partReader) error {
	plain, err := r.o.Codec.Decode(in, r.o.Backup.Encrypted)
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }()
	e := &extraction{r: r, root: r.roots[p.Tablespace], part: p, ctx: ctx, buffer: make([]byte, 256<<10)}
	if e.root == nil {
		return fmt.Errorf("it is of the tablespace %d, which the backup does not have", p.Tablespace)
	}
	counted := &countingReader{r: plain, read: r.progress}
	defer func() {
		if err != nil {
			r.progress(-counted.n) // it is read again, or the restore fails
		}
	}()
	archive := tar.NewReader(counted)
	for {
		var h *tar.Header
		if h, err = archive.Next(); errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = e.member(h, archive)
		}
		if err != nil {
			return err
		}
	}
	if _, err = io.Copy(io.Discard, counted); err != nil { // up to the checksums at the end
		return err
	}
	if counted.n != p.PlainSize {
		err = fmt.Errorf("it has %d bytes of content instead of %d", counted.n, p.PlainSize)
		return err
	}
	return nil
}

// countingReader counts what is read.
type countingReader struct {
	r    io.Reader
	read func(n int64)
	n    int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if n > 0 {
		c.read(int64(n))
	}
	return n, err
}

// extraction is of one part.
type extraction struct {
	r      *restore
	root   *os.Root
	part   *Part
	ctx    context.Context
	buffer []byte
}

// member puts one member into place. os.Root sees to it that nothing gets outside of the directory, by links neither.
func (e *extraction) member(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the name %q leads out of the data directory", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return e.dir(name, os.FileMode(h.Mode)&os.ModePerm) //nolint:gosec // the mask leaves nothing that overflows
	case tar.TypeReg:
		return e.file(name, h, content)
	case tar.TypeSymlink:
		// Made anew for where the tablespaces are now.
		if _, err := strconv.ParseUint(path.Base(name), 10, 32); err == nil && path.Dir(name) == tablespaceDir && e.part.Tablespace == 0 {
			return nil
		}
	}
	return fmt.Errorf("%q is neither a file nor a directory (type %q)", h.Name, h.Typeflag)
}

func (e *extraction) dir(name string, mode os.FileMode) error {
	if err := e.root.MkdirAll(name, 0o700); err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	return e.root.Chmod(name, mode|0o700)
}

func (e *extraction) file(name string, h *tar.Header, content io.Reader) error {
	listed := name
	if e.part.Tablespace != 0 {
		listed = path.Join(tablespaceDir, fmt.Sprint(e.part.Tablespace), name)
	}
	want, err := e.r.claim(listed, e.part.Name)
	if err != nil {
		return err
	}
	target := name
	if listed == controlFile {
		target += heldBack
	}
	got, err := e.write(target, os.FileMode(h.Mode)&os.ModePerm, content) //nolint:gosec // the mask leaves nothing that overflows
	if err != nil {
		return err
	}
	if want == nil {
		return nil
	}
	if got != want.fileSum {
		return fmt.Errorf("the file %q (%d bytes) is not as %s says (%d bytes): its checksum differs", listed, got.size, manifestName, want.size)
	}
	e.r.mu.Lock()
	defer e.r.mu.Unlock()
	want.good = true
	return nil
}

// claim says what the manifest has of a file. Two parts with the same file would overwrite each other's.
func (r *restore) claim(name, part string) (*restoredFile, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[name]
	if f == nil {
		if outsideManifest(name) {
			return nil, nil
		}
		return nil, fmt.Errorf("the file %q is not listed in %s", name, manifestName)
	}
	if f.part != "" && f.part != part {
		return nil, fmt.Errorf("the file %q is in %s too", name, f.part)
	}
	f.part = part
	return f, nil
}

// write creates a file, and returns what was written.
func (e *extraction) write(name string, mode os.FileMode, content io.Reader) (fileSum, error) {
	if dir := path.Dir(name); dir != "." {
		// Its directory may be in a part that comes later.
		if err := e.root.MkdirAll(dir, 0o700); err != nil {
			return fileSum{}, err
		}
	}
	f, err := e.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fileSum{}, err
	}
	sum := sha256.New()
	size, err := e.copy(io.MultiWriter(f, sum), content)
	if err == nil {
		err = f.Chmod(mode | 0o600)
	}
	if err == nil {
		startWriting(f)
	}
	got := fileSum{size: size}
	sum.Sum(got.sum[:0])
	return got, errors.Join(err, f.Close())
}

// copy copies until the end, or until the restore is cancelled.
func (e *extraction) copy(w io.Writer, content io.Reader) (size int64, err error) {
	for {
		if e.ctx.Err() != nil {
			return size, context.Cause(e.ctx)
		}
		n, err := content.Read(e.buffer)
		if n > 0 {
			if _, err := w.Write(e.buffer[:n]); err != nil {
				return size, err
			}
			size += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}
