package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Down removes the cluster and everything it left on the machine, whatever state it is in.
func (c *Cluster) Down(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	unlock, err := c.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	start := time.Now()
	if err := c.clear(ctx); err != nil {
		return err
	}
	c.Log("nothing of the cluster is left; %s", time.Since(start).Round(100*time.Millisecond))
	return nil
}

// clear goes from the living to the dead: processes first, since they hold all the rest.
func (c *Cluster) clear(ctx context.Context) error {
	if err := c.killAll(ctx); err != nil {
		return err
	}
	var errs []error
	for _, name := range host.NetNamespaces() {
		errs = append(errs, host.RemoveNetNS(name))
	}
	for _, link := range host.Links() {
		// Deleting one end of a pair, or its namespace going away, deletes the other.
		if _, err := host.Run(ctx, "ip", "link", "del", link); err != nil && slices.Contains(host.Links(), link) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, removeCgroups(ctx))
	// Mount namespaces go with their processes; this is for what a human mounted.
	if err := host.UnmountUnder(layout.StateDir()); err != nil {
		// Deleting files below a mount would delete what is mounted.
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, restoreMachine(), os.RemoveAll(layout.StateDir()))
	return errors.Join(errs...)
}

// killAll kills every process of the cluster: those in its cgroups, in its network namespaces and on record.
func (c *Cluster) killAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return host.Poll(ctx, 30*time.Millisecond, func(ctx context.Context) error {
		host.ThawCgroup(layout.CgroupRoot)
		pids := c.processes(ctx)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) > 0 {
			return fmt.Errorf("these processes do not end: %v", pids)
		}
		return nil
	})
}

func (c *Cluster) processes(ctx context.Context) []int {
	pids := host.CgroupProcesses(layout.CgroupRoot)
	for _, name := range host.NetNamespaces() {
		pids = append(pids, host.NetNSProcesses(ctx, name)...)
	}
	for _, name := range c.super.Names() {
		if pid := c.super.PID(name); pid != 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return slices.DeleteFunc(slices.Compact(pids), func(pid int) bool { return pid == os.Getpid() })
}

func removeCgroups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The kernel lets go of a cgroup a moment after its last process.
	return host.Poll(ctx, 50*time.Millisecond, func(context.Context) error {
		return host.RemoveCgroup(layout.CgroupRoot)
	})
}
