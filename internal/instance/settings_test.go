package instance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

func testSetup(r role) setup {
	cfg := &config{Config: instanceapi.Config{MajorVersion: 15, Parameters: map[string]string{"work_mem": "8MB", "port": "1"}}}
	return setup{opt: &Options{Pod: "c-0", PortPG: 5432, RunDir: "/run/kumki"}, cfg: cfg, role: r}
}

func TestConfOfRoles(t *testing.T) {
	for name, tc := range map[string]struct {
		role      role
		has, lack []string
	}{
		"primary alone": {role{primary: true}, []string{"synchronous_standby_names = ''", "primary_conninfo = ''", "work_mem = '8MB'", "port = '5432'"}, []string{"port = '1'"}},
		"primary with standbys": {role{primary: true, sync: election.Quorum{Standbys: []string{"c-1", "c-2"}, Num: 1}},
			[]string{`synchronous_standby_names = 'ANY 1 ("c-1", "c-2")'`}, nil},
		"standby": {role{leader: &instanceapi.Member{Name: "c-1", Host: "c-1.c-nodes.ns.svc", Port: 5432}},
			[]string{"c-1.c-nodes.ns.svc", "application_name", "primary_slot_name = 'kumki_c_0'", "verify-ca"}, []string{"password="}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := testSetup(tc.role).conf(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.has {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in\n%s", want, text)
				}
			}
			for _, no := range tc.lack {
				if strings.Contains(text, no) {
					t.Errorf("%q is in\n%s", no, text)
				}
			}
		})
	}
}

func TestSealedStandbyFollowsNoLowerTerm(t *testing.T) {
	m := &Manager{cfg: &config{Config: instanceapi.Config{Members: []instanceapi.Member{{Name: "c-1"}}}}}
	m.sealed = 7
	m.follow = &election.EffectFollow{Leader: "c-1", Term: 6}
	if m.standbyRole().leader != nil {
		t.Fatal("a standby that sealed for term 7 streams from the leader of term 6")
	}
	m.follow.Term = 7
	if m.standbyRole().leader == nil {
		t.Fatal("it does not follow the leader of term 7")
	}
}

func TestStartWithNewSettingsFallsBack(t *testing.T) {
	good := &config{hash: "a", Config: instanceapi.Config{Parameters: map[string]string{"shared_buffers": "32MB"}}}
	bad := &config{hash: "b", Config: instanceapi.Config{Parameters: map[string]string{"shared_buffers": "900GB"}}}
	m := testManager(t)
	m.cfg, m.settings.proven, m.settings.good = bad, good, bad
	if m.startRefused(good, errors.New("no")) {
		t.Fatal("the proven configuration was blamed")
	}
	if !m.startRefused(bad, errors.New("could not map shared memory (shared_buffers)")) {
		t.Fatal("the new configuration was not blamed")
	}
	if got := m.setup(role{}).cfg.Parameters["shared_buffers"]; got != "32MB" {
		t.Fatalf("shared_buffers = %s in the next start, want the proven 32MB", got)
	}
	if got := m.settings.refused.Parameter; got != "shared_buffers" {
		t.Fatalf("blamed %q", got)
	}
}

func TestReserveTimelines(t *testing.T) {
	dir := t.TempDir()
	wal := filepath.Join(dir, "pg_wal")
	if err := os.Mkdir(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(wal, "00000003.history")
	if err := os.WriteFile(own, []byte("1\t0/3000000\treal\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reserveTimelines(dir, 1, 5, nil); err != nil {
		t.Fatal(err)
	}
	for name, exists := range map[string]bool{"00000002.history": true, "00000003.history": true, "00000004.history": true, "00000005.history": false} {
		if _, err := os.Stat(filepath.Join(wal, name)); (err == nil) != exists {
			t.Errorf("%s: %v, want exists=%t", name, err, exists)
		}
	}
	if b, _ := os.ReadFile(own); !strings.Contains(string(b), "real") {
		t.Error("a real history file was replaced")
	}
}

func TestHints(t *testing.T) {
	for message, want := range map[string]hint{
		"could not receive data from WAL stream: ERROR:  requested WAL segment 000000010000000000000003 has already been removed":                             hintClone,
		"new timeline 2 forked off current database system timeline 1 before current recovery point 0/5000140":                                                hintRewind,
		"could not start WAL streaming: ERROR:  requested starting point 0/6000000 on timeline 1 is ahead of the WAL flush position of this server 0/5000000": hintRewind,
		"highest timeline 1 of the primary is behind recovery timeline 2":                                                                                     hintRewind,
		"hot standby is not possible because of insufficient parameter settings":                                                                              hintRestart,
		"requested timeline 6 does not contain minimum recovery point 0/51262A8 on timeline 5":                                                                hintClone,
		"started streaming WAL from primary at 0/3000000 on timeline 1":                                                                                       "",
	} {
		for backend, want := range map[string]hint{"walreceiver": want, "startup": want, "client backend": "", "": ""} {
			if got := hintOf(pgproc.LogRecord{Program: "postgres", Backend: backend, Message: message}); got != want {
				t.Errorf("%q of %q: %q, want %q", message, backend, got, want)
			}
		}
		if got := hintOf(pgproc.LogRecord{Program: "pg_basebackup", Backend: "startup", Message: message}); got != "" {
			t.Errorf("%q of another program: %q", message, got)
		}
	}
}

func TestConfigurationWithTheSameFilesIsInForceAtOnce(t *testing.T) {
	m := testManager(t)
	m.cfg = &config{hash: "old", Config: instanceapi.Config{MajorVersion: 15}}
	m.settings.hash, m.settings.applied = "old", m.setup(role{}).key()
	m.cfg = &config{hash: "new", Config: instanceapi.Config{MajorVersion: 15, SystemIdentifier: "7"}}
	m.pm, m.observed.ok = &pgproc.Postmaster{}, true
	m.applySettings()
	if m.job != nil {
		t.Fatal("PostgreSQL is reloaded, although its files stay the same")
	}
	if m.settings.hash != "new" {
		t.Fatalf("the configuration in force is %q, want the new one: the operator waits for it", m.settings.hash)
	}
}
