package instance

import (
	"io"
	"log/slog"
	"testing"

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
