// Package image builds container images without a container engine and loads them into the nodes.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// epoch is the time of everything in an image, so that equal inputs make equal images.
var epoch = time.Unix(0, 0).UTC()

// file is one file of a layer.
type file struct {
	path   string // in the image
	source string // on the host
	mode   int64
}

// write writes an image of one layer as a tar that "ctr images import" takes.
func write(out, ref string, layer v1.Layer, config v1.Config) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	configFile, err := img.ConfigFile()
	if err != nil {
		return err
	}
	configFile = configFile.DeepCopy()
	configFile.OS, configFile.Architecture = "linux", "amd64"
	configFile.Created = v1.Time{Time: epoch}
	configFile.Config = config
	if img, err = mutate.ConfigFile(img, configFile); err != nil {
		return err
	}
	return tarball.WriteToFile(out, tag, img)
}

// fileLayer makes a layer of the files and their directories.
func fileLayer(files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	dirs := map[string]bool{"/": true}
	for _, f := range files {
		if err := writeParents(w, dirs, f.path); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(f.source)
		if err != nil {
			return nil, err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path[1:], Mode: f.mode, Size: int64(len(data)), ModTime: epoch,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layerOfBytes(buf.Bytes())
}

func writeParents(w *tar.Writer, made map[string]bool, of string) error {
	dir := path.Dir(of)
	if made[dir] {
		return nil
	}
	if err := writeParents(w, made, dir); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755, ModTime: epoch,
	})
}

// Pause writes the image of the process that holds a pod's namespaces.
func Pause(out, program string) error {
	layer, err := fileLayer([]file{{"/pause", program, 0o755}})
	if err != nil {
		return err
	}
	return write(out, layout.PauseImage, layer, v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"})
}

// Load imports an image into the containerd of each node.
func Load(ctx context.Context, tarPath string, nodes []layout.Node) error {
	if len(nodes) == 0 {
		return fmt.Errorf("no cluster is up (run \"localkube up\")")
	}
	path, err := filepath.Abs(tarPath)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		group.Go(func() error {
			_, err := host.Run(ctx, "ctr", "-a", n.ContainerdSocket(), "-n", "k8s.io", "images", "import", path)
			return err
		})
	}
	return group.Wait()
}
