package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// cutVisitor cuts, and notes what it was told.
type cutVisitor struct {
	tarCutter
	parts   []*bytes.Buffer
	members []tarMember
	body    bytes.Buffer // contents of all members
	open    bool
}

func newCutVisitor(target int64) *cutVisitor {
	v := &cutVisitor{}
	v.tarCutter = tarCutter{target: target,
		next: func() (io.Writer, error) {
			v.parts = append(v.parts, &bytes.Buffer{})
			return v.parts[len(v.parts)-1], nil
		},
		done: func(w io.Writer, size int64) error {
			if n := w.(*bytes.Buffer).Len(); int64(n) != size {
				return fmt.Errorf("a part of %d bytes is said to have %d", n, size)
			}
			return nil
		}}
	return v
}

func (v *cutVisitor) begin(m tarMember, header []byte) error {
	if v.open {
		return errors.New("a member begins in a member")
	}
	v.open = true
	v.members = append(v.members, m)
	return v.tarCutter.begin(m, header)
}
func (v *cutVisitor) content(p []byte) error { v.body.Write(p); return v.write(p) }
func (v *cutVisitor) padding(p []byte) error { return v.write(p) }
func (v *cutVisitor) end() error             { v.open = false; return nil }

// cut passes a stream in pieces of random sizes.
func (v *cutVisitor) cut(stream []byte, random *rand.Rand) error {
	s := &tarSplitter{visitor: v}
	for len(stream) > 0 {
		n := min(len(stream), 1+random.IntN(1+random.IntN(5000)))
		if _, err := s.Write(stream[:n]); err != nil {
			return err
		}
		stream = stream[n:]
	}
	if err := s.Finish(); err != nil {
		return err
	}
	return v.finish()
}

type testMember struct {
	tar.Header
	body []byte
}

func tarOf(t testing.TB, members ...testMember) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.Size = int64(len(m.body))
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func untar(t testing.TB, archive []byte) (members []testMember) {
	t.Helper()
	if !bytes.HasSuffix(archive, emptyBlocks[:]) {
		t.Fatal("a part does not end as a tar archive ends")
	}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, testMember{*h, body})
	}
}

func randomMember(random *rand.Rand, i int) testMember {
	m := testMember{Header: tar.Header{Name: fmt.Sprintf("base/%d", i), Mode: 0o600, Typeflag: tar.TypeReg}}
	m.Format = []tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU}[random.IntN(3)]
	switch random.IntN(8) {
	case 0:
		m.Name, m.Typeflag, m.Mode = m.Name+"/", tar.TypeDir, 0o700
		return m
	case 1:
		m.Typeflag, m.Linkname = tar.TypeSymlink, "/elsewhere"
		return m
	case 2:
		return m // of size 0
	case 3:
		m.Name += strings.Repeat("/ä", 40+random.IntN(100))
		if m.Format == tar.FormatUSTAR {
			m.Format = tar.FormatPAX
		}
	case 4:
		if m.Format == tar.FormatUSTAR {
			m.Name = strings.Repeat("prefix/", 18) + m.Name
		}
	}
	m.body = make([]byte, random.IntN([]int{3, 600, 40000}[random.IntN(3)]))
	for j := range m.body {
		m.body[j] = byte(random.Uint32())
	}
	return m
}

// However a stream is cut and whatever the pieces it comes in, the parts hold its members, byte by byte.
func TestCutPartsHoldTheStream(t *testing.T) {
	for seed := range uint64(300) {
		g := NewWithT(t)
		random := rand.New(rand.NewPCG(seed, 1))
		var members []testMember
		for i := range random.IntN(30) {
			members = append(members, randomMember(random, i))
		}
		stream := tarOf(t, members...)
		target := int64(1 + random.IntN(100000))
		v := newCutVisitor(target)
		g.Expect(v.cut(stream, random)).To(Succeed(), "seed %d", seed)

		var got []testMember
		var again bytes.Buffer
		for i, p := range v.parts {
			in := untar(t, p.Bytes())
			g.Expect(in).NotTo(BeEmpty(), "seed %d part %d", seed, i)
			if int64(p.Len()) > target {
				g.Expect(in).To(HaveLen(1), "seed %d part %d: larger than asked for", seed, i)
			}
			got = append(got, in...)
			again.Write(p.Bytes()[:p.Len()-tarEnd])
		}
		again.Write(emptyBlocks[:])
		g.Expect(bytes.Equal(again.Bytes(), stream)).To(BeTrue(), "seed %d", seed)
		g.Expect(got).To(HaveLen(len(members)))
		var body []byte
		for i, m := range v.members {
			g.Expect(m).To(Equal(tarMember{members[i].Name, members[i].Typeflag, int64(len(members[i].body))}), "seed %d", seed)
			body = append(body, members[i].body...)
		}
		g.Expect(bytes.Equal(v.body.Bytes(), body)).To(BeTrue(), "seed %d", seed)
	}
}

// rawHeader is a header block as PostgreSQL writes it.
func rawHeader(name string, kind byte, size string) []byte {
	b := make([]byte, tarBlock)
	copy(b, name)
	copy(b[100:], "0000600\x000000000\x000000000\x00")
	copy(b[124:136], size)
	copy(b[136:], "00000000000 ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 8 * ' '
	for _, c := range b {
		sum += rune(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func TestHugeMemberIsNeverCut(t *testing.T) {
	g := NewWithT(t)
	const size = int64(9) << 30 // more than 11 octal digits can say
	header := rawHeader("big", '0', "\x80\x00\x00\x00\x00\x00\x00\x02\x40\x00\x00\x00")
	var v visited
	s := &tarSplitter{visitor: &v}
	_, err := s.Write(header)
	g.Expect(err).NotTo(HaveOccurred())
	piece := make([]byte, 16<<20)
	for sent := int64(0); sent < size; sent += int64(len(piece)) {
		_, err = s.Write(piece)
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err = s.Write(rawHeader("next", '0', "00000000000 "))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Finish()).To(Succeed())
	g.Expect(v).To(Equal(visited{members: []tarMember{{"big", '0', size}, {"next", '0', 0}}, bytes: size, ended: 2}))
}

type visited struct {
	members []tarMember
	bytes   int64
	ended   int
}

func (v *visited) begin(m tarMember, _ []byte) error { v.members = append(v.members, m); return nil }
func (v *visited) content(p []byte) error            { v.bytes += int64(len(p)); return nil }
func (v *visited) padding([]byte) error              { return nil }
func (v *visited) end() error                        { v.ended++; return nil }

func TestTarStreamsThatAreRefused(t *testing.T) {
	file := func(body string) []byte {
		b := append(rawHeader("f", '0', fmt.Sprintf("%011o ", len(body))), body...)
		return append(b, make([]byte, -len(body)&511)...)
	}
	flipped := file("abc")
	flipped[3] ^= 1
	end := emptyBlocks[:]
	pax := func(record string) []byte {
		b := append(rawHeader("x", 'x', fmt.Sprintf("%011o ", len(record))), record...)
		return append(append(b, make([]byte, -len(record)&511)...), file("abc")...)
	}
	for name, c := range map[string]struct {
		stream []byte
		err    string
	}{
		"cut in a header":              {file("abc")[:100], "within a member"},
		"cut in the content":           {file("abc")[:514], "within a member"},
		"cut in the padding":           {file("abc")[:600], "within a member"},
		"cut in the end":               {append(file("abc"), end[:512]...), "within a member"},
		"ends after an extension":      {append(append([]byte(nil), pax("9 path=a\n")[:1024]...), end...), "extended header"},
		"a header is damaged":          {flipped, "checksum"},
		"goes on after the end":        {append(append(file("abc"), end...), file("x")...), "after its end"},
		"hard link":                    {rawHeader("h", '1', "00000000000 "), "type '1'"},
		"device":                       {rawHeader("h", '3', "00000000000 "), "type '3'"},
		"global header":                {rawHeader("h", 'g', "00000000000 "), "type 'g'"},
		"sparse":                       {rawHeader("h", 'S', "00000000000 "), "type 'S'"},
		"sparse by pax":                {pax("22 GNU.sparse.major=1\n"), "GNU.sparse"},
		"a pax record without its end": {pax("99 path=a\n"), "cannot be understood"},
		"a negative size by pax":       {pax("11 size=-1\n"), "no number"},
		"a size that is no number":     {rawHeader("h", '0', "0000000x000 "), "not octal"},
		"a size out of range":          {rawHeader("h", '0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "out of range"},
		"an endless extended header":   {rawHeader("h", 'L', "77777777777 "), "extended header of"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(newCutVisitor(1<<20).cut(c.stream, rand.New(rand.NewPCG(1, 2)))).To(MatchError(ContainSubstring(c.err)))
		})
	}
	g := NewWithT(t)
	v := newCutVisitor(1 << 20)
	g.Expect(v.cut(file("abc"), rand.New(rand.NewPCG(1, 2)))).To(Succeed(), "without end blocks, as before PostgreSQL 15")
	v = newCutVisitor(1 << 20)
	g.Expect(v.cut(pax("12 size=520\n")[:1024], rand.New(rand.NewPCG(1, 2)))).NotTo(Succeed())
	g.Expect(v.parts).To(BeEmpty(), "no part of nothing")
}
