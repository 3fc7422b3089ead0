package artifact

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestCachedBuildsOnce(t *testing.T) {
	t.Setenv("KUMKI_CACHE", t.TempDir())
	var builds atomic.Int32
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			path, err := Cached(context.Background(), t.Logf, "dir/entry", func(tmp string) error {
				builds.Add(1)
				return os.WriteFile(tmp, []byte("whole"), 0o644)
			})
			if err != nil {
				t.Error(err)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != "whole" {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
	group.Wait()
	if n := builds.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestCachedAfterAFailedBuild(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("KUMKI_CACHE", cache)
	broken := errors.New("broken")
	_, err := Cached(t.Context(), t.Logf, "dir/entry", func(tmp string) error {
		if err := os.WriteFile(tmp, []byte("half"), 0o644); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(cache, "dir")); len(entries) != 0 {
		t.Errorf("a failed build left %v", entries)
	}
	// A killed build leaves its temporary file; the next one replaces it.
	leftover := filepath.Join(cache, "dir", ".building-entry")
	if err := os.WriteFile(leftover, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	path, err := Cached(t.Context(), t.Logf, "dir/entry", func(tmp string) error {
		return os.WriteFile(tmp, []byte("whole"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(path); string(data) != "whole" {
		t.Errorf("got %q", data)
	}
}
