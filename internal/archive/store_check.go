package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

// probePrefix is below the destination's prefix, beside the clusters.
const probePrefix = "probe/"

// cleanupTimeout bounds what is tried to leave nothing behind after a failure.
const cleanupTimeout = 10 * time.Second

// Check does with one small object all that an archive does: it writes it once, proves that it cannot be written over, lists, reads and
// removes it. Its error says which of these failed; Diagnose says what to correct. Bound it by ctx: the SDKs try again by themselves.
func Check(ctx context.Context, s Store) error {
	key := probePrefix + rand.Text()
	content := []byte("Kumki has tried whether an archive can be kept here. This object can be deleted.\n")
	if err := s.Create(ctx, key, bytes.NewReader(content), map[string]string{"kumki": "probe"}); err != nil {
		return fmt.Errorf("write a probe: %w", err)
	}
	if err := checkProbe(ctx, s, key, content); err != nil {
		leaveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = s.Delete(leaveCtx, key)
		return err
	}
	if err := s.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete a probe, as retention will have to: %w", err)
	}
	return nil
}

func checkProbe(ctx context.Context, s Store, key string, content []byte) error {
	err := s.Create(ctx, key, bytes.NewReader([]byte("other content")), nil)
	if err == nil {
		return fmt.Errorf("write over a probe: %w", ErrNoConditions)
	}
	if !errors.Is(err, ErrExists) {
		return fmt.Errorf("write over a probe, which has to be refused: %w", err)
	}
	listed := false
	for o, err := range s.List(ctx, key) {
		if err != nil {
			return fmt.Errorf("list a probe: %w", err)
		}
		listed = listed || o.Key == key
	}
	if !listed {
		return errors.New("list a probe: it was written and is not listed; the server has to list what was written at once")
	}
	r, err := s.Read(ctx, key)
	if err != nil {
		return fmt.Errorf("read a probe: %w", err)
	}
	defer r.Close() //nolint:errcheck // It was only read.
	got, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read a probe: %w", err)
	}
	if !bytes.Equal(got, content) {
		return errors.New("read a probe: its content is not what was written")
	}
	return nil
}
