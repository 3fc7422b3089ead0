package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"slices"
	"time"
)

// pair is a certificate and its key.
type pair struct {
	cert   *x509.Certificate
	key    crypto.Signer
	keyPEM []byte
}

// spec says what a certificate is for.
type spec struct {
	what  string // for people
	name  string // common name
	hosts []string
	usage []x509.ExtKeyUsage
}

// split parts host names from IP addresses; both sorted and without doubles.
func (s spec) split() (names []string, addresses []net.IP) {
	hosts := slices.Clone(s.hosts)
	slices.Sort(hosts)
	for _, h := range slices.Compact(hosts) {
		if ip := net.ParseIP(h); ip != nil {
			addresses = append(addresses, ip)
		} else {
			names = append(names, h)
		}
	}
	return names, addresses
}

func (s spec) matches(c *x509.Certificate) bool {
	names, addresses := s.split()
	return c.Subject.CommonName == s.name && slices.Equal(c.DNSNames, names) && slices.Equal(c.ExtKeyUsage, s.usage) &&
		slices.EqualFunc(c.IPAddresses, addresses, net.IP.Equal)
}

func newCA(r Request) (*pair, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	// The name differs from CA to CA, so that verifiers that look issuers up by name find the right one during a change.
	name := "kumki " + r.Cluster + " " + hex.EncodeToString(serial.Bytes()[:4])
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             r.Now.Add(-backdate),
		NotAfter:              r.Now.Add(LifetimeCA),
		IsCA:                  true,
		MaxPathLenZero:        true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(template, nil)
}

func newLeaf(r Request, s spec, a *authority) (*pair, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	end := r.Now.Add(LifetimeLeaf)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	names, addresses := s.split()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: s.name},
		NotBefore:             r.Now.Add(-backdate),
		NotAfter:              end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           s.usage,
		DNSNames:              names,
		IPAddresses:           addresses,
	}
	return sign(template, &a.pair)
}

// sign makes a key and signs the template: by itself when there is no signer.
func sign(template *x509.Certificate, signer *pair) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	parent, by := template, crypto.Signer(key)
	if signer != nil {
		parent, by = signer.cert, signer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &pair{cert: cert, key: key, keyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})}, nil
}

// newSerial is 127 random bits with the highest one set, so that it is positive and always 16 bytes long.
func newSerial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b), nil
}

func parsePair(data map[string][]byte) (*pair, error) {
	both, err := tls.X509KeyPair(data[KeyCert], data[KeyKey])
	if err != nil {
		return nil, err
	}
	key, ok := both.PrivateKey.(crypto.Signer)
	if !ok || len(both.Certificate) != 1 {
		return nil, errors.New("not a single certificate with a key that signs")
	}
	cert, err := x509.ParseCertificate(both.Certificate[0])
	if err != nil {
		return nil, err
	}
	return &pair{cert: cert, key: key, keyPEM: data[KeyKey]}, nil
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func encodeCerts(all []*x509.Certificate) []byte {
	var out []byte
	for _, c := range all {
		out = append(out, encodeCert(c)...)
	}
	return out
}

// decodeCerts reads what certificates there are and passes over the rest.
func decodeCerts(text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// Expiry is when the first certificate in PEM expires; false when there is none.
func Expiry(text []byte) (time.Time, bool) {
	all := decodeCerts(text)
	if len(all) == 0 {
		return time.Time{}, false
	}
	return all[0].NotAfter, true
}
