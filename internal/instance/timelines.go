package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kumki-dev/kumki/internal/pgproc"
)

// reserveTimelines makes the next promotion begin timeline next or a later one. PostgreSQL takes the one after the newest whose history
// file it finds, and others may have begun timelines that this instance never saw: two servers must never write the same one.
// So the missing files between are made, empty but for a comment: such a timeline is no child of any other, which is why
// no standby switches to it. https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES
func reserveTimelines(dir string, current, next uint32, owner *pgproc.User) error {
	for t := current + 1; t < next; t++ {
		path := filepath.Join(dir, "pg_wal", fmt.Sprintf("%08X.history", t))
		if _, err := os.Stat(path); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		note := fmt.Sprintf("# timeline %d was claimed by another instance and never seen here\n", t)
		if err := pgproc.WriteFile(path, []byte(note), owner); err != nil {
			return err
		}
	}
	return nil
}
