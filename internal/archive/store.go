package archive

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// Errors of every Store.
var (
	// ErrExists says that there is an object of that key; it was not changed.
	ErrExists = errors.New("the object exists")
	// ErrNotFound says that there is no object of that key.
	ErrNotFound = errors.New("the object does not exist")
)

// Object is what a Store knows of an object without reading it.
type Object struct {
	Key  string
	Size int64 // bytes as stored
	// Modified is when it was written, by the store's clock.
	Modified time.Time
	// Metadata that was written with it. List leaves it out.
	Metadata map[string]string
}

// Store is a flat space of objects. It is safe for concurrent use. Keys are relative to the destination's prefix, with "/" between
// their parts. Every error but ErrExists and ErrNotFound may pass by itself; whether a failed write was done is unknown.
type Store interface {
	// Create writes an object with metadata (lower-case keys) from r to its end. When there is one of that key already, it returns
	// ErrExists and changes nothing, even if both are written at the same time. When r or ctx fails, nothing is left behind.
	Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error
	// Read opens an object. ErrNotFound: there is none.
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// Stat returns what is known of an object, with its metadata. ErrNotFound: there is none.
	Stat(ctx context.Context, key string) (Object, error)
	// List yields all objects whose key begins with prefix, by ascending key.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Delete removes an object; one that does not exist is no error.
	Delete(ctx context.Context, key string) error
	// Close ends connections.
	Close() error
}
