// Package layout fixes the names, addresses and paths of the local cluster.
//
// Everything that the cluster leaves on the machine outside its state directory carries one of the names
// below, so that "down" finds it by name when the records of what was created are lost.
package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Versions of what is built. The cache is keyed by them.
const (
	KubernetesVersion = "v1.34.4"
	CoreDNSVersion    = "v1.14.6"
)

// Names on the machine. One machine holds one cluster.
const (
	Bridge      = "kumki0"
	NetNSPrefix = "kumki-"
	VethPrefix  = "kumki-"
	CgroupRoot  = "kumki-localkube"
	FaultTable  = "kumki-fault"
)

// Addresses. The nodes' network is no part of the pods' one: kube-proxy must recognize traffic that comes
// from outside of the cluster, so that a program on the host can use Service addresses too.
const (
	HostAddress   = "10.89.0.1"
	HostCIDR      = "10.89.0.1/24"
	ClusterCIDR   = "10.244.0.0/16"
	ServiceCIDR   = "10.96.0.0/16"
	ServiceAPI    = "10.96.0.1"
	APIPort       = 6443
	EtcdPort      = 12379
	EtcdPeerPort  = 12380
	ClusterDomain = "cluster.local"
)

// PauseImage is the image of the process that holds a pod's namespaces.
const PauseImage = "localkube.kumki.dev/pause:1"

// ImageBase is what the names of all images of the project begin with.
const ImageBase = "ghcr.io/kumki-dev"

// CacheDir is where binaries and images are kept, across clusters and checkouts.
func CacheDir() string {
	if dir := os.Getenv("KUMKI_CACHE"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/root"
	}
	return filepath.Join(home, ".cache", "kumki")
}

// StateDir is where a running cluster keeps its state. It does not depend on the checkout or the user, so
// that any checkout can take down what another one left behind.
func StateDir() string {
	if dir := os.Getenv("KUMKI_STATE"); dir != "" {
		return dir
	}
	return "/var/lib/kumki-localkube"
}

// State joins path elements onto the state directory.
func State(elem ...string) string {
	return filepath.Join(append([]string{StateDir()}, elem...)...)
}

// Kubeconfig is the path of the administrator's kubeconfig.
func Kubeconfig() string { return State("admin.kubeconfig") }

// APIServerURL is where everyone, inside and outside of the cluster, reaches the API server.
func APIServerURL() string { return fmt.Sprintf("https://%s:%d", HostAddress, APIPort) }

// Node is one node of the cluster; Index starts at 1.
type Node struct{ Index int }

// Nodes returns the first n nodes.
func Nodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{Index: i + 1}
	}
	return nodes
}

// NodeByName parses a node's name.
func NodeByName(name string) (Node, error) {
	var i int
	if _, err := fmt.Sscanf(name, "node-%d", &i); err != nil || i < 1 || i > MaxNodes || (Node{i}).Name() != name {
		return Node{}, fmt.Errorf("%q is not a node's name: they are node-1 to node-%d", name, MaxNodes)
	}
	return Node{Index: i}, nil
}

// MaxNodes bounds the number of nodes; the address plan has room for no more.
const MaxNodes = 9

// Name is what Kubernetes calls the node.
func (n Node) Name() string { return fmt.Sprintf("node-%d", n.Index) }

// NetNS is the name of its network namespace.
func (n Node) NetNS() string { return NetNSPrefix + n.Name() }

// Veth is the host's end of its link.
func (n Node) Veth() string { return fmt.Sprintf("%sn%d", VethPrefix, n.Index) }

// Address is its address.
func (n Node) Address() string { return fmt.Sprintf("10.89.0.%d", 10+n.Index) }

// PodCIDR is the network of its pods.
func (n Node) PodCIDR() string { return fmt.Sprintf("10.244.%d.0/24", n.Index) }

// Cgroup holds its pods.
func (n Node) Cgroup() string { return CgroupRoot + "/" + n.Name() }

// Zone spreads the nodes over three zones.
func (n Node) Zone() string { return "zone-" + string(rune('a'+(n.Index-1)%3)) }

// Dir joins path elements onto the node's own directory.
func (n Node) Dir(elem ...string) string {
	return State(append([]string{"nodes", n.Name()}, elem...)...)
}

// ContainerdSocket is where the node's containerd listens.
func (n Node) ContainerdSocket() string { return n.Dir("containerd.sock") }

// IsOurLink tells whether a network interface of the host belongs to the cluster.
func IsOurLink(name string) bool {
	return name == Bridge || strings.HasPrefix(name, VethPrefix)
}
