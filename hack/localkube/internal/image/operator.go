package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

const (
	productModule = "github.com/kumki-dev/kumki"
	caBundle      = "/etc/ssl/certs/ca-certificates.crt"
)

// RepoRoot finds the checkout that holds the working directory.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte("module "+productModule+"\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no checkout of %s holds the working directory; change into one", productModule)
		}
	}
}

// OperatorRef is the full name of the operator's image.
func OperatorRef(tag string) string { return layout.ImageBase + "/kumki:" + tag }

// Operator builds the operator's image from a checkout: two static programs and the CA certificates.
func Operator(ctx context.Context, log artifact.Log, repo, tag, version string) (string, error) {
	certificates := []artifact.Tool{{Program: caBundle, Package: "ca-certificates"}}
	if err := artifact.EnsureTools(ctx, log, certificates); err != nil {
		return "", err
	}
	dir := filepath.Join(layout.CacheDir(), "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := artifact.Lock(ctx, log, "operator-image-"+tag)
	if err != nil {
		return "", err
	}
	defer unlock()
	build, err := os.MkdirTemp(dir, ".building-kumki-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(build) }()
	layer, err := operatorLayer(ctx, repo, build, version)
	if err != nil {
		return "", err
	}
	tmp := filepath.Join(build, "image.tar")
	config := v1.Config{
		Entrypoint: []string{"/kumki"},
		// A numeric user, so that the kubelet can check runAsNonRoot without a passwd file.
		User: "65532:0",
		Env:  []string{"PATH=/", "SSL_CERT_FILE=" + caBundle},
	}
	if err := write(tmp, OperatorRef(tag), layer, config); err != nil {
		return "", err
	}
	out := filepath.Join(dir, "kumki-"+tag+".tar")
	return out, os.Rename(tmp, out)
}

// operatorLayer builds the programs into a directory and makes the layer that holds them.
func operatorLayer(ctx context.Context, repo, dir, version string) (v1.Layer, error) {
	files := []file{{caBundle, caBundle, 0o644}}
	for _, p := range []struct{ pkg, name string }{{".", "kumki"}, {"./cmd/kumki-wal", "kumki-wal"}} {
		out := filepath.Join(dir, p.name)
		if err := goBuild(ctx, repo, out, p.pkg, version); err != nil {
			return nil, err
		}
		files = append(files, file{"/" + p.name, out, 0o755})
	}
	return fileLayer(files)
}

func goBuild(ctx context.Context, repo, out, pkg, version string) error {
	flags := "-s -w -X " + productModule + "/internal/version.Version=" + version
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", out, pkg)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOWORK=off")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", pkg, repo, err, strings.TrimSpace(string(msg)))
	}
	return nil
}
