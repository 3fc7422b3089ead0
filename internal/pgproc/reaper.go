package pgproc

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kumki-dev/kumki/internal/pgproc/proctree"
)

const (
	reapEvery = time.Second
	// reapAfter is how often a zombie must be seen before it is taken for an orphan: a child of os/exec elsewhere in this process
	// is waited for by its own code long before.
	reapAfter = 3
)

// Reap makes this process the one that orphans below it come to (PID 1 is it anyway), and reaps those that end, until ctx ends.
// Children started by this package are left to their own Wait, and so are those of other code that waits within two seconds.
func Reap(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	ticker := time.NewTicker(reapEvery)
	defer ticker.Stop()
	r := reaper{seen: map[int]sighting{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.round()
		}
	}
}

// sighting of a zombie.
type sighting struct {
	start uint64
	times int
}

type reaper struct{ seen map[int]sighting }

// round looks once; it costs one system call when there is no zombie.
func (r *reaper) round() {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil || info.Signo == 0 {
		clear(r.seen)
		return
	}
	all, err := proctree.Scan()
	if err != nil {
		return
	}
	now := map[int]sighting{}
	for _, p := range all {
		if p.State != 'Z' || p.PPID != os.Getpid() {
			continue
		}
		s := sighting{start: p.Start, times: 1}
		if before := r.seen[p.PID]; before.start == p.Start {
			s.times = before.times + 1
		}
		if s.times < reapAfter || !reapOrphan(p.PID) {
			now[p.PID] = s
		}
	}
	r.seen = now
}

// reapOrphan reaps a zombie that nobody in this package waits for.
func reapOrphan(pid int) bool {
	children.Lock()
	defer children.Unlock()
	if children.pids[pid] {
		return false
	}
	_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil
}
