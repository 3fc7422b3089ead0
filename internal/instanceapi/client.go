package instanceapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
)

// CallTimeout bounds a call whose context has no deadline.
const CallTimeout = 2 * time.Second

// RefusedError is an instance's own refusal of a request.
type RefusedError struct {
	Pod     string
	Code    int // HTTP status
	Message string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("instance %s refused: %s (HTTP %d)", e.Pod, e.Message, e.Code)
}

// Refused says whether the instance itself answered, and refused: the request was not begun.
func Refused(err error) bool {
	var r *RefusedError
	return errors.As(err, &r)
}

// HTTPClient is the Client over mTLS. It keeps a connection to each instance and makes new ones when its identity changes.
type HTTPClient struct {
	source Source

	mu       sync.Mutex
	identity *Identity
	http     *http.Client
}

var _ Client = (*HTTPClient)(nil)

// NewClient calls with the identity that source gives.
func NewClient(source Source) *HTTPClient { return &HTTPClient{source: source} }

// Close ends idle connections.
func (c *HTTPClient) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// Status implements Client.
func (c *HTTPClient) Status(ctx context.Context, t Target) (Status, error) {
	var s Status
	err := c.call(ctx, t, request{method: http.MethodGet, path: pathStatus}, &s)
	return s, err
}

// Peer implements Client.
func (c *HTTPClient) Peer(ctx context.Context, t Target, m election.Message) (election.Message, error) {
	var reply election.Message
	err := c.call(ctx, t, request{method: http.MethodPost, path: pathPeer, body: m}, &reply)
	return reply, err
}

// Release implements Client.
func (c *HTTPClient) Release(ctx context.Context, t Target, l election.Lease) (ReleaseReply, error) {
	var reply ReleaseReply
	err := c.call(ctx, t, request{method: http.MethodPost, path: pathRelease, body: l}, &reply)
	return reply, err
}

// Handover implements Client.
func (c *HTTPClient) Handover(ctx context.Context, t Target, r HandoverRequest) (HandoverReply, error) {
	var reply HandoverReply
	err := c.call(ctx, t, request{method: http.MethodPost, path: pathHandover, body: r}, &reply)
	return reply, err
}

// Restart implements Client.
func (c *HTTPClient) Restart(ctx context.Context, t Target, r RestartRequest) error {
	return c.call(ctx, t, request{method: http.MethodPost, path: pathRestart, body: r}, nil)
}

type request struct {
	method, path string
	body         any
}

func (c *HTTPClient) call(ctx context.Context, t Target, r request, into any) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	client, err := c.client()
	if err != nil {
		return fmt.Errorf("call instance %s: %w", t.Pod, err)
	}
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return fmt.Errorf("call instance %s: %w", t.Pod, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, "https://"+t.Address+r.path, body)
	if err != nil {
		return fmt.Errorf("call instance %s: %w", t.Pod, err)
	}
	req.Header.Set(headerPod, t.Pod)
	response, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("call instance %s: %w", t.Pod, err)
	}
	defer func() { _ = response.Body.Close() }()
	return read(response, t.Pod, into)
}

func read(response *http.Response, pod string, into any) error {
	limited := io.LimitReader(response.Body, maxBody)
	if response.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(limited, 2048))
		return &RefusedError{Pod: pod, Code: response.StatusCode, Message: strings.TrimSpace(string(text))}
	}
	if into != nil {
		if err := json.NewDecoder(limited).Decode(into); err != nil {
			return fmt.Errorf("answer of instance %s: %w", pod, err)
		}
	}
	_, _ = io.Copy(io.Discard, limited) // lets the connection be used again
	return nil
}

// client is the HTTP client for the identity in force.
func (c *HTTPClient) client() (*http.Client, error) {
	id, err := c.source.Identity()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil && c.identity == id {
		return c.http, nil
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	c.identity = id
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: CallTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:     clientConfig(id),
			TLSHandshakeTimeout: CallTimeout,
			MaxIdleConnsPerHost: 2,
			IdleConnTimeout:     50 * time.Second, // before the server's
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c.http, nil
}
