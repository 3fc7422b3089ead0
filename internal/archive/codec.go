package archive

import (
	"fmt"
	"io"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

// Suffixes of stored objects.
const (
	SuffixCompressed = ".zst"
	SuffixEncrypted  = ".age"
)

// DefaultLevel of compression.
const DefaultLevel = 3

// Codec compresses with zstd and, with recipients, encrypts with age what goes into the store; and the reverse.
type Codec struct {
	// Level of zstd, 1 (fastest) to 19. 0: DefaultLevel.
	Level int
	// Threads that compress at the same time. 0: 1.
	Threads int
	// Recipients who can decrypt. None: no encryption.
	Recipients []age.Recipient
	// Identities to decrypt with; needed for restores alone.
	Identities []age.Identity
}

// Suffix of the objects that Encode makes.
func (c *Codec) Suffix() string {
	if len(c.Recipients) > 0 {
		return SuffixCompressed + SuffixEncrypted
	}
	return SuffixCompressed
}

// Encode returns a writer of plain bytes; w gets the encoded ones. It has to be closed; w is not closed by it.
func (c *Codec) Encode(w io.Writer) (io.WriteCloser, error) {
	var sealed io.WriteCloser
	if len(c.Recipients) > 0 {
		var err error
		if sealed, err = age.Encrypt(w, c.Recipients...); err != nil {
			return nil, fmt.Errorf("encrypt for the recipients of spec.backup.encryption: %w", err)
		}
		w = sealed
	}
	level := c.Level
	if level == 0 {
		level = DefaultLevel
	}
	z, err := newCompressor(w, zstd.EncoderLevelFromZstd(level), c.Threads)
	if err != nil {
		return nil, err
	}
	return &encoder{z, sealed}, nil
}

// newCompressor compresses with that many threads.
func newCompressor(w io.Writer, level zstd.EncoderLevel, threads int) (io.WriteCloser, error) {
	if threads > 1 {
		return newFrameWriter(w, level, threads)
	}
	return zstd.NewWriter(w, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1))
}

type encoder struct {
	io.WriteCloser
	sealed io.Closer
}

func (e *encoder) Close() error {
	if err := e.WriteCloser.Close(); err != nil {
		return err
	}
	if e.sealed == nil {
		return nil
	}
	return e.sealed.Close()
}

// Decode returns a reader of the plain bytes of an object; its key's suffix tells how it was encoded.
func (c *Codec) Decode(r io.Reader, encrypted bool) (io.ReadCloser, error) {
	if encrypted {
		if len(c.Identities) == 0 {
			return nil, fmt.Errorf("the object is encrypted and there is no identity to decrypt it with; name the Secret that has it")
		}
		var err error
		if r, err = age.Decrypt(r, c.Identities...); err != nil {
			return nil, fmt.Errorf("decrypt: %w", err)
		}
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}
