package pgsql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// objectInUse is the SQLSTATE of an active slot.
const objectInUse = "55006"

// Promote asks for the promotion and polls, which sees the end of it sooner than pg_promote's own waiting.
func (c *Client) Promote(ctx context.Context) error {
	out, err := c.main.query(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN pg_promote(false) END")
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if out[0][0] == "f" {
		return errors.New("promote: PostgreSQL could not signal its startup process")
	}
	return until(ctx, "the promotion is done", func(ctx context.Context) (bool, error) {
		out, err := c.main.query(ctx, "SELECT pg_is_in_recovery()")
		if err != nil {
			return false, fmt.Errorf("promote: %w", err)
		}
		return out[0][0] == "f", nil
	})
}

// StopWALReceiver signals the process itself: the startup process would end it only when it has replayed everything that was received, and
// pg_terminate_backend knows no auxiliary processes. SIGTERM makes it flush and exit; nothing else of the server is touched by it.
func (c *Client) StopWALReceiver(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return until(ctx, "the WAL receiver has ended", func(ctx context.Context) (bool, error) {
		out, err := c.main.query(ctx, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")
		if err != nil {
			return false, fmt.Errorf("stop the WAL receiver: %w", err)
		}
		for _, r := range out {
			pid, err := strconv.Atoi(r[0])
			if err != nil || pid <= 1 {
				return false, fmt.Errorf("stop the WAL receiver: %q is no process", r[0])
			}
			if err := c.opts.Signal(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, fmt.Errorf("stop the WAL receiver: %w", err)
			}
		}
		return len(out) == 0, nil
	})
}

// EnsureSlots drops lost slots and creates what is missing.
func (c *Client) EnsureSlots(ctx context.Context, names []string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := c.main.query(ctx, `
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name = ANY($1::text[]) AND slot_type = 'physical' AND wal_status = 'lost' AND NOT active`, array(names)); err != nil {
		return fmt.Errorf("drop lost replication slots: %w", err)
	}
	if _, err := c.main.query(ctx, `
SELECT pg_create_physical_replication_slot(n, true) FROM unnest($1::text[]) n
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = n)`, array(names)); err != nil {
		return fmt.Errorf("create replication slots: %w", err)
	}
	return nil
}

// DropSlots drops what exists.
func (c *Client) DropSlots(ctx context.Context, names []string) error {
	if _, err := c.main.query(ctx, `
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name = ANY($1::text[]) AND slot_type = 'physical'`, array(names)); err != nil {
		return fmt.Errorf("drop replication slots: %w", err)
	}
	return nil
}

// AdvanceSlots moves what may move. One that became active in this moment is no error: its own reader moves it now.
func (c *Client) AdvanceSlots(ctx context.Context, to map[string]postgres.LSN) error {
	if len(to) == 0 {
		return nil
	}
	names, targets := make([]string, 0, len(to)), make([]string, 0, len(to))
	for name, lsn := range to {
		names, targets = append(names, name), append(targets, lsn.String())
	}
	_, err := c.main.query(ctx, `
SELECT pg_replication_slot_advance(slot_name, target)
FROM unnest($1::text[], $2::pg_lsn[]) AS w(name, wanted) JOIN pg_replication_slots ON slot_name = name,
 LATERAL (SELECT least(wanted, CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END) AS target) t
WHERE slot_type = 'physical' AND NOT active AND wal_status IS DISTINCT FROM 'lost' AND restart_lsn < target`, array(names), array(targets))
	if err != nil && sqlState(err) != objectInUse {
		return fmt.Errorf("advance replication slots: %w", err)
	}
	return nil
}
