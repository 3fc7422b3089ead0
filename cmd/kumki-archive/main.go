// Command kumki-archive keeps a cluster's WAL and base backups in an object store, and restores them. It is a program of its own because of
// the memory that the providers' libraries take: an instance runs it only where there is an archive.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kumki-dev/kumki/internal/cmd/archive"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := archive.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kumki-archive:", err)
		os.Exit(1)
	}
}
