package pgproc

import (
	"context"
	"errors"
)

var errUnfinished = errors.New("pgproc: not built yet")

// ProcState is the state of the postmaster process as the kernel sees it.
type ProcState string

// Values of ProcState.
const (
	ProcRunning ProcState = "Running"
	ProcStopped ProcState = "Stopped" // by SIGSTOP or a debugger: it answers nothing, its backends do
	ProcZombie  ProcState = "Zombie"  // has ended, not yet reaped
	ProcGone    ProcState = "Gone"
)

// StartOptions of a postmaster.
type StartOptions struct {
	// Dir is the data directory (Generation.Dir).
	Dir string
	// Root of the data volume (Volume.Root): what runs below it is this postmaster's tree.
	Root string
	// Settings given on the command line, which win over files. No secrets: the command line is public.
	Settings map[string]string
	// Env is added to the environment.
	Env []string
}

// Postmaster is a started PostgreSQL server, a direct child of this process.
type Postmaster struct{}

// Start starts a server. It removes a stale postmaster.pid first, and refuses while processes of an earlier server of the
// same volume are alive (ErrTreeAlive: KillTree first). It does not wait; see WaitReady.
func (p *Programs) Start(o StartOptions) (*Postmaster, error) { return nil, errUnfinished }

// ErrTreeAlive says that processes of an earlier server on the same volume still live.
var ErrTreeAlive = errors.New("processes of an earlier PostgreSQL server are alive")

// PID of the postmaster.
func (m *Postmaster) PID() int { return 0 }

// WaitReady waits until the server accepts connections (a standby: until it is consistent). When the server ends first, the
// error carries its last messages. When ctx ends first, the error is ctx's; the server goes on starting.
func (m *Postmaster) WaitReady(ctx context.Context) error { return errUnfinished }

// Ready says whether the server accepts connections, by its own word in postmaster.pid.
func (m *Postmaster) Ready() bool { return false }

// Done is closed when the postmaster has ended and was reaped. Its children may live a little longer: see KillTree.
func (m *Postmaster) Done() <-chan struct{} { return nil }

// Err says how the postmaster ended, with its last messages; nil when it shut down in order. Only after Done.
func (m *Postmaster) Err() error { return errUnfinished }

// State of the process.
func (m *Postmaster) State() ProcState { return ProcGone }

// Reload makes the server read its configuration files again (SIGHUP).
func (m *Postmaster) Reload() error { return errUnfinished }

// StopFast asks for a fast shutdown (SIGINT: sessions are ended, a checkpoint is written) and waits for the end.
// When ctx ends first the shutdown goes on and the error is ctx's.
func (m *Postmaster) StopFast(ctx context.Context) error { return errUnfinished }

// StopImmediate asks for an immediate shutdown (SIGQUIT: no checkpoint, crash recovery at the next start) and waits for the end.
func (m *Postmaster) StopImmediate(ctx context.Context) error { return errUnfinished }

// KillTree kills (SIGKILL) the server's whole process tree and returns nil only when nothing of it is left.
// When ctx ends first, the error names what is left (processes that the kernel cannot end, for example in stuck I/O).
func (m *Postmaster) KillTree(ctx context.Context) error { return errUnfinished }

// KillTree kills every PostgreSQL process that works below root, whoever started it, like Postmaster.KillTree.
func KillTree(ctx context.Context, root string) error { return errUnfinished }
