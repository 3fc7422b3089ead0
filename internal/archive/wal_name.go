package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// WALKind is what a file in the WAL's archive is.
type WALKind int

// Kinds of files that PostgreSQL archives.
// https://www.postgresql.org/docs/current/continuous-archiving.html
const (
	Segment WALKind = iota + 1
	// PartialSegment is the unfinished last one of a timeline that was left at a promotion.
	PartialSegment
	// BackupLabel tells of a base backup.
	BackupLabel
	// TimelineHistory tells which timelines lead to one.
	TimelineHistory
)

// WALName is a name that PostgreSQL gives to what it archives.
type WALName struct {
	Kind     WALKind
	Timeline uint32
	// log and seg are the two halves of a segment's number; what they mean depends on the size of segments.
	log, seg uint32
	// offset of a backup's start in its segment.
	offset uint32
}

var walPattern = regexp.MustCompile(`^([0-9A-F]{8})(?:([0-9A-F]{8})([0-9A-F]{8})(\.partial|\.([0-9A-F]{8})\.backup)?|(\.history))$`)

// ParseWALName reads a name by PostgreSQL's rules: 24 upper-case hexadecimal digits for a segment, with .partial or .<offset>.backup
// behind it, and 8 with .history.
func ParseWALName(s string) (WALName, error) {
	m := walPattern.FindStringSubmatch(s)
	if m == nil {
		return WALName{}, fmt.Errorf("%q is not a name of PostgreSQL's WAL, like 00000001000000000000002A or 00000002.history", s)
	}
	n := WALName{Kind: Segment, Timeline: fromHex(m[1]), log: fromHex(m[2]), seg: fromHex(m[3]), offset: fromHex(m[5])}
	switch {
	case n.Timeline == 0:
		return WALName{}, fmt.Errorf("%q is not a name of PostgreSQL's WAL: there is no timeline 0", s)
	case m[6] != "":
		n.Kind = TimelineHistory
	case m[4] == ".partial":
		n.Kind = PartialSegment
	case m[4] != "":
		n.Kind = BackupLabel
	}
	return n, nil
}

func fromHex(s string) uint32 {
	v, _ := strconv.ParseUint(s, 16, 32)
	return uint32(v)
}

// String is PostgreSQL's name.
func (n WALName) String() string {
	switch n.Kind {
	case TimelineHistory:
		return fmt.Sprintf("%08X.history", n.Timeline)
	case PartialSegment:
		return n.segment() + ".partial"
	case BackupLabel:
		return fmt.Sprintf("%s.%08X.backup", n.segment(), n.offset)
	}
	return n.segment()
}

func (n WALName) segment() string { return fmt.Sprintf("%08X%08X%08X", n.Timeline, n.log, n.seg) }

// SegmentName is that of segment number on a timeline, with segments of size bytes.
func SegmentName(timeline uint32, number uint64, size int64) WALName {
	perLog := uint64(1<<32) / uint64(size)
	return WALName{Kind: Segment, Timeline: timeline, log: uint32(number / perLog), seg: uint32(number % perLog)}
}

// Number of the segment, counted from the begin of the WAL, with segments of size bytes.
func (n WALName) Number(size int64) uint64 {
	return uint64(n.log)*(uint64(1<<32)/uint64(size)) + uint64(n.seg)
}

// SegmentNumber is that of the segment that has position l, with segments of size bytes.
func SegmentNumber(l postgres.LSN, size int64) uint64 { return uint64(l) / uint64(size) }

// ValidSegmentSize tells whether PostgreSQL can have segments of that many bytes: a power of two from 1 MiB to 1 GiB.
func ValidSegmentSize(size int64) bool {
	return size >= 1<<20 && size <= 1<<30 && bits.OnesCount64(uint64(size)) == 1
}

// walHeaderSize is that of the long header, with which a segment begins.
const walHeaderSize = 40

// xlpLongHeader is the flag that a page has the long header.
const xlpLongHeader = 0x0002

// errNotThisSegment says that a file is not the segment that its name promises.
var errNotThisSegment = errors.New("this is not the WAL segment that its name promises")

// checkSegment compares a segment's header (XLogLongPageHeaderData in PostgreSQL's xlog_internal.h, in the machine's byte order) with its
// name, its size in bytes and the cluster's system identifier. It keeps another cluster's WAL, and half a file, out of the archive.
func checkSegment(name WALName, header []byte, size int64, system uint64) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s; look for what else writes into pg_wal", name, errNotThisSegment, fmt.Sprintf(format, args...))
	}
	if !ValidSegmentSize(size) {
		return refuse("it has %d bytes, which no segment has", size)
	}
	if len(header) < walHeaderSize {
		return refuse("its header has %d bytes instead of %d", len(header), walHeaderSize)
	}
	order := binary.NativeEndian
	var (
		magic       = order.Uint16(header)
		info        = order.Uint16(header[2:])
		timeline    = order.Uint32(header[4:])
		address     = order.Uint64(header[8:])
		identifier  = order.Uint64(header[24:])
		segmentSize = order.Uint32(header[32:])
	)
	perLog := uint32(uint64(1<<32) / uint64(size))
	switch {
	case magic < 0xD000 || info&xlpLongHeader == 0:
		return refuse("it does not begin with a WAL header")
	case identifier != system:
		return refuse("it is of the system %d, and the cluster's is %d", identifier, system)
	case int64(segmentSize) != size:
		return refuse("it has %d bytes and its header says %d", size, segmentSize)
	case name.seg >= perLog || address != name.Number(size)*uint64(size):
		return refuse("its header is that of %s", postgres.LSN(address))
	case timeline == 0 || timeline > name.Timeline:
		// A segment in which a timeline begins has the header of the one before.
		return refuse("its header is of the later timeline %d", timeline)
	}
	return nil
}

// StoredWAL tells what an object's key below a cluster's wal/ is: the name, and whether it is encrypted. false: none of ours.
func StoredWAL(key string) (name WALName, encrypted, ok bool) {
	base := key[strings.LastIndexByte(key, '/')+1:]
	if trimmed, found := strings.CutSuffix(base, SuffixEncrypted); found {
		base, encrypted = trimmed, true
	}
	base, compressed := strings.CutSuffix(base, SuffixCompressed)
	name, err := ParseWALName(base)
	if err != nil || encrypted && !compressed || compressed != name.encoded() {
		return WALName{}, false, false
	}
	return name, encrypted, true
}

// encoded tells whether the content is compressed in the store. What is small and not secret is kept as it is, so that everybody can read
// it, and the recovery window can be told without a key.
func (n WALName) encoded() bool { return n.Kind == Segment || n.Kind == PartialSegment }
