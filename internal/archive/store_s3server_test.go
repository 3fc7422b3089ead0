package archive

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	. "github.com/onsi/gomega"
)

const (
	s3Bucket = "archive"
	s3Access = "test-access"
	s3Secret = "test-secret-key"
	waitLong = 30 * time.Second
)

// s3Server is a real S3 server on loopback with TLS.
type s3Server struct {
	endpoint string
	ca       []byte
	// folder holds the bucket's objects as files.
	folder string
	client *s3.Client
}

// destination is below a prefix in the server's bucket.
func (s *s3Server) destination(prefix string) Destination {
	return Destination{URL: "s3://" + s3Bucket + "/" + prefix, Endpoint: s.endpoint, CA: s.ca,
		Credentials: map[string]string{CredentialS3AccessKey: s3Access, CredentialS3SecretKey: s3Secret}}
}

// buildS3Server builds the pinned server once and keeps it outside of the checkout.
var buildS3Server = sync.OnceValues(func() (string, error) {
	module := filepath.Join("..", "..", "hack", "tools", "s3")
	sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(cache, "kumki", fmt.Sprintf("versitygw-%x", sha256.Sum256(sums)))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", err
	}
	// Two test binaries may build at the same time.
	temporary := fmt.Sprintf("%s.%d", program, os.Getpid())
	build := exec.Command("go", "build", "-o", temporary, "github.com/versity/versitygw/cmd/versitygw")
	build.Dir = module
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build in %s: %w: %s", module, err, output)
	}
	return program, os.Rename(temporary, program)
})

// startS3 starts a server with an empty bucket that ends with the test.
func startS3(t testing.TB) *s3Server {
	t.Helper()
	g := NewWithT(t)
	program, err := buildS3Server()
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	g.Expect(os.Mkdir(data, 0o755)).To(Succeed())
	ca := writeCertificate(t, dir)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := free.Addr().String()
	g.Expect(free.Close()).To(Succeed())

	var log bytes.Buffer
	server := exec.Command(program, "--port", address, "--cert", filepath.Join(dir, "cert.pem"), "--key", filepath.Join(dir, "key.pem"), "posix", data)
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s3Access, "ROOT_SECRET_KEY="+s3Secret)
	server.Stdout, server.Stderr = &log, &log
	g.Expect(server.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("the S3 server said:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	s := &s3Server{endpoint: "https://" + address, ca: ca, folder: filepath.Join(data, s3Bucket)}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	s.client = s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: aws.String(s.endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3Access, s3Secret, ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}})
	g.Eventually(func() error {
		_, err := s.client.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: aws.String(s3Bucket)})
		return err
	}).WithTimeout(waitLong).WithPolling(50 * time.Millisecond).Should(Succeed())
	return s
}

// pendingUploads counts multipart uploads that were neither completed nor given up.
func (s *s3Server) pendingUploads(t testing.TB) int {
	t.Helper()
	out, err := s.client.ListMultipartUploads(context.Background(), &s3.ListMultipartUploadsInput{Bucket: aws.String(s3Bucket)})
	if err != nil {
		t.Fatal(err)
	}
	return len(out.Uploads)
}

func writeCertificate(t testing.TB, dir string) (ca []byte) {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	encodedKey, err := x509.MarshalPKCS8PrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	g.Expect(os.WriteFile(filepath.Join(dir, "cert.pem"), ca, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encodedKey}), 0o600)).To(Succeed())
	return ca
}
