package walscan_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kumki-dev/kumki/internal/pgproc/walscan"
)

const (
	segBytes = 1 << 20
	page     = 8192
	systemID = 7000000000000000001
	first    = 3*segBytes + 40 // where the first record begins
)

// wal writes pages and records as a server does.
type wal struct {
	t        *testing.T
	segments map[uint64][]byte
	timeline uint32
	at, prev uint64
}

func newWAL(t *testing.T) *wal {
	w := &wal{t: t, segments: map[uint64][]byte{}, timeline: 1, at: 3 * segBytes}
	w.header(0, 0)
	return w
}

// bytes of the WAL at an LSN, to the end of its page.
func (w *wal) bytes(lsn uint64) []byte {
	segment := lsn / segBytes
	if w.segments[segment] == nil {
		w.segments[segment] = make([]byte, segBytes)
	}
	offset := lsn % segBytes
	return w.segments[segment][offset : offset-offset%page+page]
}

// header begins the page at w.at.
func (w *wal) header(flags uint16, rest uint32) {
	b, size := w.bytes(w.at), uint64(24)
	if w.at%segBytes == 0 {
		flags, size = flags|0x02, 40
		binary.LittleEndian.PutUint64(b[24:], systemID)
		binary.LittleEndian.PutUint32(b[32:], segBytes)
		binary.LittleEndian.PutUint32(b[36:], page)
	}
	binary.LittleEndian.PutUint16(b[0:], 0xD110)
	binary.LittleEndian.PutUint16(b[2:], flags)
	binary.LittleEndian.PutUint32(b[4:], w.timeline)
	binary.LittleEndian.PutUint64(b[8:], w.at)
	binary.LittleEndian.PutUint32(b[16:], rest)
	w.at += size
}

// record appends one of that many bytes and returns where it begins. Only keep bytes of it are written, if keep > 0.
func (w *wal) record(total int, info byte, keep int) uint64 {
	r := make([]byte, total)
	for i := range r {
		r[i] = byte(i)
	}
	binary.LittleEndian.PutUint32(r[0:], uint32(total))
	if w.at%page == 0 {
		w.header(0, 0)
	}
	start := w.at
	binary.LittleEndian.PutUint64(r[8:], w.prev)
	r[16], r[17] = info, 0
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(r[20:], crc32.Update(crc32.Update(0, table, r[24:]), table, r[:20]))
	if keep > 0 {
		r = r[:keep]
	}
	for len(r) > 0 {
		if w.at%page == 0 {
			rest := len(r)
			if keep > 0 {
				rest += total - keep
			}
			w.header(0x01, uint32(rest))
		}
		n := copy(w.bytes(w.at), r)
		w.at, r = w.at+uint64(n), r[n:]
	}
	if keep == 0 {
		w.prev = start
		w.at = (w.at + 7) &^ 7
	}
	return start
}

// save writes the segment files of a timeline.
func (w *wal) save(dir string, timeline uint32) {
	w.t.Helper()
	for segment, data := range w.segments {
		name := fmt.Sprintf("%08X%08X%08X", timeline, segment/4096, segment%4096)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func start() walscan.Start {
	return walscan.Start{LSN: first, Timeline: 1, SegmentBytes: segBytes, SystemIdentifier: fmt.Sprint(uint64(systemID))}
}

func expectEnd(t *testing.T, dir string, want walscan.Position) {
	t.Helper()
	got, err := walscan.End(context.Background(), dir, start())
	if err != nil || got != want {
		t.Errorf("the end is %+v (%v), want %+v", got, err, want)
	}
}

func TestEnd(t *testing.T) {
	for name, build := range map[string]func(w *wal) uint64{
		"one record":           func(w *wal) uint64 { w.record(114, 0, 0); return w.at },
		"to the end of a page": func(w *wal) uint64 { w.record(page-40, 0, 0); return w.at },
		"over pages and segments": func(w *wal) uint64 {
			for w.at < 5*segBytes {
				w.record(30001, 0, 0)
			}
			return w.at
		},
		"a segment switch": func(w *wal) uint64 { w.record(114, 0, 0); w.record(24, 0x40, 0); return 4 * segBytes },
		"records after a switch": func(w *wal) uint64 {
			w.record(24, 0x40, 0)
			w.at = 4 * segBytes
			w.record(50, 0, 0)
			return w.at
		},
		"an unfinished record": func(w *wal) uint64 {
			w.record(114, 0, 0)
			end := w.at
			w.record(20000, 0, 9000)
			return end
		},
		"an unfinished record that was given up": func(w *wal) uint64 {
			w.record(114, 0, 0)
			w.record(20000, 0, int(page-w.at%page))
			w.header(0x08, 0)
			w.record(60, 0, 0)
			return w.at
		},
		"a damaged record": func(w *wal) uint64 {
			w.record(114, 0, 0)
			end := w.at
			at := w.record(200, 0, 0)
			w.record(200, 0, 0)
			w.bytes(at)[100] ^= 1
			return end
		},
		"a recycled page": func(w *wal) uint64 {
			for w.at < 3*segBytes+page-1000 {
				w.record(500, 0, 0)
			}
			end := w.at
			w.record(2000, 0, 0)
			binary.LittleEndian.PutUint64(w.bytes(3*segBytes + page)[8:], segBytes)
			return end
		},
		"a record of another past": func(w *wal) uint64 {
			w.record(114, 0, 0)
			end := w.at
			w.prev -= 8
			w.record(114, 0, 0)
			return end
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWAL(t), t.TempDir()
			want := build(w)
			w.save(dir, 1)
			expectEnd(t, dir, walscan.Position{Timeline: 1, LSN: want})
		})
	}
}

func TestNoRecordAtTheStartIsAnError(t *testing.T) {
	w, dir := newWAL(t), t.TempDir()
	w.save(dir, 1)
	if _, err := walscan.End(context.Background(), dir, start()); err == nil || !strings.Contains(err.Error(), "no valid WAL record") {
		t.Errorf("error: %v", err)
	}
	if _, err := walscan.End(context.Background(), t.TempDir(), start()); err == nil {
		t.Error("an empty pg_wal has an end")
	}
}

// A fork in segment 3: both timelines go on in it.
func TestTimelines(t *testing.T) {
	w, dir := newWAL(t), t.TempDir()
	w.record(114, 0, 0)
	w.record(114, 0, 0)
	fork, before := w.at, append([]byte(nil), w.segments[3]...)
	prev := w.prev
	for w.at < 4*segBytes+100 {
		w.record(9000, 0, 0)
	}
	old := w.at
	w.save(dir, 1)
	history := fmt.Sprintf("1\t0/%X\tno recovery target specified\n", fork)
	if err := os.WriteFile(filepath.Join(dir, "00000002.history"), []byte(history), 0o600); err != nil {
		t.Fatal(err)
	}
	expectEnd(t, dir, walscan.Position{Timeline: 1, LSN: old}) // only the history came

	w.segments = map[uint64][]byte{3: append([]byte(nil), before...)}
	w.at, w.prev, w.timeline = fork, prev, 2
	w.save(dir, 2)
	expectEnd(t, dir, walscan.Position{Timeline: 1, LSN: old}) // no record of its own yet
	w.record(114, 0, 0)
	end := w.at
	w.save(dir, 2)
	expectEnd(t, dir, walscan.Position{Timeline: 2, LSN: end}) // segment 4 of timeline 1 is no part of it

	history = fmt.Sprintf("1\t0/%X\tbefore the start\n", uint64(first))
	if err := os.WriteFile(filepath.Join(dir, "00000003.history"), []byte(history), 0o600); err != nil {
		t.Fatal(err)
	}
	w.save(dir, 3)
	expectEnd(t, dir, walscan.Position{Timeline: 2, LSN: end}) // timeline 3 left before the start
}
