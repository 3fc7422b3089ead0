package pgsql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

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
	w := promotion{changed: time.Now()}
	return until(ctx, "the promotion is done", func(ctx context.Context) (bool, error) {
		out, err := c.main.query(ctx, promotionSQL)
		if err != nil {
			return false, fmt.Errorf("promote: %w", err)
		}
		if out[0][0] == "f" {
			return true, nil
		}
		w.progress(out[0][1], time.Now())
		if w.stuck(time.Now()) > promoteStall {
			return false, fmt.Errorf("promote: replay has stood still for %s", promoteStall)
		}
		if out[0][2] == "t" && w.stuck(time.Now()) > conflictPatience {
			if _, err := c.main.query(ctx, endReaders, applicationName); err != nil {
				return false, fmt.Errorf("promote: end sessions that keep replay waiting: %w", err)
			}
		}
		return false, nil
	})
}

// A promotion comes after all WAL that was received is replayed. Replay waits for queries on the standby as long as
// max_standby_streaming_delay says, which may be for ever, and knows nothing of a promotion that waits for it
// (https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-CONFLICT).
const (
	// conflictPatience is how long a query may keep a promotion waiting.
	conflictPatience = time.Second
	// promoteStall is how long replay may stand still before a promotion is given up.
	promoteStall = time.Minute
)

const promotionSQL = `
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn(), EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'startup'
  AND (wait_event_type IN ('Lock', 'BufferPin', 'Buffer') OR wait_event LIKE 'RecoveryConflict%'))`

// endReaders ends sessions that are in a transaction: one of them is what replay waits for.
const endReaders = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid() AND application_name <> $1`

// promotion is the progress of replay on the way to it.
type promotion struct {
	at      string
	changed time.Time
}

func (p *promotion) progress(at string, now time.Time) {
	if at != p.at {
		p.at, p.changed = at, now
	}
}

// stuck is for how long replay has not moved.
func (p *promotion) stuck(now time.Time) time.Duration { return now.Sub(p.changed) }

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
