package pgsql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/naming"
)

// Options say where the server is.
type Options struct {
	// SocketDir is unix_socket_directories, Port the port: the socket is <SocketDir>/.s.PGSQL.<Port>.
	SocketDir string
	Port      int
	// Major version of the server.
	Major int
	// Signal sends a signal to a process of the server; syscall.Kill when nil. The server has to be in the same PID namespace.
	Signal func(pid int, sig syscall.Signal) error
}

// Client is a Server reached over its unix socket. It keeps one connection for what is short; what may take long has its own,
// so that a checkpoint never keeps Observe waiting.
type Client struct {
	opts Options
	main *session
	// identity is a replication connection, only open on a standby that does not stream: it alone tells the timeline.
	identity *session
}

var _ Server = (*Client)(nil)

// New makes a client; nothing is connected yet.
func New(o Options) *Client {
	if o.Signal == nil {
		o.Signal = syscall.Kill
	}
	c := &Client{opts: o}
	c.main = newSession(func(ctx context.Context) (*pgconn.PgConn, error) {
		conn, err := c.connect(ctx, "postgres", own, nil)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Prepare(ctx, observeStatement, observeSQL, nil); err != nil {
			_ = closeConn(ctx, conn)
			return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		return conn, nil
	})
	c.identity = newSession(func(ctx context.Context) (*pgconn.PgConn, error) {
		return c.connect(ctx, "", own, map[string]string{"replication": "true"})
	})
	return c
}

// applicationName of all connections; no pod has it, a pod's name ends with its ordinal.
const applicationName = "kumki"

// quiet keeps what Kumki sends out of the server's log: scripts and verifiers are secrets.
var quiet = map[string]string{
	"application_name":            applicationName,
	"client_encoding":             "UTF8",
	"log_statement":               "none",
	"log_duration":                "off",
	"log_min_duration_statement":  "-1",
	"log_min_duration_sample":     "-1",
	"log_transaction_sample_rate": "0",
	"log_min_error_statement":     "panic",
	// A parameter of an extension: without the extension it is a name that nobody reads.
	"pg_stat_statements.track_utility": "off",
	"pg_stat_statements.track":         "none",
	"statement_timeout":                "0",
	"idle_session_timeout":             "0",
	// A library that cannot be loaded must not lock the manager out, which is to correct the setting.
	"session_preload_libraries":     "",
	"local_preload_libraries":       "",
	"default_transaction_read_only": "off",
	// All that Kumki writes it checks again and again, and it must not wait for a standby that is not there.
	"synchronous_commit": "local",
}

// own makes a session independent of the server's and the database's defaults.
var own = merged(quiet, map[string]string{
	"search_path":                         "pg_catalog",
	"lc_messages":                         "C",
	"datestyle":                           "ISO",
	"timezone":                            "UTC",
	"statement_timeout":                   "60s",
	"lock_timeout":                        "10s",
	"idle_in_transaction_session_timeout": "0",
	"default_transaction_isolation":       "read committed",
	"client_min_messages":                 "warning",
	"jit":                                 "off",
	"plan_cache_mode":                     "force_generic_plan",
})

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// connect opens a connection as the superuser. onNotice may be nil.
func (c *Client) connect(ctx context.Context, database string, params, extra map[string]string) (*pgconn.PgConn, error) {
	cfg, err := c.config(database, merged(params, extra))
	if err != nil {
		return nil, err
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return conn, nil
}

func (c *Client) config(database string, params map[string]string) (*pgconn.Config, error) {
	// Everything is said here, so that no environment variable or file of the process decides where to.
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host='%s' port=%d user=%s dbname='%s' sslmode=disable passfile=/nonexistent",
		c.opts.SocketDir, c.opts.Port, naming.RoleSuperuser, database))
	if err != nil {
		return nil, fmt.Errorf("socket directory %q, port %d: %w", c.opts.SocketDir, c.opts.Port, err)
	}
	cfg.Password, cfg.Database, cfg.Fallbacks = "", database, nil
	cfg.ConnectTimeout = 0 // ctx bounds it
	cfg.RuntimeParams = maps.Clone(params)
	if c.opts.Major >= 17 {
		// A failing login trigger must not lock the manager out.
		cfg.RuntimeParams["event_triggers"] = "off"
	}
	return cfg, nil
}

// Close drops the connections.
func (c *Client) Close() {
	c.main.drop()
	c.identity.drop()
}

// Ping opens a new connection as a client's would be, with the libraries that sessions load, and closes it.
func (c *Client) Ping(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	params := maps.Clone(own)
	delete(params, "session_preload_libraries")
	delete(params, "local_preload_libraries")
	conn, err := c.connect(ctx, "postgres", params, nil)
	if err != nil {
		return err
	}
	return closeConn(ctx, conn)
}

// bounded gives ctx a deadline when it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, ShortTimeout)
}

// once runs something long on a connection of its own.
func (c *Client) once(ctx context.Context, database string, params map[string]string, fn func(*pgconn.PgConn) error) error {
	conn, err := c.connect(ctx, database, params, nil)
	if err != nil {
		return err
	}
	return errors.Join(fn(conn), closeConn(ctx, conn))
}

// closeConn says goodbye to the server; that this fails matters to nobody once the work was done.
func closeConn(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShortTimeout)
	defer cancel()
	_ = conn.Close(ctx)
	return nil
}
