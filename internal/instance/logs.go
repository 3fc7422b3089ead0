package instance

import (
	"context"
	"log/slog"
	"strings"

	"github.com/kumki-dev/kumki/internal/pgproc"
)

// logRecord makes a record of the manager's log of each message of PostgreSQL's programs, and reads hints in it.
func (m *Manager) logRecord(r pgproc.LogRecord) {
	level := slog.LevelInfo
	switch r.Severity {
	case "WARNING":
		level = slog.LevelWarn
	case "ERROR", "FATAL", "PANIC":
		level = slog.LevelError
	case "DEBUG", "DEBUG1", "DEBUG2", "DEBUG3", "DEBUG4", "DEBUG5":
		level = slog.LevelDebug
	}
	if r.Backend == "startup" && strings.HasPrefix(r.Message, "waiting for WAL to become available") {
		level = slog.LevelDebug // a standby without a source says so several times a second
	}
	attrs := []slog.Attr{slog.String("program", r.Program)}
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	add("severity", r.Severity)
	add("backend", r.Backend)
	add("sqlstate", r.SQLState)
	add("user", r.User)
	add("database", r.Database)
	if r.PID != 0 {
		attrs = append(attrs, slog.Int("pid", r.PID))
	}
	m.log.LogAttrs(context.Background(), level, r.Message, attrs...)
	if hint := hintOf(r); hint != "" {
		text := r.Message
		go m.post(func() { m.repair.hint, m.repair.hintText = hint, text })
	}
}
