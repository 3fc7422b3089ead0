package archive

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Keys are the names of one cluster's objects below a destination's prefix.
type Keys struct {
	// Cluster is the name that was archived under; a restored cluster has its own.
	Cluster string
	// SystemIdentifier is PostgreSQL's, so that a cluster that is made anew under an old name does not meet the old one's WAL.
	SystemIdentifier uint64
}

var clusterPattern = regexp.MustCompile(`^([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)-([1-9][0-9]{0,19})$`)

// ParseKeys reads the folder "<cluster>-<system identifier>".
func ParseKeys(folder string) (Keys, error) {
	m := clusterPattern.FindStringSubmatch(strings.TrimSuffix(folder, "/"))
	if m == nil {
		return Keys{}, fmt.Errorf("%q is not <cluster>-<system identifier>", folder)
	}
	system, err := strconv.ParseUint(m[2], 10, 64)
	if err != nil {
		return Keys{}, fmt.Errorf("%q is not <cluster>-<system identifier>: %w", folder, err)
	}
	return Keys{m[1], system}, nil
}

// Folder is "<cluster>-<system identifier>/".
func (k Keys) Folder() string { return fmt.Sprintf("%s-%d/", k.Cluster, k.SystemIdentifier) }

// Dir is the folder without a slash at its end, as ReadBackup and ListBackups take it.
func (k Keys) Dir() string { return strings.TrimSuffix(k.Folder(), "/") }

// BackupFolder is that of one base backup.
func (k Keys) BackupFolder(id string) string { return BackupDir(k.Dir(), id) + "/" }

// BackupMark is the object with which a base backup counts.
func (k Keys) BackupMark(id string) string { return k.BackupFolder(id) + CommitMark }

// WALFolder is that of the WAL of all timelines.
func (k Keys) WALFolder() string { return k.Folder() + "wal/" }

// WAL is the key of a file of the WAL's archive without the suffix of its encoding.
func (k Keys) WAL(name WALName) string {
	return fmt.Sprintf("%s%08X/%s", k.WALFolder(), name.Timeline, name)
}
