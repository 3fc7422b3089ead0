package fault

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
)

// Roles of the processes in a database pod.
const (
	Manager    = "manager"    // process 1 of the container
	Postmaster = "postmaster" // PostgreSQL's first process
	Guard      = "guard"      // the one that holds the fence deadline
	Backend    = "backend"    // serves one client
)

// process is what tells the roles apart.
type process struct {
	pid, parent int
	first       bool // process 1 of its container
	name        string
	argv        []string
}

// FindProcesses returns the pids of the container's processes in a role.
func FindProcesses(c Container, role string) ([]int, error) {
	var all []process
	for _, pid := range c.Processes() {
		if p, ok := readProcess(pid); ok {
			all = append(all, p)
		}
	}
	return selectRole(all, role)
}

func selectRole(all []process, role string) ([]int, error) {
	var is func(process) bool
	switch role {
	case Manager:
		is = func(p process) bool { return p.first }
	case Postmaster:
		is = func(p process) bool { return isPostmaster(p, all) }
	case Guard:
		is = func(p process) bool { return len(p.argv) > 1 && slices.Contains(p.argv[1:], "guard") }
	case Backend:
		is = isBackend
	default:
		return nil, fmt.Errorf("%q is not one of %s, %s, %s, %s", role, Manager, Postmaster, Guard, Backend)
	}
	var pids []int
	for _, p := range all {
		if is(p) {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

// isPostmaster: the parent of other PostgreSQL processes. One without children is no server, or not yet.
func isPostmaster(p process, all []process) bool {
	return p.name == "postgres" && slices.ContainsFunc(all, func(child process) bool {
		return child.name == "postgres" && child.parent == p.pid
	})
}

// backendTitle is "postgres: [cluster: ]user database client ...", as PostgreSQL sets it for whoever serves
// a client. https://www.postgresql.org/docs/current/monitoring-ps.html
var backendTitle = regexp.MustCompile(`^postgres: (?:\S+: )?(\S+) \S+ (?:\[local\]|[0-9a-f.:]+\(\d+\))`)

func isBackend(p process) bool {
	m := backendTitle.FindStringSubmatch(strings.Join(p.argv, " "))
	return m != nil && m[1] != "walsender"
}

func readProcess(pid int) (process, bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return process{}, false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return process{}, false
	}
	p := process{pid: pid, parent: host.ParentPID(pid)}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch fields := strings.Fields(value); {
		case key == "Name" && len(fields) > 0:
			p.name = fields[0]
		case key == "NSpid" && len(fields) > 1:
			p.first = fields[len(fields)-1] == "1"
		}
	}
	for _, arg := range bytes.Split(bytes.TrimRight(cmdline, "\x00"), []byte{0}) {
		p.argv = append(p.argv, string(arg))
	}
	return p, true
}
