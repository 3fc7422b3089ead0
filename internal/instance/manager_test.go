package instance

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

// testManager is a manager without processes, on a volume of its own.
func testManager(t *testing.T) *Manager {
	t.Helper()
	v, err := pgproc.OpenVolume(t.TempDir(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	return &Manager{opt: Options{Pod: "c-0", PodUID: "uid", PortPG: 5432, Log: log}, log: log, volume: v, metrics: newMetrics()}
}

// A seal may wait for a job while the next leader is found already: that leader must be followed afterwards.
func TestSealKeepsTheLeaderOfItsTerm(t *testing.T) {
	for term, kept := range map[int64]bool{5: false, 6: true, 7: true} {
		m := testManager(t)
		m.cfg = &config{Config: instanceapi.Config{Members: []instanceapi.Member{{Name: "c-0"}, {Name: "c-1"}}}}
		m.ctx, m.inbox = t.Context(), make(chan func(), 8)
		m.follow = &election.EffectFollow{Leader: "c-1", Term: term}
		m.seal(election.EffectSeal{Term: 6})
		if (m.follow != nil) != kept {
			t.Errorf("leader of term %d: followed %t after a seal for term 6, want %t", term, m.follow != nil, kept)
		}
		<-m.inbox // the job is done
	}
}

// The database that this very process made is known by its server alone: no examination of the files comes before the first start.
func TestRunningServerTellsWhoseDataItIs(t *testing.T) {
	m := testManager(t)
	g, err := m.volume.Begin("initdb")
	if err == nil {
		err = os.MkdirAll(filepath.Join(g.Dir, "global"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(g.Dir, "global", "pg_control"), []byte("control"), 0o600)
	}
	if err == nil {
		err = m.volume.Flip(g)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.recognize("")
	if id := m.systemIdentifier(g, true); id != "" {
		t.Errorf("identifier %q before the server was asked", id)
	}
	m.recognize("77")
	if id := m.systemIdentifier(g, true); id != "77" {
		t.Errorf("identifier %q, want 77", id)
	}
}
