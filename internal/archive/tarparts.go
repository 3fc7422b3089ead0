package archive

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Sizes of the tar format, in bytes: https://www.gnu.org/software/tar/manual/html_node/Standard.html
const (
	tarBlock = 512
	// tarEnd is the length of the two empty blocks that end an archive.
	tarEnd = 2 * tarBlock
	// maxTarExtension bounds an extended header, which holds names.
	maxTarExtension = 1 << 20
)

// tarMember is a file, directory or symbolic link in a tar stream.
type tarMember struct {
	Name string
	// Type is the type flag: '0' file, '2' symbolic link, '5' directory.
	Type byte
	// Size of the content in bytes.
	Size int64
}

// stored is how many bytes the content takes in the stream, with its padding.
func (m *tarMember) stored() int64 { return (m.Size + tarBlock - 1) / tarBlock * tarBlock }

// tarVisitor is told what a tar stream consists of. All bytes but the end of the archive are given to it once, in order.
type tarVisitor interface {
	// begin announces a member; header is its header with all extended headers that belong to it.
	begin(m tarMember, header []byte) error
	// content gives a piece of a member's content.
	content(p []byte) error
	// padding gives what fills up the last block of the content.
	padding(p []byte) error
	// end is called after the last byte of a member.
	end() error
}

// tarSplitter finds the members of a tar stream that is written to it in any pieces. It understands what PostgreSQL writes, and beyond that
// long names and sizes as in the pax and GNU formats; it refuses what it would not understand rather than cut it in a wrong place.
type tarSplitter struct {
	visitor tarVisitor

	header  []byte // of the member to come, with its extended headers
	block   int    // bytes of the current header block
	want    int64  // bytes of an extended header's content that are missing yet
	wantPad int64
	ext     tarExtension

	size, pad int64 // bytes of the current member that are missing yet
	inMember  bool
	empty     int // empty blocks at the end
}

// tarExtension is what extended headers say of the member that follows.
type tarExtension struct {
	kind    byte
	content []byte
	name    string
	size    int64
	hasSize bool
}

// Write takes the next piece of the stream.
func (s *tarSplitter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		used, err := s.step(p)
		if err != nil {
			return n - len(p), err
		}
		p = p[used:]
	}
	return n, nil
}

// Finish says whether the stream ended where an archive can end.
func (s *tarSplitter) Finish() error {
	if s.inMember || len(s.header) > 0 || s.empty == 1 {
		return errors.New("the tar stream ends within a member")
	}
	return nil
}

// step takes from the front of p what belongs together and returns how much that was.
func (s *tarSplitter) step(p []byte) (int, error) {
	switch {
	case s.size > 0:
		p = p[:min(int64(len(p)), s.size)]
		s.size -= int64(len(p))
		if err := s.visitor.content(p); err != nil {
			return 0, err
		}
		return len(p), s.memberPassed()
	case s.pad > 0:
		p = p[:min(int64(len(p)), s.pad)]
		s.pad -= int64(len(p))
		if err := s.visitor.padding(p); err != nil {
			return 0, err
		}
		return len(p), s.memberPassed()
	case s.want > 0:
		p = p[:min(int64(len(p)), s.want)]
		s.want -= int64(len(p))
		s.ext.content = append(s.ext.content, p...)
		s.header = append(s.header, p...)
		return len(p), s.extensionPassed()
	case s.wantPad > 0:
		p = p[:min(int64(len(p)), s.wantPad)]
		s.wantPad -= int64(len(p))
		s.header = append(s.header, p...)
		return len(p), nil
	default:
		p = p[:min(len(p), tarBlock-s.block)]
		s.header = append(s.header, p...)
		if s.block += len(p); s.block < tarBlock {
			return len(p), nil
		}
		s.block = 0
		return len(p), s.headerPassed(s.header[len(s.header)-tarBlock:])
	}
}

// memberPassed is called when a piece of a member was taken.
func (s *tarSplitter) memberPassed() error {
	if !s.inMember || s.size > 0 || s.pad > 0 {
		return nil
	}
	s.inMember = false
	return s.visitor.end()
}

// headerPassed is called with a whole header block.
func (s *tarSplitter) headerPassed(b []byte) error {
	if len(bytes.TrimLeft(b, "\x00")) == 0 {
		if len(s.header) > tarBlock {
			return errors.New("the tar stream ends after an extended header")
		}
		s.empty++
		s.header = s.header[:0]
		return nil
	}
	if s.empty > 0 {
		return errors.New("the tar stream goes on after its end")
	}
	if err := checkTarSum(b); err != nil {
		return err
	}
	size, err := tarNumber(b[124:136])
	if err != nil {
		return err
	}
	switch kind := b[156]; kind {
	case 'x', 'L', 'K':
		if size > maxTarExtension {
			return fmt.Errorf("an extended header of %d bytes in the tar stream", size)
		}
		s.ext.kind, s.ext.content = kind, s.ext.content[:0]
		s.want, s.wantPad = size, -size&(tarBlock-1)
		return s.extensionPassed()
	case '0', 0, '2', '5':
		return s.memberBegins(b, max(kind, '0'), size)
	default:
		return fmt.Errorf("%q in the tar stream is of type %q, which PostgreSQL does not write", tarName(b), kind)
	}
}

func (s *tarSplitter) memberBegins(b []byte, kind byte, size int64) error {
	m := tarMember{Name: tarName(b), Type: kind, Size: size}
	if s.ext.hasSize {
		m.Size = s.ext.size
	}
	if s.ext.name != "" {
		m.Name = s.ext.name
	}
	if kind != '0' {
		m.Size = 0 // as every tar program sees it, whatever the field says
	}
	err := s.visitor.begin(m, s.header)
	s.header, s.ext = s.header[:0], tarExtension{content: s.ext.content[:0]}
	if err != nil {
		return err
	}
	s.size, s.pad, s.inMember = m.Size, m.stored()-m.Size, true
	return s.memberPassed()
}

// extensionPassed is called when a piece of an extended header's content was taken.
func (s *tarSplitter) extensionPassed() error {
	if s.want > 0 {
		return nil
	}
	switch s.ext.kind {
	case 'L':
		s.ext.name = string(bytes.TrimRight(s.ext.content, "\x00"))
	case 'x':
		return s.ext.readPax()
	}
	return nil
}

// readPax reads records of the form "length key=value\n":
// https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_03
func (e *tarExtension) readPax() error {
	for rest := string(e.content); rest != ""; {
		digits, _, ok := strings.Cut(rest, " ")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n <= len(digits)+1 || n > len(rest) || rest[n-1] != '\n' {
			return errors.New("an extended header in the tar stream cannot be understood")
		}
		key, value, ok := strings.Cut(rest[len(digits)+1:n-1], "=")
		rest = rest[n:]
		switch {
		case !ok, strings.HasPrefix(key, "GNU.sparse."):
			return fmt.Errorf("the extended header %q in the tar stream cannot be understood", key)
		case key == "path":
			e.name = value
		case key == "size":
			if e.size, err = strconv.ParseInt(value, 10, 64); err != nil || e.size < 0 {
				return fmt.Errorf("the size %q in an extended header of the tar stream is no number", value)
			}
			e.hasSize = true
		}
	}
	return nil
}

// tarName is the name in a header block.
func tarName(b []byte) string {
	name := cString(b[:100])
	// In the GNU format ("ustar  ") other fields are where POSIX has the prefix.
	if string(b[257:263]) == "ustar\x00" {
		if prefix := cString(b[345:500]); prefix != "" {
			return prefix + "/" + name
		}
	}
	return name
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// tarNumber reads a number: octal digits, or big-endian bytes if the first bit is set, as PostgreSQL writes sizes of 8 GiB and more.
func tarNumber(b []byte) (int64, error) {
	if b[0]&0x80 != 0 {
		n := int64(b[0] & 0x7f)
		for _, c := range b[1:] {
			if n >= 1<<54 {
				return 0, errors.New("a size in the tar stream is out of range")
			}
			n = n<<8 | int64(c)
		}
		return n, nil
	}
	digits := strings.Trim(cString(b), " ")
	if digits == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(digits, 8, 63)
	if err != nil {
		return 0, fmt.Errorf("the number %q in the tar stream is not octal", digits)
	}
	return int64(n), nil
}

// checkTarSum compares the sum that a header block carries: without it, bytes that were lost before would not be noticed.
func checkTarSum(b []byte) error {
	want, err := tarNumber(b[148:156])
	if err != nil {
		return err
	}
	sum := int64(8 * ' ')
	for i, c := range b {
		if i < 148 || i >= 156 {
			sum += int64(c)
		}
	}
	if sum != want {
		return errors.New("a header in the tar stream has a wrong checksum")
	}
	return nil
}
