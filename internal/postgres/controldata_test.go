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
	end, clean := c.ShutdownEnd()
	g.Expect(clean).To(BeTrue())
	g.Expect(end).To(Equal(postgres.LSN(0x1752A28)))
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

// The shutdown record is 114 bytes; page headers lie between its halves when it crosses a page.
func TestShutdownEnd(t *testing.T) {
	g := NewWithT(t)
	const page, seg = 8192, 1 << 20
	for at, want := range map[postgres.LSN]postgres.LSN{
		0x28:                0xA0,
		page - 120:          page,            // ends on the page, aligned to its end
		page - 112:          page + 24 + 8,   // two bytes are left, behind a short header
		page - 8:            page + 24 + 112, // 106 bytes are left
		seg - 8:             seg + 40 + 112,  // behind a segment's long header
		3*seg + 2*page + 40: 3*seg + 2*page + 160,
	} {
		end, ok := postgres.ControlData{State: "shut down", CheckpointLSN: at, WALBlockBytes: page, WALSegmentBytes: seg}.ShutdownEnd()
		g.Expect(ok).To(BeTrue())
		g.Expect(end).To(Equal(want), "%d", at)
	}
	for _, state := range []string{postgres.StateInProduction, postgres.StateShutDownInRecovery, postgres.StateInRecovery, ""} {
		_, ok := postgres.ControlData{State: state, WALBlockBytes: page, WALSegmentBytes: seg}.ShutdownEnd()
		g.Expect(ok).To(BeFalse())
	}
	_, ok := postgres.ControlData{State: "shut down"}.ShutdownEnd()
	g.Expect(ok).To(BeFalse())
}

func TestStandbySettings(t *testing.T) {
	g := NewWithT(t)
	control := postgres.ControlData{Settings: map[string]int{"max_connections": 200, "max_wal_senders": 10}}
	g.Expect(postgres.StandbySettings(map[string]string{"max_connections": "100", "max_wal_senders": "48", "x": "y"}, control)).
		To(Equal(map[string]string{"max_connections": "200", "max_wal_senders": "48", "x": "y"}))
	g.Expect(postgres.StandbySettings(nil, control)).To(HaveKeyWithValue("max_connections", "200"))
}
