package pgsql_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// pair is a primary with standbys that stream from it.
func pair(t *testing.T, params map[string]string, standbys ...string) (*testServer, []*testServer) {
	t.Helper()
	p, c := newSingle(t, params)
	NewWithT(t).Expect(c.EnsureReplicationRole(t.Context())).To(Succeed())
	out := make([]*testServer, len(standbys))
	for i, name := range standbys {
		out[i] = newStandby(t, name, p)
	}
	return p, out
}

func eventuallyAt(g *WithT, c pgsql.Server, position func() postgres.LSN) {
	g.Eventually(func(g Gomega) { g.Expect(observe(g, c).FlushLSN).To(BeNumerically(">=", position())) }).
		WithTimeout(10 * time.Second).WithPolling(20 * time.Millisecond).Should(Succeed())
}

// Sealing must not wait for replay: a standby that has received more than it replayed stops receiving at once, and its position is what
// it received.
func TestSealWhileReplayLags(t *testing.T) {
	g := NewWithT(t)
	p, ss := pair(t, nil, "c-1")
	pc, s, sc := p.client(), ss[0], ss[0].client()
	s.psql("SELECT pg_wal_replay_pause()")
	g.Eventually(func(g Gomega) { g.Expect(observe(g, sc).ReplayPaused).To(BeTrue()) }).Should(Succeed())
	p.psql("CREATE TABLE t AS SELECT generate_series(1, 10000) i")
	end := observe(g, pc).FlushLSN
	eventuallyAt(g, sc, func() postgres.LSN { return end })

	s.setParameter("primary_conninfo", "")
	g.Expect(sc.Reload(t.Context())).To(Succeed())
	g.Expect(sc.StopWALReceiver(t.Context())).To(Succeed())
	p.psql("CREATE TABLE u AS SELECT generate_series(1, 10000) i")
	o := observe(g, sc)
	g.Expect(o.WALReceiver).To(BeNil())
	g.Expect(o.ReplayLSN).To(BeNumerically("<", end))
	g.Expect(o.FlushLSN).To(BeNumerically(">=", end))
	g.Expect(o.Timeline).To(BeEquivalentTo(1))
	g.Consistently(func(g Gomega) {
		now := observe(g, sc)
		g.Expect(now.WALReceiver).To(BeNil())
		g.Expect(now.FlushLSN).To(Equal(o.FlushLSN))
	}).WithTimeout(time.Second).Should(Succeed())
}

// A standby that followed a promotion is on the new timeline, whether it streams or not; the control file still tells the old one.
func TestTimelineAfterPromotion(t *testing.T) {
	g := NewWithT(t)
	p, ss := pair(t, nil, "c-1", "c-2")
	a, b := ss[0], ss[1]
	ac, bc := a.client(), b.client()
	p.stop()
	g.Expect(ac.Promote(t.Context())).To(Succeed())
	g.Expect(observe(g, ac).Timeline).To(BeEquivalentTo(2))
	b.follow(a)
	b.writeConfig()
	g.Expect(bc.Reload(t.Context())).To(Succeed())
	a.psql("CREATE TABLE t (i int)")
	end := observe(g, ac).FlushLSN
	g.Eventually(func(g Gomega) {
		o := observe(g, bc)
		g.Expect(o.WALReceiver.Streaming()).To(BeTrue())
		g.Expect(o.Timeline).To(BeEquivalentTo(2))
		g.Expect(o.ReplayLSN).To(BeNumerically(">=", end))
	}).WithTimeout(15 * time.Second).Should(Succeed())

	b.setParameter("primary_conninfo", "")
	g.Expect(bc.Reload(t.Context())).To(Succeed())
	g.Expect(bc.StopWALReceiver(t.Context())).To(Succeed())
	o := observe(g, bc)
	g.Expect(o.WALReceiver).To(BeNil())
	g.Expect(o.Timeline).To(BeEquivalentTo(2))
	g.Expect(o.Replication).To(BeEmpty(), "the connection that asks for the timeline is no standby")
	g.Expect(b.psql("SELECT timeline_id FROM pg_control_checkpoint()")).To(Equal("1"), "the reason why SQL alone is not enough")
	g.Expect(bc.NewestTimelineAt(t.Context(), o.FlushLSN)).To(BeEquivalentTo(2))
	g.Expect(bc.NewestTimelineAt(t.Context(), o.FlushLSN+1<<40)).To(BeZero())

	b.restart()
	o = observe(g, bc)
	g.Expect(o.Timeline).To(BeEquivalentTo(2), "after a restart without a primary too")
	g.Expect(o.FlushLSN).To(BeNumerically(">=", end))
}

// A standby that is gone for good must not fill the disk: its slot is lost, seen as lost, and made anew.
func TestLostSlotIsMadeAnew(t *testing.T) {
	g := NewWithT(t)
	s, c := newSingle(t, map[string]string{"max_slot_wal_keep_size": "2MB", "wal_keep_size": "0", "max_wal_size": "4MB", "min_wal_size": "2MB"})
	g.Expect(c.EnsureSlots(t.Context(), []string{"kumki_c_1"})).To(Succeed())
	for range 8 {
		s.psql("SELECT pg_logical_emit_message(false, '', repeat('x', 900000)), pg_switch_wal()")
	}
	g.Expect(c.Checkpoint(t.Context())).To(Succeed())
	g.Expect(slotNamed(g, subject{Server: c}, "kumki_c_1").WALStatus).To(Equal("lost"))
	g.Expect(c.AdvanceSlots(t.Context(), map[string]postgres.LSN{"kumki_c_1": 1 << 40})).To(Succeed(), "lost ones are left alone")
	g.Expect(c.EnsureSlots(t.Context(), []string{"kumki_c_1"})).To(Succeed())
	l := slotNamed(g, subject{Server: c}, "kumki_c_1")
	g.Expect(l.WALStatus).To(Equal("reserved"))
	g.Expect(l.RestartLSN).NotTo(BeZero())
}

// An active slot is neither dropped nor moved.
func TestActiveSlot(t *testing.T) {
	g := NewWithT(t)
	p, ss := pair(t, nil, "c-1")
	pc, s := p.client(), ss[0]
	g.Expect(pc.EnsureSlots(t.Context(), []string{"kumki_c_1"})).To(Succeed())
	s.setParameter("primary_slot_name", "kumki_c_1")
	g.Expect(s.client().Reload(t.Context())).To(Succeed())
	g.Eventually(func() bool { return slotNamed(g, subject{Server: pc}, "kumki_c_1").Active }).WithTimeout(10 * time.Second).Should(BeTrue())
	g.Expect(pc.DropSlots(t.Context(), []string{"kumki_c_1"})).To(MatchError(ContainSubstring("is active")))
	g.Expect(pc.AdvanceSlots(t.Context(), map[string]postgres.LSN{"kumki_c_1": 1 << 40})).To(Succeed())
	o := observe(g, pc)
	g.Expect(o.Replication).To(HaveLen(1))
	g.Expect(o.Replication[0].SlotName).To(Equal("kumki_c_1"))
	g.Expect(observe(g, s.client()).WALReceiver.SlotName).To(Equal("kumki_c_1"))
}

// A standby whose files ask for less than the primary had does not start; with StandbySettings it does.
func TestStandbySettings(t *testing.T) {
	g := NewWithT(t)
	_, ss := pair(t, map[string]string{"max_connections": "150"}, "c-1")
	s := ss[0]
	s.signal(syscall.SIGINT)
	control, err := postgres.ParseControlData(run(t, bin+"pg_controldata", s.data()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(control.State).To(Equal(postgres.StateShutDownInRecovery))
	low := map[string]string{"max_connections": "20", "work_mem": "4MB"}
	fit := postgres.StandbySettings(low, control)
	g.Expect(control.WasStandby()).To(BeTrue())
	g.Expect(control.DataChecksums).To(BeTrue())
	g.Expect(control.WALSegmentBytes).To(BeEquivalentTo(1 << 20))
	g.Expect(fit).To(HaveKeyWithValue("max_connections", "150"))
	g.Expect(fit).To(HaveKeyWithValue("work_mem", "4MB"))
	s.params["max_connections"] = fit["max_connections"]
	s.start()
	g.Expect(observe(g, s.client()).Settings).To(HaveKeyWithValue("max_connections", "150"))
}

// Derived settings of every size are valid to PostgreSQL itself.
func TestDerivedSettingsAreValid(t *testing.T) {
	g := NewWithT(t)
	s, _ := newSingle(t, nil)
	for _, r := range []postgres.Resources{
		{}, {MemoryBytes: 64 << 20, DataBytes: 64 << 20}, {MemoryBytes: 2 << 40, DataBytes: 64 << 40, CPUMilli: 256000},
		{MemoryBytes: 8 << 30, DataBytes: 100 << 30, WALBytes: 64 << 20, CPUMilli: 100},
	} {
		s.params = postgres.Derive(r)
		s.writeConfig()
		out := run(t, bin+"postgres", "-D", s.data(), "-c", "config_file="+filepath.Join(s.root, "postgresql.conf"), "-C", "shared_buffers")
		g.Expect(strings.TrimSpace(out)).To(MatchRegexp(`^\d+$`))
	}
}
