package proctree

import (
	"os"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	const tail = " S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1"
	for comm, stat := range map[string]string{
		"postgres":     "42 (postgres)" + tail,
		"a) R 1 (b c)": "42 (a) R 1 (b c))" + tail,
	} {
		p, err := parseStat(stat)
		want := Process{PID: 42, PPID: 7, Comm: comm, State: 'S', Start: 987654}
		if err != nil || p != want {
			t.Errorf("%q: %+v %v", stat, p, err)
		}
	}
	for _, bad := range []string{"", "42 postgres S", "42 (postgres) S 7"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// world is a small /proc: manager 10 on volume A with postmaster 20, another manager 11 with postmaster 30 on volume B.
func world() (all []Process, inside func(int) (bool, error)) {
	all = []Process{
		{PID: 1, PPID: 0, Comm: "init", State: 'S', Start: 1},
		{PID: 10, PPID: 1, Comm: "kumki", State: 'S', Start: 1},
		{PID: 11, PPID: 1, Comm: "kumki", State: 'S', Start: 1},
		{PID: 12, PPID: 10, Comm: "pg_basebackup", State: 'S', Start: 2},
		{PID: 20, PPID: 10, Comm: "postgres", State: 'S', Start: 3},
		{PID: 21, PPID: 20, Comm: "postgres", State: 'D', Start: 4},
		{PID: 22, PPID: 21, Comm: "sh", State: 'S', Start: 5}, // a program that left the data directory
		{PID: 23, PPID: 20, Comm: "postgres", State: 'Z', Start: 5},
		{PID: 30, PPID: 11, Comm: "postgres", State: 'S', Start: 3},
		{PID: 31, PPID: 30, Comm: "postgres", State: 'S', Start: 4},
		{PID: 40, PPID: 0, Comm: "bash", State: 'S', Start: 9}, // somebody's shell in the data directory
		{PID: 41, PPID: 10, Comm: "sh", State: 'S', Start: 9},  // an archive_command whose archiver is gone
	}
	volumeA := []int{20, 21, 40, 41}
	return all, func(pid int) (bool, error) { return slices.Contains(volumeA, pid), nil }
}

func pids(processes []Process) (pids []int) {
	for _, p := range processes {
		pids = append(pids, p.PID)
	}
	slices.Sort(pids)
	return pids
}

func TestMembers(t *testing.T) {
	all, inside := world()
	tree := New("/a", 10)
	if got := pids(tree.members(all, inside)); !slices.Equal(got, []int{20, 21, 22, 41}) {
		t.Errorf("members: %v", got)
	}
	// The postmaster and its backend are gone; the program is remembered by PID and start time.
	tree.seen = map[int]uint64{22: 5, 12: 99}
	var rest []Process
	for _, p := range all {
		if p.PID != 20 && p.PID != 21 {
			if p.PID == 22 {
				p.PPID = 10
			}
			rest = append(rest, p)
		}
	}
	if got := pids(tree.members(rest, inside)); !slices.Equal(got, []int{22, 41}) {
		t.Errorf("members without the postmaster: %v", got)
	}
}

func TestMembersWhenTheVolumeIsBroken(t *testing.T) {
	all, _ := world()
	forbidden := func(int) (bool, error) { return false, os.ErrPermission }
	if got := pids(New("/a", 10).members(all, forbidden)); !slices.Equal(got, []int{20, 21, 22}) {
		t.Errorf("members: %v", got)
	}
	gone := func(int) (bool, error) { return false, os.ErrNotExist }
	if got := pids(New("/a", 10).members(all, gone)); len(got) != 0 {
		t.Errorf("members that ended meanwhile: %v", got)
	}
}
