package instance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

func writeConfig(t *testing.T, dir string, c instanceapi.Config) {
	t.Helper()
	c.Members = []instanceapi.Member{{Name: "c-0"}}
	text, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, naming.KeyConfig), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhoMayMakeADatabase(t *testing.T) {
	for name, c := range map[string]struct {
		config instanceapi.Config
		want   bool
	}{
		"nothing is known":           {instanceapi.Config{}, true},
		"there is a database":        {instanceapi.Config{SystemIdentifier: "77"}, false},
		"there may be data":          {instanceapi.Config{NoBootstrap: true}, false},
		"there is, and may be, data": {instanceapi.Config{SystemIdentifier: "77", NoBootstrap: true}, false},
	} {
		dir := t.TempDir()
		writeConfig(t, dir, c.config)
		cfg, err := readConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.election(&Options{Pod: "c-0"}).Bootstrap; got != c.want {
			t.Errorf("%s: Bootstrap is %t, want %t", name, got, c.want)
		}
	}
}

// A bootstrap that failed is tried again with what was declared meanwhile.
func TestCorrectedInitDBIsTakenUp(t *testing.T) {
	m := testManager(t)
	m.opt.ConfigDir = t.TempDir()
	m.exiting = true // nothing is done about it here
	writeConfig(t, m.opt.ConfigDir, instanceapi.Config{InitDB: instanceapi.InitDB{Database: "app", SQL: []string{"CREAT TABLE t ()"}}})
	var err error
	if m.cfg, err = readConfig(m.opt.ConfigDir); err != nil {
		t.Fatal(err)
	}
	writeConfig(t, m.opt.ConfigDir, instanceapi.Config{InitDB: instanceapi.InitDB{Database: "shop", SQL: []string{"CREATE TABLE t ()"}}})
	m.readConfig()
	if in := m.setup(role{}).cfg.InitDB; in.Database != "shop" || in.SQL[0] != "CREATE TABLE t ()" {
		t.Errorf("the next try makes %+v", in)
	}
}
