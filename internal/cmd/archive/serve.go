package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/archive"
	"github.com/kumki-dev/kumki/internal/walsocket"
)

// files answers what kumki-wal asks for PostgreSQL.
type files interface {
	// Push returns when the file of pg_wal is durable in the store.
	Push(ctx context.Context, path string) error
	// Fetch puts a file of the archive at target; archive.ErrNotFound when there is none.
	Fetch(ctx context.Context, name, target string) error
}

func (c *common) serveCommand() *cobra.Command {
	var socket, dataDir, spool string
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve archive_command and restore_command over a unix socket", Args: cobra.NoArgs,
		Long: "serve answers the two commands\n\n" +
			"  archive_command = 'kumki-wal push SOCKET %p'\n" +
			"  restore_command = 'kumki-wal fetch SOCKET %f %p'\n",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, s *session, out io.Writer) error {
				a, err := newArchiver(ctx, s, dataDir, spool)
				if err != nil {
					return err
				}
				l, err := listen(ctx, socket)
				if err != nil {
					return errors.Join(err, a.close())
				}
				err = say(out, map[string]string{"serving": socket, "folder": s.keys.Dir()})
				return errors.Join(err, serve(ctx, l, a), a.close())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", "", "path of the unix socket (required)")
	f.StringVar(&dataDir, "data-dir", "", "PostgreSQL's data directory, whose pg_wal is archived; empty: only fetch")
	f.StringVar(&spool, "spool", "", "directory for segments that are fetched ahead; it is emptied (required)")
	_ = cmd.MarkFlagRequired("socket")
	_ = cmd.MarkFlagRequired("spool")
	return cmd
}

// archiver serves one PostgreSQL.
type archiver struct {
	wal      string // pg_wal
	push     *archive.Pusher
	prefetch *archive.Prefetcher
}

// defaultSegment is PostgreSQL's default size of a segment, in bytes.
const defaultSegment = 16 << 20

func newArchiver(ctx context.Context, s *session, dataDir, spool string) (*archiver, error) {
	a := &archiver{}
	size := int64(defaultSegment)
	if catalog, err := archive.ListBackups(ctx, s.store, s.keys.Dir()); err == nil && len(catalog.Backups) > 0 {
		size = catalog.Backups[len(catalog.Backups)-1].WALSegmentSize
	}
	var err error
	if a.prefetch, err = archive.NewPrefetcher(s.wal(), spool, archive.PrefetchOptions{SegmentSize: size}); err != nil {
		return nil, err
	}
	if dataDir != "" {
		a.wal = filepath.Join(dataDir, "pg_wal")
		a.push = archive.NewPusher(s.wal(), a.wal, archive.PusherOptions{})
	}
	return a, nil
}

func (a *archiver) close() error {
	if a.push != nil {
		a.push.Close()
	}
	return a.prefetch.Close()
}

func (a *archiver) Push(ctx context.Context, path string) error {
	if a.push == nil {
		return errors.New("this archiver only fetches: it was started without --data-dir")
	}
	asked, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	own, err := os.Stat(a.wal)
	if err != nil {
		return err
	}
	if !os.SameFile(asked, own) {
		return fmt.Errorf("%s is not in %s, which is what this archiver archives", path, a.wal)
	}
	return a.push.Push(ctx, filepath.Base(path))
}

// A store that fails for a moment must not end a recovery, so a fetch is tried for a while before PostgreSQL is told to give up.
const (
	fetchTries = 10
	fetchPause = 3 * time.Second
)

func (a *archiver) Fetch(ctx context.Context, name, target string) error {
	for try := 1; ; try++ {
		err := a.prefetch.Fetch(ctx, name, target)
		if err == nil || errors.Is(err, archive.ErrNotFound) || errors.Is(err, archive.ErrCorrupt) || try == fetchTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(fetchPause):
		}
	}
}

// listen takes the socket over from a server that is gone.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, os.Chmod(socket, 0o600)
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, l net.Listener, f files) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var busy sync.WaitGroup
	defer busy.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		busy.Go(func() {
			defer func() { _ = conn.Close() }()
			answer(ctx, conn, f)
		})
	}
}

// answer reads one request and writes one answer. A client that went away (PostgreSQL ended it) ends its request.
func answer(ctx context.Context, conn net.Conn, f files) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := bufio.NewReaderSize(io.LimitReader(conn, 2*walsocket.MaxLine), walsocket.MaxLine)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	go func() { // nothing more is sent: a read ends when the client does
		_, _ = r.ReadByte()
		cancel()
	}()
	_, _ = io.WriteString(conn, reply(ctx, strings.Split(strings.TrimSuffix(line, "\n"), "\t"), f)+"\n")
}

func reply(ctx context.Context, request []string, f files) string {
	switch {
	case len(request) == 2 && request[0] == walsocket.Push:
		if err := f.Push(ctx, request[1]); err != nil {
			return failed(err)
		}
		return walsocket.OK
	case len(request) == 3 && request[0] == walsocket.Fetch:
		err := f.Fetch(ctx, request[1], request[2])
		switch {
		case err == nil:
			return walsocket.OK
		case errors.Is(err, archive.ErrNotFound):
			return walsocket.Missing
		}
		return failed(err)
	}
	return failed(fmt.Errorf("the request %q is not known", request[0]))
}

// failed is the answer with an error, in one line.
func failed(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return walsocket.Error + " " + text[:min(len(text), walsocket.MaxLine/2)]
}
