package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Paths that containerd, its shims and the kubelet have wired in. Each node sees its own directory there.
var perNodePaths = map[string]string{
	"/run/containerd":     "run-containerd",
	"/var/lib/kubelet":    "var-lib-kubelet",
	"/var/log/containers": "var-log-containers",
}

// startNode starts a node's containerd, kubelet and kube-proxy.
func (c *Cluster) startNode(ctx context.Context, p artifact.Programs, n layout.Node) error {
	if err := nodeFiles(n); err != nil {
		return err
	}
	pid, err := c.startContainerd(ctx, n)
	if err != nil {
		return err
	}
	if err := c.importPause(ctx, p, n); err != nil {
		return err
	}
	kubelet := host.Daemon{Name: kubeletName(n), LaunchSpec: host.LaunchSpec{
		Cgroup: systemCgroup, NetNS: n.NetNS(), MountsOf: pid, Argv: kubeletArgv(p, n),
	}}
	if _, err := c.super.Start(kubelet); err != nil {
		return err
	}
	proxy := host.Daemon{Name: proxyName(n), LaunchSpec: host.LaunchSpec{
		Cgroup: systemCgroup, NetNS: n.NetNS(), Argv: proxyArgv(p, n),
	}}
	_, err = c.super.Start(proxy)
	return err
}

func nodeFiles(n layout.Node) error {
	for _, dir := range []string{"volumes", "containerd", "containerd-state", "kubelet", "pod-logs", "cni", "cni-state"} {
		if err := os.MkdirAll(n.Dir(dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range perNodePaths {
		if err := os.MkdirAll(n.Dir(dir), 0o755); err != nil {
			return err
		}
	}
	kubeletConfig, err := kubeletConfig(n)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"containerd.toml":       containerdConfig(n),
		"cni/10-kumki.conflist": cniConfig(n),
		"kubelet.json":          kubeletConfig,
		// Pods that want the node's own DNS get the cluster's: there is no other.
		"resolv.conf": []byte("nameserver " + layout.HostAddress + "\n"),
	}
	for name, data := range files {
		if err := host.WriteFile(n.Dir(name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startContainerd(ctx context.Context, n layout.Node) (int, error) {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return 0, err
	}
	var binds []string
	for target, dir := range perNodePaths {
		binds = append(binds, n.Dir(dir)+":"+target)
	}
	pid, err := c.super.Start(host.Daemon{
		Name: containerdName(n),
		LaunchSpec: host.LaunchSpec{
			Cgroup: systemCgroup, NetNS: n.NetNS(), PrivateMounts: true, Binds: binds,
			Argv: []string{path, "--config", n.Dir("containerd.toml")},
		},
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = host.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		if c.super.PID(containerdName(n)) == 0 {
			return fmt.Errorf("it ended")
		}
		_, err := host.Run(ctx, "ctr", "-a", n.ContainerdSocket(), "-n", "k8s.io", "--connect-timeout=2s", "plugins", "ls", "-q")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("containerd of %s: %w; the end of %s:\n%s", n.Name(), err,
			c.super.LogPath(containerdName(n)), c.super.LogTail(containerdName(n), 10))
	}
	return pid, nil
}

func containerdConfig(n layout.Node) []byte {
	return fmt.Appendf(nil, `version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without the capability an OOM score can only be raised, and every sandbox would fail.
  restrict_oom_score_adj = %t
  disable_apparmor = true
  # The network namespaces of pods are mounts; keep them inside of the node's own mount namespace.
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`, n.Dir("containerd"), n.Dir("containerd-state"), n.ContainerdSocket(), layout.PauseImage,
		!hasCapability(unix.CAP_SYS_RESOURCE), artifact.CNIDir, n.Dir("cni"))
}

func hasCapability(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// cniConfig connects each pod by a veth pair of its own and a route: no bridge, so no bridge netfilter.
func cniConfig(n layout.Node) []byte {
	return fmt.Appendf(nil, `{
  "cniVersion": "0.4.0",
  "name": "kumki",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "ipam": {
      "type": "host-local", "dataDir": %q,
      "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}
  ]
}
`, n.Dir("cni-state"), n.PodCIDR())
}

func kubeletArgv(p artifact.Programs, n layout.Node) []string {
	return []string{
		p.Kubelet,
		"--config=" + n.Dir("kubelet.json"),
		"--kubeconfig=" + n.Dir("kubelet.kubeconfig"),
		"--root-dir=" + n.Dir("kubelet"),
		"--cert-dir=" + n.Dir("kubelet-certs"),
		"--hostname-override=" + n.Name(),
		"--node-ip=" + n.Address(),
		"--node-labels=topology.kubernetes.io/zone=" + n.Zone() + ",topology.kubernetes.io/region=local",
		"--v=1",
	}
}

// kubeletConfig leans towards little work a node: there may be three or more on a machine of two cores.
func kubeletConfig(n layout.Node) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion":         "kubelet.config.k8s.io/v1beta1",
		"kind":               "KubeletConfiguration",
		"address":            n.Address(),
		"healthzBindAddress": "127.0.0.1",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": pkiFile("ca.crt")},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + n.ContainerdSocket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + n.Cgroup(),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"clusterDomain":            layout.ClusterDomain,
		"clusterDNS":               []string{layout.HostAddress},
		"resolvConf":               n.Dir("resolv.conf"),
		"podLogsDir":               n.Dir("pod-logs"),
		"volumePluginDir":          n.Dir("kubelet-plugins"),
		"maxPods":                  50,
		"serializeImagePulls":      false,
		// The machine's disk is everyone's; its filling up is not the cluster's to remedy.
		"evictionHard": map[string]string{
			"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%",
			"nodefs.inodesFree": "1%", "imagefs.inodesFree": "1%",
		},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"nodeStatusUpdateFrequency":   "2s",
		"nodeStatusReportFrequency":   "1m",
		"volumeStatsAggPeriod":        "30s",
		"shutdownGracePeriod":         "0s",
	}, "", "  ")
}

func proxyArgv(p artifact.Programs, n layout.Node) []string {
	return []string{
		p.Proxy,
		"--kubeconfig=" + kubeconfig("kube-proxy"),
		"--hostname-override=" + n.Name(),
		"--proxy-mode=nftables",
		"--cluster-cidr=" + layout.ClusterCIDR,
		"--bind-address=" + n.Address(),
		// Limits of connection tracking are the machine's; leave them alone.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--v=1",
	}
}
