package host

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

const netnsDir = "/run/netns"

// NetNamespaces returns the names of the cluster's network namespaces.
func NetNamespaces() []string {
	entries, _ := os.ReadDir(netnsDir)
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), layout.NetNSPrefix) {
			out = append(out, e.Name())
		}
	}
	return out
}

// NetNSProcesses returns the pids of the processes in a named network namespace.
func NetNSProcesses(ctx context.Context, name string) []int {
	out, err := Run(ctx, "ip", "netns", "pids", name)
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(out) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// RemoveNetNS removes a named network namespace.
func RemoveNetNS(name string) error {
	path := filepath.Join(netnsDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return removeNetNSDir()
}

// removeNetNSDir removes the directory of named namespaces, which "ip netns add" makes a mount point, when
// nobody has one any more.
func removeNetNSDir() error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil || len(entries) > 0 {
		return nil //nolint:nilerr // it is gone, or someone else's
	}
	for unix.Unmount(netnsDir, unix.MNT_DETACH) == nil {
		continue // it may be mounted more than once
	}
	if err := os.Remove(netnsDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Links returns the names of the host's network interfaces that belong to the cluster.
func Links() []string {
	all, _ := net.Interfaces()
	var out []string
	for _, l := range all {
		if layout.IsOurLink(l.Name) {
			out = append(out, l.Name)
		}
	}
	return out
}
