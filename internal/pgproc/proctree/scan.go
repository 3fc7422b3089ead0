// Package proctree finds and kills the processes of a PostgreSQL server by /proc. The guard process links it, so it stays small.
//
// Every PostgreSQL backend begins a session of its own (setsid), so a signal to the postmaster's process group misses them, and
// when the postmaster dies they get a new parent. What they keep is their working directory, the data directory: a process belongs
// to the tree of a data volume when it is a PostgreSQL process in one of the volume's data directories, or descends from one, or is a
// program that such a process left behind there (an archive_command).
package proctree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Process as /proc shows it. Start (clock ticks since boot) tells two processes apart that had the same PID.
type Process struct {
	PID, PPID int
	Comm      string
	State     byte // R, S, D, T (stopped), t (traced), Z (zombie), X
	Start     uint64
}

// Ended says that the process runs no code any more.
func (p Process) Ended() bool { return p.State == 'Z' || p.State == 'X' || p.State == 'x' }

// IsPostgres says that the process runs the server program.
func (p Process) IsPostgres() bool { return p.Comm == "postgres" || p.Comm == "postmaster" }

// String is for messages: pid, program and state.
func (p Process) String() string { return fmt.Sprintf("%d (%s, state %c)", p.PID, p.Comm, p.State) }

// Read one process; fs.ErrNotExist when there is none.
func Read(pid int) (Process, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, syscall.ESRCH) {
		return Process{}, fs.ErrNotExist
	}
	if err != nil {
		return Process{}, err
	}
	return parseStat(string(data))
}

// parseStat reads /proc/PID/stat, see proc_pid_stat(5). The program's name is in parentheses and may hold any byte.
func parseStat(stat string) (Process, error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 1 || end < open {
		return Process{}, errors.New("unreadable /proc/PID/stat")
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 20 {
		return Process{}, errors.New("short /proc/PID/stat")
	}
	p := Process{Comm: stat[open+1 : end], State: fields[0][0]}
	var errPID, errPPID, errStart error
	p.PID, errPID = strconv.Atoi(strings.TrimSpace(stat[:open]))
	p.PPID, errPPID = strconv.Atoi(fields[1])
	p.Start, errStart = strconv.ParseUint(fields[19], 10, 64)
	return p, errors.Join(errPID, errPPID, errStart)
}

// Scan lists all processes that this one can see. Processes that end meanwhile are left out.
func Scan() ([]Process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	processes := make([]Process, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := Read(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// place is a directory, whatever name or mount it is reached by.
type place struct{ dev, ino uint64 }

func placeOf(path string) (place, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return place{}, err
	}
	return place{st.Dev, st.Ino}, nil
}

// dataDirectories are the directories in root, by identity and not by name: a path means another directory in another container.
func dataDirectories(root string) (map[place]bool, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	places := map[place]bool{}
	for _, name := range append(names, ".") {
		var st syscall.Stat_t
		if err := syscall.Stat(root+"/"+name, &st); err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			places[place{st.Dev, st.Ino}] = true
		}
	}
	return places, nil
}
