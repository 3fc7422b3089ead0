package walscan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// Layout of WAL, little-endian, the same in all versions that are supported:
// src/include/access/xlog_internal.h (pages) and xlogrecord.h (records) of PostgreSQL's source.
const (
	pageBytes       = 8192
	shortHeader     = 24
	longHeader      = 40 // of the first page of a segment
	recordHeader    = 24
	recordCRCOffset = 20
	maxRecord       = 1020 << 20

	flagContinuation = 0x01 // the page begins with the rest of a record
	flagLong         = 0x02
	flagOverwrite    = 0x08 // the record that the page before left unfinished was given up
	flagsKnown       = 0x0f

	managerXLOG = 0
	infoSwitch  = 0x40 // the rest of the segment is unused
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errInvalid is the end of the WAL: no valid record is here.
var errInvalid = errors.New("no valid WAL record")

// reader checks one record after the other.
type reader struct {
	ctx      context.Context
	open     func(segment uint64) (file *os.File, timeline uint32, err error) // fs.ErrNotExist: there is none
	segBytes uint64
	systemID uint64
	newest   uint32 // timeline

	magic    uint16
	timeline uint32 // of the last page
	file     *os.File
	segment  uint64
	// fileTimeline is the timeline in the file's name: that of its last record.
	fileTimeline uint32
	page         [pageBytes]byte
	pageAt       uint64
	havePage     bool
	buf          []byte
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

// load reads and checks the page at addr and returns its header's length.
func (r *reader) load(addr uint64) (header uint64, err error) {
	if !r.havePage || r.pageAt != addr {
		if err := r.read(addr); err != nil {
			return 0, err
		}
	}
	flags := binary.LittleEndian.Uint16(r.page[2:])
	if flags&flagLong != 0 {
		return longHeader, nil
	}
	return shortHeader, nil
}

func (r *reader) read(addr uint64) error {
	r.havePage = false
	segment := addr / r.segBytes
	if r.file == nil || r.segment != segment {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		r.close()
		f, timeline, err := r.open(segment)
		if errors.Is(err, fs.ErrNotExist) {
			return errInvalid
		}
		if err != nil {
			return err
		}
		r.file, r.segment, r.fileTimeline = f, segment, timeline
	}
	_, err := r.file.ReadAt(r.page[:], int64(addr%r.segBytes))
	if errors.Is(err, io.EOF) {
		return errInvalid // a file that was never filled
	}
	if err != nil {
		return fmt.Errorf("read WAL: %w", err)
	}
	if !r.pageValid(addr) {
		return errInvalid
	}
	r.pageAt, r.havePage = addr, true
	return nil
}

// pageValid checks the page's header. A recycled segment has the address of its former life.
func (r *reader) pageValid(addr uint64) bool {
	le := binary.LittleEndian
	magic, flags, timeline := le.Uint16(r.page[0:]), le.Uint16(r.page[2:]), le.Uint32(r.page[4:])
	if r.magic == 0 && magic>>8 == 0xD1 {
		r.magic = magic
	}
	if magic != r.magic || flags&^uint16(flagsKnown) != 0 || le.Uint64(r.page[8:]) != addr || timeline < r.timeline || timeline > r.newest {
		return false
	}
	first := addr%r.segBytes == 0
	if first != (flags&flagLong != 0) {
		return false
	}
	if first && (le.Uint64(r.page[24:]) != r.systemID || uint64(le.Uint32(r.page[32:])) != r.segBytes || le.Uint32(r.page[36:]) != pageBytes) {
		return false
	}
	r.timeline = timeline
	return true
}

// record is a valid one: where it began and where the next one begins.
type record struct{ at, next uint64 }

// next checks the record at ptr; prev is where the one before began (0: unknown). errInvalid is the end of the WAL.
func (r *reader) next(ptr, prev uint64) (record, error) {
	for {
		rec, retry, err := r.tryRecord(ptr, prev)
		if err != nil || retry == 0 {
			return rec, err
		}
		ptr = retry
	}
}

// tryRecord returns retry, not 0, when the record at ptr was given up and reading goes on there.
func (r *reader) tryRecord(ptr, prev uint64) (rec record, retry uint64, err error) {
	header, err := r.load(ptr - ptr%pageBytes)
	if err != nil {
		return record{}, 0, err
	}
	flags := binary.LittleEndian.Uint16(r.page[2:])
	if ptr%pageBytes == 0 {
		if flags&flagContinuation != 0 {
			return record{}, 0, errInvalid
		}
		ptr += header
	} else if ptr%pageBytes < header {
		return record{}, 0, errInvalid
	}
	offset := ptr % pageBytes
	total := uint64(binary.LittleEndian.Uint32(r.page[offset:])) // always on one page: records are aligned to 8
	if total < recordHeader || total > maxRecord {
		return record{}, 0, errInvalid
	}
	end, retry, err := r.gather(ptr, total)
	if err != nil || retry != 0 {
		return record{}, retry, err
	}
	if !r.recordValid(ptr, prev) {
		return record{}, 0, errInvalid
	}
	next := (end + 7) &^ 7
	if r.buf[17] == managerXLOG && r.buf[16]&0xf0 == infoSwitch && next%r.segBytes != 0 {
		next += r.segBytes - next%r.segBytes
	}
	return record{at: ptr, next: next}, 0, nil
}

// gather collects the record of total bytes at ptr in buf, over as many pages as it takes, and returns where it ends.
func (r *reader) gather(ptr, total uint64) (end, retry uint64, err error) {
	offset := ptr % pageBytes
	n := min(total, pageBytes-offset)
	r.buf = append(r.buf[:0], r.page[offset:offset+n]...)
	end = ptr + n
	for uint64(len(r.buf)) < total {
		addr := end - end%pageBytes
		header, err := r.load(addr)
		if err != nil {
			return 0, 0, err
		}
		flags := binary.LittleEndian.Uint16(r.page[2:])
		if flags&flagOverwrite != 0 {
			return 0, addr, nil
		}
		rest := total - uint64(len(r.buf))
		if flags&flagContinuation == 0 || uint64(binary.LittleEndian.Uint32(r.page[16:])) != rest {
			return 0, 0, errInvalid
		}
		n := min(rest, pageBytes-header)
		r.buf = append(r.buf, r.page[header:header+n]...)
		end = addr + header + n
	}
	return end, 0, nil
}

func (r *reader) recordValid(at, prev uint64) bool {
	xlPrev := binary.LittleEndian.Uint64(r.buf[8:])
	if xlPrev >= at || prev != 0 && xlPrev != prev {
		return false
	}
	crc := crc32.Update(0, castagnoli, r.buf[recordHeader:])
	crc = crc32.Update(crc, castagnoli, r.buf[:recordCRCOffset])
	return crc == binary.LittleEndian.Uint32(r.buf[recordCRCOffset:])
}
