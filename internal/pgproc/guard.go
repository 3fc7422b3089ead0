package pgproc

import (
	"context"
	"time"
)

// Clock is the time since boot, suspended time included (CLOCK_BOOTTIME): the clock that deadlines are given in.
func Clock() time.Duration { return 0 }

// GuardOptions of a guard.
type GuardOptions struct {
	Bin  string // path of kumki-wal
	Root string // of the data volume: what runs below it is killed
	// OnRestart is told when the guard process had to be started again, and why. May be nil.
	OnRestart func(reason error)
}

// Guard is the guard process (`kumki-wal guard`), which kills PostgreSQL's tree at a deadline, and at once when this process ends,
// whatever state this process is in. A guard process that dies is started again with the deadline in force.
type Guard struct{}

// StartGuard starts the guard, with no deadline.
func StartGuard(o GuardOptions) (*Guard, error) { return nil, errUnfinished }

// SetDeadline replaces the deadline; zero: none. It does not wait. At the deadline the guard kills the tree, and goes on killing what
// appears until SetDeadline is called again: so call SetDeadline(0) before a server is started as a standby after a fence.
func (g *Guard) SetDeadline(at time.Duration) error { return errUnfinished }

// AwaitAck waits until the guard process confirmed the last SetDeadline. Do so before promoting.
func (g *Guard) AwaitAck(ctx context.Context) error { return errUnfinished }

// Fired receives a value each time the deadline passed and nothing of the tree is left.
func (g *Guard) Fired() <-chan struct{} { return nil }

// Exited is closed when there is no guard any more: after Close, or when it cannot be started again; then fence and exit.
func (g *Guard) Exited() <-chan struct{} { return nil }

// Close ends the guard without killing anything.
func (g *Guard) Close() error { return errUnfinished }
