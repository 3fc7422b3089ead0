package pgproc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const tempSuffix = ".kumki-tmp"

// WriteFile replaces a file durably and atomically, readable by the owner only. A nil owner is this process' user, or that of the
// directory when this process is root.
func WriteFile(path string, data []byte, owner *User) error {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return plain(err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = chown(temp, ownerIn(filepath.Dir(path), owner))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return plain(errors.Join(err, os.Remove(temp)))
	}
	return syncDir(filepath.Dir(path))
}

// SetStandby makes or removes standby.signal (and always removes recovery.signal) in a data directory, durably.
func SetStandby(dir string, standby bool) error {
	if err := remove(filepath.Join(dir, "recovery.signal")); err != nil {
		return err
	}
	signal := filepath.Join(dir, "standby.signal")
	if standby {
		return WriteFile(signal, nil, nil)
	}
	if err := remove(signal); err != nil {
		return err
	}
	return syncDir(dir)
}

// ensurePrivate takes away permissions with which PostgreSQL refuses a data directory. A kubelet that applies fsGroup to a volume gives
// its group write access to everything.
func ensurePrivate(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return plain(err)
	}
	if info.Mode().Perm()&0o027 == 0 {
		return nil
	}
	return plain(os.Chmod(dir, 0o700))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return plain(err)
	}
	return nil
}

// syncDir makes renames, new files and removals in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return plain(err)
	}
	return plain(errors.Join(f.Sync(), f.Close()))
}

// link makes or replaces a symbolic link durably and atomically.
func link(target, path string, owner *User) error {
	temp := path + tempSuffix
	if err := remove(temp); err != nil {
		return err
	}
	err := os.Symlink(target, temp)
	if err == nil {
		err = chown(temp, ownerIn(filepath.Dir(path), owner))
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return plain(err)
	}
	return syncDir(filepath.Dir(path))
}

// ownerIn is who a new file in dir belongs to: the server has to be able to open and remove what a root process makes there.
func ownerIn(dir string, owner *User) *User {
	if owner != nil || os.Geteuid() != 0 {
		return owner
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return nil
	}
	return &User{UID: st.Uid, GID: st.Gid}
}

func chown(path string, owner *User) error {
	if owner == nil {
		return nil
	}
	return os.Lchown(path, int(owner.UID), int(owner.GID))
}

// removeTemporary removes what an interrupted WriteFile or link left in dir.
func removeTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return plain(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tempSuffix) {
			err = errors.Join(err, remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// plain adds what to do to errors that have a plain cause.
func plain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	case errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrPermission, err)
	}
	return err
}
