package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// nodeDisks keeps a volume in NODE/volumes/NAME. For the class of small file systems an XFS image beside it
// is mounted there, in the mount namespace of the node. XFS, since ext4 grows online only for those who have
// CAP_SYS_RESOURCE, which root lacks in many sandboxes.
type nodeDisks struct{}

func (nodeDisks) create(ctx context.Context, n layout.Node, name, class string, bytes int64) (string, error) {
	dir := n.Dir("volumes", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if class == ClassSmallFS {
		return dir, mountSmallFS(ctx, n, dir, bytes)
	}
	return dir, os.Chmod(dir, 0o777) // whatever the umask
}

func (nodeDisks) grow(ctx context.Context, n layout.Node, name, class string, bytes int64) error {
	if class != ClassSmallFS {
		return nil // a directory is as large as the disk it is on
	}
	image := imageOf(n.Dir("volumes", name))
	info, err := os.Stat(image)
	if err != nil {
		return err
	}
	if info.Size() < bytes {
		if err := os.Truncate(image, bytes); err != nil {
			return err
		}
	}
	device, err := loopDevice(ctx, image)
	if err != nil {
		return err
	}
	if device == "" {
		return fmt.Errorf("%s is not mounted on %s", image, n.Name())
	}
	if err := inNode(ctx, n, "losetup", "-c", device); err != nil {
		return err
	}
	return inNode(ctx, n, "xfs_growfs", n.Dir("volumes", name))
}

func (nodeDisks) remove(ctx context.Context, n layout.Node, name, class string) error {
	dir := n.Dir("volumes", name)
	if class == ClassSmallFS {
		device, err := loopDevice(ctx, imageOf(dir))
		if err != nil {
			return err
		}
		if device != "" {
			if err := inNode(ctx, n, "umount", dir); err != nil {
				return err
			}
		}
		if err := os.Remove(imageOf(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// minSmallFS is the least that mkfs.xfs takes; a smaller claim gets that much.
const minSmallFS = 300 << 20

func imageOf(dir string) string { return dir + ".xfs" }

func mountSmallFS(ctx context.Context, n layout.Node, dir string, bytes int64) error {
	image := imageOf(dir)
	device, err := loopDevice(ctx, image)
	if err != nil {
		return err
	}
	if device == "" {
		f, err := os.Create(image)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(max(bytes, minSmallFS)), f.Close()); err != nil {
			return err
		}
		if _, err := host.Run(ctx, "mkfs.xfs", "-q", image); err != nil {
			return err
		}
		// The device goes with the mount, and that with the node's mount namespace.
		if err := inNode(ctx, n, "mount", "-o", "loop", image, dir); err != nil {
			return err
		}
	}
	return inNode(ctx, n, "chmod", "0777", dir)
}

// loopDevice returns the loop device of an image, or "".
func loopDevice(ctx context.Context, image string) (string, error) {
	out, err := host.Run(ctx, "losetup", "-n", "-O", "NAME", "-j", image)
	if err != nil {
		return "", err
	}
	device, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return device, nil
}

// inNode runs a command among the mounts of a node.
func inNode(ctx context.Context, n layout.Node, argv ...string) error {
	super := host.Supervisor{Dir: layout.State("run")}
	pid := super.PID(n.Name() + "-containerd")
	if pid == 0 {
		return fmt.Errorf("containerd of %s does not run, so its mounts are gone", n.Name())
	}
	args := append([]string{"launch", "--mounts-of=" + strconv.Itoa(pid), "--"}, argv...)
	_, err := host.Run(ctx, layout.State("bin", "localkube"), args...)
	return err
}
