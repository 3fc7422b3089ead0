package archive

import (
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// frameSize is how much of the content becomes one zstd frame, in bytes. Larger ones compress little better and take memory.
const frameSize = 2 << 20

// frameWriter compresses several frames at the same time and writes them in order. A sequence of frames is what "zstd -d" and every other
// decoder takes as one content: https://www.rfc-editor.org/rfc/rfc8878.html#section-3
type frameWriter struct {
	enc  *zstd.Encoder
	w    io.Writer
	cur  *frame
	free chan *frame
	work chan *frame
	done chan struct{} // closed after the last frame was written

	any bool
	mu  sync.Mutex
	err error
}

// frame is a buffer for a piece of the content and what it became. Their number bounds the memory.
type frame struct {
	plain, packed []byte
	ready         chan struct{}
}

func newFrameWriter(w io.Writer, level zstd.EncoderLevel, threads int) (*frameWriter, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(threads), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, err
	}
	// One frame a thread, one that is filled and one that is written.
	buffers := threads + 2
	f := &frameWriter{enc: enc, w: w, free: make(chan *frame, buffers), work: make(chan *frame, buffers), done: make(chan struct{})}
	for range buffers {
		f.free <- &frame{ready: make(chan struct{}, 1)}
	}
	go f.writeAll()
	return f, nil
}

// Write takes a piece of the content. It waits while all buffers are in use.
func (f *frameWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if err := f.failed(); err != nil {
			return n - len(p), err
		}
		if f.cur == nil {
			f.cur = <-f.free // comes back even if writing failed
		}
		if f.cur.plain == nil {
			f.cur.plain = make([]byte, 0, frameSize)
		}
		k := min(len(p), frameSize-len(f.cur.plain))
		f.cur.plain = append(f.cur.plain, p[:k]...)
		p = p[k:]
		if len(f.cur.plain) == frameSize {
			f.pack()
		}
	}
	return n, nil
}

// pack compresses the current frame while the next is filled.
func (f *frameWriter) pack() {
	b := f.cur
	f.cur, f.any = nil, true
	f.work <- b
	go func() {
		b.packed = f.enc.EncodeAll(b.plain, b.packed[:0])
		b.ready <- struct{}{}
	}()
}

// writeAll writes frames in their order. After an error it only gives the buffers back.
func (f *frameWriter) writeAll() {
	defer close(f.done)
	for b := range f.work {
		<-b.ready
		if f.failed() == nil {
			if _, err := f.w.Write(b.packed); err != nil {
				f.mu.Lock()
				f.err = err
				f.mu.Unlock()
			}
		}
		b.plain = b.plain[:0]
		f.free <- b
	}
}

func (f *frameWriter) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Close writes what is left and ends the goroutines. It has to be called after an error too.
func (f *frameWriter) Close() error {
	if f.cur != nil || !f.any {
		if f.cur == nil {
			f.cur = <-f.free // an empty frame: no bytes at all would be no zstd file
		}
		f.pack()
	}
	close(f.work)
	<-f.done
	if err := f.enc.Close(); err != nil {
		return err
	}
	return f.failed()
}
