// Package cluster brings a cluster up and takes it down.
package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Names of the daemons.
const (
	etcdName              = "etcd"
	apiServerName         = "kube-apiserver"
	controllerManagerName = "kube-controller-manager"
	schedulerName         = "kube-scheduler"
	dnsName               = "coredns"
	storageName           = "storage"
	systemCgroup          = layout.CgroupRoot + "/system"
)

func containerdName(n layout.Node) string { return n.Name() + "-containerd" }
func kubeletName(n layout.Node) string    { return n.Name() + "-kubelet" }
func proxyName(n layout.Node) string      { return n.Name() + "-kube-proxy" }

// Cluster is the local cluster.
type Cluster struct {
	Log   artifact.Log
	super host.Supervisor
}

// New returns the cluster of the state directory, whether it runs or not.
func New(log artifact.Log) *Cluster {
	return &Cluster{Log: log, super: host.Supervisor{
		Dir:    layout.State("run"),
		LogDir: layout.State("logs"),
		Self:   selfPath(),
	}}
}

// selfPath is a copy of this program: "go run" deletes the original.
func selfPath() string { return layout.State("bin", "localkube") }

func installSelf() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if exe == selfPath() {
		return nil
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	return host.WriteFile(selfPath(), data, 0o755)
}

// Client returns a client with the administrator's rights.
func Client() (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", layout.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("no cluster is up (run \"localkube up\"): %w", err)
	}
	config.QPS, config.Burst = 100, 200
	config.Timeout = 10 * time.Second
	return kubernetes.NewForConfig(config)
}

// RecordedNodes returns the nodes that the state directory knows of.
func RecordedNodes() []layout.Node {
	var nodes []layout.Node
	for _, n := range layout.Nodes(layout.MaxNodes) {
		if _, err := os.Stat(n.Dir()); err == nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// requireRoot fails early, with a reason, rather than late, with a strange one.
func requireRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("namespaces, mounts and cgroups need root: run this as root (sudo -E)")
	}
	return nil
}

// lockState keeps two runs from working on one cluster.
func (c *Cluster) lockState(ctx context.Context) (func(), error) {
	return artifact.Lock(ctx, c.Log, "cluster"+filepath.Base(layout.StateDir()))
}
