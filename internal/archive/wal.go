package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

// Metadata of objects; they are about the plain content.
const (
	MetaSHA256 = "sha256"
	// MetaSize is in bytes.
	MetaSize = "size"
	// MetaWritten is when the file was last written by PostgreSQL, in RFC 3339: no commit in the segment is younger.
	MetaWritten = "written"
)

// WALArchive is the WAL of one cluster in a store. It is safe for concurrent use.
type WALArchive struct {
	Store Store
	Codec *Codec
	Keys  Keys
	// pushes counts what was pushed, up to otherSuffixChecks.
	pushes atomic.Int32
}

// otherSuffixChecks is how many pushes look for the content under the suffix of another encoding. That can be there only when encryption was
// turned on or off, which restarts the archive, and for what was uploaded ahead until then. Later it would be a request for nothing.
const otherSuffixChecks = 256

// errChanged says that a file was written to while it was uploaded.
var errChanged = errors.New("the file changed while it was archived")

// Push archives a file of pg_wal under its own name and returns when it is durable in the store. What is archived already with the same
// content is success; with other content the error is ErrConflict. It is safe to ask again after any error, at any time.
func (a *WALArchive) Push(ctx context.Context, path string) error {
	name, err := ParseWALName(filepath.Base(path))
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	defer f.Close() //nolint:errcheck // It is only read.
	sum, metadata, err := a.inspect(name, f)
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	if err := a.push(ctx, name, f, pushed{sum, metadata}); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// pushed is what is known of a file before it is uploaded.
type pushed struct {
	sum      string
	metadata map[string]string
}

// inspect checks and sums up a file. It is read twice, here and for the upload, since the checksum goes ahead of the content.
func (a *WALArchive) inspect(name WALName, f *os.File) (sum string, metadata map[string]string, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return "", nil, errors.New("it is not a file")
	}
	if name.encoded() {
		header := make([]byte, walHeaderSize)
		n, err := f.ReadAt(header, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", nil, err
		}
		if err := checkSegment(name, header[:n], info.Size(), a.Keys.SystemIdentifier); err != nil {
			return "", nil, err
		}
	}
	hash := sha256.New()
	size, err := io.Copy(hash, io.NewSectionReader(f, 0, info.Size()))
	if err != nil {
		return "", nil, err
	}
	if size != info.Size() {
		return "", nil, errChanged
	}
	sum = hex.EncodeToString(hash.Sum(nil))
	return sum, map[string]string{
		MetaSHA256: sum, MetaSize: strconv.FormatInt(size, 10), MetaWritten: info.ModTime().UTC().Format(time.RFC3339Nano),
	}, nil
}

func (a *WALArchive) push(ctx context.Context, name WALName, f *os.File, p pushed) error {
	key := a.Keys.WAL(name)
	if name.encoded() && a.pushes.Load() < otherSuffixChecks {
		a.pushes.Add(1)
		for _, suffix := range []string{SuffixCompressed, SuffixCompressed + SuffixEncrypted} {
			if suffix == a.Codec.Suffix() {
				continue
			}
			err := a.compare(ctx, key+suffix, p.sum)
			if !errors.Is(err, ErrNotFound) {
				return err
			}
		}
	}
	if name.encoded() {
		key += a.Codec.Suffix()
	}
	err := a.upload(ctx, name, key, f, p)
	if errors.Is(err, ErrExists) {
		return a.compare(ctx, key, p.sum)
	}
	return err
}

// upload streams the file through the codec into the store.
func (a *WALArchive) upload(ctx context.Context, name WALName, key string, f *os.File, p pushed) error {
	plain := &checkedReader{r: io.NewSectionReader(f, 0, 1<<62), hash: sha256.New(), want: p.sum, wrong: errChanged}
	if !name.encoded() {
		return a.Store.Create(ctx, key, plain, p.metadata)
	}
	pr, pw := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = pw.CloseWithError(a.encode(pw, plain))
	}()
	err := a.Store.Create(ctx, key, pr, p.metadata)
	// The encoder ends when nobody reads any more; f is not closed under its hands.
	_ = pr.CloseWithError(io.ErrClosedPipe)
	<-ended
	return err
}

func (a *WALArchive) encode(w io.Writer, r io.Reader) error {
	e, err := a.Codec.Encode(w)
	if err != nil {
		return err
	}
	if _, err := io.Copy(e, r); err != nil {
		return err
	}
	return e.Close()
}

// compare returns nil when the object has that checksum, ErrConflict when it has another, and ErrNotFound when there is none.
func (a *WALArchive) compare(ctx context.Context, key, sum string) error {
	o, err := a.Store.Stat(ctx, key)
	if err != nil {
		return err
	}
	stored := o.Metadata[MetaSHA256]
	if stored == "" {
		if stored, err = a.sumOf(ctx, o); err != nil {
			return fmt.Errorf("%s is archived without a checksum, and its content cannot be compared: %w", key, err)
		}
	}
	if stored != sum {
		return fmt.Errorf("%w: %s has the SHA-256 %s, and what is to be archived has %s; another cluster writes to this destination, or one was restored "+
			"over: give one of them another spec.backup.destination", ErrConflict, key, stored, sum)
	}
	return nil
}

// sumOf reads an object whose metadata was lost, by a copy from one bucket to another for instance.
func (a *WALArchive) sumOf(ctx context.Context, o Object) (string, error) {
	r, err := a.open(ctx, o.Key)
	if err != nil {
		return "", err
	}
	defer r.Close() //nolint:errcheck // It is only read.
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
