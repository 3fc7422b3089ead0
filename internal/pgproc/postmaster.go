package pgproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kumki-dev/kumki/internal/pgproc/proctree"
)

// ProcState is the state of the postmaster process as the kernel sees it.
type ProcState string

// Values of ProcState.
const (
	ProcRunning ProcState = "Running"
	ProcStopped ProcState = "Stopped" // by SIGSTOP or a debugger: it answers nothing, its backends do
	ProcZombie  ProcState = "Zombie"  // has ended, not yet reaped
	ProcGone    ProcState = "Gone"
)

// readyPoll is how often postmaster.pid is looked at while the server starts; the server tells nobody by itself.
const readyPoll = 20 * time.Millisecond

// StartOptions of a postmaster.
type StartOptions struct {
	// Dir is the data directory (Generation.Dir).
	Dir string
	// Root of the data volume (Volume.Root): what runs below it is this postmaster's tree.
	Root string
	// SocketDir and Port are where it will listen, so that a stale lock file of that socket is removed. When empty they are taken
	// from Settings, or else from a stale postmaster.pid.
	SocketDir string
	Port      int
	// Settings given on the command line, which win over files. No secrets: the command line is public.
	Settings map[string]string
	// Env is added to the environment.
	Env []string
	// Volume, if given, lends its lock to every process of the server: as long as one is alive nobody else opens the volume, not
	// even a pod of the same name whose PID namespace does not show them.
	Volume *Volume
}

// ErrTreeAlive says that processes of an earlier server on the same volume still live.
var ErrTreeAlive = errors.New("processes of an earlier PostgreSQL server are alive")

// Postmaster is a started PostgreSQL server, a direct child of this process.
type Postmaster struct {
	cmd  *exec.Cmd
	dir  string
	root string
	log  *logSink
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a server. It removes a stale postmaster.pid first, and refuses while processes of an earlier server of the
// same volume are alive (ErrTreeAlive: KillTree first). It does not wait; see WaitReady.
func (p *Programs) Start(o StartOptions) (*Postmaster, error) {
	alive, err := proctree.New(o.Root, os.Getpid()).Alive()
	if err != nil {
		return nil, fmt.Errorf("look for an earlier server: %w", err)
	}
	if len(alive) > 0 {
		return nil, fmt.Errorf("%w on %s: %v", ErrTreeAlive, o.Root, alive)
	}
	if err := errors.Join(removeStaleLocks(o), ensurePrivate(o.Dir)); err != nil {
		return nil, err
	}
	args := []string{"-D", o.Dir}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		args = append(args, "-c", name+"="+o.Settings[name])
	}
	cmd := p.command(context.Background(), "postgres", args...) // it outlives every context: it is stopped by name
	cmd.WaitDelay = 0
	cmd.Env = append(cmd.Env, o.Env...)
	if o.Volume != nil {
		cmd.ExtraFiles = []*os.File{o.Volume.lock}
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = startChild(cmd)
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	m := &Postmaster{cmd: cmd, dir: o.Dir, root: o.Root, log: newLogSink("postgres", p.Log), done: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(m.log, reader)
		_ = reader.Close()
		m.log.flush()
	}()
	go m.await(read)
	return m, nil
}

// await reaps the postmaster.
func (m *Postmaster) await(read <-chan struct{}) {
	err := waitChild(m.cmd)
	// Orphaned backends may hold the log's pipe for long: give the last messages a moment only.
	select {
	case <-read:
	case <-time.After(100 * time.Millisecond):
	}
	if err != nil {
		m.err = explain("postgres", err, m.log.last())
	}
	close(m.done)
}

// removeStaleLocks removes lock files that an earlier server left behind. PostgreSQL does so only when their PID is free; in a
// container PIDs are few, and after a restart of it that PID is likely somebody else's, so the server would never start again.
// The caller knows that no earlier server on the volume is alive.
func removeStaleLocks(o StartOptions) error {
	locks := []string{filepath.Join(o.Dir, "postmaster.pid")}
	if dir, port := o.socket(); dir != "" {
		lock := filepath.Join(dir, ".s.PGSQL."+port+".lock")
		if pid := firstNumber(lock); pid > 0 {
			// Another cluster's server on the same socket is for PostgreSQL to complain of.
			if p, err := proctree.Read(pid); err != nil || !p.IsPostgres() || p.Ended() {
				locks = append(locks, lock)
			}
		}
	}
	for _, lock := range locks {
		if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a stale lock file: %w", err)
		}
	}
	return nil
}

// socket is the directory and port of the unix socket.
func (o StartOptions) socket() (dir, port string) {
	dir, port = o.SocketDir, strconv.Itoa(o.Port)
	if dir == "" {
		dir, port = o.Settings["unix_socket_directories"], o.Settings["port"]
	}
	if dir == "" {
		data, _ := os.ReadFile(filepath.Join(o.Dir, "postmaster.pid"))
		if lines := strings.Split(string(data), "\n"); len(lines) >= 5 { // 4 is the port, 5 the directory
			dir, port = lines[4], lines[3]
		}
	}
	return strings.TrimSpace(dir), strings.TrimSpace(port)
}

func firstNumber(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(data), "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// PID of the postmaster.
func (m *Postmaster) PID() int { return m.cmd.Process.Pid }

// WaitReady waits until the server accepts connections (a standby: until it is consistent). When the server ends first, the
// error carries its last messages. When ctx ends first, the error is ctx's; the server goes on starting.
func (m *Postmaster) WaitReady(ctx context.Context) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for !m.Ready() {
		select {
		case <-m.done:
			if m.err == nil {
				return errors.New("postgres ended in order while it was starting")
			}
			return m.err
		case <-ctx.Done():
			return fmt.Errorf("postgres does not accept connections yet (%s): %w", m.log.last(), ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// Ready says whether the server accepts connections, by its own word in postmaster.pid.
func (m *Postmaster) Ready() bool {
	data, err := os.ReadFile(filepath.Join(m.dir, "postmaster.pid"))
	if err != nil {
		return false
	}
	// Line 1 is the PID, line 8 the state: "starting", "stopping", "ready" or "standby" (not consistent yet).
	lines := strings.Split(string(data), "\n")
	return len(lines) >= 8 && strings.TrimSpace(lines[0]) == strconv.Itoa(m.PID()) && strings.TrimSpace(lines[7]) == "ready"
}

// Done is closed when the postmaster has ended and was reaped. Its children may live a little longer: see KillTree.
func (m *Postmaster) Done() <-chan struct{} { return m.done }

// Err says how the postmaster ended, with its last messages; nil when it shut down in order. Nil before Done.
func (m *Postmaster) Err() error {
	select {
	case <-m.done:
		return m.err
	default:
		return nil
	}
}

// State of the process.
func (m *Postmaster) State() ProcState {
	select {
	case <-m.done: // its PID may be another's by now
		return ProcGone
	default:
	}
	p, err := proctree.Read(m.PID())
	switch {
	case err != nil:
		return ProcGone
	case p.Ended():
		return ProcZombie
	case Stopped(p.PID):
		return ProcStopped
	}
	return ProcRunning
}

// Stopped says whether a process is stopped, by SIGSTOP or a debugger.
func Stopped(pid int) bool {
	p, err := proctree.Read(pid)
	return err == nil && (p.State == 'T' || p.State == 't')
}

// Reload makes the server read its configuration files again (SIGHUP).
func (m *Postmaster) Reload() error { return m.signal(syscall.SIGHUP) }

func (m *Postmaster) signal(s os.Signal) error {
	if err := m.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal postgres: %w", err)
	}
	return nil
}

// StopFast asks for a fast shutdown (SIGINT: sessions are ended, a checkpoint is written) and waits for the end.
// When ctx ends first the shutdown goes on and the error is ctx's.
func (m *Postmaster) StopFast(ctx context.Context) error { return m.stop(ctx, syscall.SIGINT) }

// StopImmediate asks for an immediate shutdown (SIGQUIT: no checkpoint, crash recovery at the next start) and waits for the end.
func (m *Postmaster) StopImmediate(ctx context.Context) error { return m.stop(ctx, syscall.SIGQUIT) }

func (m *Postmaster) stop(ctx context.Context, s os.Signal) error {
	if err := m.signal(s); err != nil {
		return err
	}
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("postgres is still shutting down: %w", ctx.Err())
	}
}

// KillTree kills (SIGKILL) the server's whole process tree and returns nil only when nothing of it is left and the postmaster was
// reaped. When ctx ends first, the error names what is left (processes that the kernel cannot end, for example in stuck I/O).
func (m *Postmaster) KillTree(ctx context.Context) error {
	_ = m.cmd.Process.Kill() // the postmaster first, so that no new backends come
	if err := KillTree(ctx, m.root); err != nil {
		return err
	}
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the postmaster was not reaped: %w", ctx.Err())
	}
}

// KillTree kills every PostgreSQL process that works below root, whoever started it, like Postmaster.KillTree.
func KillTree(ctx context.Context, root string) error {
	return proctree.New(root, os.Getpid()).Kill(ctx)
}
