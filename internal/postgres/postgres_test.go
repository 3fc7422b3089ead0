package postgres_test

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/postgres"
)

func TestLSN(t *testing.T) {
	g := NewWithT(t)
	for text, want := range map[string]postgres.LSN{"": 0, "0/0": 0, "0/3000060": 0x3000060, "1A/FF": 0x1A000000FF, "FFFFFFFF/FFFFFFFF": 1<<64 - 1} {
		got, err := postgres.ParseLSN(text)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(want), text)
	}
	g.Expect(postgres.LSN(0x1A000000FF).String()).To(Equal("1A/FF"))
	for _, bad := range []string{"x", "0", "0/", "/0", "0/x", "100000000/0", "0/100000000", "-1/0"} {
		_, err := postgres.ParseLSN(bad)
		g.Expect(err).To(MatchError(ContainSubstring("is not a WAL position")), bad)
	}
	var v struct{ L postgres.LSN }
	g.Expect(json.Unmarshal([]byte(`{"L":"0/10"}`), &v)).To(Succeed())
	g.Expect(v.L).To(BeEquivalentTo(16))
	g.Expect(json.Marshal(v)).To(MatchJSON(`{"L":"0/10"}`))
	g.Expect(json.Unmarshal([]byte(`{"L":"y"}`), &v)).NotTo(Succeed())
}

func TestVersions(t *testing.T) {
	g := NewWithT(t)
	for text, want := range map[string]int{
		"17": 17, "17.6": 17, "18beta1": 18, "18rc1": 18, "19devel": 19, " 15.20 (Debian 15.20-0+deb12u1)": 15, "16-alpine": 16, "17_debian": 17,
	} {
		got, err := postgres.MajorVersion(text)
		g.Expect(err).NotTo(HaveOccurred(), text)
		g.Expect(got).To(Equal(want), text)
	}
	for _, bad := range []string{"", "latest", "9.6", "1", "170000", "17abc", "17/x", "x17"} {
		_, err := postgres.MajorVersion(bad)
		g.Expect(err).To(HaveOccurred(), bad)
	}
	for image, want := range map[string]int{
		"postgres:17": 17, "postgres:17.6-bookworm": 17, "registry:5000/team/postgres:18beta1": 18,
		"docker.io/library/postgres:16@sha256:0123": 16, "x/y:v15.2": 15,
	} {
		got, err := postgres.MajorFromImage(image)
		g.Expect(err).NotTo(HaveOccurred(), image)
		g.Expect(got).To(Equal(want), image)
	}
	for _, bad := range []string{"postgres", "postgres:latest", "registry:17/postgres", "postgres@sha256:17", "", "postgres:"} {
		_, err := postgres.MajorFromImage(bad)
		g.Expect(err).To(MatchError(ContainSubstring("set spec.version")), bad)
	}
}

func TestQuoting(t *testing.T) {
	g := NewWithT(t)
	g.Expect(postgres.QuoteIdent(`a"b`)).To(Equal(`"a""b"`))
	g.Expect(postgres.QuoteLiteral(`a'b`)).To(Equal(`'a''b'`))
	g.Expect(postgres.QuoteLiteral(`a\b'`)).To(Equal(`E'a\\b'''`))
	conf, err := postgres.RenderConf(map[string]string{"b": "it's \\ \n\t", "a": "1", "x.y": ""})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conf).To(HaveSuffix("a = '1'\nb = 'it''s \\\\ \\n\\t'\nx.y = ''\n"))
	for name, value := range map[string]string{"a b": "", "a\nb": "", "": "", "a": "x\x00", "a'": "", "a.": "", "1a": ""} {
		_, err := postgres.RenderConf(map[string]string{name: value})
		g.Expect(err).To(HaveOccurred(), "%q", name)
	}
	g.Expect(postgres.ConnInfo(map[string]string{"host": `h'\`, "user": "u", "dbname": ""})).To(Equal(`host='h\'\\' user='u'`))
	for _, k := range []string{"password", "sslpassword"} {
		_, err := postgres.ConnInfo(map[string]string{k: "x"})
		g.Expect(err).To(MatchError(ContainSubstring("client certificate")))
	}
}

func TestSyncStandbyNames(t *testing.T) {
	g := NewWithT(t)
	g.Expect(postgres.SyncStandbyNames(0, []string{"a"})).To(BeEmpty())
	g.Expect(postgres.SyncStandbyNames(1, nil)).To(BeEmpty())
	v := postgres.SyncStandbyNames(2, []string{"c-1", "c-2", "c-3"})
	g.Expect(v).To(Equal(`ANY 2 ("c-1", "c-2", "c-3")`))
	num, names, err := postgres.ParseSyncStandbyNames(v)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(num).To(Equal(2))
	g.Expect(names).To(Equal([]string{"c-1", "c-2", "c-3"}))
	num, names, err = postgres.ParseSyncStandbyNames(" ")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(num).To(BeZero())
	g.Expect(names).To(BeEmpty())
	for _, bad := range []string{"a", "*", "FIRST 1 (a)", "ANY 1 (a)", `ANY 0 ("a")`, `ANY 2 ("a")`, `ANY 1 ("a"`, `ANY 1 ()`, `ANY 1 ("a,b")`, "ANY ", "ANY )("} {
		_, _, err := postgres.ParseSyncStandbyNames(bad)
		g.Expect(err).To(MatchError(ContainSubstring("something else set it")), bad)
	}
}

func TestSCRAM(t *testing.T) {
	g := NewWithT(t)
	// The salt and keys of RFC 7677, section 3, whose password is "pencil".
	const rfc = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
	g.Expect(postgres.VerifierMatches(rfc, "pencil")).To(BeTrue())
	g.Expect(postgres.VerifierMatches(rfc, "pencils")).To(BeFalse())
	a, err := postgres.SCRAMVerifier("secret", []byte("0123456789abcdef"))
	g.Expect(err).NotTo(HaveOccurred())
	b, err := postgres.SCRAMVerifier("secret", []byte("0123456789abcdef"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a).To(Equal(b))
	c, err := postgres.SCRAMVerifier("secret", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c).NotTo(Equal(a))
	g.Expect(postgres.IsVerifier(c)).To(BeTrue())
	g.Expect(postgres.VerifierMatches(c, "secret")).To(BeTrue())
	for _, bad := range []string{"", "a\nb", "x\x00", "\xff"} {
		_, err := postgres.SCRAMVerifier(bad, nil)
		g.Expect(err).To(HaveOccurred(), "%q", bad)
	}
	for _, bad := range []string{"", "md5abc", "SCRAM-SHA-256$", "SCRAM-SHA-256$x:y$z:w", "SCRAM-SHA-256$0:YQ==$YQ==:YQ==", "SCRAM-SHA-256$4096:!$YQ==:YQ=="} {
		g.Expect(postgres.VerifierMatches(bad, "")).To(BeFalse(), bad)
	}
	g.Expect(postgres.IsVerifier("secret")).To(BeFalse())
}

func TestRestartOrder(t *testing.T) {
	g := NewWithT(t)
	now := map[string]string{"max_connections": "100", "max_wal_senders": "48"}
	order := func(wanted map[string]string) []postgres.RestartStep { return postgres.RestartOrder(now, wanted) }
	g.Expect(order(now)).To(Equal([]postgres.RestartStep{{Order: postgres.StandbysFirst, Settings: now}}))
	up := map[string]string{"max_connections": "200", "max_wal_senders": "48"}
	g.Expect(order(up)).To(Equal([]postgres.RestartStep{{Order: postgres.StandbysFirst, Settings: up}}))
	down := map[string]string{"max_connections": "50", "max_wal_senders": "48", "work_mem": "1MB"}
	g.Expect(order(down)).To(HaveLen(1))
	g.Expect(order(down)[0].Order).To(Equal(postgres.PrimaryFirst))
	g.Expect(order(down)[0].Settings).NotTo(HaveKey("work_mem"))
	mixed := map[string]string{"max_connections": "50", "max_wal_senders": "60"}
	g.Expect(order(mixed)).To(Equal([]postgres.RestartStep{
		{Order: postgres.StandbysFirst, Settings: map[string]string{"max_connections": "100", "max_wal_senders": "60"}},
		{Order: postgres.PrimaryFirst, Settings: mixed},
	}))
	g.Expect(order(map[string]string{"max_connections": "many"})[0].Order).To(Equal(postgres.StandbysFirst))
	g.Expect(postgres.RestartOrder(nil, nil)).To(HaveLen(1))
}

func TestCheckParameters(t *testing.T) {
	g := NewWithT(t)
	g.Expect(postgres.CheckParameters(map[string]string{
		"work_mem": "64MB", "fsync": "ON", "synchronous_commit": "remote_apply", "wal_level": "logical", "max_wal_senders": "64",
		"pg_stat_statements.max": "1000", "shared_preload_libraries": "pg_stat_statements", "max_replication_slots": "sixty", "log_statement": "all",
	})).To(BeEmpty())
	for name, c := range map[string]struct{ value, way string }{
		"listen_addresses": {"x", "spec.service"}, "Synchronous_Standby_Names": {"", "spec.replication"}, "primary_conninfo": {"", "switchover"},
		"ssl": {"off", "spec.tls"}, "archive_command": {"cp", "backups"}, "recovery_target_time": {"now", "new cluster"},
		"log_destination": {"csvlog", "JSON"}, "fsync": {"off", "Asynchronous"}, "full_page_writes": {"0", "wal_compression"},
		"synchronous_commit": {"off", "spec.replication.durability"}, "wal_level": {"minimal", "logical"}, "max_wal_senders": {"3", "leave it out"},
		"zero_damaged_pages": {"on", "session"}, "include": {"/x", "spec.postgresql.parameters"}, "a b": {"", "not the name"},
		"work_mem": {"\x00", "NUL"}, "wal_log_hints": {"off", "pg_rewind"}, "hot_standby": {"off", "reads"},
	} {
		problems := postgres.CheckParameters(map[string]string{name: c.value})
		g.Expect(problems).To(HaveLen(1), name)
		g.Expect(problems[0].Parameter).To(Equal(name))
		g.Expect(problems[0].Error()).To(ContainSubstring(c.way))
	}
	g.Expect(postgres.CheckParameters(map[string]string{"WORK_MEM": "1MB", "work_mem": "2MB"})).
		To(ConsistOf(HaveField("Reason", ContainSubstring("twice"))))
}

func TestOwnSettingsAreOwned(t *testing.T) {
	g := NewWithT(t)
	own := postgres.OwnSettings(postgres.OwnInputs{Major: 17, ClusterName: "c-0", Port: 5432, SocketDir: "/kumki/run", TLSCert: "/c", TLSKey: "/k", TLSClientCA: "/a"})
	for name := range own {
		_, owned := postgres.Owned(name)
		g.Expect(owned).To(BeTrue(), "%s is set and could be overridden by the user", name)
	}
	g.Expect(own).To(HaveKeyWithValue("ssl", "on"))
	g.Expect(own).To(HaveKeyWithValue("allow_alter_system", "off"))
	g.Expect(postgres.OwnSettings(postgres.OwnInputs{Major: 16})).NotTo(HaveKey("allow_alter_system"))
	g.Expect(postgres.Merge(map[string]string{"Work_Mem": "1MB", "port": "1"}, map[string]string{"work_mem": "2MB"}, map[string]string{"port": "5432"})).
		To(Equal(map[string]string{"work_mem": "2MB", "port": "5432"}))
}

func TestRenderHBA(t *testing.T) {
	g := NewWithT(t)
	want := strings.TrimLeft(`
# Written by Kumki, and written anew at every change: set rules in spec.postgresql.hba.
# The instance manager and people in the pod, over the unix socket.
local all postgres peer map=kumki
local replication postgres peer map=kumki
# Replication and pg_rewind, by the cluster's own client certificates.
hostssl replication kumki_replication all cert
hostssl postgres kumki_replication all cert
local all kumki_replication reject
host all kumki_replication all reject
local replication kumki_replication reject
host replication kumki_replication all reject
# The superuser is let in no other way.
host all postgres all reject
host replication postgres all reject
# spec.postgresql.hba
host all all 10.0.0.0/8 md5 host all all all trust
# Everybody else: over the unix socket or TLS with a password; nobody without TLS.
local all all scram-sha-256
hostssl all all all scram-sha-256
`, "\n")
	g.Expect(postgres.RenderHBA(postgres.HBAOptions{User: []string{" host all all 10.0.0.0/8 md5\nhost all all all trust "}})).To(Equal(want))
	remote := postgres.RenderHBA(postgres.HBAOptions{SuperuserRemote: true})
	g.Expect(strings.Index(remote, "hostssl all postgres all scram-sha-256")).To(BeNumerically("<", strings.Index(remote, "host all postgres all reject")))
	g.Expect(postgres.RenderIdent("postgres", `od"d`)).To(Equal("# Written by Kumki.\nkumki \"postgres\" postgres\nkumki \"od\"\"d\" postgres\n"))
}
