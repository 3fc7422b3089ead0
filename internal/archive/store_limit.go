package archive

import (
	"context"
	"io"

	"golang.org/x/time/rate"
)

// limitedStore shares one rate among all of its uploads.
type limitedStore struct {
	Store
	limiter *rate.Limiter
}

// limitUploads bounds what is written to s, in bytes a second. 0: no limit.
func limitUploads(s Store, bytesPerSecond int64) Store {
	if bytesPerSecond <= 0 {
		return s
	}
	// A quarter of a second at once keeps the flow even without a wait for each small read.
	burst := max(bytesPerSecond/4, 16<<10)
	return &limitedStore{s, rate.NewLimiter(rate.Limit(bytesPerSecond), int(min(burst, 1<<30)))}
}

// Create implements Store.
func (s *limitedStore) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	return s.Store.Create(ctx, key, &limitedReader{ctx, r, s.limiter}, metadata)
}

type limitedReader struct {
	ctx     context.Context
	r       io.Reader
	limiter *rate.Limiter
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p[:min(len(p), r.limiter.Burst())])
	if n > 0 {
		if waitErr := r.limiter.WaitN(r.ctx, n); waitErr != nil {
			return n, waitErr
		}
	}
	return n, err
}
