package artifact

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// EnvtestAssets returns a directory with kube-apiserver, etcd and kubectl, as KUBEBUILDER_ASSETS wants it.
func EnvtestAssets(ctx context.Context, log Log) (string, error) {
	dir := filepath.Join(layout.CacheDir(), "envtest-"+layout.KubernetesVersion)
	if envtestComplete(dir) {
		return dir, nil
	}
	if err := EnsureTools(ctx, log, []Tool{{"etcd", "etcd-server"}}); err != nil {
		return "", err
	}
	api, err := ensure(ctx, log, apiServer, "1 of 1")
	if err != nil {
		return "", err
	}
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		return "", err
	}
	ctl, err := Kubectl(ctx, log)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, target := range map[string]string{"kube-apiserver": api, "etcd": etcd, "kubectl": ctl} {
		link := filepath.Join(dir, name)
		tmp := link + ".tmp"
		_ = os.Remove(tmp)
		if err := os.Symlink(target, tmp); err != nil {
			return "", err
		}
		if err := os.Rename(tmp, link); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func envtestComplete(dir string) bool {
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil { // follows the link
			return false
		}
	}
	return true
}

// Kubectl returns the path of the machine's kubectl, or of one that is built where there is none.
func Kubectl(ctx context.Context, log Log) (string, error) {
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path, nil
	}
	return ensure(ctx, log, kubectl, "1 of 1")
}
