package pgproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/kumki-dev/kumki/internal/pgproc/guard"
)

// Clock is the time since boot, suspended time included (CLOCK_BOOTTIME): the clock that deadlines are given in.
func Clock() time.Duration { return guard.Now() }

const (
	guardRestarts   = 5 // failed starts in a row
	guardBackoff    = 100 * time.Millisecond
	guardWriteLimit = time.Second
)

// GuardOptions of a guard.
type GuardOptions struct {
	Bin  string // path of kumki-wal
	Root string // of the data volume: what runs below it is killed
	// OnRestart is told when the guard process had to be started again, and why. May be nil.
	OnRestart func(reason error)
}

// Guard is the guard process (`kumki-wal guard`), which kills PostgreSQL's tree at a deadline, and at once when this process ends,
// whatever state this process is in. A guard process that dies is started again with the deadline in force.
type Guard struct {
	options GuardOptions
	fired   chan struct{}
	exited  chan struct{}
	closing chan struct{}

	mu      sync.Mutex
	process *guardProcess // nil while there is none
	order   guard.Order   // the last one
	acked   uint64
	changed chan struct{} // closed and replaced when acked changes
	closed  bool
}

// guardProcess is one run of the guard process.
type guardProcess struct {
	cmd             *exec.Cmd
	orders, answers *os.File
}

// StartGuard starts the guard, with no deadline.
func StartGuard(o GuardOptions) (*Guard, error) {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, err
	}
	o.Root = root
	g := &Guard{options: o, fired: make(chan struct{}, 1), exited: make(chan struct{}), closing: make(chan struct{}),
		changed: make(chan struct{}), order: guard.Order{Seq: 1}}
	p, err := g.start()
	if p == nil {
		return nil, err
	}
	go g.supervise(p) // should the first order have failed, the process has ended, and is started again
	return g, nil
}

// start a guard process and give it the order in force.
func (g *Guard) start() (*guardProcess, error) {
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answersR, answersW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ordersR.Close(), ordersW.Close())
	}
	p := &guardProcess{cmd: exec.Command(g.options.Bin, "guard", g.options.Root), orders: ordersW, answers: answersR}
	p.cmd.Dir = "/"
	p.cmd.Env = []string{"GOMAXPROCS=1"}
	p.cmd.ExtraFiles = []*os.File{ordersR, answersW} // descriptors 3 and 4
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no signal from a terminal reaches it
	err = startChild(p.cmd)
	_ = ordersR.Close()
	_ = answersW.Close()
	if err != nil {
		p.close()
		return nil, fmt.Errorf("start the guard %s: %w", g.options.Bin, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.process, g.acked = p, 0
	order := g.order
	if g.closed {
		order.Deadline = guard.Quit
	}
	return p, p.send(order)
}

func (p *guardProcess) close() { _, _ = p.orders.Close(), p.answers.Close() }

func (p *guardProcess) send(o guard.Order) error {
	if err := p.orders.SetWriteDeadline(time.Now().Add(guardWriteLimit)); err != nil {
		return err
	}
	_, err := p.orders.Write(o.Encode())
	return err
}

// supervise keeps a guard process alive until Close.
func (g *Guard) supervise(p *guardProcess) {
	defer close(g.exited)
	for failures := 0; ; {
		if p != nil {
			began := time.Now()
			reason := g.attend(p)
			if g.isClosed() {
				return
			}
			if g.options.OnRestart != nil {
				g.options.OnRestart(reason)
			}
			if time.Since(began) > time.Minute {
				failures = 0
			}
		}
		if failures++; failures > guardRestarts {
			return
		}
		if failures > 1 {
			select {
			case <-time.After(guardBackoff):
			case <-g.closing:
				return
			}
		}
		p, _ = g.start()
	}
}

// attend reads the answers of a guard process until it ends, and says how it ended.
func (g *Guard) attend(p *guardProcess) error {
	buf := make([]byte, guard.AnswerSize)
	for {
		if _, err := io.ReadFull(p.answers, buf); err != nil {
			break
		}
		g.take(guard.DecodeAnswer(buf))
	}
	err := waitChild(p.cmd)
	g.mu.Lock()
	g.process = nil
	g.mu.Unlock()
	p.close()
	if err == nil {
		return errors.New("the guard process ended with exit status 0")
	}
	return fmt.Errorf("the guard process ended: %w", err)
}

func (g *Guard) take(a guard.Answer) {
	if a.Fired {
		select {
		case g.fired <- struct{}{}:
		default: // the last one was not looked at yet
		}
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.acked = max(g.acked, a.Seq)
	close(g.changed)
	g.changed = make(chan struct{})
}

// SetDeadline replaces the deadline; zero: none. It does not wait. At the deadline the guard kills the tree, and goes on killing what
// appears until SetDeadline is called again: so call SetDeadline(0) before a server is started as a standby after a fence.
// While the guard process is being started again, the deadline is kept for it.
func (g *Guard) SetDeadline(at time.Duration) error {
	if at < 0 {
		return fmt.Errorf("a deadline of %v: it is a time since boot", at)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("the guard is closed")
	}
	g.order = guard.Order{Seq: g.order.Seq + 1, Deadline: at}
	if g.process == nil {
		return nil
	}
	if err := g.process.send(g.order); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("the guard process takes no orders: %w", err)
	}
	return nil // EPIPE: it has just ended; the next one gets the order
}

// AwaitAck waits until the guard process confirmed the last SetDeadline. Do so before promoting.
func (g *Guard) AwaitAck(ctx context.Context) error {
	g.mu.Lock()
	want := g.order.Seq
	for g.acked < want {
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-g.exited:
			return errors.New("there is no guard process")
		case <-ctx.Done():
			return fmt.Errorf("the guard process did not confirm the deadline: %w", ctx.Err())
		}
		g.mu.Lock()
	}
	g.mu.Unlock()
	return nil
}

// PID of the guard process; 0 while there is none.
func (g *Guard) PID() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.process == nil {
		return 0
	}
	return g.process.cmd.Process.Pid
}

// Fired receives a value each time the deadline passed and nothing of the tree is left.
func (g *Guard) Fired() <-chan struct{} { return g.fired }

// Exited is closed when there is no guard any more: after Close, or when it cannot be started again; then fence and exit.
func (g *Guard) Exited() <-chan struct{} { return g.exited }

func (g *Guard) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Close ends the guard without killing PostgreSQL, and waits for its end.
func (g *Guard) Close() error {
	g.mu.Lock()
	var err error
	if !g.closed {
		g.closed = true
		close(g.closing)
		if g.process != nil {
			err = g.process.send(guard.Order{Seq: g.order.Seq + 1, Deadline: guard.Quit})
			process := g.process.cmd.Process
			kill := time.AfterFunc(killGrace, func() { _ = process.Kill() })
			defer kill.Stop()
		}
	}
	g.mu.Unlock()
	<-g.exited
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
