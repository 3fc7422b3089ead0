package archive

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
)

// manifestOf is a manifest in PostgreSQL's form; the files' content is their name.
func manifestOf(names ...string) string {
	var b strings.Builder
	b.WriteString("{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": 7300000000000000001,\n\"Files\": [")
	for i, name := range names {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n{ \"Encoded-Path\": \"%x\", \"Size\": %d, \"Last-Modified\": \"2026-11-30 15:45:01 GMT\", "+
			"\"Checksum-Algorithm\": \"SHA256\", \"Checksum\": \"%x\" }", name, len(name), sha256.Sum256([]byte(name)))
	}
	b.WriteString("\n],\n\"WAL-Ranges\": [\n{ \"Timeline\": 3, \"Start-LSN\": \"1/28\", \"End-LSN\": \"1/100\" }\n],\n")
	fmt.Fprintf(&b, "\"Manifest-Checksum\": \"%x\"}\n", sha256.Sum256([]byte(b.String())))
	return b.String()
}

func sumOf(content string) fileSum {
	return fileSum{int64(len(content)), sha256.Sum256([]byte(content))}
}

func TestReadManifest(t *testing.T) {
	g := NewWithT(t)
	text := manifestOf("PG_VERSION", "base/1/\xff")
	for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
		files := fileList{}
		m, err := readManifest(r, files.add)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).To(Equal(fileList{"PG_VERSION": sumOf("PG_VERSION"), "base/1/\xff": sumOf("base/1/\xff")}))
		g.Expect(m).To(Equal(&manifest{"7300000000000000001", []WALRange{{3, 0x100000028, 0x100000100}}}))
	}
	_, err := readManifest(iotest.TimeoutReader(iotest.HalfReader(strings.NewReader(text))), fileList{}.add)
	g.Expect(err).To(MatchError(iotest.ErrTimeout))
	_, err = readManifest(strings.NewReader(manifestOf("a", "a")), fileList{}.add)
	g.Expect(err).To(MatchError(ContainSubstring(`"a" is there twice`)))
	_, err = readManifest(strings.NewReader(text+"{}\n"), fileList{}.add)
	g.Expect(err).To(MatchError(ContainSubstring("goes on after its end")))
	_, err = readManifest(strings.NewReader(strings.Replace(text, "SHA256", "CRC32C", 1)), fileList{}.add)
	g.Expect(err).To(MatchError(ContainSubstring("no SHA-256 checksum")))
}

// Whatever byte of a manifest is changed or lost, it is found.
func TestManifestThatWasChanged(t *testing.T) {
	text := manifestOf("PG_VERSION", "global/pg_control")
	for i := range len(text) - 1 { // without its last line end, which says nothing
		changed := []byte(text)
		changed[i] ^= 1
		if _, err := readManifest(strings.NewReader(string(changed)), fileList{}.add); err == nil {
			t.Errorf("byte %d was changed unnoticed: %s", i, changed)
		}
		if _, err := readManifest(strings.NewReader(text[:i]), fileList{}.add); err == nil {
			t.Errorf("the end from byte %d was lost unnoticed", i)
		}
	}
}

func TestCompareToManifest(t *testing.T) {
	for name, c := range map[string]struct {
		seen   fileList
		listed []string
		err    string
	}{
		"the same":         {fileList{"a": sumOf("a"), "b": sumOf("b")}, []string{"a", "b"}, ""},
		"WAL":              {fileList{"a": sumOf("a"), "pg_wal/00000001.history": sumOf("x")}, []string{"a"}, ""},
		"not sent":         {fileList{"a": sumOf("a")}, []string{"a", "b"}, `"b" was not sent`},
		"not listed":       {fileList{"a": sumOf("a"), "b": sumOf("b")}, []string{"a"}, `"b" is not listed`},
		"another size":     {fileList{"a": sumOf("aa")}, []string{"a"}, `"a" has 2 bytes instead of 1`},
		"another content":  {fileList{"a": sumOf("b")}, []string{"a"}, `"a" has another checksum`},
		"listed twice":     {fileList{"a": sumOf("a")}, []string{"a", "a"}, `listed twice`},
		"many differences": {fileList{}, strings.Split("abcdefgh", ""), "8 files differ"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			file, result := c.seen.compareTo()
			_, err := readManifest(strings.NewReader(manifestOf(c.listed...)), file)
			g.Expect(err).NotTo(HaveOccurred())
			if err := errors.Join(result()); c.err == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(c.err)))
			}
		})
	}
}
