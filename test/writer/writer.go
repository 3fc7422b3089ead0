// Package writer is a client that writes to PostgreSQL through faults and remembers every acknowledged commit, so that afterwards
// it can tell what was lost, for how long nothing could be written, and whether two servers took writes at one time.
// It needs nothing but a DSN: it measures any PostgreSQL behind any address.
package writer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DialFunc opens the TCP connection of a client.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Target is where a client connects to.
type Target struct {
	// DSN is asked before every connection, so that a new password or certificate is taken up.
	DSN func() (string, error)
	// Dial opens connections. Default: the host's network.
	Dial DialFunc
}

// Config of a writer. Zero values are replaced by the defaults named below.
type Config struct {
	Target
	// Connections that write at the same time. Default: 4.
	Connections int
	// Rows of one transaction. Default: 2, so that a torn transaction shows.
	Rows int
	// Pause of a connection between two transactions. Default: 5ms.
	Pause time.Duration
	// ConnectTimeout of one attempt. Default: 1s.
	ConnectTimeout time.Duration
	// StatementTimeout is how long the client waits for an answer before it drops the connection. Default: 2s.
	StatementTimeout time.Duration
	// RetryPause after a failure. Default: 50ms.
	RetryPause time.Duration
	// Table is made if need be. Default: kumki_writer.
	Table string
}

func (c Config) withDefaults() Config {
	c.Connections = cmp.Or(c.Connections, 4)
	c.Rows = cmp.Or(c.Rows, 2)
	c.Pause = cmp.Or(c.Pause, 5*time.Millisecond)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, time.Second)
	c.StatementTimeout = cmp.Or(c.StatementTimeout, 2*time.Second)
	c.RetryPause = cmp.Or(c.RetryPause, 50*time.Millisecond)
	c.Table = cmp.Or(c.Table, "kumki_writer")
	return c
}

// Writer writes. Its embedded History can be read at any time.
type Writer struct {
	History
	config Config
	run    int64
}

// New makes a writer with a run number of its own, which tells its rows from those of others in the same table.
func New(config Config) *Writer {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: see crypto/rand
	return &Writer{config: config.withDefaults(), run: int64(binary.BigEndian.Uint64(b[:]) >> 1)}
}

// Run makes the table and writes until ctx ends. It returns an error only when the table could not be made by then;
// failures of single transactions are counted and retried.
func (w *Writer) Run(ctx context.Context) error {
	if err := w.createTable(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range w.config.Connections {
		wg.Go(func() { w.writeOn(ctx, int64(i)) })
	}
	wg.Wait()
	return nil
}

func (w *Writer) createTable(ctx context.Context) error {
	query := fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (run bigint NOT NULL, id bigint NOT NULL,
		at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (run, id))`, pgx.Identifier{w.config.Table}.Sanitize())
	for {
		err := w.tryOnce(ctx, query)
		if err == nil {
			return nil
		}
		w.fail(kindOf(err))
		if !pause(ctx, w.config.RetryPause) {
			return fmt.Errorf("make table %s: %w", w.config.Table, err)
		}
	}
}

func (w *Writer) tryOnce(ctx context.Context, query string) error {
	conn, err := w.connect(ctx, w.config.Target)
	if err != nil {
		return err
	}
	defer w.close(conn)
	ctx, cancel := context.WithTimeout(ctx, w.config.StatementTimeout)
	defer cancel()
	_, err = conn.Exec(ctx, query).ReadAll()
	return err
}

// idsPerConnection leaves each connection a range of ids that no other one uses.
const idsPerConnection = 1 << 40

func (w *Writer) writeOn(ctx context.Context, number int64) {
	next := number * idsPerConnection
	for ctx.Err() == nil {
		if err := w.session(ctx, &next); err != nil {
			w.fail(kindOf(err))
			pause(ctx, w.config.RetryPause)
		}
	}
}

// session connects and writes until something fails or ctx ends.
func (w *Writer) session(ctx context.Context, next *int64) error {
	conn, err := w.connect(ctx, w.config.Target)
	if err != nil {
		return err
	}
	defer w.close(conn)
	server, err := w.identify(ctx, conn)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		first := *next
		*next += int64(w.config.Rows)
		sent := time.Now()
		if err := w.insert(ctx, conn, first); err != nil {
			return err
		}
		w.ack(Ack{Sent: sent, At: time.Now(), First: first, Rows: w.config.Rows, Server: server})
		pause(ctx, w.config.Pause)
	}
	return nil
}

func (w *Writer) insert(ctx context.Context, conn *pgconn.PgConn, first int64) error {
	// The end of the run does not interrupt a statement: its outcome would be unknown for no reason.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.config.StatementTimeout)
	defer cancel()
	w.attempt()
	query := fmt.Sprintf("INSERT INTO %s (run, id) SELECT %d, id FROM generate_series(%d::bigint, %d::bigint) id",
		pgx.Identifier{w.config.Table}.Sanitize(), w.run, first, first+int64(w.config.Rows)-1)
	_, err := conn.Exec(ctx, query).ReadAll()
	return err
}

// connect opens one connection, within ConnectTimeout for each address of the DSN.
func (w *Writer) connect(ctx context.Context, target Target) (*pgconn.PgConn, error) {
	text, err := target.DSN()
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	config, err := pgconn.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("the DSN: %w", err)
	}
	config.ConnectTimeout = w.config.ConnectTimeout
	config.RuntimeParams["application_name"] = "kumki-writer"
	if target.Dial != nil {
		config.DialFunc = pgconn.DialFunc(target.Dial)
		config.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	}
	return pgconn.ConnectConfig(ctx, config)
}

func (w *Writer) close(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server may be gone
}

// errReadOnly is what a connection to a standby ends with.
var errReadOnly = errors.New("connected to a standby")

// identify asks once a connection: a standby that is promoted is a primary from its first acknowledged write on, and
// one connection never sees two lives of a server.
func (w *Writer) identify(ctx context.Context, conn *pgconn.PgConn) (Server, error) {
	ctx, cancel := context.WithTimeout(ctx, w.config.StatementTimeout)
	defer cancel()
	const query = `SELECT pg_is_in_recovery(), coalesce(host(inet_server_addr()), ''),
		(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
		CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) ELSE '0' END`
	results, err := conn.Exec(ctx, query).ReadAll()
	if err != nil {
		return Server{}, err
	}
	row := results[0].Rows[0]
	if string(row[0]) != "f" {
		return Server{}, errReadOnly
	}
	started, err := strconv.ParseInt(string(row[2]), 10, 64)
	if err != nil {
		return Server{}, err
	}
	timeline, err := strconv.ParseUint(string(row[3]), 16, 32)
	if err != nil {
		return Server{}, err
	}
	return Server{Address: string(row[1]), Started: time.UnixMicro(started).UTC(), Timeline: uint32(timeline)}, nil
}

// kindOf names a failure without addresses or values, so that equal failures count together.
func kindOf(err error) string {
	var pg *pgconn.PgError
	var op *net.OpError
	switch {
	case errors.Is(err, errReadOnly):
		return errReadOnly.Error()
	case errors.As(err, &pg):
		return pg.Code + " " + pg.Message
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &op):
		return op.Op + ": " + op.Err.Error()
	default:
		return "connection lost"
	}
}

// pause waits; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
