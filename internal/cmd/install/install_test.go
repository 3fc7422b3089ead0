package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func source(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range binaries {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("program "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRunCopiesProgramsAndWritesTheUser(t *testing.T) {
	o := options{source: source(t), target: t.TempDir(), uid: 100123, gid: 0}
	for range 2 { // a restarted init container does it again
		if err := run(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range binaries {
		info, err := os.Stat(filepath.Join(o.target, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v, want 0755", name, info.Mode())
		}
	}
	content, err := os.ReadFile(filepath.Join(o.target, "passwd"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), "postgres:x:100123:0::/var/lib/postgresql:/bin/false\n") {
		t.Errorf("passwd is %q", content)
	}
	entries, err := os.ReadDir(o.target)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 {
		t.Errorf("leftovers in the target: %v", entries)
	}
}

func TestRunSaysWhatIsMissing(t *testing.T) {
	err := run(options{source: t.TempDir(), target: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "copy kumki:") {
		t.Fatalf("error is %v", err)
	}
}
