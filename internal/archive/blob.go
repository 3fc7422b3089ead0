package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

const (
	// partSize bounds what an upload holds in memory, with partsAtOnce. S3 takes 10,000 parts an object, so 80 GB are the most.
	partSize    = 8 << 20
	partsAtOnce = 2
)

// bucketStore is a Store in a bucket of a cloud's object store.
type bucketStore struct {
	bucket *blob.Bucket
	// at is for errors: s3://bucket/prefix.
	at     string
	prefix string
	// abort, if set, removes the parts of an upload that was given up. S3 alone keeps them otherwise, and charges for them.
	abort func(ctx context.Context, key, upload string) error
}

var _ Store = (*bucketStore)(nil)

// Create implements Store. The provider itself refuses to write over an object (If-None-Match and its like), so that this holds between
// writers who do not know each other.
func (s *bucketStore) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	upload, giveUp := s.uploadContext(ctx)
	defer giveUp()
	source := &rememberingReader{r: &contextReader{ctx, r}, fail: giveUp}
	if s.abort != nil {
		// The SDK ends by itself when its source fails.
		source.fail = func() {}
	}
	err := s.bucket.Upload(upload, s.prefix+key, source, &blob.WriterOptions{
		BufferSize: partSize, MaxConcurrency: partsAtOnce, ContentType: "application/octet-stream", Metadata: metadata, IfNotExist: true,
	})
	s.cleanUp(ctx, key, err)
	switch {
	case source.err != nil:
		return fmt.Errorf("create %s in %s: read what is to be stored: %w", key, s.at, source.err)
	case err == nil:
		return nil
	case gcerrors.Code(err) == gcerrors.FailedPrecondition || gcerrors.Code(err) == gcerrors.AlreadyExists:
		return fmt.Errorf("create %s in %s: %w", key, s.at, ErrExists)
	case isWriteRace(err):
		// Another writer of this key was faster, or is about to be.
		if _, statErr := s.Stat(ctx, key); statErr == nil {
			return fmt.Errorf("create %s in %s: %w", key, s.at, ErrExists)
		}
	case lacksConditions(err):
		return fmt.Errorf("create %s in %s: %w: %w", key, s.at, ErrNoConditions, err)
	}
	return fmt.Errorf("create %s in %s: %w", key, s.at, err)
}

// uploadGrace is how long an upload to S3 may take to end in order.
const uploadGrace = 5 * time.Second

// uploadContext is that of an upload. To cancel it is how an upload is given up: what was sent so far does not become an object. On S3 that
// would leave parts behind: one that is still on its way is stored after the upload was aborted. So there, when ctx ends, only the source
// does, which lets parts arrive before the upload is aborted; a server that does not answer gets no more than the grace.
// https://docs.aws.amazon.com/AmazonS3/latest/API/API_AbortMultipartUpload.html
func (s *bucketStore) uploadContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.abort == nil {
		return context.WithCancel(ctx)
	}
	upload, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-upload.Done():
		case <-time.After(uploadGrace):
			cancel()
		}
	})
	return upload, func() { stop(); cancel() }
}

// cleanUp removes what a failed upload left, again while there is something. What is left when this fails as well is what a killed process
// leaves; a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes it.
func (s *bucketStore) cleanUp(ctx context.Context, key string, err error) {
	var failed interface{ UploadID() string }
	if s.abort == nil || !errors.As(err, &failed) || failed.UploadID() == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for range 3 {
		if s.abort(ctx, s.prefix+key, failed.UploadID()) != nil {
			return
		}
	}
}

// rememberingReader keeps the source's error, which an SDK may wrap in words alone, and gives the upload up.
type rememberingReader struct {
	r    io.Reader
	fail func()
	err  error
}

func (r *rememberingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
		r.fail()
	}
	return n, err
}

// Read implements Store.
func (s *bucketStore) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := s.bucket.NewReader(ctx, s.prefix+key, nil)
	if err != nil {
		return nil, s.failed(ctx, "read", key, err)
	}
	return r, nil
}

// Stat implements Store.
func (s *bucketStore) Stat(ctx context.Context, key string) (Object, error) {
	a, err := s.bucket.Attributes(ctx, s.prefix+key)
	if err != nil {
		return Object{}, s.failed(ctx, "stat", key, err)
	}
	return Object{Key: key, Size: a.Size, Modified: a.ModTime, Metadata: a.Metadata}, nil
}

// failed says ErrNotFound only when a listing proves it: a bucket that does not exist, a name that cannot be resolved and a lack of
// permission look the same in some providers' answers, and a restore would take each of them for the end of the WAL.
func (s *bucketStore) failed(ctx context.Context, call, key string, err error) error {
	if gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("%s %s in %s: %w", call, key, s.at, err)
	}
	for o, listErr := range s.list(ctx, key, 1) {
		if listErr != nil {
			return listErr
		}
		if o.Key == key {
			return fmt.Errorf("%s %s in %s: it is listed, but: %w", call, key, s.at, err)
		}
		break // The key itself comes before all that are longer.
	}
	return fmt.Errorf("%s %s in %s: %w", call, key, s.at, ErrNotFound)
}

// List implements Store.
func (s *bucketStore) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return s.list(ctx, prefix, 1000)
}

func (s *bucketStore) list(ctx context.Context, prefix string, page int) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		token := blob.FirstPageToken
		for token != nil {
			found, next, err := s.bucket.ListPage(ctx, token, page, &blob.ListOptions{Prefix: s.prefix + prefix})
			if err != nil {
				yield(Object{}, fmt.Errorf("list %s in %s: %w", prefix, s.at, err))
				return
			}
			for _, o := range found {
				if !yield(Object{Key: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size, Modified: o.ModTime}, nil) {
					return
				}
			}
			token = next
		}
	}
}

// Delete implements Store.
func (s *bucketStore) Delete(ctx context.Context, key string) error {
	err := s.bucket.Delete(ctx, s.prefix+key)
	if err == nil {
		return nil
	}
	if err = s.failed(ctx, "delete", key, err); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Close implements Store.
func (s *bucketStore) Close() error { return s.bucket.Close() }
