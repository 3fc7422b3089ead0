package postgres_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func readControl(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/controldata-15.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseControlData(t *testing.T) {
	g := NewWithT(t)
	c, err := postgres.ParseControlData(readControl(t))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c).To(Equal(postgres.ControlData{
		SystemIdentifier: "7713949910924540445", State: "shut down", Timeline: 1, PrevTimeline: 1, CheckpointLSN: 0x17529B0, RedoLSN: 0x17529B0,
		RedoWALFile: "000000010000000000000001", WALLevel: "replica", WALLogHints: false, WALSegmentBytes: 16 << 20, WALBlockBytes: 8192,
		DataChecksums: true, ControlVersion: 1300, CatalogVersion: 202209061,
		Settings: map[string]int{
			"max_connections": 100, "max_worker_processes": 8, "max_wal_senders": 10, "max_prepared_transactions": 0, "max_locks_per_transaction": 64,
		},
	}))
	g.Expect(c.CleanShutdown()).To(BeTrue())
	g.Expect(c.WasStandby()).To(BeFalse())
	c.State = postgres.StateShutDownInRecovery
	g.Expect(c.CleanShutdown()).To(BeFalse())
	g.Expect(c.WasStandby()).To(BeTrue())
}

func TestParseControlDataRefuses(t *testing.T) {
	g := NewWithT(t)
	out := readControl(t)
	_, err := postgres.ParseControlData("WARNING: Calculated CRC checksum does not match value stored in file.\n" + out)
	g.Expect(err).To(MatchError(ContainSubstring("damaged")))
	_, err = postgres.ParseControlData(strings.ReplaceAll(out, "Latest checkpoint location", "Letzter Checkpoint"))
	g.Expect(err).To(MatchError(ContainSubstring("LC_ALL=C")))
	_, err = postgres.ParseControlData(strings.ReplaceAll(out, "0/17529B0", "x"))
	g.Expect(err).To(HaveOccurred())
	_, err = postgres.ParseControlData("")
	g.Expect(err).To(HaveOccurred())
}

func TestStandbySettings(t *testing.T) {
	g := NewWithT(t)
	control := postgres.ControlData{Settings: map[string]int{"max_connections": 200, "max_wal_senders": 10}}
	g.Expect(postgres.StandbySettings(map[string]string{"max_connections": "100", "max_wal_senders": "48", "x": "y"}, control)).
		To(Equal(map[string]string{"max_connections": "200", "max_wal_senders": "48", "x": "y"}))
	g.Expect(postgres.StandbySettings(nil, control)).To(HaveKeyWithValue("max_connections", "200"))
}
