package pgsql_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// subject is a server that the contract suite looks at, with the hand that writes its files.
type subject struct {
	pgsql.Server
	setParameter func(name, value string)
	breakHBA     func()
	mendHBA      func()
	stop         func()
}

// maker makes a primary and a standby that streams from it, both with nothing but what Kumki makes.
type maker func(t *testing.T) (primary, standby subject)

func TestContractFake(t *testing.T) { testContract(t, newFakes) }
func TestContractReal(t *testing.T) { testContract(t, newReal) }

func testContract(t *testing.T, mk maker) {
	primary, standby := mk(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, subject)
		on   subject
	}{
		{"primary observes", primaryObserves, primary},
		{"configuration", configuration, primary},
		{"roles", roles, primary},
		{"slots on a primary", slots, primary},
		{"slots on a standby", slots, standby},
		{"scripts", scripts, primary},
		{"what a primary need not do", primaryNeedNot, primary},
		{"standby is read-only", standbyReadOnly, standby},
		{"standby is sealed and promoted", standbySealedPromoted, standby},
		{"down", down, primary},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, c.on) })
	}
}

func newFakes(*testing.T) (primary, standby subject) {
	base := pgsql.Observation{SystemIdentifier: "7", Timeline: 1, FlushLSN: 0x3000060, ReplayLSN: 0x3000060, ServerVersion: "15.20", VersionNum: 150020}
	p, s := base, base
	p.Replication = []pgsql.Standby{{ApplicationName: "c-1", State: "streaming", SyncState: "async", FlushLSN: 0x3000060}}
	s.InRecovery, s.PrimaryConnInfo = true, "host='127.0.0.1'"
	s.WALReceiver = &pgsql.WALReceiver{Status: "streaming", SenderHost: "127.0.0.1", ReceivedTLI: 1, FlushedLSN: 0x3000060}
	wrap := func(f *pgsql.Fake) subject {
		return subject{
			Server:       f,
			setParameter: func(n, v string) { f.Edit(func(s *pgsql.FakeState) { s.Files[n] = v }) },
			breakHBA:     func() { f.Edit(func(s *pgsql.FakeState) { s.HBAError = `invalid authentication method "nonsense"` }) },
			mendHBA:      func() { f.Edit(func(s *pgsql.FakeState) { s.HBAError = "" }) },
			stop:         func() { f.Edit(func(s *pgsql.FakeState) { s.Fail = pgsql.ErrDown }) },
		}
	}
	return wrap(pgsql.NewFake(p)), wrap(pgsql.NewFake(s))
}

func newReal(t *testing.T) (primary, standby subject) {
	p := newPrimary(t, "c-0", nil)
	pc := p.client()
	NewWithT(t).Expect(pc.EnsureReplicationRole(t.Context())).To(Succeed())
	s := newStandby(t, "c-1", p)
	wrap := func(s *testServer, c *pgsql.Client) subject {
		return subject{
			Server:       c,
			setParameter: s.setParameter,
			breakHBA:     func() { s.setHBA("host all all 10.0.0.0/8 nonsense") },
			mendHBA:      func() { s.setHBA() },
			stop:         s.stop,
		}
	}
	return wrap(p, pc), wrap(s, s.client())
}

func primaryObserves(t *testing.T, s subject) {
	g := NewWithT(t)
	g.Expect(s.Ping(t.Context())).To(Succeed())
	var o pgsql.Observation
	g.Eventually(func() ([]pgsql.Standby, error) {
		var err error
		o, err = s.Observe(t.Context())
		return o.Replication, err
	}).Should(ContainElement(HaveField("State", "streaming")))
	g.Expect(o.InRecovery).To(BeFalse())
	g.Expect(o.SystemIdentifier).NotTo(BeEmpty())
	g.Expect(o.Timeline).To(BeEquivalentTo(1))
	g.Expect(o.FlushLSN).NotTo(BeZero())
	g.Expect(o.ReplayLSN).To(Equal(o.FlushLSN))
	g.Expect(o.WALReceiver).To(BeNil())
	g.Expect(o.Replication[0].ApplicationName).To(Equal("c-1"))
	g.Expect(o.PendingRestart).To(BeEmpty())
	g.Expect(o.ServerVersion).To(MatchRegexp(`^15\.\d+$`))
	g.Expect(o.VersionNum).To(BeNumerically(">=", 150000))
	for _, name := range postgres.StandbyMustMatch {
		g.Expect(o.Settings).To(HaveKey(name))
	}
	end, err := s.SwitchWAL(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(end).To(BeNumerically(">=", o.FlushLSN))
	g.Expect(s.Checkpoint(t.Context())).To(Succeed())
}

func configuration(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	g.Expect(s.CheckConfig(ctx)).To(BeEmpty())
	before, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())

	names := postgres.SyncStandbyNames(1, []string{"c-1", "c-2"})
	s.setParameter("synchronous_standby_names", names)
	s.setParameter("max_connections", "120")
	g.Expect(s.CheckConfig(ctx)).To(BeEmpty(), "a setting that waits for a restart is no problem")
	now, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.SyncStandbyNames).To(Equal(before.SyncStandbyNames), "checking applies nothing")
	g.Expect(s.Reload(ctx)).To(Succeed())
	now, err = s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.SyncStandbyNames).To(Equal(names), "Reload returns when it is in force")
	g.Expect(now.PendingRestart).To(Equal([]string{"max_connections"}))
	g.Expect(now.Settings).To(HaveKeyWithValue("max_connections", "100"))

	s.setParameter("work_mem", "banana")
	s.setParameter("max_connections", "many")
	problems, err := s.CheckConfig(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(problems).To(ConsistOf(
		And(HaveField("Parameter", "work_mem"), HaveField("Message", HavePrefix(`invalid value for parameter "work_mem": "banana"`))),
		And(HaveField("Parameter", "max_connections"), HaveField("Message", HavePrefix(`invalid value for parameter "max_connections": "many"`))),
	))
	g.Expect(problems[0].File).To(HaveSuffix("postgresql.conf"))
	g.Expect(problems[0].Line).To(BeNumerically(">", 0))

	s.setParameter("work_mem", "4MB")
	s.setParameter("max_connections", "100")
	s.setParameter("synchronous_standby_names", "")
	s.breakHBA()
	problems, err = s.CheckConfig(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(problems).To(ConsistOf(And(HaveField("Parameter", "pg_hba.conf"),
		HaveField("Message", ContainSubstring(`invalid authentication method "nonsense"`)))))
	s.mendHBA()
	g.Expect(s.CheckConfig(ctx)).To(BeEmpty())
	g.Expect(s.Reload(ctx)).To(Succeed())
	now, err = s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.PendingRestart).To(BeEmpty())
}

func verifier(g *WithT, password string) string {
	v, err := postgres.SCRAMVerifier(password, nil)
	g.Expect(err).NotTo(HaveOccurred())
	return v
}

func roles(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	g.Expect(s.EnsureReplicationRole(ctx)).To(Succeed())
	g.Expect(s.EnsureReplicationRole(ctx)).To(Succeed())
	app := pgsql.App{Database: `my "db"`, Owner: `o'wner`, Verifier: verifier(g, "secret")}
	g.Expect(s.EnsureApp(ctx, app)).To(Succeed())
	g.Expect(s.EnsureApp(ctx, app)).To(Succeed())
	app.Owner = "other"
	app.Verifier = ""
	g.Expect(s.EnsureApp(ctx, app)).To(Succeed(), "without a password, and the database gets a new owner")
	g.Expect(s.SetPassword(ctx, "postgres", verifier(g, "x"))).To(Succeed())
	g.Expect(s.DropPassword(ctx, "postgres")).To(Succeed())
	g.Expect(s.DropPassword(ctx, "postgres")).To(Succeed())
	g.Expect(s.SetPassword(ctx, "nobody", verifier(g, "x"))).To(MatchError(ContainSubstring(`role "nobody" does not exist`)))
	g.Expect(s.SetPassword(ctx, "postgres", "clear")).To(MatchError(ContainSubstring("verifier")))
	app.Verifier = "clear"
	g.Expect(s.EnsureApp(ctx, app)).To(MatchError(ContainSubstring("verifier")))
}

func slotNamed(g *WithT, s subject, name string) pgsql.Slot {
	o, err := s.Observe(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	for _, l := range o.Slots {
		if l.Name == name {
			return l
		}
	}
	return pgsql.Slot{}
}

func slots(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	names := []string{"kumki_c_1", "kumki_c_2"}
	g.Expect(s.EnsureSlots(ctx, names)).To(Succeed())
	g.Expect(s.EnsureSlots(ctx, names)).To(Succeed())
	first := slotNamed(g, s, "kumki_c_1")
	g.Expect(first.Physical).To(BeTrue())
	g.Expect(first.Active).To(BeFalse())
	g.Expect(first.RestartLSN).NotTo(BeZero())
	g.Expect(first.WALStatus).To(Equal("reserved"))

	o, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.AdvanceSlots(ctx, map[string]postgres.LSN{"kumki_c_1": o.ReplayLSN, "missing": o.ReplayLSN})).To(Succeed())
	g.Expect(slotNamed(g, s, "kumki_c_1").RestartLSN).To(Equal(o.ReplayLSN))
	g.Expect(s.AdvanceSlots(ctx, map[string]postgres.LSN{"kumki_c_1": 1})).To(Succeed())
	g.Expect(slotNamed(g, s, "kumki_c_1").RestartLSN).To(Equal(o.ReplayLSN), "never back")
	g.Expect(s.AdvanceSlots(ctx, map[string]postgres.LSN{"kumki_c_1": o.ReplayLSN + 1<<40})).To(Succeed())
	g.Expect(slotNamed(g, s, "kumki_c_1").RestartLSN).To(BeNumerically("<", o.ReplayLSN+1<<40), "never beyond what is there")
	g.Expect(s.AdvanceSlots(ctx, nil)).To(Succeed())

	g.Expect(s.DropSlots(ctx, append(names, "missing"))).To(Succeed())
	g.Expect(slotNamed(g, s, "kumki_c_2")).To(BeZero())
	g.Expect(s.EnsureSlots(ctx, nil)).To(Succeed())
	g.Expect(s.DropSlots(ctx, nil)).To(Succeed())
}

func scripts(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	g.Expect(s.ExecScript(ctx, "postgres", "CREATE TABLE a (i int); INSERT INTO a VALUES (1);")).To(Succeed())
	g.Expect(s.ExecScript(ctx, "postgres", "CREATE TABLE b (i int); syntax error;")).To(MatchError(ContainSubstring("syntax error")))
	g.Expect(s.ExecScript(ctx, "nosuch", "SELECT 1")).To(MatchError(ContainSubstring(`database "nosuch" does not exist`)))
}

func primaryNeedNot(t *testing.T, s subject) {
	g := NewWithT(t)
	before, err := s.Observe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Promote(t.Context())).To(Succeed())
	g.Expect(s.StopWALReceiver(t.Context())).To(Succeed())
	after, err := s.Observe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.Timeline).To(Equal(before.Timeline))
}

func standbyReadOnly(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	var o pgsql.Observation
	g.Eventually(func() (bool, error) {
		var err error
		o, err = s.Observe(ctx)
		return o.WALReceiver.Streaming(), err
	}).Should(BeTrue())
	g.Expect(o.InRecovery).To(BeTrue())
	g.Expect(o.Timeline).To(BeEquivalentTo(1))
	g.Expect(o.FlushLSN).NotTo(BeZero())
	g.Expect(o.WALReceiver.SenderHost).To(Equal("127.0.0.1"))
	g.Expect(s.Checkpoint(ctx)).To(Succeed())
	g.Expect(s.EnsureApp(ctx, pgsql.App{Database: "new", Owner: "new"})).NotTo(Succeed())
	g.Expect(s.SetPassword(ctx, "postgres", verifier(g, "x"))).NotTo(Succeed())
	_, err := s.SwitchWAL(ctx)
	g.Expect(err).To(HaveOccurred())
}

func standbySealedPromoted(t *testing.T, s subject) {
	g, ctx := NewWithT(t), t.Context()
	before, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	s.setParameter("primary_conninfo", "")
	g.Expect(s.Reload(ctx)).To(Succeed())
	g.Expect(s.StopWALReceiver(ctx)).To(Succeed())
	sealed, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sealed.WALReceiver).To(BeNil())
	g.Expect(sealed.PrimaryConnInfo).To(BeEmpty())
	g.Expect(sealed.Timeline).To(BeEquivalentTo(1))
	g.Expect(sealed.FlushLSN).To(BeNumerically(">=", before.FlushLSN))

	g.Expect(s.Promote(ctx)).To(Succeed())
	after, err := s.Observe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.InRecovery).To(BeFalse())
	g.Expect(after.Timeline).To(BeEquivalentTo(2))
	g.Expect(after.FlushLSN).To(BeNumerically(">=", sealed.FlushLSN))
	g.Expect(s.EnsureReplicationRole(ctx)).To(Succeed())
}

func down(t *testing.T, s subject) {
	g := NewWithT(t)
	s.stop()
	g.Expect(s.Ping(t.Context())).To(MatchError(pgsql.IsDown, "IsDown"))
	_, err := s.Observe(t.Context())
	g.Expect(err).To(MatchError(pgsql.IsDown, "IsDown"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(s.Ping(ctx)).NotTo(Succeed())
}
