package pgsql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// poll is how often the server is asked whether something came true that SQL cannot wait for.
const poll = 20 * time.Millisecond

// until asks done again and again until it says so or ctx ends.
func until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// Reload sends the signal and waits until this session has read the files.
func (c *Client) Reload(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	before, err := c.main.query(ctx, "SELECT pg_conf_load_time(), pg_reload_conf()")
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	return until(ctx, "the configuration is loaded (if PostgreSQL cannot read the files CheckConfig says why)", func(ctx context.Context) (bool, error) {
		out, err := c.main.query(ctx, "SELECT pg_conf_load_time()")
		return err == nil && out[0][0] != before[0][0], err
	})
}

// notAtRunTime is the SQLSTATE of "cannot be changed without restarting the server".
const notAtRunTime = "55P02"

// removedAtRunTime ends the message about a setting that was taken out of the file and keeps its value until a restart (lc_messages is C).
const removedAtRunTime = "cannot be changed without restarting the server"

// CheckConfig reads pg_file_settings, pg_hba_file_rules and pg_ident_file_mappings. For a value that is refused the view only says
// "setting could not be applied"; why it says at level DEBUG3 to a client that listens.
func (c *Client) CheckConfig(ctx context.Context) ([]ConfigProblem, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	cfg, err := c.config("postgres", own)
	if err != nil {
		return nil, err
	}
	var notices []*pgconn.Notice
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n) }
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("check the configuration: %w", err)
	}
	defer func() { _ = closeConn(ctx, conn) }()
	if err := exec(ctx, conn, "SET client_min_messages = debug3"); err != nil {
		return nil, fmt.Errorf("check the configuration: %w", err)
	}
	settings, err := rows(ctx, conn, "SELECT name, error, sourcefile, sourceline FROM pg_file_settings WHERE error IS NOT NULL ORDER BY seqno")
	if err != nil {
		return nil, fmt.Errorf("check the configuration: %w", err)
	}
	said := notices
	if err := exec(ctx, conn, "SET client_min_messages = warning"); err != nil {
		return nil, fmt.Errorf("check the configuration: %w", err)
	}
	problems := settingProblems(settings, said)
	access, err := rows(ctx, conn, `
SELECT 'pg_hba.conf', error, current_setting('hba_file'), line_number FROM pg_hba_file_rules WHERE error IS NOT NULL
UNION ALL
SELECT 'pg_ident.conf', error, current_setting('ident_file'), line_number FROM pg_ident_file_mappings WHERE error IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("check the configuration: %w", err)
	}
	for _, r := range access {
		problems = append(problems, problem(r, r[1]))
	}
	return problems, nil
}

// settingProblems turns rows of pg_file_settings into problems, without those that only wait for a restart.
func settingProblems(settings [][]string, notices []*pgconn.Notice) []ConfigProblem {
	var problems []ConfigProblem
	for _, r := range settings {
		n := noticeAbout(r[0], notices)
		switch {
		case r[0] == "" && strings.HasSuffix(r[1], removedAtRunTime):
			// A setting that is not in the file any more; of such the view names no parameter.
		case n == nil:
			problems = append(problems, problem(r, r[1]))
		case n.Code != notAtRunTime:
			problems = append(problems, problem(r, sentence(n)))
		}
	}
	return problems
}

func problem(row []string, message string) ConfigProblem {
	line, _ := strconv.Atoi(row[3]) // NULL for a file that cannot be read
	return ConfigProblem{Parameter: row[0], Message: message, File: row[2], Line: line}
}

// noticeAbout finds what the server said about a parameter, nil when nothing.
func noticeAbout(name string, notices []*pgconn.Notice) *pgconn.Notice {
	if name == "" {
		return nil
	}
	for _, n := range notices {
		if strings.Contains(strings.ToLower(n.Message), `parameter "`+strings.ToLower(name)+`"`) {
			return n
		}
	}
	return nil
}

// sentence is PostgreSQL's message with its detail and hint.
func sentence(n *pgconn.Notice) string {
	s := n.Message
	for _, more := range []string{n.Detail, n.Hint} {
		if more != "" {
			s += ". " + strings.TrimSuffix(more, ".")
		}
	}
	return s
}

// Checkpoint has its own connection, because it may take minutes.
func (c *Client) Checkpoint(ctx context.Context) error {
	err := c.once(ctx, "postgres", quiet, func(conn *pgconn.PgConn) error { return exec(ctx, conn, "CHECKPOINT") })
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// SwitchWAL calls pg_switch_wal.
func (c *Client) SwitchWAL(ctx context.Context) (postgres.LSN, error) {
	out, err := c.main.query(ctx, "SELECT pg_switch_wal()")
	if err != nil {
		return 0, fmt.Errorf("switch WAL: %w", err)
	}
	return postgres.ParseLSN(out[0][0])
}
