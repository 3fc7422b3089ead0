package pgsql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// observeSQL answers everything in one row of JSON. What differs between versions is read through to_jsonb, which gives NULL for a
// column that is not there. $1 is the list of settings, $2 the name of connections of our own.
const observeSQL = `
WITH rec AS MATERIALIZED (SELECT pg_is_in_recovery() AS r)
SELECT json_build_object(
 'inRecovery', r,
 'systemIdentifier', (SELECT system_identifier::text FROM pg_control_system()),
 'walFile', CASE WHEN r THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END,
 'flush', CASE WHEN r THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END,
 'replay', CASE WHEN r THEN pg_last_wal_replay_lsn() END,
 'replayPaused', CASE WHEN r THEN pg_is_wal_replay_paused() END,
 'receiver', (SELECT json_build_object('status', coalesce(w.status, 'connecting'), 'host', w.sender_host, 'port', w.sender_port,
     'tli', w.received_tli, 'flushed', w.flushed_lsn, 'end', w.latest_end_lsn, 'slot', w.slot_name)
   FROM pg_stat_activity a LEFT JOIN pg_stat_wal_receiver w ON w.pid = a.pid WHERE a.backend_type = 'walreceiver' LIMIT 1),
 'replication', (SELECT json_agg(json_build_object('name', s.application_name, 'addr', host(s.client_addr), 'state', s.state,
     'sync', s.sync_state, 'sent', s.sent_lsn, 'flush', s.flush_lsn, 'replay', s.replay_lsn, 'slot', l.slot_name) ORDER BY s.application_name, s.pid)
   FROM pg_stat_replication s LEFT JOIN pg_replication_slots l ON l.active_pid = s.pid
   WHERE s.application_name <> $2),
 'slots', (SELECT json_agg(json_build_object('name', slot_name, 'physical', slot_type = 'physical', 'active', active,
     'wal', wal_status, 'restart', restart_lsn, 'reason', to_jsonb(l)->>'invalidation_reason') ORDER BY slot_name)
   FROM pg_replication_slots l),
 'pendingRestart', (SELECT json_agg(name ORDER BY name) FROM pg_settings WHERE pending_restart),
 'settings', (SELECT json_object_agg(n, current_setting(n)) FROM unnest($1::text[]) n),
 'syncStandbyNames', current_setting('synchronous_standby_names'),
 'checkpointer', (SELECT json_build_object('pid', pid, 'wait', wait_event) FROM pg_stat_activity WHERE backend_type = 'checkpointer' LIMIT 1),
 'primaryConnInfo', current_setting('primary_conninfo'),
 'version', split_part(current_setting('server_version'), ' ', 1),
 'versionNum', current_setting('server_version_num')::int,
 'postmasterStart', pg_postmaster_start_time())
FROM rec`

// observeStatement is the name that observeSQL is prepared by when the connection is made: planning it takes longer than running it.
const observeStatement = "kumki_observe"

// answer is the row of observeSQL.
type answer struct {
	InRecovery       bool
	SystemIdentifier string
	WALFile          string
	Flush, Replay    postgres.LSN
	ReplayPaused     bool
	Receiver         *struct {
		Status, Host, Slot string
		Port               int
		TLI                uint32
		Flushed, End       postgres.LSN
	}
	Replication []struct {
		Name, Addr, State, Sync, Slot string
		Sent, Flush, Replay           postgres.LSN
	}
	Slots []struct {
		Name             string
		Physical, Active bool
		WAL, Reason      string
		Restart          postgres.LSN
	}
	PendingRestart   []string
	Settings         map[string]string
	SyncStandbyNames string
	Checkpointer     *struct {
		PID  int
		Wait string
	}
	PrimaryConnInfo string
	Version         string
	VersionNum      int
	PostmasterStart time.Time
}

// Observe asks everything in one round trip; a standby that does not stream takes a second one.
func (c *Client) Observe(ctx context.Context) (Observation, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var a answer
	err := c.main.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		args := [][]byte{[]byte(array(postgres.StandbyMustMatch)), []byte(applicationName)}
		res := conn.ExecPrepared(ctx, observeStatement, args, nil, nil).Read()
		if res.Err != nil {
			return res.Err
		}
		return json.Unmarshal(res.Rows[0][0], &a)
	})
	if err != nil {
		return Observation{}, fmt.Errorf("observe PostgreSQL: %w", err)
	}
	o := a.observation()
	if !a.InRecovery {
		c.identity.drop()
		o.Timeline, err = timelineOf(a.WALFile)
		o.FlushLSN, o.ReplayLSN = a.Flush, a.Flush
		return o, err
	}
	if r := o.WALReceiver; r != nil && r.ReceivedTLI > 0 && r.FlushedLSN >= a.Replay {
		c.identity.drop()
		o.Timeline, o.FlushLSN = r.ReceivedTLI, r.FlushedLSN
		return o, nil
	}
	o.Timeline, o.FlushLSN, err = c.standbyPosition(ctx, a.Flush)
	return o, err
}

func (a *answer) observation() Observation {
	o := Observation{
		InRecovery: a.InRecovery, SystemIdentifier: a.SystemIdentifier, ReplayLSN: a.Replay, ReplayPaused: a.ReplayPaused,
		SyncStandbyNames: a.SyncStandbyNames, PrimaryConnInfo: a.PrimaryConnInfo,
		PendingRestart: a.PendingRestart, Settings: a.Settings, ServerVersion: a.Version, VersionNum: a.VersionNum,
		PostmasterStart: a.PostmasterStart,
	}
	if c := a.Checkpointer; c != nil {
		o.CheckpointerPID, o.CheckpointerWait = c.PID, c.Wait
	}
	if r := a.Receiver; r != nil {
		o.WALReceiver = &WALReceiver{
			Status: r.Status, SenderHost: r.Host, SenderPort: r.Port, ReceivedTLI: r.TLI, FlushedLSN: r.Flushed, LatestEnd: r.End, SlotName: r.Slot,
		}
	}
	for _, s := range a.Replication {
		o.Replication = append(o.Replication, Standby{
			ApplicationName: s.Name, ClientAddr: s.Addr, State: s.State, SyncState: s.Sync, SentLSN: s.Sent, FlushLSN: s.Flush,
			ReplayLSN: s.Replay, SlotName: s.Slot,
		})
	}
	for _, s := range a.Slots {
		o.Slots = append(o.Slots, Slot{
			Name: s.Name, Physical: s.Physical, Active: s.Active, WALStatus: s.WAL, RestartLSN: s.Restart, InvalidReason: s.Reason,
		})
	}
	return o
}

// timelineOf reads the timeline from the name of a WAL segment.
func timelineOf(walFile string) (uint32, error) {
	if len(walFile) != 24 {
		return 0, fmt.Errorf("%q is not the name of a WAL segment", walFile)
	}
	n, err := strconv.ParseUint(walFile[:8], 16, 32)
	return uint32(n), err
}

// standbyPosition is where the WAL of a standby ends that does not stream. SQL does not tell the timeline of what was replayed, and
// pg_control tells it late; IDENTIFY_SYSTEM does, together with the position that belongs to it
// (https://www.postgresql.org/docs/current/protocol-replication.html). What was received on a newer timeline and not
// replayed yet it leaves out: received is beyond its position then, and the segment's file name tells the timeline.
func (c *Client) standbyPosition(ctx context.Context, received postgres.LSN) (uint32, postgres.LSN, error) {
	var tli uint32
	var pos postgres.LSN
	err := c.identity.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		res, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
		if err != nil {
			return err
		}
		if len(res) != 1 || len(res[0].Rows) != 1 || len(res[0].Rows[0]) < 3 {
			return errors.New("IDENTIFY_SYSTEM: unexpected answer")
		}
		row := text(res[0])[0]
		n, errTLI := strconv.ParseUint(row[1], 10, 32)
		tli = uint32(n)
		pos, err = postgres.ParseLSN(row[2])
		return errors.Join(errTLI, err)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("observe the timeline: %w", err)
	}
	if received <= pos {
		return tli, pos, nil
	}
	newest, err := c.newestTimelineAt(ctx, received)
	if err != nil {
		return 0, 0, err
	}
	if newest > tli {
		return newest, received, nil
	}
	return tli, pos, nil
}

// newestTimelineAt is the highest timeline that has a segment in pg_wal with the byte before lsn; 0 when none has.
func (c *Client) newestTimelineAt(ctx context.Context, lsn postgres.LSN) (uint32, error) {
	out, err := c.main.query(ctx, `
SELECT coalesce(max(left(name, 8)), '') FROM pg_ls_waldir(), LATERAL (SELECT pg_size_bytes(current_setting('wal_segment_size')) AS segment) s
WHERE name ~ '^[0-9A-F]{24}$' AND right(name, 16) =
  lpad(upper(to_hex(div($1::numeric, 4294967296)::bigint)), 8, '0') ||
  lpad(upper(to_hex(div($1::numeric % 4294967296, segment)::bigint)), 8, '0')`,
		strconv.FormatUint(uint64(lsn)-1, 10))
	if err != nil {
		return 0, fmt.Errorf("observe the timeline: %w", err)
	}
	if out[0][0] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(out[0][0], 16, 32)
	return uint32(n), err
}
