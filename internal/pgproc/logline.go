package pgproc

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// LogRecord is one message of a PostgreSQL program. A server's has all fields with postgres.LogLinePrefix, log_destination=stderr,
// logging_collector=off and log_timezone=UTC.
type LogRecord struct {
	Program string // "postgres", "pg_rewind", …
	// The rest but Severity and Message is set for a server's messages that carry postgres.LogLinePrefix.
	Time     time.Time
	PID      int
	Backend  string // for example "checkpointer"
	SQLState string
	User     string
	Database string
	Severity string // LOG, ERROR, FATAL, DETAIL, HINT, STATEMENT, …; "" when unknown
	Message  string // may have several lines
}

var (
	severities    = `DEBUG[1-5]?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC|DETAIL|HINT|QUERY|CONTEXT|STATEMENT|LOCATION|BACKTRACE`
	serverPattern = regexp.MustCompile(`^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+)\|(\d+)\|([^|]*)\|(\w*)\|(.*?)\|(.*?)\|(` + severities + `):  `)
	// Messages before the configuration is read have the default prefix: 2026-01-02 03:04:05.678 UTC [123] LOG:  …
	earlyPattern = regexp.MustCompile(`^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+) \[(\d+)\] (` + severities + `):  `)
	toolPattern  = regexp.MustCompile(`^[a-z_]+: (error|warning|fatal|detail|hint|info): `)
)

// ParseLog reads one message. What has no known form becomes a record with Message only.
func ParseLog(program, text string) LogRecord {
	r := LogRecord{Program: program, Message: text}
	if m := serverPattern.FindStringSubmatch(text); m != nil {
		r.Time = parseLogTime(m[1])
		r.PID, _ = strconv.Atoi(m[2])
		r.Backend, r.SQLState, r.User, r.Database, r.Severity = m[3], m[4], m[5], m[6], m[7]
		r.Message = text[len(m[0]):]
	} else if m := earlyPattern.FindStringSubmatch(text); m != nil {
		r.Time = parseLogTime(m[1])
		r.PID, _ = strconv.Atoi(m[2])
		r.Severity, r.Message = m[3], text[len(m[0]):]
	} else if m := toolPattern.FindStringSubmatch(text); m != nil {
		r.Severity, r.Message = strings.ToUpper(m[1]), text[len(m[0]):]
	}
	r.Message = strings.ReplaceAll(r.Message, "\n\t", "\n")
	return r
}

func parseLogTime(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05.000 MST", text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// logSink is the stderr of a program: it cuts the stream into messages. PostgreSQL writes a message at once, and begins each of its
// further lines with a tab, so a message ends where the next begins or where nothing more has come.
type logSink struct {
	program string
	emit    func(LogRecord)
	onLine  func(line string) bool

	mu      sync.Mutex
	partial []byte
	message []string
	recent  []LogRecord
}

// recentMax is how many messages are kept for error texts.
const recentMax = 12

// maxLine is the longest line that is held back until it ends.
const maxLine = 64 << 10

func newLogSink(program string, emit func(LogRecord)) *logSink {
	return &logSink{program: program, emit: emit}
}

// Write takes a chunk of the stream.
func (s *logSink) Write(chunk []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partial = append(s.partial, chunk...)
	for {
		end := bytes.IndexAny(s.partial, "\n\r")
		if end < 0 && len(s.partial) > maxLine {
			end = maxLine
		}
		if end < 0 {
			break
		}
		line := string(s.partial[:end])
		s.partial = s.partial[min(end+1, len(s.partial)):]
		s.line(line)
	}
	if len(s.partial) == 0 {
		s.partial = nil
		s.emitMessage()
	}
	return len(chunk), nil
}

func (s *logSink) line(line string) {
	if s.onLine != nil && s.onLine(line) {
		return
	}
	if !strings.HasPrefix(line, "\t") {
		s.emitMessage()
	}
	if line != "" {
		s.message = append(s.message, line)
	}
}

func (s *logSink) emitMessage() {
	if len(s.message) == 0 {
		return
	}
	record := ParseLog(s.program, strings.Join(s.message, "\n"))
	s.message = nil
	s.recent = append(s.recent, record)
	if len(s.recent) > recentMax {
		s.recent = append([]LogRecord(nil), s.recent[1:]...)
	}
	if s.emit != nil {
		s.emit(record)
	}
}

// flush emits what is left when the program has ended.
func (s *logSink) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.partial) > 0 {
		s.line(string(s.partial))
		s.partial = nil
	}
	s.emitMessage()
}

// last are the latest messages that tell of a failure, with the two before them that often hold the cause; simply the latest when
// none does. In one line.
func (s *logSink) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts []string
	first := -1
	for _, r := range s.recent {
		switch r.Severity {
		case "STATEMENT", "QUERY", "CONTEXT": // may hold data
			continue
		case "ERROR", "FATAL", "PANIC":
			if first < 0 {
				first = len(texts)
			}
		}
		texts = append(texts, strings.ReplaceAll(r.Message, "\n", " "))
	}
	from := len(texts) - 3
	if first >= 0 {
		from = first - 2
	}
	return strings.Join(texts[max(0, from):], "; ")
}
