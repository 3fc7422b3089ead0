package pgsql

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// session is a connection that is made when it is needed, used by one at a time, and made anew when it broke.
type session struct {
	dial func(context.Context) (*pgconn.PgConn, error)
	// slot holds the connection, nil for none; whoever took it out uses it alone.
	slot chan *pgconn.PgConn
}

func newSession(dial func(context.Context) (*pgconn.PgConn, error)) *session {
	s := &session{dial: dial, slot: make(chan *pgconn.PgConn, 1)}
	s.slot <- nil
	return s
}

// do runs fn on the connection. When a connection from before turns out to be dead, fn is run once more on a new one:
// everything that Kumki does may be done twice.
func (s *session) do(ctx context.Context, fn func(context.Context, *pgconn.PgConn) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var conn *pgconn.PgConn
	select {
	case conn = <-s.slot:
	case <-ctx.Done():
		return fmt.Errorf("wait for the connection to PostgreSQL: %w", ctx.Err())
	}
	defer func() { s.slot <- conn }()
	for {
		reused := conn != nil
		if !reused {
			fresh, err := s.dial(ctx)
			if err != nil {
				return err
			}
			conn = fresh
		}
		err := fn(ctx, conn)
		if err == nil || !conn.IsClosed() {
			return err
		}
		conn = nil
		if !reused || ctx.Err() != nil {
			return err
		}
	}
}

// drop closes the connection, if nobody uses it just now.
func (s *session) drop() {
	select {
	case conn := <-s.slot:
		s.slot <- nil
		if conn != nil {
			_ = closeConn(context.Background(), conn)
		}
	default:
	}
}

// rows runs one command with text parameters and returns its rows; NULL is "".
func rows(ctx context.Context, conn *pgconn.PgConn, sql string, args ...string) ([][]string, error) {
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	res := conn.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	return text(res), res.Err
}

func text(res *pgconn.Result) [][]string {
	out := make([][]string, len(res.Rows))
	for i, r := range res.Rows {
		out[i] = make([]string, len(r))
		for j, v := range r {
			out[i][j] = string(v)
		}
	}
	return out
}

// exec runs commands without parameters, as one implicit transaction.
func exec(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// query is rows on the session.
func (s *session) query(ctx context.Context, sql string, args ...string) ([][]string, error) {
	var out [][]string
	err := s.do(ctx, func(ctx context.Context, conn *pgconn.PgConn) (err error) {
		out, err = rows(ctx, conn, sql, args...)
		return err
	})
	return out, err
}

// array writes a text[] parameter.
func array(items []string) string {
	out := []byte{'{'}
	for i, s := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		for j := range len(s) {
			if s[j] == '"' || s[j] == '\\' {
				out = append(out, '\\')
			}
			out = append(out, s[j])
		}
		out = append(out, '"')
	}
	return string(append(out, '}'))
}
