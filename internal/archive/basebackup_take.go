package archive

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
)

// progressStep is how much is read between two reports of progress, in bytes.
const progressStep = 1 << 20

// taker takes what BASE_BACKUP sends: it cuts the archives into parts, hashes each file on its way, and compares with the manifest.
type taker struct {
	o *TakeOptions
	u *uploader

	start, stop     position
	tablespaces     []Tablespace
	total           int64 // PostgreSQL's estimate
	done, announced int64

	split      *tarSplitter // of the current archive
	cut        tarCutter
	tablespace uint32 // of the current archive
	number     int    // of its last part
	current    *upload
	parts      []*Part

	member tarMember
	name   string // of the file, from the data directory on
	hash   hash.Hash
	seen   fileList

	manifestPart   Part
	manifestUpload *upload
	parse          *io.PipeWriter // to the goroutine that reads the manifest
	parsed         chan error
	listed         *manifest
}

var (
	_ backupSink = (*taker)(nil)
	_ tarVisitor = (*taker)(nil)
)

func newTaker(o *TakeOptions, u *uploader) *taker {
	t := &taker{o: o, u: u, hash: sha256.New(), seen: fileList{}}
	t.cut = tarCutter{target: o.PartSize, next: t.nextPart, done: func(io.Writer, int64) error {
		t.current.finish()
		t.current = nil
		return nil
	}}
	return t
}

func (t *taker) started(p position, tablespaces []Tablespace, total int64) error {
	t.start, t.tablespaces, t.total = p, tablespaces, total
	return nil
}

func (t *taker) stopped(p position) error {
	t.stop = p
	t.report(0)
	return nil
}

func (t *taker) archive(tablespace uint32) error {
	if err := t.endArchive(); err != nil {
		return err
	}
	t.split, t.tablespace, t.number = &tarSplitter{visitor: t}, tablespace, 0
	return nil
}

func (t *taker) endArchive() error {
	if t.split == nil {
		return nil
	}
	if err := t.split.Finish(); err != nil {
		return err
	}
	t.split = nil
	return t.cut.finish()
}

func (t *taker) nextPart() (io.Writer, error) {
	t.number++
	stem := "base"
	if t.tablespace != 0 {
		stem = fmt.Sprint(t.tablespace)
	}
	part := &Part{Name: fmt.Sprintf("%s.%03d.tar%s", stem, t.number, t.o.Codec.Suffix()), Tablespace: t.tablespace}
	up, err := t.u.open(part, t.o.Codec.Encode)
	if err != nil {
		return nil, err
	}
	t.current, t.parts = up, append(t.parts, part)
	return up, nil
}

func (t *taker) data(p []byte) error {
	switch {
	case t.parse != nil:
		if _, err := t.manifestUpload.Write(p); err != nil {
			return err
		}
		_, err := t.parse.Write(p)
		return err
	case t.split != nil:
		t.report(int64(len(p)))
		_, err := t.split.Write(p)
		return err
	default:
		return errors.New("BASE_BACKUP: data that belongs to nothing")
	}
}

// report counts bytes and calls Progress now and then.
func (t *taker) report(n int64) {
	t.done += n
	if t.o.Progress != nil && (n == 0 || t.done-t.announced >= progressStep) {
		t.announced = t.done
		t.o.Progress(t.done, max(t.total, t.done))
	}
}

func (t *taker) begin(m tarMember, header []byte) error {
	t.member, t.name = m, path.Clean(m.Name)
	if t.tablespace != 0 {
		t.name = path.Join(tablespaceDir, fmt.Sprint(t.tablespace), m.Name)
	}
	if m.Type == '2' {
		return fmt.Errorf("PostgreSQL sent %q as a symbolic link, which a restore could not follow", t.name)
	}
	t.hash.Reset()
	return t.cut.begin(m, header)
}

func (t *taker) content(p []byte) error {
	t.hash.Write(p)
	return t.cut.write(p)
}

func (t *taker) padding(p []byte) error { return t.cut.write(p) }

func (t *taker) end() error {
	if t.member.Type != '0' {
		return nil
	}
	f := fileSum{size: t.member.Size}
	t.hash.Sum(f.sum[:0])
	return t.seen.add(t.name, f)
}

// manifest begins to store the manifest and to compare it with what was seen.
func (t *taker) manifest() error {
	if err := t.endArchive(); err != nil {
		return err
	}
	if t.parse != nil {
		return errors.New("BASE_BACKUP: a second manifest")
	}
	t.manifestPart.Name = manifestName
	if len(t.o.Codec.Recipients) > 0 {
		t.manifestPart.Name += SuffixEncrypted
	}
	var err error
	if t.manifestUpload, err = t.u.open(&t.manifestPart, t.u.encodeManifest); err != nil {
		return err
	}
	r, w := io.Pipe()
	t.parse, t.parsed = w, make(chan error, 1)
	go func() {
		file, result := t.seen.compareTo()
		m, err := readManifest(r, file)
		if err == nil {
			t.listed, err = m, result()
		}
		_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		t.parsed <- err
	}()
	return nil
}

func (t *taker) complete() error {
	if err := t.endArchive(); err != nil {
		return err
	}
	if t.parse == nil {
		return errors.New("PostgreSQL sent no manifest")
	}
	_ = t.parse.Close()
	if err := <-t.parsed; err != nil {
		return err
	}
	t.manifestUpload.finish()
	t.manifestUpload = nil
	return nil
}

// abandon ends what is under way after an error.
func (t *taker) abandon(err error) {
	t.u.fail(err)
	for _, up := range []*upload{t.current, t.manifestUpload} {
		if up != nil {
			up.finish()
		}
	}
	if t.parse != nil {
		_ = t.parse.CloseWithError(err)
	}
}
