// Package install is the subcommand of the init container of a database pod: it copies Kumki's binaries to a volume that the
// database container mounts, so that any PostgreSQL image can run them, and writes a passwd file that knows the pod's user.
package install

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kumki-dev/kumki/internal/naming"
)

// binaries are the names of the programs that a database pod needs.
var binaries = []string{"kumki", "kumki-wal"}

// options of one run.
type options struct {
	source string // folder of the binaries in this image
	target string // folder to fill
	uid    int
	gid    int
}

// New returns the subcommand install.
func New() *cobra.Command {
	o := options{uid: os.Getuid(), gid: os.Getgid()}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Copy Kumki's binaries into a database pod",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return run(o) },
	}
	cmd.Flags().StringVar(&o.source, "source", "/", "folder that holds the binaries")
	cmd.Flags().StringVar(&o.target, "target", naming.PathBin, "folder to copy them to")
	return cmd
}

func run(o options) error {
	for _, name := range binaries {
		if err := copyProgram(filepath.Join(o.source, name), filepath.Join(o.target, name)); err != nil {
			return fmt.Errorf("copy %s: %w; the image of the operator must hold it and the volume at %s must be writable", name, err, o.target)
		}
	}
	if err := writeFile(filepath.Join(o.target, filepath.Base(naming.PathPasswd)), passwd(o.uid, o.gid)); err != nil {
		return fmt.Errorf("write the passwd file: %w", err)
	}
	if err := writeFile(filepath.Join(o.target, filepath.Base(naming.PathGroup)), group(o.gid)); err != nil {
		return fmt.Errorf("write the group file: %w", err)
	}
	return nil
}

// passwd has the user that PostgreSQL's programs look up: initdb refuses to run as a user without a name.
func passwd(uid, gid int) string {
	return fmt.Sprintf("root:x:0:0::/root:/bin/false\npostgres:x:%d:%d::/var/lib/postgresql:/bin/false\n", uid, gid)
}

func group(gid int) string {
	if gid == 0 {
		return "root:x:0:\n"
	}
	return fmt.Sprintf("root:x:0:\npostgres:x:%d:\n", gid)
}

// copyProgram replaces the target atomically, so that a restarted init container never meets a half-written or busy program.
func copyProgram(source, target string) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.CreateTemp(filepath.Dir(target), ".copy-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = out.Close()
			_ = os.Remove(out.Name())
		}
	}()
	if _, err = io.Copy(out, in); err != nil {
		return err
	}
	if err = out.Chmod(0o755); err != nil {
		return err
	}
	if err = out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), target)
}

// writeFile writes in place: the file may be mounted by subPath already, which follows the inode, not the name.
func writeFile(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}
