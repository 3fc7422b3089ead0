package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const cgroupFS = "/sys/fs/cgroup"

// cgroupHierarchies returns the mount points of the machine's cgroup hierarchies: one for cgroup v2, one a
// controller for v1.
func cgroupHierarchies() []string {
	if CgroupV2() {
		return []string{cgroupFS}
	}
	entries, err := os.ReadDir(cgroupFS)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		dir := filepath.Join(cgroupFS, e.Name())
		// The v2 hierarchy of a hybrid set-up has no "tasks" and no part in this.
		if _, err := os.Stat(filepath.Join(dir, "tasks")); err == nil && e.IsDir() {
			out = append(out, dir)
		}
	}
	return out
}

// CgroupV2 tells whether the machine has the unified hierarchy only.
func CgroupV2() bool {
	_, err := os.Stat(filepath.Join(cgroupFS, "cgroup.controllers"))
	return err == nil
}

// CreateCgroup makes a cgroup in every hierarchy.
func CreateCgroup(name string) error {
	for _, root := range cgroupHierarchies() {
		dir := root
		for part := range strings.SplitSeq(name, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := delegate(parent); err != nil {
				return err
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create cgroup: %w", err)
			}
			if err := inheritCPUSet(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate gives a cgroup's controllers to its children (v2).
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil // v1
	}
	for c := range strings.FieldsSeq(string(data)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("delegate cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// inheritCPUSet fills a new v1 cpuset, which is born empty and takes no process until it is filled.
func inheritCPUSet(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil || CgroupV2() {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
			return fmt.Errorf("fill cpuset: %w", err)
		}
	}
	return nil
}

// SetCPUShares sets a cgroup's weight in v1 shares (1024 is the default).
func SetCPUShares(name string, shares int) error {
	if CgroupV2() {
		weight := max(1, min(10000, shares*100/1024))
		return os.WriteFile(filepath.Join(cgroupFS, name, "cpu.weight"), []byte(strconv.Itoa(weight)), 0o644)
	}
	path := filepath.Join(cgroupFS, "cpu", name, "cpu.shares")
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(cgroupFS, "cpu,cpuacct", name, "cpu.shares")
	}
	return os.WriteFile(path, []byte(strconv.Itoa(shares)), 0o644)
}

// JoinCgroup moves a process into a cgroup, in every hierarchy.
func JoinCgroup(name string, pid int) error {
	for _, root := range cgroupHierarchies() {
		path := filepath.Join(root, name, "cgroup.procs")
		if err := os.WriteFile(path, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// CgroupExists tells whether any hierarchy has the cgroup.
func CgroupExists(name string) bool {
	return slices.ContainsFunc(cgroupHierarchies(), func(root string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	})
}

// CgroupProcesses returns the pids in a cgroup and all below it.
func CgroupProcesses(name string) []int {
	seen := map[int]bool{}
	for _, dir := range cgroupTree(name) {
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(data)) {
			// 0 stands for a process of another pid namespace.
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				seen[pid] = true
			}
		}
	}
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// ThawCgroup lifts the freeze of a cgroup and all below it: a frozen process takes no SIGKILL under v1.
func ThawCgroup(name string) {
	for _, dir := range cgroupTree(name) {
		_ = writeExisting(filepath.Join(dir, "freezer.state"), "THAWED")
		_ = writeExisting(filepath.Join(dir, "cgroup.freeze"), "0")
	}
}

// SetFrozen freezes or thaws one cgroup.
func SetFrozen(name string, frozen bool) error {
	if CgroupV2() {
		value := "0"
		if frozen {
			value = "1"
		}
		return writeExisting(filepath.Join(cgroupFS, name, "cgroup.freeze"), value)
	}
	value := "THAWED"
	if frozen {
		value = "FROZEN"
	}
	return writeExisting(filepath.Join(cgroupFS, "freezer", name, "freezer.state"), value)
}

func writeExisting(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// RemoveCgroup removes a cgroup and all below it; the processes must be gone.
func RemoveCgroup(name string) error {
	var errs []error
	tree := cgroupTree(name)
	slices.Reverse(tree) // children first
	for _, dir := range tree {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cgroupTree returns the directories of a cgroup in all hierarchies, parents before children.
func cgroupTree(name string) []string {
	var dirs []string
	roots := cgroupHierarchies()
	if !CgroupV2() {
		// The runtime also makes empty groups in the v2 hierarchy of a hybrid set-up.
		roots = append(roots, filepath.Join(cgroupFS, "unified"))
	}
	for _, root := range roots {
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // a cgroup may vanish during the walk
			}
			if d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	return dirs
}
