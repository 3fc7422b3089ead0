// Command kumki-wal is the small companion of the instance manager: it is started often, or has to stay small.
//
//	kumki-wal guard ROOT   kills PostgreSQL on the data volume ROOT at the manager's deadline, or when the manager ends
package main

import (
	"os"

	"github.com/kumki-dev/kumki/internal/pgproc/guard"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "guard" {
		os.Exit(guard.Run(os.Args[2]))
	}
	_, _ = os.Stderr.WriteString("usage: kumki-wal guard ROOT\n")
	os.Exit(2)
}
