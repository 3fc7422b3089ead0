package instance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// settings is the state of PostgreSQL's configuration.
type settings struct {
	readAt time.Duration
	// applied is the key of the files that the running server goes by.
	applied string
	// appliedAt is when they were last put in force.
	appliedAt time.Duration
	// hash of the configuration in force.
	hash string
	// notBefore puts off the next try after one that failed.
	notBefore time.Duration
	// refused is the newest configuration that PostgreSQL does not take, with its message.
	refused *instanceapi.ConfigError
	// good is the last configuration that PostgreSQL took; proven the last that it started with.
	good, proven *config
	// raised: a standby runs with a setting that is higher than declared, because the primary had it; raisedAt is when that was seen.
	// Once the primary was restarted with the lower one, the standby can be too.
	raised   bool
	raisedAt time.Duration
	// starting is what the server was started with, until it is up.
	starting *config
}

// File names on the volume of the configurations that are known to work.
const (
	fileGood   = "config-good.json"
	fileProven = "config-proven.json"
)

// role is the instance's part in replication, as far as it shows in the configuration files.
type role struct {
	primary bool
	sync    election.Quorum     // of a primary
	leader  *instanceapi.Member // of a standby; nil: no WAL receiver
}

// syncNames is synchronous_standby_names of that role.
func (r role) syncNames() string {
	if !r.primary {
		return postgres.NoStandbyNames
	}
	return syncNames(r.sync)
}

// standbyRole follows the leader, unless this instance sealed and no leader of that term is known.
func (m *Manager) standbyRole() role {
	if m.follow == nil || m.follow.Term < m.sealed || m.sealing != nil {
		return role{}
	}
	return role{leader: m.cfg.member(m.follow.Leader)}
}

// leaderRole is that of a primary, with the synchronous standbys that the core wants.
func (m *Manager) leaderRole() role { return role{primary: true, sync: m.lead.sync} }

// setup is everything that PostgreSQL's files are written from. It is a value: jobs use it while the loop goes on.
type setup struct {
	opt   *Options
	cfg   *config // whose parameters and HBA lines are in force
	role  role
	owner *pgproc.User
}

// setup for a role: with the newest configuration, or the last good one when that was refused.
func (m *Manager) setup(r role) setup {
	cfg := *m.cfg
	if refused := m.settings.refused; refused != nil && refused.ConfigHash == cfg.hash {
		if good := m.fallback(); good != nil {
			cfg.Parameters, cfg.HBA = good.Parameters, good.HBA
		}
	}
	return setup{opt: &m.opt, cfg: &cfg, role: r, owner: m.owner()}
}

func (m *Manager) fallback() *config {
	if m.settings.good != nil && m.settings.good.hash != m.cfg.hash {
		return m.settings.good
	}
	return m.settings.proven
}

func (s setup) private(kind string) string { return s.opt.privateTLS(kind) }

func (m *Manager) privateTLS(kind string) string { return m.opt.privateTLS(kind) }

// raisedEvery is how often a standby looks whether it still needs a setting that is higher than declared.
const raisedEvery = 5 * time.Second

// raised says whether a standby of that data needs a setting that is higher than declared.
func (s setup) raised(control *postgres.ControlData) bool {
	declared, _ := s.conf(nil)
	needed, _ := s.conf(control)
	return declared != needed
}

// key tells whether two setups give the same files.
func (s setup) key() string {
	h := sha256.New()
	conf, _ := s.conf(nil)
	_, _ = fmt.Fprint(h, conf, s.hba())
	return hex.EncodeToString(h.Sum(nil))
}

func syncNames(q election.Quorum) string { return postgres.SyncStandbyNames(q.Num, q.Standbys) }

// conf is postgresql.conf.
func (s setup) conf(control *postgres.ControlData) (string, error) {
	server := s.private("server")
	own := postgres.OwnInputs{
		Major: s.cfg.MajorVersion, ClusterName: s.opt.Pod, ListenAddresses: s.opt.Bind, Port: s.opt.PortPG, SocketDir: s.opt.RunDir,
		TLSCert: filepath.Join(server, "tls.crt"), TLSKey: filepath.Join(server, "tls.key"),
		TLSClientCA:      filepath.Join(s.private("clients"), "ca.crt"),
		SyncStandbyNames: s.role.syncNames(),
	}
	if l := s.role.leader; l != nil {
		repl := s.private("replication")
		info, err := postgres.ConnInfo(map[string]string{
			"host": l.Host, "port": strconv.Itoa(l.Port), "user": naming.RoleReplication, "application_name": s.opt.Pod,
			"sslmode": "verify-ca", "sslcert": filepath.Join(repl, "tls.crt"), "sslkey": filepath.Join(repl, "tls.key"),
			"sslrootcert": filepath.Join(server, "ca.crt"), "connect_timeout": "5",
			"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3", "tcp_user_timeout": "10000",
		})
		if err != nil {
			return "", err
		}
		own.PrimaryConnInfo, own.PrimarySlot = info, naming.Slot(s.opt.Pod)
	}
	all := postgres.Merge(s.cfg.Parameters, postgres.OwnSettings(own))
	if control != nil {
		all = postgres.FitSegments(postgres.StandbySettings(all, *control), *control)
	}
	return postgres.RenderConf(all)
}

func (s setup) hba() string {
	return postgres.RenderHBA(postgres.HBAOptions{User: s.cfg.HBA, SuperuserRemote: s.cfg.SuperuserRemote})
}

// osUsers may be the superuser over the unix socket: the user of this process, and of PostgreSQL where it differs.
func (s setup) osUsers() []string {
	uids := []string{strconv.Itoa(os.Getuid())}
	if s.owner != nil {
		uids = append(uids, strconv.Itoa(int(s.owner.UID)))
	}
	var names []string
	for _, uid := range uids {
		if u, err := user.LookupId(uid); err == nil {
			names = append(names, u.Username)
		}
	}
	return names
}

// write puts PostgreSQL's files in place. control, if given, is that of the data: standbys must not start below it.
func (s setup) write(g pgproc.Generation, control *postgres.ControlData) error {
	if err := s.replicationKey(); err != nil {
		return err
	}
	conf, err := s.conf(control)
	if err != nil {
		return err
	}
	files := map[string]string{"postgresql.conf": conf, "pg_hba.conf": s.hba(), "pg_ident.conf": postgres.RenderIdent(s.osUsers()...)}
	for name, text := range files {
		path := filepath.Join(g.Dir, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == text {
			continue
		}
		if err := pgproc.WriteFile(path, []byte(text), s.owner); err != nil {
			return err
		}
	}
	return s.emptyAutoConf(g)
}

// autoConf is postgresql.auto.conf without a setting.
const autoConf = "# The operator takes back what ALTER SYSTEM sets: declare it in spec.postgresql.parameters.\n"

// emptyAutoConf takes back what ALTER SYSTEM set (which PostgreSQL 17 and later refuse): it would win over what is declared, over
// synchronous_standby_names too, and might keep the server from starting again.
func (s setup) emptyAutoConf(g pgproc.Generation) error {
	path := filepath.Join(g.Dir, "postgresql.auto.conf")
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for line := range strings.Lines(string(old)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return pgproc.WriteFile(path, []byte(autoConf), s.owner)
		}
	}
	return nil
}

// replicationKey puts the key of the WAL receiver where primary_conninfo names it, and takes it away where nothing may stream:
// the startup process could go by an old primary_conninfo for a moment.
func (s setup) replicationKey() error {
	peer, repl := s.private("peer"), s.private("replication")
	if s.role.leader == nil {
		err := os.Remove(filepath.Join(repl, "tls.key"))
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	if err := makeDir(repl, s.owner); err != nil {
		return err
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := copyFile(filepath.Join(peer, name), filepath.Join(repl, name), s.owner); err != nil {
			return err
		}
	}
	return nil
}

// applySettings makes the running server go by what is declared, by a reload.
func (m *Manager) applySettings() {
	if m.job != nil || m.pm == nil {
		return
	}
	if !m.observed.ok {
		m.applyBeforeConsistency()
		return
	}
	m.provenStart()
	r := m.standbyRole()
	if m.lead != nil {
		r = m.leaderRole()
		m.resetNames(r)
	}
	want := m.setup(r)
	again := m.lead == nil && m.settings.raised && m.now()-m.settings.raisedAt > raisedEvery
	if m.now() < m.settings.notBefore {
		return
	}
	if want.key() == m.settings.applied && !again {
		m.sameFiles(want.cfg)
		return
	}
	g, ok := m.generation()
	if !ok {
		return
	}
	sql, standby, term := m.sql, m.lead == nil, m.followedTerm()
	var refused *instanceapi.ConfigError
	raised := false
	if want.role.syncNames() == "" {
		m.gate.opening()
	}
	m.settings.applied = "" // from here on the files may be neither the old nor the new ones, whatever becomes of the job
	m.start(&job{name: "apply settings"}, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := m.promise(term); err != nil {
			return err
		}
		var control *postgres.ControlData
		if standby {
			c, err := m.programs.ControlData(ctx, g.Dir)
			if err != nil {
				return err
			}
			control, raised = &c, want.raised(&c)
		}
		if err := want.write(g, control); err != nil {
			return err
		}
		problems, err := sql.CheckConfig(ctx)
		if err != nil {
			return err
		}
		if len(problems) > 0 {
			refused = &instanceapi.ConfigError{Parameter: problems[0].Parameter, Message: problems[0].Message, ConfigHash: want.cfg.hash}
			return nil
		}
		if err := sql.Reload(ctx); err != nil {
			return err
		}
		refused = turnedAway(sql.Ping(ctx), want.cfg.hash)
		return nil
	}, func(err error) {
		m.settings.raised, m.settings.raisedAt = raised, m.now()
		m.settingsApplied(want, refused, err)
	})
}

// resetNames has synchronous_standby_names set again that somebody else changed.
func (m *Manager) resetNames(r role) {
	seen := m.observed.SyncStandbyNames
	if m.observed.at > m.settings.appliedAt && seen != r.syncNames() && m.setup(r).key() == m.settings.applied {
		m.log.Warn("synchronous_standby_names is not what was set; setting it again", "is", seen)
		m.settings.applied = ""
	}
}

// turnedAway: a library that every new session loads may keep everybody out, and nothing but a new session tells.
func turnedAway(err error, hash string) *instanceapi.ConfigError {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return nil
	}
	for _, text := range libraryErrors {
		if strings.HasPrefix(said.Message, text) {
			return &instanceapi.ConfigError{Parameter: "session_preload_libraries", Message: said.Message, ConfigHash: hash}
		}
	}
	return nil // too many connections, for example, or a disk that fails, is no fault of the configuration
}

// libraryErrors are how PostgreSQL begins to say that a library cannot be loaded (lc_messages is C). SQLSTATEs would not do: a
// disk that fails has the same.
var libraryErrors = []string{"could not access file ", "could not load library ", "incompatible library ", "access to library "}

// applyBeforeConsistency gives a standby that does not let anybody in yet the leader that was found since it was started: without
// a source it may never become consistent.
func (m *Manager) applyBeforeConsistency() {
	if m.lead != nil || m.now() < m.settings.notBefore {
		return
	}
	want, pm, term := m.setup(m.standbyRole()), m.pm, m.followedTerm()
	g, ok := m.generation()
	if !ok || want.role.leader == nil || want.key() == m.settings.applied {
		return
	}
	raised := false
	m.settings.applied = ""
	m.start(&job{name: "apply settings"}, func(ctx context.Context) error {
		if err := m.promise(term); err != nil {
			return err
		}
		control, err := m.programs.ControlData(ctx, g.Dir)
		if err != nil {
			return err
		}
		raised = want.raised(&control)
		if err := want.write(g, &control); err != nil {
			return err
		}
		return pm.Reload()
	}, func(err error) {
		m.settings.raised, m.settings.raisedAt = raised, m.now()
		if err != nil {
			m.settings.notBefore = m.now() + time.Second/2
			return
		}
		m.settings.applied, m.settings.starting = want.key(), want.cfg
	})
}

func (m *Manager) settingsApplied(want setup, refused *instanceapi.ConfigError, err error) {
	switch {
	case err != nil:
		m.settings.notBefore = m.now() + time.Second/2
	case refused != nil:
		m.log.Error("PostgreSQL refuses the configuration; the last good one stays in force", "parameter", refused.Parameter, "message", refused.Message)
		if m.settings.refused != nil && m.settings.refused.ConfigHash == refused.ConfigHash {
			m.fail("PostgreSQL refuses even the last good configuration: %s: %s", refused.Parameter, refused.Message)
			m.settings.notBefore = m.now() + 10*time.Second
			return
		}
		m.settings.refused = refused
	default:
		m.settings.applied, m.settings.appliedAt = want.key(), m.now()
		m.gate.reloaded(m.now(), want.role.syncNames())
		m.settings.hash = want.cfg.hash
		m.observedAt = 0
		m.took(want.cfg)
		m.log.Info("the configuration is in force", "hash", m.settings.hash)
	}
}

// sameFiles: the configuration changed in something that is not in PostgreSQL's files, so it is in force already.
func (m *Manager) sameFiles(cfg *config) {
	if cfg.hash == m.settings.hash {
		return
	}
	m.settings.hash = cfg.hash
	m.observedAt = 0
	m.took(cfg)
}

// took remembers a configuration that PostgreSQL accepted.
func (m *Manager) took(cfg *config) {
	refused := m.settings.refused
	if refused != nil && refused.ConfigHash == cfg.hash {
		return // its parameters are the last good ones
	}
	m.settings.refused = nil
	if m.settings.good == nil || m.settings.good.hash != cfg.hash {
		m.settings.good = cfg
		m.save(fileGood, cfg)
	}
}

// provenStart: the server came up with the configuration it was started with.
func (m *Manager) provenStart() {
	cfg := m.settings.starting
	if cfg == nil || !m.observed.ok {
		return
	}
	m.settings.starting = nil
	m.settings.hash = cfg.hash
	m.took(cfg)
	if refused := m.settings.refused; refused != nil && refused.ConfigHash == cfg.hash {
		return
	}
	m.settings.proven = cfg
	m.save(fileProven, cfg)
}

func (m *Manager) save(name string, cfg *config) {
	if old, err := m.volume.LoadFile(name); err == nil && bytes.Equal(old, cfg.raw) {
		return
	}
	if err := m.volume.SaveFile(name, cfg.raw); err != nil {
		m.log.Warn("the last good configuration cannot be saved", "error", err)
	}
}

// loadGood reads the configurations that worked before this process started.
func (m *Manager) loadGood() {
	for name, into := range map[string]**config{fileGood: &m.settings.good, fileProven: &m.settings.proven} {
		raw, err := m.volume.LoadFile(name)
		if err != nil {
			continue
		}
		if cfg, err := parseConfig(raw); err == nil {
			*into = cfg
		}
	}
}

// startRefused: a server did not start. If it was its first start with a configuration, that configuration is to blame.
func (m *Manager) startRefused(cfg *config, err error) bool {
	proven := m.settings.proven
	if proven == nil || cfg == nil || err == nil || sameSettings(proven, cfg) {
		return false
	}
	m.log.Error("PostgreSQL does not start with the new configuration; going back to the last one that it started with", "error", err)
	m.settings.refused = &instanceapi.ConfigError{Parameter: blamed(err, cfg), Message: err.Error(), ConfigHash: m.cfg.hash}
	m.settings.good = proven
	m.save(fileGood, proven)
	return true
}

// sameSettings: the two differ in nothing that PostgreSQL reads.
func sameSettings(a, b *config) bool {
	x, y := setup{opt: &Options{}, cfg: a}, setup{opt: &Options{}, cfg: b}
	return x.key() == y.key()
}

// blamed is the parameter that an error names.
func blamed(err error, cfg *config) string {
	for name := range cfg.Parameters {
		if strings.Contains(err.Error(), name) {
			return name
		}
	}
	return "postgresql.conf"
}

// commandLine are the settings without which the manager would not find the server.
func (s setup) commandLine() map[string]string {
	return map[string]string{"port": strconv.Itoa(s.opt.PortPG), "unix_socket_directories": s.opt.RunDir}
}

// connect returns the connection to the server over its unix socket.
func (s setup) connect() pgsql.Server {
	return pgsql.New(pgsql.Options{SocketDir: s.opt.RunDir, Port: s.opt.PortPG, Major: s.cfg.MajorVersion})
}
