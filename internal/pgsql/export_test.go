package pgsql

import (
	"context"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// NewestTimelineAt lets the tests look at the fallback that is hard to bring about.
func (c *Client) NewestTimelineAt(ctx context.Context, lsn postgres.LSN) (uint32, error) {
	return c.newestTimelineAt(ctx, lsn)
}
