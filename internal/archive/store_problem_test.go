package archive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestCheckNamesWhatIsWrong(t *testing.T) {
	server := startS3(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	nobody := "https://" + closed.Addr().String()
	_ = closed.Close()
	otherCA := writeCertificate(t, t.TempDir())
	tests := map[string]struct {
		change func(d *Destination)
		want   Problem
	}{
		"all is well":      {func(*Destination) {}, NoProblem},
		"wrong key":        {func(d *Destination) { d.Credentials[CredentialS3AccessKey] = "somebody-else" }, Credentials},
		"wrong secret key": {func(d *Destination) { d.Credentials[CredentialS3SecretKey] = "a-wrong-secret" }, Credentials},
		"wrong bucket":     {func(d *Destination) { d.URL = "s3://no-such-bucket/x" }, NoBucket},
		"no CA":            {func(d *Destination) { d.CA = nil }, CertificateAuthority},
		"another CA":       {func(d *Destination) { d.CA = otherCA }, CertificateAuthority},
		"nobody listens":   {func(d *Destination) { d.Endpoint = nobody }, Network},
		"no TLS":           {func(d *Destination) { d.Endpoint = strings.Replace(d.Endpoint, "https", "http", 1) }, Network},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := server.destination("check")
			c.change(&d)
			ctx, cancel := context.WithTimeout(context.Background(), waitLong)
			defer cancel()
			begin := time.Now()
			err := Check(ctx, openStore(t, d))
			g.Expect(Diagnose(err)).To(Equal(c.want), "%v", err)
			g.Expect(time.Since(begin)).To(BeNumerically("<", 15*time.Second))
			if err != nil {
				g.Expect(err.Error()).NotTo(Or(ContainSubstring("a-wrong-secret"), ContainSubstring(s3Secret)))
				t.Log(err)
			}
		})
	}
}

// A bucket that goes must never look like the end of the WAL.
func TestWrongBucketIsNotMissingObject(t *testing.T) {
	g := NewWithT(t)
	d := startS3(t).destination("x")
	d.URL = "s3://no-such-bucket/x"
	s := openStore(t, d)
	_, err := s.Stat(context.Background(), "key")
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(ErrNotFound))
	_, err = s.Read(context.Background(), "key")
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(ErrNotFound))
}

func TestDiagnose(t *testing.T) {
	tests := map[Problem]error{
		NoProblem:   nil,
		Conflict:    fmt.Errorf("archive x: %w", ErrConflict),
		Full:        &os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC},
		Credentials: &os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES},
		Network:     fmt.Errorf("get: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}),
		Other:       errors.New("something else"),
	}
	for want, err := range tests {
		if got := Diagnose(err); got != want {
			t.Errorf("Diagnose(%v) = %q, want %q", err, got, want)
		}
	}
}

func TestStoreThatOverwritesIsRefused(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Check(context.Background(), &overwriting{NewMemory(time.Now)})).To(MatchError(ErrNoConditions))
}

// overwriting is a server that ignores the condition of a write.
type overwriting struct{ *Memory }

func (s *overwriting) Create(ctx context.Context, key string, r io.Reader, metadata map[string]string) error {
	_ = s.Memory.Delete(ctx, key)
	return s.Memory.Create(ctx, key, r, metadata)
}

func TestFileDestinationHasToExist(t *testing.T) {
	g := NewWithT(t)
	_, err := Open(context.Background(), Destination{URL: "file:///no/such/volume"})
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.backup.destination"), ContainSubstring("mount the volume"))))
	g.Expect(Diagnose(err)).To(Equal(NoBucket))
}

func TestFilesOfKilledWritersAreSwept(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	s := openStore(t, Destination{URL: "file://" + dir})
	// One that still writes, and one that was killed.
	began, end, written := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		written <- s.Create(context.Background(), "slow", readerFunc(func([]byte) (int, error) { close(began); <-end; return 0, io.EOF }), nil)
	}()
	<-began
	dead := filepath.Join(dir, temporaryDir, rand.Text())
	g.Expect(os.WriteFile(dead, []byte("half"), 0o600)).To(Succeed())
	_ = openStore(t, Destination{URL: "file://" + dir})
	g.Expect(dead).NotTo(BeAnExistingFile())
	close(end)
	g.Expect(<-written).To(Succeed())
	g.Expect(content(g, s, "slow")).To(BeEmpty())
}

func TestUploadRateLimit(t *testing.T) {
	g := NewWithT(t)
	s := openStore(t, Destination{URL: "file://" + t.TempDir(), UploadRateLimit: 1 << 20})
	begin := time.Now()
	g.Expect(create(s, "x", strings.Repeat("x", 1<<20))).To(Succeed())
	// A quarter of a second's worth goes at once.
	g.Expect(time.Since(begin)).To(BeNumerically(">", 600*time.Millisecond))
}
