package pgproc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	genPrefix   = "gen-"
	markSuffix  = ".incomplete"
	currentName = "current"
	promiseName = "promised"
	stateName   = "state"
	lockName    = "lock"
)

// Errors of volumes.
var (
	ErrNotEmpty = errors.New("the data volume is not empty")
	// ErrWALMissing: the data needs WAL beyond what is there, as a copy does until it has streamed from its source.
	ErrWALMissing   = errors.New("WAL is missing")
	ErrIncomplete   = errors.New("the data directory is incomplete")
	ErrLocked       = errors.New("another instance manager uses the data volume")
	ErrSameTimeline = errors.New("the target is on the source's timeline: no rewind is needed")
)

// Volume is the data volume of an instance: data directories ("generations") side by side, `current` pointing at the one in
// force, the leadership promise, and small files of the manager. One process uses it at a time.
type Volume struct {
	Root    string // mount point of the data volume
	WALRoot string // mount point of the WAL volume; "" when pg_wal is inside the data directory
	// Owner of new files; nil: this process.
	Owner *User

	lock *os.File
}

// Generation is one data directory of a volume.
type Generation struct {
	N      int
	Dir    string // PGDATA
	WALDir string // where pg_wal points to; "" when it is inside Dir
	// Incomplete says why the generation must not be started ("clone", "rewind", "initdb", …); "" when it is whole.
	Incomplete string
}

// OpenVolume checks that the volumes can be written and returns them, locked against another manager on this host (ErrLocked)
// until Close or the end of this process. It changes nothing in the data.
func OpenVolume(root, walRoot string, owner *User) (*Volume, error) {
	v := &Volume{Root: filepath.Clean(root), Owner: owner}
	if walRoot != "" {
		v.WALRoot = filepath.Clean(walRoot)
	}
	var err error
	if v.lock, err = os.OpenFile(filepath.Join(v.Root, lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, plain(err)
	}
	// Some network file systems cannot lock; there Kubernetes' promise of one pod must do.
	if err = unix.Flock(int(v.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%w %s: wait for its end", ErrLocked, v.Root), v.lock.Close())
	}
	if err := v.prepare(); err != nil {
		return nil, errors.Join(err, v.lock.Close())
	}
	return v, nil
}

func (v *Volume) prepare() error {
	state := filepath.Join(v.Root, stateName)
	if err := os.Mkdir(state, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return plain(err)
	}
	dirs := []string{v.Root, state}
	if v.WALRoot != "" {
		dirs = append(dirs, v.WALRoot)
	}
	for _, dir := range dirs {
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("write to %s: %w", dir, plain(err))
		}
		if err := removeTemporary(dir); err != nil {
			return err
		}
	}
	return v.adopt()
}

// adopt finishes the very first Flip when it was cut off between its two steps: there is one whole generation and none in force.
func (v *Volume) adopt() error {
	if _, err := os.Lstat(filepath.Join(v.Root, currentName)); !errors.Is(err, fs.ErrNotExist) {
		return nil // a broken link is Current's to report
	}
	all, err := v.generations()
	if err != nil {
		return err
	}
	whole := slices.DeleteFunc(all, func(g Generation) bool { return g.Incomplete != "" })
	if len(whole) != 1 {
		return nil
	}
	if err := v.Flip(whole[0]); err != nil && !errors.Is(err, ErrIncomplete) {
		return err
	}
	return nil
}

// Close gives the lock back.
func (v *Volume) Close() error { return v.lock.Close() }

// Current is the generation in force; false when there is none. A current that points nowhere is an error.
func (v *Volume) Current() (Generation, bool, error) {
	target, err := os.Readlink(filepath.Join(v.Root, currentName))
	if errors.Is(err, fs.ErrNotExist) {
		return Generation{}, false, nil
	}
	if err != nil {
		return Generation{}, false, plain(err)
	}
	n, ok := generationNumber(target)
	if !ok {
		return Generation{}, false, fmt.Errorf("%s/%s points at %q, which is no generation; point it at one of gen-N by hand", v.Root, currentName, target)
	}
	g, err := v.generation(n)
	if err != nil {
		return Generation{}, false, err
	}
	if _, err := os.Stat(filepath.Join(g.Dir, "global", "pg_control")); err != nil && g.Incomplete == "" {
		return Generation{}, false, fmt.Errorf("%s/%s points at %s, which holds no database: %w", v.Root, currentName, target, plain(err))
	}
	return g, true, nil
}

func generationNumber(name string) (int, bool) {
	tail, ok := strings.CutPrefix(name, genPrefix)
	n, err := strconv.Atoi(tail)
	return n, ok && err == nil && n > 0 && strconv.Itoa(n) == tail
}

// generation n with its mark.
func (v *Volume) generation(n int) (Generation, error) {
	name := genPrefix + strconv.Itoa(n)
	g := Generation{N: n, Dir: filepath.Join(v.Root, name)}
	if v.WALRoot != "" {
		g.WALDir = filepath.Join(v.WALRoot, name)
	}
	reason, err := os.ReadFile(g.Dir + markSuffix)
	switch {
	case err == nil:
		g.Incomplete = strings.TrimSpace(string(reason))
		if g.Incomplete == "" {
			g.Incomplete = "unknown"
		}
	case !errors.Is(err, fs.ErrNotExist):
		return Generation{}, plain(err)
	}
	return g, nil
}

// generations of the volume, by number. A mark without a directory counts, so that its number is not used again.
func (v *Volume) generations() ([]Generation, error) {
	var numbers []int
	for _, root := range []string{v.Root, v.WALRoot} {
		if root == "" {
			continue
		}
		entries, err := os.ReadDir(root)
		if err != nil {
			return nil, plain(err)
		}
		for _, e := range entries {
			if n, ok := generationNumber(strings.TrimSuffix(e.Name(), markSuffix)); ok {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	var all []Generation
	for _, n := range slices.Compact(numbers) {
		g, err := v.generation(n)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// Virgin says that no generation was ever completed here: nothing but left-overs of an interrupted initdb or clone is on the volume.
// Anything unknown that looks like data makes it false.
func (v *Volume) Virgin() (bool, error) {
	if _, err := os.Lstat(filepath.Join(v.Root, currentName)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, plain(err)
	}
	all, err := v.generations()
	if err != nil {
		return false, err
	}
	for _, g := range all {
		if g.Incomplete == "" || g.Incomplete == reasonRewind {
			return false, nil
		}
	}
	_, err = os.Lstat(filepath.Join(v.Root, "PG_VERSION"))
	return errors.Is(err, fs.ErrNotExist), nil
}

// Begin makes a new, empty generation that is marked incomplete for that reason.
func (v *Volume) Begin(reason string) (Generation, error) {
	all, err := v.generations()
	if err != nil {
		return Generation{}, err
	}
	n := 1
	if len(all) > 0 {
		n = all[len(all)-1].N + 1
	}
	g, err := v.generation(n)
	if err != nil {
		return Generation{}, err
	}
	if err := v.Mark(g, reason); err != nil { // first the mark: there is no moment without it
		return Generation{}, err
	}
	g.Incomplete = reason
	for _, dir := range []string{g.Dir, g.WALDir} {
		if dir == "" {
			continue
		}
		if err := makeDir(dir, v.Owner); err != nil {
			return Generation{}, err
		}
	}
	return g, nil
}

func makeDir(dir string, owner *User) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return plain(err)
	}
	// A volume's group bit (fsGroup) is inherited; PostgreSQL accepts 0700 and 0750 only.
	if err := errors.Join(os.Chmod(dir, 0o700), chown(dir, ownerIn(filepath.Dir(dir), owner))); err != nil {
		return plain(err)
	}
	return syncDir(filepath.Dir(dir))
}

// Mark marks g incomplete, durably; Complete unmarks it.
func (v *Volume) Mark(g Generation, reason string) error {
	return WriteFile(g.Dir+markSuffix, []byte(reason+"\n"), v.Owner)
}

// Complete removes the mark of g, durably.
func (v *Volume) Complete(g Generation) error {
	if err := remove(g.Dir + markSuffix); err != nil {
		return err
	}
	return syncDir(v.Root)
}

// Flip makes g the generation in force and completes it, durably and atomically. PostgreSQL must be stopped.
func (v *Volume) Flip(g Generation) error {
	if _, err := os.Stat(filepath.Join(g.Dir, "global", "pg_control")); err != nil {
		return fmt.Errorf("%w: %s holds no database: %w", ErrIncomplete, g.Dir, plain(err))
	}
	// First unmark: a crash in between leaves a whole generation that is not in force, which is harmless, and Flip can be done
	// again; the other order would leave one in force that must not be started.
	if err := v.Complete(g); err != nil {
		return err
	}
	return link(filepath.Base(g.Dir), filepath.Join(v.Root, currentName), v.Owner)
}

// RemoveOld removes every generation but the one in force. It removes nothing while the one in force is incomplete
// or missing, except generations that never were complete.
func (v *Volume) RemoveOld() error {
	current, found, err := v.Current()
	if err != nil {
		return err
	}
	all, err := v.generations()
	if err != nil {
		return err
	}
	for _, g := range all {
		safe := found && current.Incomplete == "" || g.Incomplete != "" && g.Incomplete != reasonRewind
		if found && g.N == current.N || !safe {
			continue
		}
		if e := v.remove(g); e != nil {
			err = errors.Join(err, fmt.Errorf("remove old %s: %w", g.Dir, e))
		}
	}
	return err
}

// remove a generation: mark it first, so that half of it is never taken for a whole.
func (v *Volume) remove(g Generation) error {
	if g.Incomplete == "" {
		if err := v.Mark(g, "removed"); err != nil && !errors.Is(err, syscall.ENOSPC) {
			return err
		}
	}
	if g.WALDir != "" {
		if err := os.RemoveAll(g.WALDir); err != nil {
			return plain(err)
		}
	}
	if err := os.RemoveAll(g.Dir); err != nil {
		return plain(err)
	}
	return v.Complete(g)
}

// SavePromise writes the highest leadership term that this instance is bound to; it is on disk when SavePromise returns.
func (v *Volume) SavePromise(term int64) error {
	return WriteFile(filepath.Join(v.Root, promiseName), []byte(strconv.FormatInt(term, 10)+"\n"), v.Owner)
}

// Promise is the saved term; 0 when none was saved. A damaged file is an error, never 0.
func (v *Volume) Promise() (int64, error) {
	data, err := os.ReadFile(filepath.Join(v.Root, promiseName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, plain(err)
	}
	term, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || term < 0 {
		return 0, fmt.Errorf("%s/%s is damaged (%q): re-create this instance's volume from a peer", v.Root, promiseName, data)
	}
	return term, nil
}

// SaveFile writes a small file of the manager (name without slash) durably and atomically.
func (v *Volume) SaveFile(name string, data []byte) error {
	return WriteFile(filepath.Join(v.Root, stateName, filepath.Base(name)), data, v.Owner)
}

// LoadFile reads one; an absent one is fs.ErrNotExist.
func (v *Volume) LoadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(v.Root, stateName, filepath.Base(name)))
}

// Space of a file system, in bytes. Free is what PostgreSQL's user may use.
type Space struct{ Total, Free int64 }

// Space of the data volume and of the WAL volume (the same when there is one volume).
func (v *Volume) Space() (data, wal Space, err error) {
	if data, err = spaceOf(v.Root); err != nil || v.WALRoot == "" {
		return data, data, err
	}
	wal, err = spaceOf(v.WALRoot)
	return data, wal, err
}

func spaceOf(dir string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Space{}, fmt.Errorf("space of %s: %w", dir, err)
	}
	return Space{Total: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}, nil
}
