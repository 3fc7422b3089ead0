package proctree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is the processes of the PostgreSQL server on one data volume. It remembers whom it saw: a descendant stays a member when its
// ancestors are gone. Not safe for concurrent use.
type Tree struct {
	root    string
	manager int
	seen    map[int]uint64 // PID -> start
	places  map[place]bool // data directories when they were last read; nil: never
}

// New is the tree of the volume at root. manager is the PID of the instance manager, to which orphans come.
func New(root string, manager int) *Tree {
	return &Tree{root: root, manager: manager, seen: map[int]uint64{}}
}

// Prime reads which data directories there are, so that a first round of killing does without the volume, which may hang by then.
func (t *Tree) Prime() error {
	places, err := dataDirectories(t.root)
	if err == nil {
		t.places = places
	}
	return err
}

// Alive are the living members; zombies are not alive. When the volume cannot be read, its directories are those last seen.
func (t *Tree) Alive() ([]Process, error) {
	if err := t.Prime(); err != nil && t.places == nil {
		return nil, err
	}
	return t.find()
}

// find the members by the known data directories.
func (t *Tree) find() ([]Process, error) {
	all, err := Scan()
	if err != nil {
		return nil, err
	}
	members := t.members(all, func(pid int) (bool, error) {
		at, err := placeOf("/proc/" + strconv.Itoa(pid) + "/cwd")
		return err == nil && t.places[at], err
	})
	clear(t.seen)
	for _, p := range members {
		t.seen[p.PID] = p.Start
	}
	return members, nil
}

// members picks the tree out of all processes. inside says whether a process works in a data directory of the volume.
// The result has parents before children.
func (t *Tree) members(all []Process, inside func(pid int) (bool, error)) []Process {
	children := map[int][]Process{}
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	ours := descendants(children, t.manager)
	var members []Process
	taken := map[int]bool{os.Getpid(): true, t.manager: true, 1: true}
	var take func(p Process)
	take = func(p Process) {
		if taken[p.PID] {
			return
		}
		taken[p.PID] = true
		if !p.Ended() {
			members = append(members, p)
		}
		for _, child := range children[p.PID] {
			take(child)
		}
	}
	for _, p := range all {
		if !p.Ended() && t.isRoot(p, ours[p.PID], inside) {
			take(p)
		}
	}
	return members
}

// isRoot says whether a process is a member by itself, and not only by its parent.
func (t *Tree) isRoot(p Process, ours bool, inside func(pid int) (bool, error)) bool {
	if start, ok := t.seen[p.PID]; ok && start == p.Start {
		return true
	}
	orphan := p.PPID == t.manager || p.PPID == 1
	if !p.IsPostgres() && !orphan {
		return false
	}
	in, err := inside(p.PID)
	if err != nil {
		// The working directory cannot be read: forbidden, or the volume is broken. A server below our own manager is taken for ours:
		// killing one too many is a restart, one too few is two primaries.
		return ours && p.IsPostgres() && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	return in
}

// descendants of a process.
func descendants(children map[int][]Process, pid int) map[int]bool {
	found := map[int]bool{}
	queue := []int{pid}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for _, child := range children[next] {
			if !found[child.PID] && child.PID != pid {
				found[child.PID] = true
				queue = append(queue, child.PID)
			}
		}
	}
	return found
}

// Kill sends SIGKILL to all members, again and again until none is left. When ctx ends first the error names who is left.
func (t *Tree) Kill(ctx context.Context) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		left, err := t.KillOnce()
		if err == nil && len(left) == 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("PostgreSQL's processes could not all be killed: %w", errors.Join(leftError(left), err, ctx.Err()))
		}
	}
}

// KillOnce sends SIGKILL to all members and returns who was alive before.
func (t *Tree) KillOnce() ([]Process, error) {
	if t.places != nil {
		if alive, err := t.find(); err == nil {
			_ = killAll(alive) // whoever is left is found again below
		}
	}
	alive, err := t.Alive()
	if err != nil {
		return nil, err
	}
	return alive, killAll(alive)
}

func killAll(alive []Process) (err error) {
	for _, p := range alive {
		if e := Signal(p, unix.SIGKILL); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("kill %s: %w", p, e))
		}
	}
	return err
}

// Signal sends a signal to this very process: not to another that got its PID meanwhile. unix.ESRCH: it is gone.
func Signal(p Process, signal unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return err
	}
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
	}
	if now, e := Read(p.PID); e != nil || now.Start != p.Start {
		return unix.ESRCH
	}
	if err == nil {
		if err = unix.PidfdSendSignal(fd, signal, nil, 0); err == nil || errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	// A kernel or a seccomp profile without pidfd.
	return unix.Kill(p.PID, signal)
}

func leftError(left []Process) error {
	if len(left) == 0 {
		return nil
	}
	var names []string
	for _, p := range left[:min(len(left), 10)] {
		names = append(names, p.String())
	}
	return fmt.Errorf("%d left: %s", len(left), strings.Join(names, ", "))
}
