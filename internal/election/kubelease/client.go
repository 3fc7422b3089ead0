// Package kubelease keeps the leadership record in a Kubernetes Lease: the adapter between election's core and the API server.
//
// It speaks plain HTTP with the few fields it needs. The typed client and its scheme would cost an instance manager several
// megabytes of memory.
package kubelease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kumki-dev/kumki/internal/election"
)

// ErrConflict says that a compare-and-swap was surely not done: somebody else changed, created or deleted the Lease first.
var ErrConflict = errors.New("the Lease was changed by somebody else")

// ErrRefused says that the API server understood a request and did not do it, for example for lack of permission.
var ErrRefused = errors.New("the API server refused")

// ErrUnauthorized says that the API server does not know the caller (any more): the token of a pod ends with the pod's object.
var ErrUnauthorized = fmt.Errorf("%w: not authenticated", ErrRefused)

// maxBody bounds what is read of one answer, in bytes.
const maxBody = 1 << 20

// Client reads, watches and changes the one Lease of a cluster. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	url       string // of the collection of leases
	namespace string
	name      string
	labels    map[string]string
	owner     *OwnerReference
	timeout   time.Duration
	duration  time.Duration
	now       func() time.Time

	mu     sync.Mutex
	last   *lease // newest object that was seen, the base of the next write
	newest string // resource version of the newest state that was seen, of a deletion too
}

// OwnerReference lets the Lease go with the object of that name.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// Option changes a Client.
type Option func(*Client)

// WithLabels puts labels on the Lease when it is created.
func WithLabels(labels map[string]string) Option { return func(c *Client) { c.labels = labels } }

// WithOwner puts an owner reference on the Lease when it is created.
func WithOwner(owner OwnerReference) Option { return func(c *Client) { c.owner = &owner } }

// New returns a client of the Lease. The connection is made with the first call. Calls end after the protocol's RenewTimeout.
func New(cfg *rest.Config, namespace, name string, options ...Option) (*Client, error) {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the connection to the API server cannot be set up, check its CA and token: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the API server's address %q cannot be used: %w", cfg.Host, err)
	}
	t := election.DefaultTiming()
	c := &Client{
		http: hc, url: strings.TrimSuffix(base.String(), "/") + "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases",
		namespace: namespace, name: name, timeout: t.RenewTimeout, duration: t.LeaseDuration, now: time.Now,
	}
	for _, o := range options {
		o(c)
	}
	return c, nil
}

// Get reads the Lease from the API server's store, not from a cache. A Lease that does not exist is no error: its Version is "".
func (c *Client) Get(ctx context.Context) (election.Lease, error) {
	var l lease
	status, err := c.call(ctx, http.MethodGet, c.url+"/"+c.name, nil, &l)
	switch {
	case status == http.StatusNotFound:
		c.remember(nil, "")
		return election.Lease{}, nil
	case err != nil:
		return election.Lease{}, fmt.Errorf("reading Lease %s/%s: %w", c.namespace, c.name, err)
	}
	c.remember(&l, l.Metadata.ResourceVersion)
	return l.election()
}

// CAS writes the record if the Lease's version is still version ("": if it does not exist), and returns the Lease as it is then.
// ErrConflict and ErrRefused say that it was surely not written; after any other error it may or may not have been.
func (c *Client) CAS(ctx context.Context, version string, record election.Record) (election.Lease, error) {
	desired, err := c.desired(ctx, version, record)
	if err != nil {
		return election.Lease{}, fmt.Errorf("writing Lease %s/%s: %w", c.namespace, c.name, err)
	}
	// PUT creates a Lease, too: unlike POST it can be allowed for one name alone (RBAC resourceNames). It creates without a version and
	// changes with one only; the UID in the object keeps a change from making a Lease anew that was deleted.
	var done lease
	status, err := c.call(ctx, http.MethodPut, c.url+"/"+c.name, desired, &done)
	switch {
	case status == http.StatusConflict, status == http.StatusNotFound && version != "":
		return election.Lease{}, ErrConflict
	case version == "" && status == http.StatusUnprocessableEntity && strings.Contains(err.Error(), "metadata.resourceVersion"):
		return election.Lease{}, ErrConflict // it exists: a version must be given
	case err != nil:
		return election.Lease{}, fmt.Errorf("writing Lease %s/%s: %w", c.namespace, c.name, err)
	}
	c.remember(&done, done.Metadata.ResourceVersion)
	return done.election()
}

// desired is the object to write. What others put on it, labels for example, stays.
func (c *Client) desired(ctx context.Context, version string, record election.Record) (*lease, error) {
	base := c.base(version)
	if base == nil && version != "" {
		// The version is none of those that this client saw last: only its object may be the base of the write.
		if _, err := c.Get(ctx); err != nil {
			return nil, errors.Join(ErrRefused, err)
		}
		if base = c.base(version); base == nil {
			return nil, ErrConflict
		}
	}
	if base == nil {
		base = newLease(c.namespace, c.name, c.labels, c.owner)
	}
	return base, base.set(record, c.now(), c.duration)
}

// base is a copy of the object of that version, nil when it is not the newest that was seen.
func (c *Client) base(version string) *lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == "" || c.last == nil || c.last.Metadata.ResourceVersion != version {
		return nil
	}
	return c.last.copy()
}

// remember keeps the newest object, nil when there is none.
func (c *Client) remember(l *lease, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if older(version, c.newest) {
		return
	}
	c.last = l
	if version != "" {
		c.newest = version
	}
}

// call makes one request and decodes its answer. The status is 0 when none came.
func (c *Client) call(ctx context.Context, method, url string, body any, into any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, payload)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode >= 300 {
		return resp.StatusCode, refusal(resp.StatusCode, b)
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}

// refusal turns an answer that is no success into an error. Server errors may have come after the write.
func refusal(status int, body []byte) error {
	var s struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(body, &s)
	if s.Message == "" {
		s.Message = http.StatusText(status)
	}
	if status >= 500 || status == http.StatusRequestTimeout {
		return fmt.Errorf("the API server failed with %d: %s", status, s.Message)
	}
	if status == http.StatusUnauthorized {
		return fmt.Errorf("%w: %s", ErrUnauthorized, s.Message)
	}
	return fmt.Errorf("%w with %d: %s", ErrRefused, status, s.Message)
}
