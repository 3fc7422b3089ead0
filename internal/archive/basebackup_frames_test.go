package archive

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"

	"filippo.io/age"
	. "github.com/onsi/gomega"
)

// noise is content that compresses by half.
func noise(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.IntN(16))
	}
	return b
}

func TestFramesAreOneContent(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 7))
	for _, size := range []int{0, 1, frameSize - 1, frameSize, frameSize + 1, 5*frameSize + 77} {
		for _, threads := range []int{0, 1, 2, 5} {
			g := NewWithT(t)
			content := noise(random, size)
			c := &Codec{Threads: threads}
			if size%2 == 1 {
				c.Recipients, c.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
			}
			var stored bytes.Buffer
			w, err := c.Encode(&stored)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = io.Copy(w, struct{ io.Reader }{bytes.NewReader(content)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(w.Close()).To(Succeed())
			r, err := c.Decode(bytes.NewReader(stored.Bytes()), len(c.Recipients) > 0)
			g.Expect(err).NotTo(HaveOccurred())
			got, err := io.ReadAll(r)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(bytes.Equal(got, content)).To(BeTrue(), "%d bytes, %d threads", size, threads)
			if len(c.Recipients) == 0 && threads > 1 {
				zstd := exec.Command("zstd", "-d", "-c")
				zstd.Stdin = &stored
				out, err := zstd.Output()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(bytes.Equal(out, content)).To(BeTrue(), "%d bytes by zstd", size)
			}
		}
	}
}

// failAfter fails once it took n writes.
type failAfter struct{ n int }

var errFull = errors.New("no space left")

func (f *failAfter) Write(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestFramesReportWhatTheWriterSays(t *testing.T) {
	content := noise(rand.New(rand.NewPCG(7, 7)), 8*frameSize)
	for _, n := range []int{0, 1, 5, 7} {
		g := NewWithT(t)
		w, err := newCompressor(&failAfter{n}, 1, 2)
		g.Expect(err).NotTo(HaveOccurred())
		_, _ = w.Write(content)
		g.Expect(w.Close()).To(MatchError(errFull), "after %d frames", n)
	}
}
