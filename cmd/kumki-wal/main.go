// Command kumki-wal is the small companion of the instance manager: it is started often, or has to stay small.
//
//	kumki-wal guard ROOT               kills PostgreSQL on the data volume ROOT at the manager's deadline, or when the manager ends
//	kumki-wal push SOCKET PATH         archive_command: succeeds when the archiver at SOCKET has made the file durable
//	kumki-wal fetch SOCKET FILE PATH   restore_command: exit code 1 says that the archive does not have FILE
package main

import (
	"os"

	"github.com/kumki-dev/kumki/internal/pgproc/guard"
	"github.com/kumki-dev/kumki/internal/walsocket"
)

func main() {
	args := os.Args[1:]
	switch {
	case len(args) == 2 && args[0] == "guard":
		os.Exit(guard.Run(args[1]))
	case len(args) == 3 && args[0] == walsocket.Push:
		os.Exit(walsocket.RunPush(args[1], args[2]))
	case len(args) == 4 && args[0] == walsocket.Fetch:
		os.Exit(walsocket.RunFetch(args[1], args[2], args[3]))
	}
	_, _ = os.Stderr.WriteString("usage: kumki-wal guard ROOT | push SOCKET PATH | fetch SOCKET FILE PATH\n")
	os.Exit(2)
}
