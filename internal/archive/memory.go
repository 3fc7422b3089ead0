package archive

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in memory, for tests of what stands around a store.
type Memory struct {
	mu      sync.Mutex
	objects map[string]stored
	now     func() time.Time
	// fail, if set, is asked before each call.
	fail func(call, key string) error
}

type stored struct {
	content  []byte
	modified time.Time
	metadata map[string]string
}

var _ Store = (*Memory)(nil)

// NewMemory is an empty store that goes by that clock.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{objects: map[string]stored{}, now: now}
}

// OnCall sets what is asked before each call ("Create", "Read", "Stat", "List" or "Delete"); its error is the call's.
func (m *Memory) OnCall(fail func(call, key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

// Change changes the bytes of an object, as a broken store would.
func (m *Memory) Change(key string, change func([]byte) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[key]
	o.content = change(slices.Clone(o.content))
	m.objects[key] = o
}

func (m *Memory) begin(ctx context.Context, call, key string) error {
	m.mu.Lock()
	fail := m.fail
	m.mu.Unlock()
	if fail != nil {
		if err := fail(call, key); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Create implements Store.
func (m *Memory) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	if err := m.begin(ctx, "Create", key); err != nil {
		return err
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; ok {
		return fmt.Errorf("create %s: %w", key, ErrExists)
	}
	m.objects[key] = stored{content, m.now(), maps.Clone(metadata)}
	return nil
}

// Read implements Store.
func (m *Memory) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := m.begin(ctx, "Read", key); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return nil, fmt.Errorf("read %s: %w", key, ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(o.content)), nil
}

// Stat implements Store.
func (m *Memory) Stat(ctx context.Context, key string) (Object, error) {
	if err := m.begin(ctx, "Stat", key); err != nil {
		return Object{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return Object{}, fmt.Errorf("stat %s: %w", key, ErrNotFound)
	}
	return Object{Key: key, Size: int64(len(o.content)), Modified: o.modified, Metadata: maps.Clone(o.metadata)}, nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := m.begin(ctx, "List", prefix); err != nil {
			yield(Object{}, err)
			return
		}
		m.mu.Lock()
		var found []Object
		for key, o := range m.objects {
			if strings.HasPrefix(key, prefix) {
				found = append(found, Object{Key: key, Size: int64(len(o.content)), Modified: o.modified})
			}
		}
		m.mu.Unlock()
		slices.SortFunc(found, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
		for _, o := range found {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Delete implements Store.
func (m *Memory) Delete(ctx context.Context, key string) error {
	if err := m.begin(ctx, "Delete", key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
