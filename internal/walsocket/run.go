package walsocket

import (
	"errors"
	"os"
	"time"
)

// Exit codes of the commands.
const (
	ExitOK = 0
	// ExitFailed of archive_command: PostgreSQL keeps the segment and tries again.
	ExitFailed = 1
	// ExitMissing of restore_command: the file is not in the archive, which may be the end of WAL.
	ExitMissing = 1
	// ExitAbort of restore_command: whether the file is there is not known. PostgreSQL takes a code over 125 for a reason to give up,
	// and any other for the end of WAL, at which it would stop short of the target without a word.
	// https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-PITR-RECOVERY
	ExitAbort = 126
)

// An archiver that is being started again answers within moments.
const (
	fetchTries = 60
	fetchPause = time.Second
)

// RunPush asks the archiver at socket to archive a file; path is as PostgreSQL gave it. It returns the exit code.
func RunPush(socket, path string) int {
	dir, err := os.Getwd()
	if err == nil {
		err = Ask(socket, Push, Absolute(dir, path))
	}
	if err != nil {
		complain("archiving "+path, err)
		return ExitFailed
	}
	return ExitOK
}

// RunFetch asks the archiver at socket for a file and where to put it; path is as PostgreSQL gave it. It returns the exit code.
func RunFetch(socket, file, path string) int {
	return fetch(socket, file, path, func() { time.Sleep(fetchPause) })
}

func fetch(socket, file, path string, pause func()) int {
	dir, err := os.Getwd()
	if err != nil {
		complain("fetching "+file, err)
		return ExitAbort
	}
	for try := 1; ; try++ {
		err := Ask(socket, Fetch, file, Absolute(dir, path))
		var unreachable *Unreachable
		switch {
		case err == nil:
			return ExitOK
		case errors.Is(err, ErrMissing):
			return ExitMissing
		case !errors.As(err, &unreachable) || try == fetchTries:
			complain("fetching "+file, err)
			return ExitAbort
		}
		pause()
	}
}

// complain tells PostgreSQL's log.
func complain(what string, err error) {
	_, _ = os.Stderr.WriteString("kumki-wal: " + what + ": " + err.Error() + "\n")
}
