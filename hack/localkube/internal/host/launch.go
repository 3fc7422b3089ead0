package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// LaunchSpec says where a program is to run.
type LaunchSpec struct {
	Cgroup string // below the cgroup root; empty: stay
	NetNS  string // name of a network namespace; empty: stay
	// PrivateMounts makes a mount namespace of its own, with Binds ("source:target") in it. All mounts made
	// inside vanish with the last process in it, so that none can be left behind.
	PrivateMounts bool
	Binds         []string
	MountsOf      int // pid whose mount namespace to enter; 0: stay
	Argv          []string
}

// Args returns the arguments of the "launch" subcommand for the spec.
func (s LaunchSpec) Args() []string {
	args := []string{"launch"}
	if s.Cgroup != "" {
		args = append(args, "--cgroup="+s.Cgroup)
	}
	if s.NetNS != "" {
		args = append(args, "--netns="+s.NetNS)
	}
	if s.PrivateMounts {
		args = append(args, "--private-mounts")
	}
	for _, b := range s.Binds {
		args = append(args, "--bind="+b)
	}
	if s.MountsOf != 0 {
		args = append(args, fmt.Sprintf("--mounts-of=%d", s.MountsOf))
	}
	return append(append(args, "--"), s.Argv...)
}

// Launch moves the calling process into the places that the spec names and replaces it by the program. It
// does what nsenter and cgexec do; "ip netns exec" would not do, since it mounts a new /sys, without cgroups.
func Launch(s LaunchSpec) error {
	path, err := exec.LookPath(s.Argv[0])
	if err != nil {
		return err
	}
	if s.Cgroup != "" {
		if err := JoinCgroup(s.Cgroup, os.Getpid()); err != nil {
			return err
		}
	}
	// Namespaces belong to the thread; execve from this very thread carries them over.
	runtime.LockOSThread()
	if s.NetNS != "" {
		if err := enter(filepath.Join(netnsDir, s.NetNS), unix.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if s.MountsOf != 0 {
		// A thread that shares its working directory with others may not change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := enter(fmt.Sprintf("/proc/%d/ns/mnt", s.MountsOf), unix.CLONE_NEWNS); err != nil {
			return err
		}
	}
	if s.PrivateMounts {
		if err := privateMounts(s.Binds); err != nil {
			return err
		}
	}
	if err := unix.Exec(path, s.Argv, os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return nil
}

func enter(path string, kind int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

func privateMounts(binds []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	// Slave first: nothing reaches the host. Then shared: the kubelet's mounts reach the containers.
	for _, flags := range []uintptr{unix.MS_REC | unix.MS_SLAVE, unix.MS_REC | unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", flags, ""); err != nil {
			return fmt.Errorf("set mount propagation: %w", err)
		}
	}
	for _, b := range binds {
		source, target, ok := strings.Cut(b, ":")
		if !ok {
			return fmt.Errorf("bind %q is not source:target", b)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s on %s: %w", source, target, err)
		}
	}
	return nil
}
