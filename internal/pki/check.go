package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// CheckServer says what keeps a PostgreSQL server from starting with a certificate, its key and its authority (PEM): PostgreSQL would go on
// with the ones that it has, and not come up with these. Names, dates and purposes are the clients' to judge.
func CheckServer(cert, key, ca []byte) error {
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return fmt.Errorf("%s and %s do not belong together: %w", KeyCert, KeyKey, err)
	}
	return CheckCA(ca)
}

// CheckCA says what keeps authorities (PEM) from being loaded.
func CheckCA(ca []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return errors.New(KeyCA + " holds no certificate in PEM form")
	}
	return nil
}
