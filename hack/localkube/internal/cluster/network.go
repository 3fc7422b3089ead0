package cluster

import (
	"context"
	"fmt"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// network makes a bridge on the host and, a node, a network namespace with a veth pair into the bridge.
// Pods get a route a node, so the host and all nodes reach all pods without address translation.
func network(ctx context.Context, nodes []layout.Node) error {
	err := host.RunAll(ctx,
		"ip link add "+layout.Bridge+" type bridge forward_delay 0",
		"ip addr add "+layout.HostCIDR+" dev "+layout.Bridge,
		"ip link set "+layout.Bridge+" up",
	)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err := nodeNetwork(ctx, n); err != nil {
			return fmt.Errorf("network of %s: %w", n.Name(), err)
		}
	}
	for _, n := range nodes {
		if err := routes(ctx, n, nodes); err != nil {
			return fmt.Errorf("routes of %s: %w", n.Name(), err)
		}
	}
	// Programs on the host reach Services through the first node's kube-proxy.
	return host.RunAll(ctx, fmt.Sprintf("ip route add %s via %s", layout.ServiceCIDR, nodes[0].Address()))
}

func nodeNetwork(ctx context.Context, n layout.Node) error {
	return host.RunAll(ctx,
		"ip netns add "+n.NetNS(),
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", n.Veth(), n.NetNS()),
		fmt.Sprintf("ip link set %s master %s up", n.Veth(), layout.Bridge),
		fmt.Sprintf("ip -n %s link set lo up", n.NetNS()),
		fmt.Sprintf("ip -n %s addr add %s/24 dev eth0", n.NetNS(), n.Address()),
		fmt.Sprintf("ip -n %s link set eth0 up", n.NetNS()),
		fmt.Sprintf("ip -n %s route add default via %s", n.NetNS(), layout.HostAddress),
		fmt.Sprintf("ip netns exec %s sysctl -q -w net.ipv4.ip_forward=1", n.NetNS()),
	)
}

func routes(ctx context.Context, n layout.Node, all []layout.Node) error {
	if err := host.RunAll(ctx, fmt.Sprintf("ip route add %s via %s", n.PodCIDR(), n.Address())); err != nil {
		return err
	}
	for _, other := range all {
		if other == n {
			continue
		}
		line := fmt.Sprintf("ip -n %s route add %s via %s", n.NetNS(), other.PodCIDR(), other.Address())
		if err := host.RunAll(ctx, line); err != nil {
			return err
		}
	}
	return nil
}
