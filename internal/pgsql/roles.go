package pgsql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// rewindFunctions are what pg_rewind calls on its source: https://www.postgresql.org/docs/current/app-pgrewind.html
var rewindFunctions = []string{
	"pg_catalog.pg_ls_dir(text, boolean, boolean)",
	"pg_catalog.pg_stat_file(text, boolean)",
	"pg_catalog.pg_read_binary_file(text)",
	"pg_catalog.pg_read_binary_file(text, bigint, bigint, boolean)",
}

// EnsureReplicationRole writes only what differs.
func (c *Client) EnsureReplicationRole(ctx context.Context) error {
	role := naming.RoleReplication
	err := c.main.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		have, err := rows(ctx, conn, "SELECT rolcanlogin AND rolreplication AND rolpassword IS NULL FROM pg_authid WHERE rolname = $1", role)
		if err != nil {
			return err
		}
		switch {
		case len(have) == 0:
			err = exec(ctx, conn, "CREATE ROLE "+postgres.QuoteIdent(role)+" LOGIN REPLICATION")
		case have[0][0] != "t":
			err = exec(ctx, conn, "ALTER ROLE "+postgres.QuoteIdent(role)+" LOGIN REPLICATION PASSWORD NULL")
		}
		if err != nil {
			return err
		}
		missing, err := rows(ctx, conn, "SELECT f FROM unnest($1::text[]) f WHERE NOT has_function_privilege($2, f, 'EXECUTE')",
			array(rewindFunctions), role)
		if err != nil || len(missing) == 0 {
			return err
		}
		names := make([]string, len(missing))
		for i, m := range missing {
			names[i] = m[0]
		}
		return exec(ctx, conn, "GRANT EXECUTE ON FUNCTION "+strings.Join(names, ", ")+" TO "+postgres.QuoteIdent(role))
	})
	if err != nil {
		return fmt.Errorf("role %s: %w", role, err)
	}
	return nil
}

// EnsureApp makes the role, then the database: CREATE DATABASE cannot be part of a transaction.
func (c *Client) EnsureApp(ctx context.Context, app App) error {
	if app.Verifier != "" && !postgres.IsVerifier(app.Verifier) {
		return errNotVerifier
	}
	owner, database := postgres.QuoteIdent(app.Owner), postgres.QuoteIdent(app.Database)
	err := c.main.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		have, err := rows(ctx, conn, "SELECT rolcanlogin, rolpassword FROM pg_authid WHERE rolname = $1", app.Owner)
		if err != nil {
			return err
		}
		switch {
		case len(have) == 0 && app.Verifier == "":
			err = exec(ctx, conn, "CREATE ROLE "+owner+" LOGIN")
		case len(have) == 0:
			err = exec(ctx, conn, "CREATE ROLE "+owner+" LOGIN PASSWORD "+postgres.QuoteLiteral(app.Verifier))
		case have[0][0] != "t":
			err = exec(ctx, conn, "ALTER ROLE "+owner+" LOGIN")
		}
		if err == nil && len(have) > 0 && app.Verifier != "" && have[0][1] != app.Verifier {
			err = exec(ctx, conn, "ALTER ROLE "+owner+" PASSWORD "+postgres.QuoteLiteral(app.Verifier))
		}
		if err != nil {
			return fmt.Errorf("role %s: %w", app.Owner, err)
		}
		db, err := rows(ctx, conn, "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = $1", app.Database)
		switch {
		case err != nil:
		case len(db) == 0:
			err = exec(ctx, conn, "CREATE DATABASE "+database+" OWNER "+owner)
		case db[0][0] != app.Owner:
			err = exec(ctx, conn, "ALTER DATABASE "+database+" OWNER TO "+owner)
		}
		if err != nil {
			return fmt.Errorf("database %s: %w", app.Database, err)
		}
		return nil
	})
	return err
}

var errNotVerifier = errors.New("a password has to be given as SCRAM-SHA-256 verifier (postgres.SCRAMVerifier), never in the clear")

// SetPassword compares first, so that nothing is written in the steady state.
func (c *Client) SetPassword(ctx context.Context, role, verifier string) error {
	if !postgres.IsVerifier(verifier) {
		return errNotVerifier
	}
	return c.password(ctx, role, verifier, postgres.QuoteLiteral(verifier))
}

// DropPassword compares first too.
func (c *Client) DropPassword(ctx context.Context, role string) error {
	return c.password(ctx, role, "", "NULL")
}

func (c *Client) password(ctx context.Context, role, want, literal string) error {
	err := c.main.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		have, err := rows(ctx, conn, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", role)
		if err != nil {
			return err
		}
		if len(have) > 0 && have[0][0] == want {
			return nil
		}
		return exec(ctx, conn, "ALTER ROLE "+postgres.QuoteIdent(role)+" PASSWORD "+literal)
	})
	if err != nil {
		return fmt.Errorf("password of role %s: %w", role, err)
	}
	return nil
}

// ExecScript has its own connection, with the database's own defaults but for logging.
func (c *Client) ExecScript(ctx context.Context, database, script string) error {
	err := c.once(ctx, database, quiet, func(conn *pgconn.PgConn) error { return exec(ctx, conn, script) })
	if err != nil {
		return fmt.Errorf("script in database %s: %w", database, err)
	}
	return nil
}
