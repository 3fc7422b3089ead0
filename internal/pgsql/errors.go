package pgsql

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsStarting says that the server is there and does not accept connections yet, or no more: it starts up, recovers without having
// reached a consistent state, or shuts down (SQLSTATE 57P03).
func IsStarting(err error) bool { return sqlState(err) == "57P03" }

// IsDown says that nothing answered at all: no socket, refused, or the connection broke. A timeout is not down: the server may be wedged.
func IsDown(err error) bool {
	if err == nil || sqlState(err) != "" {
		return false
	}
	return !pgconn.Timeout(err)
}

// sqlState is the SQLSTATE of PostgreSQL's own error, "" for any other.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}
