package pgsql

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsStarting says that the server is there and does not accept connections yet, or no more: it starts up, recovers without having
// reached a consistent state, or shuts down.
func IsStarting(err error) bool { return sqlState(err) == "57P03" }

// IsFull says that the server is up and has no connection left, not even one of superuser_reserved_connections.
func IsFull(err error) bool { return sqlState(err) == "53300" }

// IsDown says that nothing answered: no socket, refused, or the connection broke. A timeout is not down: the server may be wedged.
func IsDown(err error) bool {
	return err != nil && sqlState(err) == "" && !IsTimeout(err)
}

// IsTimeout says that ctx ended before the server answered.
func IsTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || pgconn.Timeout(err)
}

// sqlState is the SQLSTATE of PostgreSQL's own error, "" for any other.
func sqlState(err error) string {
	if s, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return s.SQLState()
	}
	return ""
}
