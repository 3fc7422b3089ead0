package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Up brings the cluster up with that many nodes. One that is up stays; one that lost something is repaired
// where starting the lost daemons is enough, and else built anew.
func (c *Cluster) Up(ctx context.Context, count int) error {
	if err := requireRoot(); err != nil {
		return err
	}
	if count < 1 || count > layout.MaxNodes {
		return fmt.Errorf("a cluster has 1 to %d nodes", layout.MaxNodes)
	}
	unlock, err := c.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := artifact.EnsureTools(ctx, c.Log, artifact.ClusterTools); err != nil {
		return err
	}
	programs, err := artifact.EnsurePrograms(ctx, c.Log)
	if err != nil {
		return err
	}
	start := time.Now()
	nodes := layout.Nodes(count)
	switch missing := c.missing(nodes); {
	case missing == nil:
		c.Log("the cluster is up")
	case c.repairable(nodes, missing):
		c.Log("starting what is missing: %s", strings.Join(missing, ", "))
	default:
		if err := c.create(ctx, nodes); err != nil {
			return err
		}
	}
	if err := c.startAll(ctx, programs, nodes); err != nil {
		return fmt.Errorf("%w\n(\"localkube down\" clears up; \"localkube up\" tries again)", err)
	}
	c.Log("%d nodes are ready, DNS answers; %s", count, time.Since(start).Round(100*time.Millisecond))
	return nil
}

// startAll starts what does not run until everything does. One round may not be enough: a daemon that was
// killed just now may have looked alive.
func (c *Cluster) startAll(ctx context.Context, programs artifact.Programs, nodes []layout.Node) error {
	for range 3 {
		err := c.start(ctx, programs, nodes)
		missing := c.missing(nodes)
		if err == nil && len(missing) == 0 {
			return nil
		}
		if len(missing) == 0 || !c.repairable(nodes, missing) {
			if len(missing) == 0 {
				return err
			}
			return errors.Join(err, fmt.Errorf("not all of the cluster runs: %v", missing))
		}
		c.Log("starting what has ended meanwhile: %s", strings.Join(missing, ", "))
	}
	return fmt.Errorf("these do not stay up; see their logs in %s: %v", c.super.LogDir, c.missing(nodes))
}

// create clears leftovers and makes all that exists before the daemons do.
func (c *Cluster) create(ctx context.Context, nodes []layout.Node) error {
	if c.leftovers() {
		c.Log("clearing what an earlier cluster left")
	}
	if err := c.clear(ctx); err != nil {
		return err
	}
	if err := prepareMachine(); err != nil {
		return err
	}
	if err := installSelf(); err != nil {
		return err
	}
	if err := certificates(nodes); err != nil {
		return err
	}
	if err := cgroups(nodes); err != nil {
		return err
	}
	return network(ctx, nodes)
}

func cgroups(nodes []layout.Node) error {
	names := []string{systemCgroup}
	for _, n := range nodes {
		names = append(names, n.Cgroup())
	}
	for _, name := range names {
		if err := host.CreateCgroup(name); err != nil {
			return err
		}
	}
	// A compiler that runs beside the cluster must not make its probes and leases time out.
	if err := host.SetCPUShares(layout.CgroupRoot, 8192); err != nil {
		return err
	}
	return host.SetCPUShares(systemCgroup, 2048)
}

// start starts all daemons that do not run and waits until the cluster is ready for work.
func (c *Cluster) start(ctx context.Context, programs artifact.Programs, nodes []layout.Node) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startControlPlane(groupCtx, programs) })
	for _, n := range nodes {
		group.Go(func() error { return c.startNode(groupCtx, programs, n) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	client, err := Client()
	if err != nil {
		return err
	}
	if err := storageClasses(ctx, client); err != nil {
		return err
	}
	if err := c.waitForNodes(ctx, client, nodes); err != nil {
		return err
	}
	return c.waitForDNS(ctx)
}

// daemons returns the names of all daemons of a cluster with these nodes.
func daemons(nodes []layout.Node) []string {
	names := []string{etcdName, apiServerName, controllerManagerName, schedulerName, dnsName, storageName}
	for _, n := range nodes {
		names = append(names, containerdName(n), kubeletName(n), proxyName(n))
	}
	return names
}

// missing returns what of the cluster is not there.
func (c *Cluster) missing(nodes []layout.Node) []string {
	var out []string
	if len(RecordedNodes()) != len(nodes) {
		out = append(out, "nodes")
	}
	for _, name := range daemons(nodes) {
		if c.super.PID(name) == 0 {
			out = append(out, name)
		}
	}
	links, namespaces := host.Links(), host.NetNamespaces()
	for _, n := range nodes {
		if !slices.Contains(links, n.Veth()) || !slices.Contains(namespaces, n.NetNS()) {
			out = append(out, "network of "+n.Name())
		}
	}
	if !slices.Contains(links, layout.Bridge) {
		out = append(out, "bridge")
	}
	return out
}

// repairable tells whether starting daemons is enough. A node whose containerd is gone has lost its mount
// namespace, and with it the ground that its kubelet and pods stand on.
func (c *Cluster) repairable(nodes []layout.Node, missing []string) bool {
	known := daemons(nodes)
	for _, name := range missing {
		if !slices.Contains(known, name) || strings.HasSuffix(name, "-containerd") {
			return false
		}
	}
	return true
}

// leftovers tells whether anything of a cluster is on the machine.
func (c *Cluster) leftovers() bool {
	return len(RecordedNodes()) > 0 || len(host.Links()) > 0 || len(host.NetNamespaces()) > 0 ||
		host.CgroupExists(layout.CgroupRoot)
}

// StopAPI ends the API server at once; a graceful end would take as long as clients keep their watches.
func (c *Cluster) StopAPI(ctx context.Context) error {
	return c.super.Kill(ctx, apiServerName)
}

// StartAPI starts the API server again, on the data that it had.
func (c *Cluster) StartAPI(ctx context.Context) error {
	if len(RecordedNodes()) == 0 {
		return errors.New("no cluster is up (run \"localkube up\")")
	}
	programs, err := artifact.EnsurePrograms(ctx, c.Log)
	if err != nil {
		return err
	}
	if _, err := c.super.Start(apiServerDaemon(programs)); err != nil {
		return err
	}
	return c.waitForAPI(ctx, 60*time.Second)
}
