package image

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPostgresMajor(t *testing.T) {
	for name, want := range map[string]string{
		"postgres:15": "15", "postgres:18": "18", "ghcr.io/kumki-dev/postgres:17": "17",
		"postgres": "", "postgres:14": "", "mysql:15": "", "x/postgres:15": "", "postgres:15-bookworm": "",
	} {
		got, err := PostgresMajor(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("PostgresMajor(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestEqualFilesMakeEqualLayers(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	digest := func() string {
		if err := os.WriteFile(source, []byte("binary"), 0o600); err != nil {
			t.Fatal(err)
		}
		layer, err := fileLayer([]file{{"/etc/ssl/bundle", source, 0o644}, {"/kumki", source, 0o755}})
		if err != nil {
			t.Fatal(err)
		}
		d, err := layer.DiffID()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	if a, b := digest(), digest(); a != b {
		t.Errorf("%s and %s differ", a, b)
	}
}
