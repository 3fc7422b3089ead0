package instanceapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Names of the files of an identity, as in a Secret of type kubernetes.io/tls.
const (
	fileCert = "tls.crt"
	fileKey  = "tls.key"
	fileCA   = "ca.crt"
)

// Identity is a certificate with its key, and the CAs whose certificates it trusts.
type Identity struct {
	Certificate tls.Certificate
	CAs         *x509.CertPool
}

// ParseIdentity reads an identity from PEM.
func ParseIdentity(cert, key, ca []byte) (*Identity, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s do not make a certificate: %w", fileCert, fileKey, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", fileCA)
	}
	return &Identity{Certificate: pair, CAs: pool}, nil
}

// Source gives the identity in force. Identity returns the same pointer until something changed.
type Source interface {
	Identity() (*Identity, error)
}

// Identity makes an identity a source of itself, for one that never changes.
func (i *Identity) Identity() (*Identity, error) { return i, nil }

// FileSource reads an identity from the files tls.crt, tls.key and ca.crt of a folder, and again when one of them changed.
// When what it finds is unusable, the last good identity stays in force and LastError tells.
type FileSource struct {
	dir string

	mu      sync.Mutex
	stamp   stamp
	current *Identity
	lastErr error
}

// stamp tells two states of the files apart.
type stamp [3]struct {
	modified time.Time
	size     int64
	real     string // a mounted Secret is swapped by a symbolic link
}

// NewFileSource is a source for the files in dir; they are read when they are first needed.
func NewFileSource(dir string) *FileSource { return &FileSource{dir: dir} }

// Identity returns the identity in force, or an error as long as there was none.
func (f *FileSource) Identity() (*Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.look()
	if err == nil && (f.current == nil || f.lastErr != nil || now != f.stamp) {
		var next *Identity
		if next, err = f.read(); err == nil {
			f.current, f.stamp = next, now
		}
	}
	f.lastErr = err
	if f.current == nil {
		return nil, fmt.Errorf("certificate files in %s: %w", f.dir, err)
	}
	return f.current, nil
}

// LastError says why the files' present content is not in force; nil when it is.
func (f *FileSource) LastError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastErr
}

func (f *FileSource) look() (stamp, error) {
	var s stamp
	for i, name := range []string{fileCert, fileKey, fileCA} {
		path := filepath.Join(f.dir, name)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return s, err
		}
		info, err := os.Stat(real)
		if err != nil {
			return s, err
		}
		s[i].modified, s[i].size, s[i].real = info.ModTime(), info.Size(), real
	}
	return s, nil
}

func (f *FileSource) read() (*Identity, error) {
	var content [3][]byte
	for i, name := range []string{fileCert, fileKey, fileCA} {
		var err error
		if content[i], err = os.ReadFile(filepath.Join(f.dir, name)); err != nil {
			return nil, err
		}
	}
	return ParseIdentity(content[0], content[1], content[2])
}

// serverConfig asks every client for a certificate of the CAs in force at the time of the handshake.
func serverConfig(source Source) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := source.Identity()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:             tls.VersionTLS13,
				Certificates:           []tls.Certificate{id.Certificate},
				ClientAuth:             tls.RequireAndVerifyClientCert,
				ClientCAs:              id.CAs,
				NextProtos:             []string{"http/1.1"},
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// clientConfig trusts a server by its CA and common name, not by host name: all instances of a cluster share one certificate and are
// called by DNS name, by address or through a tunnel; which pod answered is checked by Target.Pod.
func clientConfig(id *Identity) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{id.Certificate},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks the chain and the name
		VerifyConnection: func(state tls.ConnectionState) error {
			name, err := verify(id, state.PeerCertificates, x509.ExtKeyUsageServerAuth)
			if err != nil {
				return err
			}
			if name != CommonNamePeer {
				return fmt.Errorf("the server's certificate is of %q, not of %q", name, CommonNamePeer)
			}
			return nil
		},
	}
}

// verify checks a chain against the trusted CAs and returns the common name of its leaf.
func verify(id *Identity, chain []*x509.Certificate, usage x509.ExtKeyUsage) (string, error) {
	if len(chain) == 0 {
		return "", errors.New("no certificate was shown")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: id.CAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return "", err
	}
	return chain[0].Subject.CommonName, nil
}
