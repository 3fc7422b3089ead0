package pgproc_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgproc"
)

func TestMessages(t *testing.T) {
	const prefix = "2026-01-02 03:04:05.678 UTC|42|client backend|42601|app|shop|"
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	full := func(severity, message string) pgproc.LogRecord {
		return pgproc.LogRecord{Program: "postgres", Time: at, PID: 42, Backend: "client backend", SQLState: "42601", User: "app",
			Database: "shop", Severity: severity, Message: message}
	}
	for name, test := range map[string]struct {
		program string
		chunks  []string
		want    []pgproc.LogRecord
	}{
		"one message": {"postgres", []string{prefix + "ERROR:  no\n"}, []pgproc.LogRecord{full("ERROR", "no")}},
		"cut in the middle": {"postgres", []string{prefix[:20], prefix[20:] + "ERR", "OR:  no\n"},
			[]pgproc.LogRecord{full("ERROR", "no")}},
		"many lines": {"postgres", []string{prefix + "STATEMENT:  SELECT\n\t1\n" + prefix + "LOG:  b\n"},
			[]pgproc.LogRecord{full("STATEMENT", "SELECT\n1"), full("LOG", "b")}},
		"a line that looks like a message": {"postgres", []string{prefix + "STATEMENT:  a\n\t" + prefix + "FATAL:  b\n"},
			[]pgproc.LogRecord{full("STATEMENT", "a\n"+prefix+"FATAL:  b")}},
		"before the configuration is read": {"postgres", []string{"2026-01-02 03:04:05.678 UTC [7] FATAL:  no\n"},
			[]pgproc.LogRecord{{Program: "postgres", Time: at, PID: 7, Severity: "FATAL", Message: "no"}}},
		"a tool":         {"pg_rewind", []string{"pg_rewind: error: no\n"}, []pgproc.LogRecord{{Program: "pg_rewind", Severity: "ERROR", Message: "no"}}},
		"something else": {"postgres", []string{"\n*** crashed ***"}, []pgproc.LogRecord{{Program: "postgres", Message: "*** crashed ***"}}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(pgproc.Messages(test.program, test.chunks...)).To(Equal(test.want))
		})
	}
}

func TestPlainCauses(t *testing.T) {
	g := NewWithT(t)
	exit := errors.New("exit status 1")
	full := pgproc.Explain("initdb", exit, `could not write to file "x": No space left on device`)
	g.Expect(full).To(MatchError(pgproc.ErrDiskFull))
	g.Expect(full).To(MatchError(exit))
	g.Expect(full).To(MatchError(ContainSubstring("free space or enlarge it")))
	g.Expect(pgproc.Explain("initdb", exit, `could not open file "x": Permission denied`)).To(MatchError(pgproc.ErrPermission))
	g.Expect(pgproc.Explain("initdb", exit, "")).To(MatchError("initdb: exit status 1"))
}
