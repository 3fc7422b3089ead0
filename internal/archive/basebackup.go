package archive

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// TakeOptions say what to back up and where to.
type TakeOptions struct {
	// DSN of the local PostgreSQL, for a role with REPLICATION; see https://www.postgresql.org/docs/current/libpq-connect.html.
	DSN string
	// Store and the cluster's directory in it.
	Store      Store
	ClusterDir string
	// Codec of the parts. Its Threads compress at the same time; 0: one a processor, at most 4.
	Codec Codec
	// ID of the backup. Empty: NewBackupID.
	ID string
	// Cluster and Instance are noted in the backup.
	Cluster, Instance string
	// SystemIdentifier that the instance must have. Empty: any.
	SystemIdentifier string
	// Spread lets the checkpoint at the start take its time; otherwise it is done at once.
	Spread bool
	// MaxRate of reading in kB/s, 32 to 1048576. 0: no limit.
	MaxRate int
	// PartSize is DefaultPartSize if 0, in bytes.
	PartSize int64
	// Uploads is how many parts are on their way at the same time. 0: 2.
	Uploads int
	// ToolVersion is noted in the backup.
	ToolVersion string
	// Now is the clock.
	Now func() time.Time
	// AwaitWAL returns when all WAL of a timeline from start to stop is in the archive, or an error if that will not be. On a standby the
	// segment of stop is complete only when the primary fills or switches it.
	AwaitWAL func(ctx context.Context, timeline uint32, start, stop postgres.LSN) error
	// Progress, if set, is called about every MiB and at the end, with the bytes read so far and an estimate of all.
	Progress func(done, total int64)
}

// Limits of BASE_BACKUP's MAX_RATE, in kB/s.
const (
	minRate = 32
	maxRate = 1 << 20
)

func (o *TakeOptions) complete() error {
	switch {
	case o.Store == nil || o.ClusterDir == "" || o.Now == nil || o.AwaitWAL == nil:
		return errors.New("a backup needs a store, the cluster's directory, a clock and AwaitWAL")
	case o.MaxRate != 0 && (o.MaxRate < minRate || o.MaxRate > maxRate):
		return fmt.Errorf("the rate of a backup is %d kB/s; PostgreSQL takes %d to %d", o.MaxRate, minRate, maxRate)
	}
	if o.ID == "" {
		o.ID = NewBackupID(o.Now())
	}
	if o.Codec.Threads == 0 {
		o.Codec.Threads = min(runtime.GOMAXPROCS(0), 4)
	}
	if o.Codec.Level == 0 {
		o.Codec.Level = DefaultLevel
	}
	if o.PartSize == 0 {
		o.PartSize = DefaultPartSize
	}
	if o.Uploads == 0 {
		o.Uploads = 2
	}
	return checkID(o.ID)
}

// command is the replication command: https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-BASE-BACKUP
func (o *TakeOptions) command() string {
	checkpoint := "fast"
	if o.Spread {
		checkpoint = "spread"
	}
	options := []string{
		"LABEL 'kumki " + o.ID + "'", "PROGRESS true", "CHECKPOINT '" + checkpoint + "'",
		"WAL false",  // it comes from the archive
		"WAIT false", // AwaitWAL does, and knows a way out when archiving is broken
		"MANIFEST 'yes'", "MANIFEST_CHECKSUMS 'SHA256'", "VERIFY_CHECKSUMS true", "TABLESPACE_MAP true",
	}
	if o.MaxRate > 0 {
		options = append(options, fmt.Sprintf("MAX_RATE %d", o.MaxRate))
	}
	return "BASE_BACKUP (" + strings.Join(options, ", ") + ")"
}

// TakeBackup reads a base backup from PostgreSQL into the store while it runs. The backup exists when it returns without an error, and then
// only. After an error there is no commit mark, and what was written is removed as far as the store allows; the rest ListBackups calls
// garbage. Damaged pages are a *ChecksumError.
func TakeBackup(ctx context.Context, o TakeOptions) (*Backup, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	u := newUploader(ctx, &o)
	defer u.fail(nil)
	b, err := take(&o, u)
	if err != nil {
		u.fail(err)
		u.wg.Wait()
		return nil, fmt.Errorf("backup %s: %w", o.ID, u.remove(ctx, err))
	}
	return b, nil
}

func take(o *TakeOptions, u *uploader) (*Backup, error) {
	ctx := u.ctx
	b, manifest, err := read(o, u)
	if err != nil {
		return nil, err
	}
	if err := u.check(ctx, append(b.Parts, b.Manifest)); err != nil {
		return nil, canceledOr(ctx, err)
	}
	if b.WALRanges, err = walRanges(b, manifest); err != nil {
		return nil, err
	}
	for _, r := range b.WALRanges {
		if err := o.AwaitWAL(ctx, r.Timeline, r.Start, r.End); err != nil {
			return nil, canceledOr(ctx, fmt.Errorf("the WAL from %s to %s on timeline %d, which the backup needs, is not in the archive: %w",
				r.Start, r.End, r.Timeline, err))
		}
	}
	return b, u.commit(ctx, b)
}

// walRanges is the WAL that the backup needs, by the manifest. It has to be what PostgreSQL said besides.
func walRanges(b *Backup, m *manifest) ([]WALRange, error) {
	if len(m.WALRanges) == 0 {
		return nil, fmt.Errorf("%s does not say which WAL is needed", manifestName)
	}
	start, stop := postgres.LSN(0), postgres.LSN(0)
	for _, r := range m.WALRanges {
		if r.Timeline == b.Timeline {
			start = r.Start
		}
		stop = max(stop, r.End)
	}
	if start != b.StartLSN || stop != b.StopLSN {
		return nil, fmt.Errorf("%s asks for WAL from %s to %s, but PostgreSQL said %s to %s", manifestName, start, stop, b.StartLSN, b.StopLSN)
	}
	return m.WALRanges, nil
}

// read reads everything from PostgreSQL and waits until it is stored.
func read(o *TakeOptions, u *uploader) (*Backup, *manifest, error) {
	started := o.Now().UTC()
	src, err := connect(u.ctx, o.DSN)
	if err != nil {
		return nil, nil, err
	}
	defer src.close()
	if o.SystemIdentifier != "" && o.SystemIdentifier != src.systemIdentifier {
		return nil, nil, fmt.Errorf("the instance has the system identifier %s instead of %s: it is another database", src.systemIdentifier, o.SystemIdentifier)
	}
	t := newTaker(o, u)
	if err := src.baseBackup(u.ctx, o.command(), t); err != nil {
		t.abandon(err)
		return nil, nil, err
	}
	if err := u.wait(); err != nil {
		return nil, nil, err
	}
	if t.listed == nil {
		return nil, nil, errors.New("PostgreSQL sent no manifest")
	}
	if id := t.listed.SystemIdentifier; id != "" && id != src.systemIdentifier {
		return nil, nil, fmt.Errorf("%s is of the system identifier %s instead of %s", manifestName, id, src.systemIdentifier)
	}
	b := &Backup{
		ID: o.ID, Cluster: o.Cluster, SystemIdentifier: src.systemIdentifier, PostgresVersion: src.version,
		WALSegmentSize: src.walSegmentSize, DataChecksums: src.dataChecksums,
		Timeline: t.start.timeline, StartLSN: t.start.lsn, StopLSN: t.stop.lsn, StartedAt: started, StoppedAt: o.Now().UTC(),
		Instance: o.Instance, FromStandby: src.standby, Manifest: t.manifestPart, Tablespaces: t.tablespaces,
		Encrypted: len(o.Codec.Recipients) > 0, Level: o.Codec.Level, ToolVersion: o.ToolVersion,
	}
	b.StoredBytes = b.Manifest.Size
	for _, p := range t.parts {
		b.Parts = append(b.Parts, *p)
		b.TotalBytes += p.PlainSize
		b.StoredBytes += p.Size
	}
	return b, t.listed, nil
}
