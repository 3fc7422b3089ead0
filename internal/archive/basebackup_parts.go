package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"sync"
	"time"

	"filippo.io/age"
)

// cleanup bounds how long it may take to remove the objects of a failed backup.
const cleanup = time.Minute

// uploader writes the objects of one backup. While one is filled, the one before it may still be on its way.
type uploader struct {
	store Store
	codec Codec
	dir   string
	// ctx is cancelled with the first error as its cause.
	ctx  context.Context
	fail context.CancelCauseFunc
	// slots bounds how many objects are on their way, and with that the memory.
	slots chan struct{}
	wg    sync.WaitGroup

	mu    sync.Mutex
	wrote map[string]bool // keys that may be there because of this backup
}

func newUploader(ctx context.Context, o *TakeOptions) *uploader {
	u := &uploader{store: o.Store, codec: o.Codec, dir: BackupDir(o.ClusterDir, o.ID), slots: make(chan struct{}, o.Uploads), wrote: map[string]bool{}}
	u.ctx, u.fail = context.WithCancelCause(ctx)
	return u
}

// upload is an object that is being written: what is written to it is encoded, and read by Store.Create at the same time.
type upload struct {
	u      *uploader
	part   *Part
	encode io.WriteCloser
	pipe   *io.PipeWriter
	sum    hash.Hash
	done   chan error // of Store.Create
	unbind func() bool
}

// encoding makes the encoder of an object, as Codec.Encode does.
type encoding func(io.Writer) (io.WriteCloser, error)

// open begins an object when a slot is free. The part's sizes and checksum are known after wait.
func (u *uploader) open(part *Part, encode encoding) (*upload, error) {
	select {
	case u.slots <- struct{}{}:
	case <-u.ctx.Done():
		return nil, context.Cause(u.ctx)
	}
	r, w := io.Pipe()
	o := &upload{u: u, part: part, pipe: w, sum: sha256.New(), done: make(chan error, 1)}
	u.wg.Add(1)
	// A store that does not look at its context ends by its reader's error.
	o.unbind = context.AfterFunc(u.ctx, func() { _ = w.CloseWithError(context.Cause(u.ctx)) })
	go func() {
		err := u.create(path.Join(u.dir, part.Name), r)
		if err != nil {
			u.fail(err)
		}
		_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // whoever still writes learns of it
		o.done <- err
	}()
	var err error
	if o.encode, err = encode(storedBytes{o}); err != nil {
		u.fail(err)
		o.encode = nopCloser{io.Discard}
		o.finish()
		return nil, err
	}
	return o, nil
}

// create writes one object and notes that it did.
func (u *uploader) create(key string, r io.Reader) error {
	u.note(key, true)
	err := u.store.Create(u.ctx, key, r, nil)
	if errors.Is(err, ErrExists) {
		u.note(key, false) // it is not ours, so it is not ours to remove
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

func (u *uploader) note(key string, wrote bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if wrote {
		u.wrote[key] = true
	} else {
		delete(u.wrote, key)
	}
}

// Write takes plain bytes.
func (o *upload) Write(p []byte) (int, error) {
	n, err := o.encode.Write(p)
	o.part.PlainSize += int64(n)
	return n, err
}

// storedBytes counts and hashes an object's bytes as they are stored.
type storedBytes struct{ *upload }

func (s storedBytes) Write(p []byte) (int, error) {
	n, err := s.pipe.Write(p)
	s.sum.Write(p[:n])
	s.part.Size += int64(n)
	return n, err
}

// finish ends the object in the background.
func (o *upload) finish() {
	go func() {
		defer o.u.wg.Done()
		err := o.encode.Close()
		// Never a good end for an object that is not whole: the store would keep it.
		_ = o.pipe.CloseWithError(errors.Join(err, context.Cause(o.u.ctx)))
		if created := <-o.done; err != nil && created == nil {
			o.u.fail(fmt.Errorf("write %s: %w", o.part.Name, err))
		}
		o.unbind()
		o.part.SHA256 = hex.EncodeToString(o.sum.Sum(nil))
		<-o.u.slots
	}()
}

// wait waits for all objects and returns the first error.
func (u *uploader) wait() error {
	u.wg.Wait()
	return context.Cause(u.ctx)
}

// encodeManifest leaves the manifest as it is, for pg_verifybackup, or encrypts it: names of files tell of what is in them.
func (u *uploader) encodeManifest(w io.Writer) (io.WriteCloser, error) {
	if len(u.codec.Recipients) == 0 {
		return nopCloser{w}, nil
	}
	sealed, err := age.Encrypt(w, u.codec.Recipients...)
	if err != nil {
		return nil, fmt.Errorf("encrypt for the recipients of spec.backup.encryption: %w", err)
	}
	return sealed, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// check compares the sizes of the stored objects with what was written.
func (u *uploader) check(ctx context.Context, parts []Part) error {
	for _, p := range parts {
		key := path.Join(u.dir, p.Name)
		o, err := u.store.Stat(ctx, key)
		if err != nil {
			return fmt.Errorf("look after %s: %w", key, err)
		}
		if o.Size != p.Size {
			return fmt.Errorf("%s has %d bytes in the store, but %d were written", key, o.Size, p.Size)
		}
	}
	return nil
}

// commit writes the commit mark. If that fails it may have been written nevertheless, now or a little later; then the parts have to stay,
// for a mark without them would be the worst of all: a backup that is none.
func (u *uploader) commit(ctx context.Context, b *Backup) error {
	content, err := b.encode()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	key := path.Join(u.dir, CommitMark)
	err = u.store.Create(ctx, key, bytes.NewReader(content), nil)
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if got, readErr := ReadBackup(ctx, u.store, path.Dir(path.Dir(u.dir)), b.ID); readErr == nil {
		if again, _ := got.encode(); string(again) == string(content) {
			return nil // it was written: only the answer was lost
		}
	}
	if !errors.Is(err, ErrExists) {
		err = errors.Join(err, u.store.Delete(ctx, key))
	}
	return &uncommittedError{fmt.Errorf("write %s: %w; the backup's other objects are kept, since the mark may still come to be", key, err)}
}

// uncommittedError says that it is not known whether the commit mark exists.
type uncommittedError struct{ error }

func (e *uncommittedError) Unwrap() error { return e.error }

// remove removes what was written of a backup without a commit mark, and joins to err what remains.
func (u *uploader) remove(ctx context.Context, err error) error {
	var kept *uncommittedError
	if errors.As(err, &kept) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	for key := range u.wrote {
		if gone := u.store.Delete(ctx, key); gone != nil {
			err = errors.Join(err, fmt.Errorf("remove %s, which is left of the failed backup: %w", key, gone))
		}
	}
	return err
}
