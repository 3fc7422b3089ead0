package artifact

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
)

// CNIDir is where Debian's containernetworking-plugins are.
const CNIDir = "/usr/lib/cni"

// Tool is a program of a Debian package, or any file of one, by its absolute path.
type Tool struct{ Program, Package string }

func (t Tool) present() bool {
	if filepath.IsAbs(t.Program) {
		_, err := os.Stat(t.Program)
		return err == nil
	}
	_, err := exec.LookPath(t.Program)
	return err == nil
}

// ClusterTools are what a cluster needs from Debian.
var ClusterTools = []Tool{
	{"etcd", "etcd-server"},
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{CNIDir + "/ptp", "containernetworking-plugins"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
	{"sysctl", "procps"},
	{"conntrack", "conntrack"},
	{"mount", "mount"},
	{"mkfs.xfs", "xfsprogs"},
}

// ImageTools are what building PostgreSQL images needs from Debian.
var ImageTools = []Tool{{"mmdebstrap", "mmdebstrap"}}

// EnsureTools installs the packages of the tools that the machine lacks.
func EnsureTools(ctx context.Context, log Log, tools []Tool) error {
	var missing []string
	for _, t := range tools {
		if !t.present() && !slices.Contains(missing, t.Package) {
			missing = append(missing, t.Package)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("these Debian packages are missing: %[1]s; run as root, or: apt-get install %[1]s",
			strings.Join(missing, " "))
	}
	unlock, err := Lock(ctx, log, "packages")
	if err != nil {
		return err
	}
	defer unlock()
	log("installing Debian packages: %s", strings.Join(missing, " "))
	install := append([]string{
		"DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120",
		"install", "-y", "--no-install-recommends",
	}, missing...)
	if _, err := host.Run(ctx, "env", install...); err == nil {
		return nil
	}
	// The lists may be missing or too old.
	if _, err := host.Run(ctx, "apt-get", "update"); err != nil {
		return err
	}
	_, err = host.Run(ctx, "env", install...)
	return err
}
