package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Daemon is a detached process of the cluster.
type Daemon struct {
	Name string
	LaunchSpec
	Env []string
}

// Supervisor starts daemons and finds them again. Dir holds the records, LogDir the logs; Self is the path
// of a copy of this program that outlives the build it came from.
type Supervisor struct {
	Dir, LogDir, Self string
}

type record struct {
	PID       int    `json:"pid"`
	StartTime string `json:"startTime"` // tells the process from a later one with the same pid
}

// Start starts the daemon unless it runs; it returns its pid.
func (s Supervisor) Start(d Daemon) (int, error) {
	if pid := s.PID(d.Name); pid != 0 {
		return pid, nil
	}
	for _, dir := range []string{s.Dir, s.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return 0, err
		}
	}
	log, err := os.OpenFile(s.LogPath(d.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.Self, d.Args()...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), d.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", d.Name, err)
	}
	pid := cmd.Process.Pid
	// Reap it if it ends while this program still runs; else it is init's.
	go func() { _ = cmd.Wait() }()
	rec, err := json.Marshal(record{PID: pid, StartTime: startTime(pid)})
	if err != nil {
		return 0, err
	}
	return pid, WriteFile(s.recordPath(d.Name), rec, 0o644)
}

// PID returns the pid of a running daemon, or 0.
func (s Supervisor) PID(name string) int {
	data, err := os.ReadFile(s.recordPath(name))
	if err != nil {
		return 0
	}
	var rec record
	if json.Unmarshal(data, &rec) != nil || rec.PID <= 1 || rec.StartTime == "" {
		return 0
	}
	if startTime(rec.PID) != rec.StartTime {
		return 0
	}
	return rec.PID
}

// Kill ends a daemon, as a crash would.
func (s Supervisor) Kill(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return Poll(ctx, 20*time.Millisecond, func(context.Context) error {
		pid := s.PID(name)
		if pid == 0 {
			return nil
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return fmt.Errorf("%s (pid %d) still runs", name, pid)
	})
}

// Names returns the names of all daemons ever started.
func (s Supervisor) Names() []string {
	paths, _ := filepath.Glob(filepath.Join(s.Dir, "*.json"))
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".json"))
	}
	return names
}

// LogPath is where a daemon's output goes.
func (s Supervisor) LogPath(name string) string { return filepath.Join(s.LogDir, name+".log") }

// LogTail returns the end of a daemon's log, for error messages.
func (s Supervisor) LogTail(name string, lines int) string {
	data, err := os.ReadFile(s.LogPath(name))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(data), lines)
}

func (s Supervisor) recordPath(name string) string { return filepath.Join(s.Dir, name+".json") }

// startTime returns field 22 of /proc/PID/stat, or "" for a process that is gone or a zombie.
func startTime(pid int) string {
	fields := statFields(pid)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

// ParentPID returns the pid of a process's parent, or 0.
func ParentPID(pid int) int {
	fields := statFields(pid)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// statFields returns the fields of /proc/PID/stat from the third on; the second, the name, may hold spaces.
func statFields(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	i := strings.LastIndexByte(string(data), ')')
	if i < 0 {
		return nil
	}
	return strings.Fields(string(data)[i+1:])
}
