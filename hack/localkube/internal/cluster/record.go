package cluster

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// record is what "down" has to put back and cannot know by names.
type record struct {
	BootID string `json:"bootID"`
	// Sysctls that the kubelet changes for the whole machine.
	Sysctls map[string]string `json:"sysctls"`
	// MadeDirs are the mount points that did not exist before, deepest first.
	MadeDirs []string `json:"madeDirs"`
}

var kubeletSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func recordPath() string { return layout.State("machine.json") }

func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// prepareMachine makes the mount points that nodes need and records what it found, before it makes them.
func prepareMachine() error {
	r := record{BootID: bootID(), Sysctls: map[string]string{}}
	for _, key := range kubeletSysctls {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", key)); err == nil {
			r.Sysctls[key] = strings.TrimSpace(string(value))
		}
	}
	for target := range perNodePaths {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			r.MadeDirs = append(r.MadeDirs, target)
		}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := host.WriteFile(recordPath(), data, 0o644); err != nil {
		return err
	}
	for _, dir := range r.MadeDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// restoreMachine undoes what prepareMachine recorded.
func restoreMachine() error {
	data, err := os.ReadFile(recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil //nolint:nilerr // it was cut short by a crash before anything was changed
	}
	var errs []error
	if r.BootID == bootID() { // a reboot has set them anew
		for key, value := range r.Sysctls {
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644))
		}
	}
	for _, dir := range r.MadeDirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
