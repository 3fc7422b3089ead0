package archive

import "io"

// DefaultPartSize is how large a part becomes before it is compressed, in bytes, unless one of its files alone is larger.
const DefaultPartSize = 128 << 20

// tarCutter cuts a tar stream at members into parts that are whole tar archives.
type tarCutter struct {
	// target is the size of a part in bytes; only a part that consists of a single member is larger.
	target int64
	// next opens the next part.
	next func() (io.Writer, error)
	// done is called with a part's size in bytes when it is whole.
	done func(io.Writer, int64) error

	part io.Writer
	size int64
}

var emptyBlocks [tarEnd]byte

// begin opens another part if the member does not fit into the current one.
func (c *tarCutter) begin(m tarMember, header []byte) error {
	if c.part != nil && c.size+int64(len(header))+m.stored()+tarEnd > c.target {
		if err := c.finish(); err != nil {
			return err
		}
	}
	if c.part == nil {
		var err error
		if c.part, err = c.next(); err != nil {
			return err
		}
	}
	return c.write(header)
}

// write copies bytes of the stream.
func (c *tarCutter) write(p []byte) error {
	n, err := c.part.Write(p)
	c.size += int64(n)
	return err
}

// finish ends the current part, if there is one.
func (c *tarCutter) finish() error {
	if c.part == nil {
		return nil
	}
	if err := c.write(emptyBlocks[:]); err != nil {
		return err
	}
	part, size := c.part, c.size
	c.part, c.size = nil, 0
	return c.done(part, size)
}
