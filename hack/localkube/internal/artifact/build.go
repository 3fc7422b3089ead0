package artifact

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// The sources are modules of their own: a go.mod and go.sum that pin every dependency, and a main.go.
//
//go:embed sources
var sources embed.FS

// program is something that is built from the Go module proxy.
type program struct {
	module string // its name in sources
	pkg    string // what to build, "." for the module's own main.go
	entry  string // where it goes in the cache
	about  string // how long it takes on two cores when nothing is cached
}

// Kubernetes's programs. The API server is first: it alone is enough for envtest.
var (
	apiServer         = kubernetes("kube-apiserver", "6 to 8 minutes")
	kubelet           = kubernetes("kubelet", "1 to 2 minutes")
	controllerManager = kubernetes("kube-controller-manager", "1 to 4 minutes")
	scheduler         = kubernetes("kube-scheduler", "1 minute")
	proxy             = kubernetes("kube-proxy", "1 minute")
	kubectl           = program{"kubernetes", "k8s.io/kubernetes/cmd/kubectl", kubernetesDir + "/kubectl", "1 minute"}
	coreDNS           = program{"coredns", ".", "coredns-" + layout.CoreDNSVersion + "/coredns", "3 minutes"}
	pause             = program{"pause", ".", "pause-1/pause", "5 seconds"}
)

const kubernetesDir = "kubernetes-" + layout.KubernetesVersion

func kubernetes(name, about string) program {
	return program{"kubernetes", "k8s.io/kubernetes/cmd/" + name, kubernetesDir + "/" + name, about}
}

// Programs are the paths of all programs that a cluster runs.
type Programs struct {
	APIServer, ControllerManager, Scheduler, Kubelet, Proxy, CoreDNS, Pause string
}

// EnsurePrograms builds what the cache lacks.
func EnsurePrograms(ctx context.Context, log Log) (Programs, error) {
	var p Programs
	wanted := []struct {
		program
		path *string
	}{
		{apiServer, &p.APIServer}, {controllerManager, &p.ControllerManager}, {scheduler, &p.Scheduler},
		{kubelet, &p.Kubelet}, {proxy, &p.Proxy}, {coreDNS, &p.CoreDNS}, {pause, &p.Pause},
	}
	for i, w := range wanted {
		path, err := ensure(ctx, log, w.program, fmt.Sprintf("%d of %d", i+1, len(wanted)))
		if err != nil {
			return p, err
		}
		*w.path = path
	}
	return p, nil
}

func ensure(ctx context.Context, log Log, p program, position string) (string, error) {
	return Cached(ctx, log, p.entry, func(tmp string) error {
		log("building %s (%s; about %s when nothing is cached)", p.entry, position, p.about)
		dir, err := writeSources(p.module)
		if err != nil {
			return err
		}
		return goBuild(ctx, dir, tmp, p)
	})
}

func goBuild(ctx context.Context, dir, out string, p program) error {
	args := []string{"build", "-trimpath", "-mod=mod", "-ldflags", ldflags(p), "-o", out, p.pkg}
	// The machine stays usable while this takes all cores for minutes.
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "5", "go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build %s (needs the Go module proxy, see \"go env GOPROXY\"): %w\n%s",
			p.pkg, err, stderr.String())
	}
	return nil
}

// ldflags makes Kubernetes's programs report the version that their source has.
func ldflags(p program) string {
	flags := "-s -w"
	if p.module != "kubernetes" {
		return flags
	}
	parts := strings.Split(strings.TrimPrefix(layout.KubernetesVersion, "v"), ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{
			"gitVersion=" + layout.KubernetesVersion, "gitMajor=" + parts[0], "gitMinor=" + parts[1],
			"gitTreeState=clean", "buildDate=2026-01-01T00:00:00Z",
		} {
			flags += " -X " + pkg + "." + kv
		}
	}
	return flags
}

// writeSources writes a module of sources into the cache and returns its directory.
func writeSources(module string) (string, error) {
	dir := filepath.Join(layout.CacheDir(), "src", module)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for from, to := range map[string]string{".mod": "go.mod", ".sum": "go.sum", ".go.in": "main.go"} {
		data, err := sources.ReadFile("sources/" + module + from)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, to)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}
