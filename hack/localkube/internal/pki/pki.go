// Package pki makes the certificates and kubeconfigs of a cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
)

// A cluster is torn down long before this.
const validity = 10 * 365 * 24 * time.Hour

// CA is a certificate authority whose files are Dir/Name.crt and .key.
type CA struct {
	Dir, Name string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

// NewCA makes an authority and writes its files.
func NewCA(dir, name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: "localkube " + name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	ca := &CA{Dir: dir, Name: name, cert: cert, key: key}
	return ca, writePair(dir, name, der, key)
}

// Request says whom a certificate is for.
type Request struct {
	Name         string // of the files
	CommonName   string
	Organization []string
	Hosts        []string // addresses and DNS names of a server
}

// Issue makes a certificate for clients and, if it names hosts, servers, and writes its files.
func (ca *CA) Issue(r Request) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := newTemplate(pkix.Name{CommonName: r.CommonName, Organization: r.Organization})
	if err != nil {
		return err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range r.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return err
	}
	return writePair(ca.Dir, r.Name, der, key)
}

// NewKey writes the files Dir/Name.key and .pub, for service account tokens.
func NewKey(dir, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, name+".pub"), "PUBLIC KEY", public, 0o644); err != nil {
		return err
	}
	return writeKey(dir, name, key)
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}, nil
}

func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der, 0o644); err != nil {
		return err
	}
	return writeKey(dir, name, key)
}

func writeKey(dir, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return host.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// Kubeconfig writes a kubeconfig that holds the certificates themselves, for the client of that name.
func (ca *CA) Kubeconfig(path, server, name string) error {
	read := func(file string) ([]byte, error) { return os.ReadFile(filepath.Join(ca.Dir, file)) }
	caCert, err := read(ca.Name + ".crt")
	if err != nil {
		return err
	}
	cert, err := read(name + ".crt")
	if err != nil {
		return err
	}
	key, err := read(name + ".key")
	if err != nil {
		return err
	}
	data, err := encodeKubeconfig(server, caCert, cert, key)
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	return host.WriteFile(path, data, 0o600)
}
