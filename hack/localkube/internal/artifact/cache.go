// Package artifact makes the programs that a cluster needs and keeps them in a cache.
package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Log prints progress.
type Log func(format string, args ...any)

// Cached returns the path of the cache entry, made by build on a miss. build gets a temporary path in the
// same directory, which becomes the entry by a rename: a build that is killed leaves no entry. Of several
// builders of one entry all but the first wait.
func Cached(ctx context.Context, log Log, entry string, build func(tmp string) error) (string, error) {
	path := filepath.Join(layout.CacheDir(), entry)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	unlock, err := Lock(ctx, log, entry)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // another builder was faster
	}
	tmp := filepath.Join(filepath.Dir(path), ".building-"+filepath.Base(path))
	if err := os.RemoveAll(tmp); err != nil { // a leftover of a build that was killed
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	start := time.Now()
	stop := heartbeat(log, entry)
	err = build(tmp)
	stop()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", entry, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", err
	}
	log("%s is in the cache after %s", entry, time.Since(start).Round(time.Second))
	return path, nil
}

// Lock takes the lock that belongs to a name. The kernel drops it when its holder dies.
func Lock(ctx context.Context, log Log, name string) (unlock func(), err error) {
	path := filepath.Join(layout.CacheDir(), "locks", filepath.Base(name)+".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for waits := 0; ; waits++ {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if waits%75 == 1 {
			log("another run holds the lock for %s; waiting for it", name)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// heartbeat says every 20 s that a build still runs.
func heartbeat(log Log, what string) (stop func()) {
	done := make(chan struct{})
	start := time.Now()
	go func() {
		ticker := time.NewTicker(20 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				log("  %s: still building, %s so far", what, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(done) }
}
