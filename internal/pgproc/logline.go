package pgproc

import "time"

// LogLinePrefix is the log_line_prefix that LogRecord's fields are read from. With it goes log_destination=stderr and
// logging_collector=off.
const LogLinePrefix = `%m|%p|%b|%e|%u|%d|`

// LogRecord is one message of a PostgreSQL program.
type LogRecord struct {
	Program string // "postgres", "pg_rewind", …
	// The rest but Severity and Message is set for a server's messages that carry LogLinePrefix.
	Time     time.Time
	PID      int
	Backend  string // for example "checkpointer"
	SQLState string
	User     string
	Database string
	Severity string // LOG, ERROR, FATAL, DETAIL, HINT, STATEMENT, …; "" when unknown
	Message  string // may have several lines
}
