package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Names of objects of a backup.
const (
	// baseDir holds a cluster's backups, one directory each.
	baseDir = "base"
	// CommitMark is the object that makes a backup one: it is written last and deleted first.
	CommitMark = "backup.json"
	// manifestName is PostgreSQL's own name for the manifest of a base backup.
	manifestName = "backup_manifest"
)

// maxCommitMark bounds what is read of a commit mark, in bytes. One part takes about 200 bytes and holds 128 MiB.
const maxCommitMark = 256 << 20

// Backup says what a base backup consists of. It is the content of backup.json.
type Backup struct {
	// ID names the backup in its cluster. IDs sort by time.
	ID string `json:"id"`
	// Cluster is the name of the PostgreSQLCluster.
	Cluster string `json:"cluster"`
	// SystemIdentifier of the database system, as pg_controldata prints it.
	SystemIdentifier string `json:"systemIdentifier"`
	// PostgresVersion is server_version, such as "15.8" or "18beta1".
	PostgresVersion string `json:"postgresVersion"`
	// WALSegmentSize in bytes.
	WALSegmentSize int64 `json:"walSegmentSize"`
	// DataChecksums says whether the pages carry checksums. With them every page was checked while it was read.
	DataChecksums bool `json:"dataChecksums"`
	// Timeline that replay of the backup starts on.
	Timeline uint32 `json:"timeline"`
	// StartLSN is where replay has to start.
	StartLSN postgres.LSN `json:"startLSN"`
	// StopLSN is where the data is consistent for the first time.
	StopLSN postgres.LSN `json:"stopLSN"`
	// WALRanges is the WAL that replay to StopLSN needs: one range, or several when a standby changed timelines meanwhile.
	WALRanges []WALRange `json:"walRanges"`
	// StartedAt and StoppedAt are when Kumki began and ended to read, by its clock, in UTC.
	StartedAt time.Time `json:"startedAt"`
	StoppedAt time.Time `json:"stoppedAt"`
	// Instance that was read.
	Instance string `json:"instance"`
	// FromStandby says that the instance was a standby.
	FromStandby bool `json:"fromStandby"`
	// Parts are the objects that hold the files, in the order of reading. They can be extracted in any order.
	Parts []Part `json:"parts"`
	// Manifest is PostgreSQL's backup_manifest: the list of all files with their SHA-256.
	Manifest Part `json:"manifest"`
	// Tablespaces besides pg_default and pg_global.
	Tablespaces []Tablespace `json:"tablespaces,omitempty"`
	// Encrypted says that the parts and the manifest are encrypted by age.
	Encrypted bool `json:"encrypted"`
	// Level of zstd.
	Level int `json:"level"`
	// TotalBytes is the sum of the parts' plain sizes.
	TotalBytes int64 `json:"totalBytes"`
	// StoredBytes is the sum of the stored sizes of all objects but backup.json.
	StoredBytes int64 `json:"storedBytes"`
	// ToolVersion is the version of Kumki that wrote the backup.
	ToolVersion string `json:"toolVersion"`
}

// Part is an object of a backup.
type Part struct {
	// Name of the object in the directory of the backup.
	Name string `json:"name"`
	// Tablespace is the OID of the tablespace whose files these are. 0: files of the data directory.
	Tablespace uint32 `json:"tablespace,omitempty"`
	// Size in bytes, as stored.
	Size int64 `json:"size"`
	// PlainSize in bytes, decrypted and decompressed.
	PlainSize int64 `json:"plainSize"`
	// SHA256 of the stored bytes, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// Tablespace is where a tablespace was on the instance that was read.
type Tablespace struct {
	OID  uint32 `json:"oid"`
	Path string `json:"path"`
}

// WALRange is a stretch of WAL on one timeline.
type WALRange struct {
	Timeline uint32       `json:"timeline"`
	Start    postgres.LSN `json:"start"`
	End      postgres.LSN `json:"end"`
}

// BackupDir is the prefix of the keys of a backup's objects, without a slash at its end.
func BackupDir(clusterDir, id string) string { return path.Join(clusterDir, baseDir, id) }

// idTime is the form of the time in an ID: it sorts as text.
const idTime = "20060102T150405Z"

// NewBackupID returns an ID for a backup that begins now. Its random end keeps two of the same second apart.
func NewBackupID(now time.Time) string {
	var tail [3]byte
	_, _ = rand.Read(tail[:]) // never fails, see its documentation
	return now.UTC().Format(idTime) + "-" + hex.EncodeToString(tail[:])
}

// checkID refuses what NewBackupID does not make: it becomes a part of keys.
func checkID(id string) error {
	at, tail, ok := strings.Cut(id, "-")
	if _, err := time.Parse(idTime, at); ok && err == nil && tail != "" && strings.Trim(tail, "0123456789abcdefghijklmnopqrstuvwxyz") == "" {
		return nil
	}
	return fmt.Errorf("%q is not the ID of a backup, like 20261130T154501Z-1f3a9c", id)
}

// The checksum that ends backup.json: SHA-256 of what stands before it. An own line, so that it can be recomputed with head and sha256sum.
const (
	checksumStart = ",\n  \"checksum\": \""
	checksumEnd   = "\"\n}\n"
)

// encode returns the content of backup.json.
func (b *Backup) encode() ([]byte, error) {
	body, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSuffix(body, []byte("\n}"))
	sum := sha256.Sum256(body)
	return fmt.Appendf(body, "%s%x%s", checksumStart, sum, checksumEnd), nil
}

// decodeBackup is the reverse of encode. Fields that it does not know are ignored: a later version may write them.
func decodeBackup(content []byte) (*Backup, error) {
	at := bytes.LastIndex(content, []byte(checksumStart))
	if at < 0 {
		return nil, errors.New("it does not end with its checksum: it was cut or changed")
	}
	if sum := sha256.Sum256(content[:at]); string(content[at:]) != fmt.Sprintf("%s%x%s", checksumStart, sum, checksumEnd) {
		return nil, errors.New("it does not have the checksum that it ends with: it was changed")
	}
	var b Backup
	if err := json.Unmarshal(content, &b); err != nil {
		return nil, err
	}
	return &b, nil
}

// ReadBackup returns the backup of that ID. ErrNotFound: there is none, or it was not finished.
func ReadBackup(ctx context.Context, store Store, clusterDir, id string) (*Backup, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	key := path.Join(BackupDir(clusterDir, id), CommitMark)
	r, err := store.Read(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", id, err)
	}
	defer func() { _ = r.Close() }()
	content, err := io.ReadAll(io.LimitReader(r, maxCommitMark))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	b, err := decodeBackup(content)
	if err != nil {
		return nil, &DamagedError{Key: key, Err: err}
	}
	if b.ID != id {
		return nil, &DamagedError{Key: key, Err: fmt.Errorf("it is of the backup %q", b.ID)}
	}
	return b, nil
}

// DamagedError says that an object is not what was written once.
type DamagedError struct {
	Key string
	Err error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the object %s is damaged: %v", e.Key, e.Err)
}

// Unwrap returns what is wrong with it.
func (e *DamagedError) Unwrap() error { return e.Err }

// Catalogue is what a store has of a cluster's backups.
type Catalogue struct {
	// Backups that can be restored, the oldest first.
	Backups []Backup
	// Garbage are directories without a commit mark: of a backup that is being taken, was broken off, or is being deleted.
	Garbage []Unfinished
	// Damaged are directories whose commit mark cannot be understood. What WAL they need is unknown.
	Damaged []Unfinished
}

// Unfinished is a directory that is no backup.
type Unfinished struct {
	// ID is the directory's name, which may be anything.
	ID string
	// Keys of its objects and their size in bytes.
	Keys []string
	Size int64
	// Modified is when the last of them was written, by the store's clock.
	Modified time.Time
	// Err says what is wrong with the commit mark, if there is one.
	Err error
}

// ListBackups returns a cluster's backups. That one is damaged is no error: the others are still good.
func ListBackups(ctx context.Context, store Store, clusterDir string) (*Catalogue, error) {
	prefix := path.Join(clusterDir, baseDir) + "/"
	var dirs []*Unfinished
	marked := map[string]bool{}
	for o, err := range store.List(ctx, prefix) {
		if err != nil {
			return nil, fmt.Errorf("list backups in %s: %w", prefix, err)
		}
		id, name, ok := strings.Cut(strings.TrimPrefix(o.Key, prefix), "/")
		if !ok {
			continue
		}
		if len(dirs) == 0 || dirs[len(dirs)-1].ID != id {
			dirs = append(dirs, &Unfinished{ID: id})
		}
		d := dirs[len(dirs)-1]
		d.Keys, d.Size = append(d.Keys, o.Key), d.Size+o.Size
		if o.Modified.After(d.Modified) {
			d.Modified = o.Modified
		}
		marked[id] = marked[id] || name == CommitMark
	}
	c := &Catalogue{}
	for _, d := range dirs {
		if !marked[d.ID] {
			c.Garbage = append(c.Garbage, *d)
			continue
		}
		if err := c.add(ctx, store, clusterDir, d); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add reads the commit mark of a directory that has one.
func (c *Catalogue) add(ctx context.Context, store Store, clusterDir string, d *Unfinished) error {
	b, err := ReadBackup(ctx, store, clusterDir, d.ID)
	var damaged *DamagedError
	switch {
	case err == nil:
		c.Backups = append(c.Backups, *b)
	case errors.Is(err, ErrNotFound): // deleted since it was listed
		c.Garbage = append(c.Garbage, *d)
	case errors.As(err, &damaged), checkID(d.ID) != nil:
		d.Err = err
		c.Damaged = append(c.Damaged, *d)
	default:
		return err
	}
	return nil
}
