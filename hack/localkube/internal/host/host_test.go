package host

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

func TestMountPoint(t *testing.T) {
	for line, want := range map[string]string{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: "/mnt2",
		`36 35 98:0 / /with\040space rw - tmpfs none rw`:                 "/with space",
		`36 35 98:0 / /tab\011and\134backslash rw - tmpfs none rw`:       "/tab\tand\\backslash",
		`36 35 98:0 / /not\9escaped rw - tmpfs none rw`:                  `/not\9escaped`,
		`short line`: "",
	} {
		if got := mountPoint(line); got != want {
			t.Errorf("mountPoint(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestLaunchArgs(t *testing.T) {
	spec := LaunchSpec{
		Cgroup: "c", NetNS: "n", PrivateMounts: true, Binds: []string{"a:b"}, MountsOf: 7, Argv: []string{"prog", "--flag"},
	}
	want := []string{
		"launch", "--cgroup=c", "--netns=n", "--private-mounts", "--bind=a:b", "--mounts-of=7", "--", "prog", "--flag",
	}
	if got := spec.Args(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRecordOfAnotherProcessIsNotTrusted(t *testing.T) {
	s := Supervisor{Dir: t.TempDir()}
	own := startTime(os.Getpid())
	if own == "" {
		t.Fatal("no start time of this very process")
	}
	for name, content := range map[string]string{
		"recycled": `{"pid": ` + strconv.Itoa(os.Getpid()) + `, "startTime": "1"}`,
		"init":     `{"pid": 1, "startTime": "` + startTime(1) + `"}`,
		"cut":      `{"pid": `,
		"empty":    ``,
	} {
		if err := os.WriteFile(filepath.Join(s.Dir, name+".json"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if pid := s.PID(name); pid != 0 {
			t.Errorf("%s: took pid %d for the daemon's", name, pid)
		}
	}
}

func TestWriteFileReplacesAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "file")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("temporary files are left: %v", entries)
	}
}
