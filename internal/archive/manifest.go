package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"unicode"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// fileSum is what the manifest says of a file's content.
type fileSum struct {
	size int64
	sum  [sha256.Size]byte
}

// manifest is what backup_manifest says besides its list of files:
// https://www.postgresql.org/docs/current/backup-manifest-format.html
type manifest struct {
	// SystemIdentifier is there from PostgreSQL 17 on.
	SystemIdentifier string
	WALRanges        []WALRange
}

// readManifest reads backup_manifest to its end, gives each of its files to file, and checks the manifest's own checksum. The list can be
// long, so it is not kept. What file was told is good only if there is no error.
func readManifest(r io.Reader, file func(name string, f fileSum) error) (*manifest, error) {
	own := &ownChecksum{r: r, hash: sha256.New()}
	p := &manifestParser{dec: json.NewDecoder(own), file: file}
	p.dec.UseNumber()
	if err := p.object(); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	rest, err := io.ReadAll(io.MultiReader(p.dec.Buffered(), own))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if strings.TrimFunc(string(rest), unicode.IsSpace) != "" {
		return nil, fmt.Errorf("%s: it goes on after its end", manifestName)
	}
	if p.sum == "" || p.sum != own.sum() {
		return nil, fmt.Errorf("%s: it does not have the checksum that it ends with: it was changed", manifestName)
	}
	return &p.manifest, nil
}

// ownChecksum computes the checksum that a manifest carries in its last line: of all lines before it.
type ownChecksum struct {
	r    io.Reader
	hash hash.Hash
	// last is from the beginning of the last line that is whole.
	last []byte
}

// Read passes through what it hashes.
func (c *ownChecksum) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.last = append(c.last, p[:n]...)
	if end := bytes.LastIndexByte(c.last, '\n'); end > 0 {
		if before := bytes.LastIndexByte(c.last[:end], '\n'); before >= 0 {
			c.hash.Write(c.last[:before+1])
			c.last = append(c.last[:0], c.last[before+1:]...)
		}
	}
	return n, err
}

// sum is the checksum after everything was read. Text after the last line end would be part of no line: there is no sum then.
func (c *ownChecksum) sum() string {
	if !bytes.HasSuffix(c.last, []byte("\n")) {
		return ""
	}
	return hex.EncodeToString(c.hash.Sum(nil))
}

type manifestParser struct {
	manifest
	dec  *json.Decoder
	file func(string, fileSum) error
	sum  string
}

// object reads the manifest's fields in whatever order; those of later versions are passed over.
func (p *manifestParser) object() error {
	if err := p.delim('{'); err != nil {
		return err
	}
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return err
		}
		switch key {
		case "Files":
			err = p.files()
		case "WAL-Ranges":
			err = p.ranges()
		case "System-Identifier":
			var id json.Number
			err = p.dec.Decode(&id)
			p.SystemIdentifier = id.String()
		case "Manifest-Checksum":
			err = p.dec.Decode(&p.sum)
		default:
			var skip json.RawMessage
			err = p.dec.Decode(&skip)
		}
		if err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *manifestParser) delim(want json.Delim) error {
	t, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err == nil && t != want {
		return fmt.Errorf("%v where %v is expected", t, want)
	}
	return err
}

func (p *manifestParser) files() error {
	if err := p.delim('['); err != nil {
		return err
	}
	for p.dec.More() {
		var f struct {
			Path        string
			EncodedPath *string `json:"Encoded-Path"` // in hexadecimal, for a name that is not UTF-8
			Size        int64
			Algorithm   string `json:"Checksum-Algorithm"`
			Checksum    string
		}
		if err := p.dec.Decode(&f); err != nil {
			return err
		}
		if f.EncodedPath != nil {
			raw, err := hex.DecodeString(*f.EncodedPath)
			if err != nil {
				return fmt.Errorf("the name %q is not hexadecimal", *f.EncodedPath)
			}
			f.Path = string(raw)
		}
		sum := fileSum{size: f.Size}
		n, err := hex.Decode(sum.sum[:], []byte(f.Checksum[:min(len(f.Checksum), 2*sha256.Size)]))
		if err != nil || n != sha256.Size || len(f.Checksum) != 2*sha256.Size || f.Algorithm != "SHA256" {
			return fmt.Errorf("the file %q has no SHA-256 checksum (but %s %q)", f.Path, f.Algorithm, f.Checksum)
		}
		if err := p.file(f.Path, sum); err != nil {
			return err
		}
	}
	return p.delim(']')
}

func (p *manifestParser) ranges() error {
	var ranges []struct {
		Timeline uint32
		Start    postgres.LSN `json:"Start-LSN"`
		End      postgres.LSN `json:"End-LSN"`
	}
	if err := p.dec.Decode(&ranges); err != nil {
		return err
	}
	for _, r := range ranges {
		p.WALRanges = append(p.WALRanges, WALRange(r))
	}
	return nil
}

// outsideManifest are files that PostgreSQL sends without listing them: WAL, which has its own checksums.
func outsideManifest(name string) bool { return strings.HasPrefix(name, "pg_wal/") }

// maxProblems is how many files an error names; it counts the others.
const maxProblems = 5

// problems collects what is wrong with files, to say it in one error.
type problems struct {
	first []string
	count int
}

func (p *problems) add(format string, args ...any) {
	if p.count++; p.count <= maxProblems {
		p.first = append(p.first, fmt.Sprintf(format, args...))
	}
}

// err is nil if there are none.
func (p *problems) err() error {
	switch {
	case p.count == 0:
		return nil
	case p.count > len(p.first):
		return fmt.Errorf("%d files differ from %s: %s, and others", p.count, manifestName, strings.Join(p.first, "; "))
	default:
		return fmt.Errorf("files differ from %s: %s", manifestName, strings.Join(p.first, "; "))
	}
}

// fileList is a set of files with what the manifest says of them.
type fileList map[string]fileSum

// add refuses a name that is there already: of two files of one name, one would be lost.
func (l fileList) add(name string, f fileSum) error {
	if _, ok := l[name]; ok {
		return fmt.Errorf("the file %q is there twice", name)
	}
	l[name] = f
	return nil
}

// compareTo takes from the list, which is what was seen, what the manifest has, and returns a function that says what did not match.
func (l fileList) compareTo() (file func(string, fileSum) error, result func() error) {
	var p problems
	file = func(name string, want fileSum) error {
		got, ok := l[name]
		switch {
		case !ok:
			p.add("%q was not sent, or is listed twice", name)
		case got.size != want.size:
			p.add("%q has %d bytes instead of %d", name, got.size, want.size)
		case got.sum != want.sum:
			p.add("%q has another checksum", name)
		}
		delete(l, name)
		return nil
	}
	return file, func() error {
		for name := range l {
			if !outsideManifest(name) {
				p.add("%q is not listed", name)
			}
		}
		return p.err()
	}
}
