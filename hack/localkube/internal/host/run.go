// Package host holds what the local cluster asks of the machine: processes, namespaces, cgroups and mounts.
package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Run runs a command and returns its output; the error carries what the command said.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%.200s: %w: %s", name+" "+strings.Join(args, " "), err,
			lastLines(errOut.String()+out.String(), 20))
	}
	return out.String(), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// RunAll runs commands one after the other, each given as one line of words without quoting.
func RunAll(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		words := strings.Fields(line)
		if _, err := Run(ctx, words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile writes a file through a temporary one, so that a reader never sees half of it.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err := tmp.Write(data); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Chmod(mode); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Poll calls check every interval until it returns nil, and returns its last error when ctx ends first.
func Poll(ctx context.Context, interval time.Duration, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(interval):
		}
	}
}
