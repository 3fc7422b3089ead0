package archive

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// ErrCorrupt says that an object is not what was stored: bytes were lost or changed.
var ErrCorrupt = errors.New("the archived content is damaged")

// Fetch gets a file of the WAL's archive and puts it at target, whole and forced to disk, or not at all. ErrNotFound is its answer only when
// the store proves that there is no such file in an archive that exists; every other error is not to be taken for the end of the WAL.
func (a *WALArchive) Fetch(ctx context.Context, name WALName, target string) error {
	o, err := a.find(ctx, name)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", name, err)
	}
	if err := a.fetch(ctx, name, o, target); err != nil {
		return fmt.Errorf("fetch %s from %s: %w", name, o.Key, err)
	}
	return nil
}

// find looks for the object of a name, whichever its encoding is.
func (a *WALArchive) find(ctx context.Context, name WALName) (Object, error) {
	key := a.Keys.WAL(name)
	suffixes := []string{""}
	if name.encoded() {
		suffixes = []string{SuffixCompressed, SuffixCompressed + SuffixEncrypted}
		if len(a.Codec.Identities) > 0 {
			suffixes = []string{SuffixCompressed + SuffixEncrypted, SuffixCompressed}
		}
	}
	for _, suffix := range suffixes {
		o, err := a.Store.Stat(ctx, key+suffix)
		if !errors.Is(err, ErrNotFound) {
			return o, err
		}
	}
	return Object{}, a.missing(ctx)
}

// missing is ErrNotFound when the archive has anything at all. Otherwise the destination is a wrong one, such as an empty volume, and a
// restore that takes it for the end of the WAL would lose what is elsewhere.
func (a *WALArchive) missing(ctx context.Context) error {
	for _, err := range a.Store.List(ctx, a.Keys.Folder()) {
		if err != nil {
			return err
		}
		return ErrNotFound
	}
	return fmt.Errorf("there is nothing below %s: this is not the destination that the cluster was archived to, or its volume is not mounted; correct spec.backup.destination",
		a.Keys.Folder())
}

func (a *WALArchive) fetch(ctx context.Context, name WALName, o Object, target string) error {
	want, err := strconv.ParseInt(o.Metadata[MetaSize], 10, 64)
	if err != nil && o.Metadata[MetaSize] != "" {
		return fmt.Errorf("%w: its metadata has the size %q", ErrCorrupt, o.Metadata[MetaSize])
	}
	r, err := a.open(ctx, o.Key)
	if errors.Is(err, ErrNotFound) {
		// It was there a moment ago, so that it is not missing but going.
		return fmt.Errorf("it was deleted while it was fetched: %s", err.Error())
	}
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // It is only read.
	checked := &checkedReader{r: r, hash: sha256.New(), want: o.Metadata[MetaSHA256], wrong: ErrCorrupt}
	return writeFile(target, func(f *os.File) error {
		size, err := io.Copy(f, checked)
		if err != nil {
			return err
		}
		if o.Metadata[MetaSize] != "" && size != want {
			return fmt.Errorf("%w: it has %d bytes instead of %d", ErrCorrupt, size, want)
		}
		if !name.encoded() {
			return nil
		}
		header := make([]byte, walHeaderSize)
		n, err := f.ReadAt(header, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return checkSegment(name, header[:n], size, a.Keys.SystemIdentifier)
	})
}

// open reads the plain content of an object.
func (a *WALArchive) open(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := a.Store.Read(ctx, key)
	if err != nil {
		return nil, err
	}
	name, encrypted, ok := StoredWAL(key)
	if !ok || !name.encoded() {
		return r, nil
	}
	source := &rememberingReader{r: r, fail: func() {}}
	plain, err := a.Codec.Decode(source, encrypted)
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return &decodedReader{plain, source, r}, nil
}

// decodedReader tells a source that failed from content that cannot be decoded.
type decodedReader struct {
	plain  io.ReadCloser
	source *rememberingReader
	closer io.Closer
}

func (r *decodedReader) Read(p []byte) (int, error) {
	n, err := r.plain.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if r.source.err != nil {
		return n, r.source.err
	}
	return n, fmt.Errorf("%w: %s", ErrCorrupt, err.Error())
}

func (r *decodedReader) Close() error { return errors.Join(r.plain.Close(), r.closer.Close()) }

// checkedReader ends with an error instead of io.EOF when the content does not have the SHA-256 want. Empty: it is not checked.
type checkedReader struct {
	r     io.Reader
	hash  hash.Hash
	want  string
	wrong error
}

func (r *checkedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && r.want != "" {
		if got := hex.EncodeToString(r.hash.Sum(nil)); got != r.want {
			return n, fmt.Errorf("%w: its SHA-256 is %s instead of %s", r.wrong, got, r.want)
		}
	}
	return n, err
}

// writeFile makes target appear whole and forced to disk, or not at all.
func writeFile(target string, write func(*os.File) error) (err error) {
	temporary := target + "." + rand.Text()[:12] + ".tmp"
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(temporary, target); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(target))
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
