package archive

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// minBackupVersion is the first server_version_num whose BASE_BACKUP sends archives and manifest in one stream.
const minBackupVersion = 150000

// goodbye bounds how long ending a connection may take.
const goodbye = 5 * time.Second

// ChecksumError says that PostgreSQL found pages whose checksum is wrong while it read them for a backup. The files on that instance are
// damaged; another instance may still have them whole.
type ChecksumError struct {
	// Failures is how many pages PostgreSQL counted, at least 1.
	Failures int64
	// Details are PostgreSQL's warnings, the first few, which name files and blocks.
	Details []string
	// Err is PostgreSQL's error.
	Err error
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("PostgreSQL found %d damaged pages while it read the data: %v (%s)", e.Failures, e.Err, strings.Join(e.Details, "; "))
}

// Unwrap returns PostgreSQL's error.
func (e *ChecksumError) Unwrap() error { return e.Err }

// source is a replication connection to the instance that is read.
type source struct {
	conn *pgconn.PgConn

	systemIdentifier string
	version          string
	walSegmentSize   int64
	dataChecksums    bool
	standby          bool
}

// connect opens a connection for replication commands: https://www.postgresql.org/docs/current/protocol-replication.html
func connect(ctx context.Context, dsn string) (*source, error) {
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the connection string of the local PostgreSQL: %w", err)
	}
	config.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect for a base backup: %w", err)
	}
	s := &source{conn: conn, version: conn.ParameterStatus("server_version"), standby: conn.ParameterStatus("in_hot_standby") == "on"}
	if err := s.identify(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close ends the connection; PostgreSQL ends a backup that is under way.
func (s *source) close() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.conn.Close(ctx)
}

func (s *source) identify(ctx context.Context) error {
	number, err := s.row(ctx, "SHOW server_version_num")
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(number[0]); err != nil || n < minBackupVersion {
		return fmt.Errorf("base backups need PostgreSQL 15 or later; this is %s", s.version)
	}
	system, err := s.row(ctx, "IDENTIFY_SYSTEM")
	if err != nil {
		return err
	}
	s.systemIdentifier = system[0]
	size, err := s.row(ctx, "SHOW wal_segment_size")
	if err != nil {
		return err
	}
	if s.walSegmentSize, err = parseSegmentSize(size[0]); err != nil {
		return err
	}
	checksums, err := s.row(ctx, "SHOW data_checksums")
	if err != nil {
		return err
	}
	s.dataChecksums = checksums[0] == "on"
	return nil
}

// row returns the only row of a command.
func (s *source) row(ctx context.Context, command string) ([]string, error) {
	results, err := s.conn.Exec(ctx, command).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) == 0 {
		return nil, fmt.Errorf("%s: PostgreSQL answered without a row", command)
	}
	return texts(results[0].Rows[0]), nil
}

func texts(row [][]byte) []string {
	out := make([]string, len(row))
	for i, v := range row {
		out[i] = string(v)
	}
	return out
}

// parseSegmentSize reads what SHOW wal_segment_size prints: a power of two from 1MB to 1GB.
func parseSegmentSize(s string) (int64, error) {
	for unit, factor := range map[string]int64{"MB": 1 << 20, "GB": 1 << 30} {
		if n, err := strconv.ParseInt(strings.TrimSuffix(s, unit), 10, 64); strings.HasSuffix(s, unit) && err == nil && n > 0 {
			return n * factor, nil
		}
	}
	return 0, fmt.Errorf("wal_segment_size %q cannot be understood", s)
}

// backupSink takes what BASE_BACKUP sends. An error of it ends the backup.
type backupSink interface {
	// started is called first. total is PostgreSQL's estimate in bytes.
	started(p position, tablespaces []Tablespace, total int64) error
	// archive begins the tar stream of the data directory (OID 0) or of a tablespace; the one before is complete.
	archive(tablespace uint32) error
	// manifest begins the manifest; the last archive is complete.
	manifest() error
	// data is a piece of what was begun last.
	data(p []byte) error
	// complete is called when everything was sent.
	complete() error
	// stopped is called with the position where the data is consistent.
	stopped(p position) error
}

type position struct {
	timeline uint32
	lsn      postgres.LSN
}

// baseBackup runs the command and passes on what it sends. Cancelling ctx ends it at once, on the server too.
func (s *source) baseBackup(ctx context.Context, command string, sink backupSink) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = s.conn.Conn().SetDeadline(time.Unix(1, 0)) // ends the waiting below
		// A server that waits for its checkpoint would not notice that nobody listens any more.
		bounded, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		_ = s.conn.CancelRequest(bounded)
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	f := s.conn.Frontend()
	f.SendQuery(&pgproto3.Query{String: command})
	if err := f.Flush(); err != nil {
		return canceledOr(ctx, fmt.Errorf("send BASE_BACKUP: %w", err))
	}
	r := &backupReader{sink: sink}
	for {
		message, err := f.Receive()
		if err != nil {
			return canceledOr(ctx, fmt.Errorf("receive the base backup: %w", errors.Join(err, r.failed)))
		}
		if _, ok := message.(*pgproto3.ReadyForQuery); ok {
			return canceledOr(ctx, r.result())
		}
		if err := r.message(message); err != nil {
			return canceledOr(ctx, err)
		}
	}
}

// canceledOr is why ctx was cancelled, which explains every other error then, or err.
func canceledOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// backupReader understands the answer to BASE_BACKUP: two results, a stream of copy data, another result.
type backupReader struct {
	sink    backupSink
	results int
	rows    [][]string
	start   position
	ended   bool

	failed   error
	warnings []string
	failures int64
}

// Warnings of PostgreSQL about checksums; lc_messages of a Kumki cluster is C. Without a match it is the error alone that counts.
var (
	fileFailures  = regexp.MustCompile(`has a total of (\d+) checksum verification failure`)
	totalFailures = regexp.MustCompile(`^(\d+) total checksum verification failure`)
)

func (r *backupReader) message(message pgproto3.BackendMessage) error {
	switch m := message.(type) {
	case *pgproto3.DataRow:
		r.rows = append(r.rows, texts(m.Values))
	case *pgproto3.CommandComplete:
		return r.resultComplete()
	case *pgproto3.CopyData:
		return r.copyData(m.Data)
	case *pgproto3.CopyDone:
		return r.sink.complete()
	case *pgproto3.NoticeResponse:
		r.notice(m)
	case *pgproto3.ErrorResponse:
		r.failed = pgconn.ErrorResponseToPgError(m)
	}
	return nil
}

func (r *backupReader) notice(m *pgproto3.NoticeResponse) {
	if m.SeverityUnlocalized != "WARNING" {
		return
	}
	if len(r.warnings) < maxProblems {
		r.warnings = append(r.warnings, m.Message)
	}
	if found := totalFailures.FindStringSubmatch(m.Message); found != nil {
		r.failures, _ = strconv.ParseInt(found[1], 10, 64)
	} else if found := fileFailures.FindStringSubmatch(m.Message); found != nil {
		n, _ := strconv.ParseInt(found[1], 10, 64)
		r.failures = max(r.failures, n)
	}
}

// result is how the command ended.
func (r *backupReader) result() error {
	var e *pgconn.PgError
	switch {
	case errors.As(r.failed, &e) && e.Code == "XX001": // data_corrupted
		return &ChecksumError{Failures: max(r.failures, 1), Details: r.warnings, Err: r.failed}
	case r.failed != nil:
		return fmt.Errorf("BASE_BACKUP: %w", r.failed)
	case !r.ended:
		return errors.New("BASE_BACKUP: PostgreSQL ended it without saying where")
	}
	return nil
}

// resultComplete takes the rows of a result: the start, the tablespaces, and after the data the stop. What follows is the end of the
// command itself, which has none.
func (r *backupReader) resultComplete() error {
	rows := r.rows
	r.rows = nil
	switch r.results++; r.results {
	case 1:
		var err error
		r.start, err = readPosition(rows)
		return err
	case 2:
		tablespaces, total, err := readTablespaces(rows)
		if err != nil {
			return err
		}
		return r.sink.started(r.start, tablespaces, total)
	case 3:
		stop, err := readPosition(rows)
		if err != nil {
			return err
		}
		r.ended = true
		return r.sink.stopped(stop)
	default:
		return nil
	}
}

// readTablespaces reads rows of OID, path and size in kB; those of the data directory are NULL but for the size.
func readTablespaces(rows [][]string) (tablespaces []Tablespace, total int64, err error) {
	for _, row := range rows {
		if len(row) != 3 {
			return nil, 0, errors.New("BASE_BACKUP: the list of tablespaces cannot be understood")
		}
		if kb, err := strconv.ParseInt(row[2], 10, 64); err == nil {
			total += kb * 1024
		}
		if row[0] == "" {
			continue
		}
		oid, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return nil, 0, fmt.Errorf("BASE_BACKUP: OID of a tablespace: %w", err)
		}
		tablespaces = append(tablespaces, Tablespace{OID: uint32(oid), Path: row[1]})
	}
	return tablespaces, total, nil
}

func readPosition(rows [][]string) (position, error) {
	if len(rows) != 1 || len(rows[0]) != 2 {
		return position{}, errors.New("BASE_BACKUP: PostgreSQL did not say the WAL position")
	}
	lsn, err := postgres.ParseLSN(rows[0][0])
	if err != nil {
		return position{}, fmt.Errorf("BASE_BACKUP: %w", err)
	}
	timeline, err := strconv.ParseUint(rows[0][1], 10, 32)
	if err != nil {
		return position{}, fmt.Errorf("BASE_BACKUP: timeline: %w", err)
	}
	return position{uint32(timeline), lsn}, nil
}

func (r *backupReader) copyData(p []byte) error {
	if len(p) == 0 {
		return errors.New("BASE_BACKUP: an empty message")
	}
	kind, p := p[0], p[1:]
	switch kind {
	case 'd':
		return r.sink.data(p)
	case 'p': // progress; the bytes are counted here too
		return nil
	case 'm':
		return r.sink.manifest()
	case 'n':
		name, _, _ := strings.Cut(string(p), "\x00")
		oid, ok := archiveTablespace(name)
		if !ok {
			return fmt.Errorf("BASE_BACKUP: an archive of the unknown name %q", name)
		}
		return r.sink.archive(oid)
	default:
		return fmt.Errorf("BASE_BACKUP: a message of the unknown type %q", kind)
	}
}

// archiveTablespace is whose files an archive has: base.tar or <oid>.tar.
func archiveTablespace(name string) (uint32, bool) {
	stem, ok := strings.CutSuffix(name, ".tar")
	if stem == "base" {
		return 0, ok
	}
	oid, err := strconv.ParseUint(stem, 10, 32)
	return uint32(oid), ok && err == nil && oid > 0
}
