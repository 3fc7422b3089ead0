package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kumki-dev/kumki/internal/pgproc/proctree"
)

// Exit codes of the guard process.
const (
	ExitQuit        = 0 // the manager asked for it
	ExitFailed      = 1
	ExitManagerGone = 4 // the manager ended; PostgreSQL was killed
)

// holdEvery is how often the guard looks for new processes after it fired.
const holdEvery = 100 * time.Millisecond

// watch is a running guard.
type watch struct {
	tree    *proctree.Tree
	timer   int // timerfd on CLOCK_BOOTTIME
	order   Order
	holding bool // fired, and no newer order has come
}

// Run is the guard process; it returns its exit code. It ignores the signals that end a container, because it has to outlast PostgreSQL.
func Run(root string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	debug.SetGCPercent(20)
	w := &watch{tree: proctree.New(root, os.Getppid())}
	var err error
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return failed("timer", err)
	}
	if err = unix.SetNonblock(OrdersFD, true); err != nil {
		return failed("no pipe of orders; the instance manager starts the guard, not a person", err)
	}
	for {
		ended, err := w.read()
		switch {
		case err != nil:
			// Orders cannot be read any more: the same as a manager that is gone.
			w.kill()
			return failed("read orders", err)
		case ended:
			w.kill()
			return ExitManagerGone
		case w.order.Deadline == Quit:
			return ExitQuit
		}
		if w.due() {
			w.fire()
		}
		w.wait()
	}
}

func failed(what string, err error) int {
	fmt.Fprintln(os.Stderr, "kumki-wal guard:", what+":", err)
	return ExitFailed
}

// read takes all orders that are there; the last one counts. True when the manager has closed the pipe.
func (w *watch) read() (ended bool, err error) {
	var buf [OrderSize]byte
	for {
		n, err := unix.Read(OrdersFD, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, err
		case n == 0:
			return true, nil
		case n != OrderSize:
			return false, fmt.Errorf("an order of %d bytes", n)
		}
		w.order, w.holding = DecodeOrder(buf[:]), false
		w.arm()
		_ = w.tree.Prime() // Kill reads the volume again; this is for a volume that hangs by then
		w.answer(Answer{Seq: w.order.Seq})
	}
}

// arm sets the timer to the deadline. Should that fail, wait polls.
func (w *watch) arm() {
	spec := unix.ItimerSpec{}
	if w.order.Deadline > 0 {
		spec.Value = unix.NsecToTimespec(int64(w.order.Deadline))
	}
	_ = unix.TimerfdSettime(w.timer, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// due says that the deadline has passed.
func (w *watch) due() bool { return w.order.Deadline > 0 && Now() >= w.order.Deadline }

// fire kills PostgreSQL and tells the manager. Until the next order it goes on killing what appears: a manager that was stopped
// in the middle of starting a server goes on with it when it wakes.
func (w *watch) fire() {
	w.kill()
	if !w.holding {
		w.holding = true
		w.answer(Answer{Seq: w.order.Seq, Fired: true})
	}
}

// kill returns when nothing of PostgreSQL is left.
func (w *watch) kill() { _ = w.tree.Kill(context.Background()) }

// answer the manager. It does not matter when the manager is stopped or gone.
func (w *watch) answer(a Answer) { _, _ = unix.Write(AnswersFD, a.Encode()) }

// wait until there is an order to read or the deadline passes.
func (w *watch) wait() {
	timeout := -1
	if w.holding {
		timeout = int(holdEvery.Milliseconds())
	}
	fds := []unix.PollFd{{Fd: OrdersFD, Events: unix.POLLIN}, {Fd: int32(w.timer), Events: unix.POLLIN}}
	if w.holding {
		fds = fds[:1] // the timer stays readable
	}
	_, _ = unix.Poll(fds, timeout)
}
