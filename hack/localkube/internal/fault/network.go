// Package fault breaks a running cluster, and heals it. It needs no API server.
package fault

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// FromAPI stands for the API server in the list of what to cut a node off from.
const FromAPI = "api"

// Cut drops all traffic of a node, or, if from is not empty, that with the API server or other nodes. The
// kubelet and the pods are hit alike. Packets vanish; no side is told. Cuts add up.
func Cut(ctx context.Context, n layout.Node, from []string) error {
	if len(from) == 0 {
		return host.RunAll(ctx, fmt.Sprintf("ip link set %s down", n.Veth()))
	}
	script, err := cutScript(from)
	if err != nil {
		return err
	}
	return nft(ctx, n, script)
}

// cutScript is the nft script that a node runs. Incoming packets are dropped first of all; outgoing ones
// last, when their destination is no longer a Service's address.
func cutScript(from []string) (string, error) {
	var b strings.Builder
	table := "inet " + layout.FaultTable
	fmt.Fprintf(&b, "add table %s\n", table)
	fmt.Fprintf(&b, "add chain %s in { type filter hook prerouting priority -300; }\n", table)
	fmt.Fprintf(&b, "add chain %s out { type filter hook postrouting priority 300; }\n", table)
	for _, what := range from {
		if what == FromAPI {
			fmt.Fprintf(&b, "add rule %s in ip saddr %s tcp sport %d drop\n", table, layout.HostAddress, layout.APIPort)
			fmt.Fprintf(&b, "add rule %s out ip daddr %s tcp dport %d drop\n", table, layout.HostAddress, layout.APIPort)
			continue
		}
		peer, err := layout.NodeByName(what)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "add rule %s in ip saddr { %s, %s } drop\n", table, peer.Address(), peer.PodCIDR())
		fmt.Fprintf(&b, "add rule %s out ip daddr { %s, %s } drop\n", table, peer.Address(), peer.PodCIDR())
	}
	return b.String(), nil
}

// Heal undoes all cuts of a node.
func Heal(ctx context.Context, n layout.Node) error {
	// Adding the table first makes deleting it succeed in any case.
	table := "inet " + layout.FaultTable
	if err := nft(ctx, n, fmt.Sprintf("add table %s\ndelete table %s\n", table, table)); err != nil {
		return err
	}
	return host.RunAll(ctx, fmt.Sprintf("ip link set %s up", n.Veth()))
}

func nft(ctx context.Context, n layout.Node, script string) error {
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", n.NetNS(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", n.Name(), err, out)
	}
	return nil
}
