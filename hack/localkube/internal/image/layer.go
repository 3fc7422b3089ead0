package image

import (
	"bytes"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// rawLayer is a layer that is not compressed: images never leave the machine, so compressing them, and
// undoing that on every node, would only cost time.
type rawLayer struct {
	open func() (io.ReadCloser, error)
	hash v1.Hash
	size int64
}

func newRawLayer(open func() (io.ReadCloser, error)) (v1.Layer, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	hash, size, err := v1.SHA256(r)
	if err != nil {
		return nil, err
	}
	return rawLayer{open: open, hash: hash, size: size}, nil
}

func layerOfFile(path string) (v1.Layer, error) {
	return newRawLayer(func() (io.ReadCloser, error) { return os.Open(path) })
}

func layerOfBytes(data []byte) (v1.Layer, error) {
	return newRawLayer(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
}

// Digest implements v1.Layer.
func (l rawLayer) Digest() (v1.Hash, error) { return l.hash, nil }

// DiffID implements v1.Layer.
func (l rawLayer) DiffID() (v1.Hash, error) { return l.hash, nil }

// Compressed implements v1.Layer.
func (l rawLayer) Compressed() (io.ReadCloser, error) { return l.open() }

// Uncompressed implements v1.Layer.
func (l rawLayer) Uncompressed() (io.ReadCloser, error) { return l.open() }

// Size implements v1.Layer.
func (l rawLayer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l rawLayer) MediaType() (types.MediaType, error) { return types.DockerUncompressedLayer, nil }
