package pgproc

import "errors"

// Volume is the data volume of an instance: data directories ("generations") side by side, `current` pointing at the one in
// force, the leadership promise, and small files of the manager. One process uses it at a time.
type Volume struct {
	Root    string // mount point of the data volume
	WALRoot string // mount point of the WAL volume; "" when pg_wal is inside the data directory
	// Owner of new files; nil: this process.
	Owner *User
}

// Generation is one data directory of a volume.
type Generation struct {
	N      int
	Dir    string // PGDATA
	WALDir string // where pg_wal points to; "" when it is inside Dir
	// Incomplete says why the generation must not be started ("clone", "rewind", "initdb", …); "" when it is whole.
	Incomplete string
}

// Errors of volumes.
var (
	ErrNotEmpty     = errors.New("the data volume is not empty")
	ErrIncomplete   = errors.New("the data directory is incomplete")
	ErrSameTimeline = errors.New("the target is on the source's timeline: no rewind is needed")
)

// OpenVolume checks that the volumes can be written and returns them; it changes nothing but removes left-over temporary files.
func OpenVolume(root, walRoot string, owner *User) (*Volume, error) { return nil, errUnfinished }

// Current is the generation in force; false when there is none. A current that points nowhere is an error.
func (v *Volume) Current() (Generation, bool, error) { return Generation{}, false, errUnfinished }

// Virgin says that no generation was ever completed here: nothing but left-overs of an interrupted initdb or clone is on the volume.
func (v *Volume) Virgin() (bool, error) { return false, errUnfinished }

// Begin makes a new, empty generation that is marked incomplete for that reason.
func (v *Volume) Begin(reason string) (Generation, error) { return Generation{}, errUnfinished }

// Mark marks g incomplete, durably; Complete unmarks it.
func (v *Volume) Mark(g Generation, reason string) error { return errUnfinished }

// Complete removes the mark of g, durably.
func (v *Volume) Complete(g Generation) error { return errUnfinished }

// Flip completes g and makes it the generation in force, durably and atomically. PostgreSQL must be stopped.
func (v *Volume) Flip(g Generation) error { return errUnfinished }

// RemoveOld removes every generation but the one in force. It removes nothing while the one in force is incomplete
// or missing, except generations that never were complete.
func (v *Volume) RemoveOld() error { return errUnfinished }

// SavePromise writes the highest leadership term that this instance is bound to; it is on disk when SavePromise returns.
func (v *Volume) SavePromise(term int64) error { return errUnfinished }

// Promise is the saved term; 0 when none was saved. A damaged file is an error, never 0.
func (v *Volume) Promise() (int64, error) { return 0, errUnfinished }

// SaveFile writes a small file of the manager (name without slash) durably and atomically.
func (v *Volume) SaveFile(name string, data []byte) error { return errUnfinished }

// LoadFile reads one; an absent one is fs.ErrNotExist.
func (v *Volume) LoadFile(name string) ([]byte, error) { return nil, errUnfinished }

// Space of a file system, in bytes.
type Space struct{ Total, Free int64 }

// Space of the data volume and of the WAL volume (the same when there is one volume).
func (v *Volume) Space() (data, wal Space, err error) { return Space{}, Space{}, errUnfinished }

// SetStandby makes or removes standby.signal (and always removes recovery.signal) in a data directory, durably.
func SetStandby(dir string, standby bool) error { return errUnfinished }

// WriteFile replaces a file durably and atomically, readable by the owner only.
func WriteFile(path string, data []byte, owner *User) error { return errUnfinished }
