package pgproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killGrace is how long a cancelled program may take to clean up after SIGTERM before it is killed.
const killGrace = 5 * time.Second

// children are the PIDs that somebody in this package waits for; Reap leaves them alone.
var children = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// startChild starts cmd so that Reap never takes it.
func startChild(cmd *exec.Cmd) error {
	children.Lock()
	defer children.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	children.pids[cmd.Process.Pid] = true
	return nil
}

// waitChild waits for cmd, which startChild started.
func waitChild(cmd *exec.Cmd) error {
	err := cmd.Wait()
	children.Lock()
	defer children.Unlock()
	delete(children.pids, cmd.Process.Pid)
	return err
}

// command is a program in a process group of its own that ends with ctx, with all that it started.
func (p *Programs) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Bin.Path(program), args...)
	cmd.Dir = "/" // not the data volume: what works there is the server's process tree
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.credential()}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killGrace
	return cmd
}

func (p *Programs) credential() *syscall.Credential {
	if p.User == nil {
		return nil
	}
	return &syscall.Credential{Uid: p.User.UID, Gid: p.User.GID}
}

// environment is ours without what changes PostgreSQL's programs behind our back: PG… variables of the image, and the
// language, because messages are read.
func environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "LC_") || name == "LANG" || name == "LANGUAGE" ||
			strings.HasPrefix(name, "POSTGRES_") {
			continue
		}
		env = append(env, entry)
	}
	return append(env, "LC_ALL=C")
}

// run a program to its end. stdout is returned; each message is logged, and given to onLine first where it is not nil (true: it is
// dealt with, do not log). The error carries the last messages.
func (p *Programs) run(cmd *exec.Cmd, onLine func(line string) bool) (string, error) {
	var stdout strings.Builder
	name := programName(cmd)
	sink := newLogSink(name, p.Log)
	sink.onLine = onLine
	cmd.Stdout, cmd.Stderr = &stdout, sink
	if err := startChild(cmd); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	err := waitChild(cmd)
	if cmd.Process != nil && cmd.ProcessState != nil && !cmd.ProcessState.Success() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind in its process group
	}
	sink.flush()
	if err != nil {
		return stdout.String(), explain(name, err, sink.last())
	}
	return stdout.String(), nil
}

func programName(cmd *exec.Cmd) string {
	return cmd.Path[strings.LastIndexByte(cmd.Path, '/')+1:]
}

// ErrDiskFull and ErrPermission mark failures of programs that have a plain cause outside of PostgreSQL.
var (
	ErrDiskFull   = errors.New("the volume is full: free space or enlarge it")
	ErrPermission = errors.New("a file cannot be accessed: the volume must belong to the pod's user or fsGroup")
)

// explain makes one error of a program's exit and its last messages.
func explain(program string, err error, messages string) error {
	cause := err
	switch {
	case strings.Contains(messages, "No space left on device") || strings.Contains(messages, "Disk quota exceeded"):
		cause = fmt.Errorf("%w (%w)", ErrDiskFull, err)
	case strings.Contains(messages, "Permission denied") || strings.Contains(messages, "Read-only file system"):
		cause = fmt.Errorf("%w (%w)", ErrPermission, err)
	}
	if messages == "" {
		return fmt.Errorf("%s: %w", program, cause)
	}
	return fmt.Errorf("%s: %w: %s", program, cause, messages)
}
