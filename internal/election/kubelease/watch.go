package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kumki-dev/kumki/internal/election"
)

// ErrWatchEnded says that a watch came to its regular end: read the Lease and watch on.
var ErrWatchEnded = errors.New("the watch of the Lease ended")

// watchSeconds is how long the API server keeps one watch open.
const watchSeconds = 290

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// Watch calls seen for every change of the Lease after version ("": from its present state on), in order and never with an older
// one than this client has seen. It returns when ctx ends or the watch breaks, which proves nothing about the Lease.
func (c *Client) Watch(ctx context.Context, version string, seen func(election.Lease)) error {
	query := url.Values{
		"watch":               {"true"},
		"fieldSelector":       {"metadata.name=" + c.name},
		"allowWatchBookmarks": {"false"},
		"timeoutSeconds":      {fmt.Sprint(watchSeconds)},
	}
	if version != "" {
		query.Set("resourceVersion", version)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?"+query.Encode(), nil)
	if err != nil {
		return fmt.Errorf("watching Lease %s/%s: %w", c.namespace, c.name, err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("watching Lease %s/%s: %w", c.namespace, c.name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watching Lease %s/%s: %w", c.namespace, c.name, refusal(resp.StatusCode, nil))
	}
	decoder := json.NewDecoder(resp.Body)
	for {
		var ev watchEvent
		if err := decoder.Decode(&ev); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %w", ErrWatchEnded, err)
		}
		if err := c.pass(ev, seen); err != nil {
			return err
		}
	}
}

// pass hands one event on.
func (c *Client) pass(ev watchEvent, seen func(election.Lease)) error {
	switch ev.Type {
	case "ADDED", "MODIFIED", "DELETED":
	case "BOOKMARK":
		return nil
	default: // the server's history does not reach back to the version any more, or it has other trouble
		return fmt.Errorf("%w: %s", ErrWatchEnded, ev.Object)
	}
	var l lease
	if err := json.Unmarshal(ev.Object, &l); err != nil {
		return fmt.Errorf("an event of Lease %s/%s cannot be read: %w", c.namespace, c.name, err)
	}
	if c.stale(&l) {
		return nil
	}
	if ev.Type == "DELETED" {
		c.remember(nil, l.Metadata.ResourceVersion)
		seen(election.Lease{})
		return nil
	}
	c.remember(&l, l.Metadata.ResourceVersion)
	view, err := l.election()
	if err != nil {
		return err
	}
	seen(view)
	return nil
}

// stale: a newer state of the Lease was seen already.
func (c *Client) stale(l *lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return older(l.Metadata.ResourceVersion, c.newest)
}
