package pgproc

import (
	"regexp"
	"strconv"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Source is the server to copy from.
type Source struct {
	Host string
	Port int
	User string
	// Database is used by pg_rewind; "postgres" if empty.
	Database string
	// SSLMode, and the files of the client certificate. Everything is empty in a test without TLS (SSLMode "disable").
	SSLMode, SSLCert, SSLKey, SSLRootCert string
	ApplicationName                       string
	// ConnectTimeout of one attempt; 10s if zero.
	ConnectTimeout time.Duration
}

// connInfo is a connection string without secrets. A peer whose host vanished is noticed within about half a minute.
func (s Source) connInfo(database string) (string, error) {
	timeout := s.ConnectTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	return postgres.ConnInfo(map[string]string{
		"host": s.Host, "port": strconv.Itoa(s.Port), "user": s.User, "dbname": database, "application_name": s.ApplicationName,
		"sslmode": s.SSLMode, "sslcert": s.SSLCert, "sslkey": s.SSLKey, "sslrootcert": s.SSLRootCert,
		"connect_timeout": strconv.Itoa(max(2, int(timeout.Seconds()))), "passfile": "/nonexistent",
		"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000",
	})
}

// Progress of a copy, in bytes; Total is the server's estimate and may be 0 or too low.
type Progress struct{ Done, Total int64 }

// progressPattern is what pg_basebackup and pg_rewind print: "  1234/5678 kB (21%)…".
var progressPattern = regexp.MustCompile(`^\s*(\d+)/(\d+) kB \(\d+%\)`)

// progressLine gives progress messages to report; true when the line is one.
func progressLine(line string, report func(Progress)) bool {
	m := progressPattern.FindStringSubmatch(line)
	if m == nil {
		return false
	}
	done, _ := strconv.ParseInt(m[1], 10, 64)
	total, _ := strconv.ParseInt(m[2], 10, 64)
	if report != nil {
		report(Progress{Done: done * 1024, Total: total * 1024})
	}
	return true
}
