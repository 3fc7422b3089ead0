package archive

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Open opens the store of a destination. It makes no request, so that a broken destination shows in what is asked later; Check asks
// at once. An error is one of Validate, of credentials that cannot be read, or of a file:// directory that is not there.
func Open(ctx context.Context, d Destination) (Store, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	at, err := d.locate()
	if err != nil {
		return nil, err
	}
	if at.provider == File {
		s, err := openFiles(at.bucket)
		if err != nil {
			return nil, fmt.Errorf("spec.backup.destination %s: %w", d, err)
		}
		return limitUploads(s, d.UploadRateLimit), nil
	}
	open := map[Provider]func(context.Context, Destination, location) (*bucketStore, error){S3: openS3, GCS: openGCS, AzureBlob: openAzure}
	s, err := open[at.provider](ctx, d, at)
	if err != nil {
		return nil, fmt.Errorf("spec.backup.destination %s: %w", d, err)
	}
	s.at, s.prefix = d.URL, at.prefix
	return limitUploads(s, d.UploadRateLimit), nil
}

// Bounds of the steps of a request that make no progress otherwise. How long a body takes depends on its size and the network, so
// the caller's context bounds that.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// answerTimeout is from the end of a request to the begin of its answer: S3 may need long to put parts together.
	answerTimeout = 2 * time.Minute
	idleTimeout   = 90 * time.Second
	idlePerHost   = 32
)

func (d Destination) transport() *http.Transport {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   handshakeTimeout,
		ResponseHeaderTimeout: answerTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConns:          idlePerHost,
		MaxIdleConnsPerHost:   idlePerHost,
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(d.CA) > 0 {
		// Without the system's certificates (a minimal image) the given one has to do.
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(d.CA)
		t.TLSClientConfig.RootCAs = pool
	}
	return t
}
