package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

const (
	// patience with a standby that does not stream while its leader is up, before it is rewound or cloned anew.
	patienceHint  = 3 * time.Second // PostgreSQL's log says that it cannot work
	patienceBlind = 2 * time.Minute // no reason is known
	// cloneWindow and clonesPerWindow limit clones that replace data.
	cloneWindow     = 24 * time.Hour
	clonesPerWindow = 3
	// askLeaderEvery is how often a leader is asked whether it is up, before a standby is mended.
	askLeaderEvery = time.Second
	retryMin       = time.Second
	retryMax       = time.Minute
)

// hint is what PostgreSQL's log said of a standby that cannot stream.
type hint string

const (
	hintRewind  hint = "diverged"
	hintClone   hint = "WAL is gone"
	hintRestart hint = "a setting is too low"
)

// repair remembers what was tried to make the instance a standby.
type repair struct {
	since     time.Duration // of following the present leader
	hint      hint
	hintText  string
	notBefore time.Duration
	delay     time.Duration
	rewinds   int
	clones    []time.Duration // begun, that replace data
	asking    bool            // the leader, whether it is up
	askedAt   time.Duration
	what      instanceapi.State
}

// later puts the next try off, doubling.
func (r *repair) later(now time.Duration) {
	r.delay = min(max(2*r.delay, retryMin), retryMax)
	r.notBefore = now + r.delay
}

// crashed: PostgreSQL ended by itself; a loop of starts shall not eat the machine.
func (r *repair) crashed(now time.Duration) { r.later(now) }

// isStandby says whether the data was last run as a standby: its file standby.signal is there.
func isStandby(g pgproc.Generation) bool {
	_, err := os.Stat(filepath.Join(g.Dir, "standby.signal"))
	return err == nil
}

// actFollow makes this instance a standby of the leader: clone, rewind, start, or mend what does not stream.
func (m *Manager) actFollow() {
	leader := m.cfg.member(m.follow.Leader)
	if leader == nil || m.now() < m.repair.notBefore {
		return
	}
	g, ok, err := m.volume.Current()
	switch {
	case err != nil:
		m.fail("the data volume is damaged: %v; see docs/runbooks/volume.md", err)
	case m.pm != nil && m.observed.ok && !m.observed.InRecovery:
		m.kill("it runs as primary without holding the lease")
	case m.pm != nil:
		m.applySettings()
		m.keepSlots()
		m.mend(g, leader)
	case !ok:
		m.clone(leader, false)
	case g.Incomplete != "":
		m.clone(leader, true)
	case m.foreign(g):
		m.fail("the data on the volume has system identifier %s, the cluster's is %s: this is another database's volume. "+
			"Delete the claim and the pod to clone anew, or give the right volume back", m.systemIdentifier(g, ok), m.lease.Record.SystemIdentifier)
		m.repair.later(m.now())
	case !isStandby(g):
		m.rewind(g, leader)
	case m.repair.hint == hintClone: // it did not even start
		m.clone(leader, true)
	default:
		m.startStandby(g)
	}
}

func (m *Manager) foreign(g pgproc.Generation) bool {
	want := m.lease.Record.SystemIdentifier
	have := m.systemIdentifier(g, true)
	return want != "" && have != "" && want != have
}

// startStandby starts the data as a standby of the leader, if there is one.
func (m *Manager) startStandby(g pgproc.Generation) {
	files, term := m.setup(m.standbyRole()), m.followedTerm()
	var server *started
	raised := false
	m.start(&job{name: "start"}, func(ctx context.Context) error {
		if err := m.promise(term); err != nil {
			return err
		}
		if err := pgproc.SetStandby(g.Dir, true); err != nil {
			return err
		}
		control, err := m.programs.ControlData(ctx, g.Dir)
		if err != nil {
			return err
		}
		if err := files.write(g, &control); err != nil {
			return err
		}
		raised = files.raised(&control)
		server, err = m.launch(ctx, g, files, false)
		return err
	}, func(err error) {
		if server != nil {
			m.adopt(server)
			m.settings.applied, m.settings.starting = files.key(), files.cfg
			m.settings.raised, m.settings.raisedAt = raised, m.now()
		}
		if err != nil {
			m.startFailed(err)
		}
	})
}

// followedTerm is the term of the leader that is followed: it is promised before anything comes in from there.
func (m *Manager) followedTerm() int64 {
	if m.follow == nil {
		return 0
	}
	return m.follow.Term
}

// startFailed puts the next try off.
func (m *Manager) startFailed(err error) {
	m.fail("PostgreSQL does not start: %v", err)
	m.repair.later(m.now())
}

// source is the leader as a server to copy from.
func (m *Manager) source(leader *instanceapi.Member) pgproc.Source {
	dir := m.privateTLS("peer")
	return pgproc.Source{
		Host: leader.Host, Port: leader.Port, User: naming.RoleReplication, Database: "postgres", SSLMode: "verify-ca",
		SSLCert: filepath.Join(dir, "tls.crt"), SSLKey: filepath.Join(dir, "tls.key"),
		SSLRootCert: filepath.Join(m.privateTLS("server"), "ca.crt"), ApplicationName: m.opt.Pod + "-copy",
		ConnectTimeout: 5 * time.Second,
	}
}

// errNotYet: the leader is not ready to be copied from; nothing is wrong.
var errNotYet = errors.New("the leader is not ready yet")

// leaderStatus asks the leader for its status; errNotYet unless it accepts writes.
func (m *Manager) leaderStatus(ctx context.Context, leader *instanceapi.Member) (instanceapi.Status, error) {
	s, err := m.peerStatus(ctx, leader.Target())
	if err != nil {
		return s, fmt.Errorf("%w: %w", errNotYet, err)
	}
	if !s.Primary || !s.Checkpointed {
		return s, errNotYet
	}
	return s, nil
}

// clone copies the leader into a new generation beside the old one, and puts it in force when it is complete.
// replace: there is data here that it will replace, which is limited.
func (m *Manager) clone(leader *instanceapi.Member, replace bool) {
	r := &m.repair
	if replace {
		for len(r.clones) > 0 && m.now()-r.clones[0] > cloneWindow {
			r.clones = r.clones[1:]
		}
		if len(r.clones) >= clonesPerWindow {
			m.fail("a new clone of this standby was begun %d times in a day, and it is broken again: %s; see docs/runbooks/standby.md", len(r.clones), r.hintText)
			r.later(m.now())
			return
		}
	}
	begun := false
	r.what = instanceapi.StateCloning
	source, slot, volume, term := m.source(leader), naming.Slot(m.opt.Pod), m.volume, m.followedTerm()
	m.start(&job{name: "clone", abandonable: true}, func(ctx context.Context) error {
		if _, err := m.leaderStatus(ctx, leader); err != nil {
			return err
		}
		if err := m.promise(term); err != nil {
			return err
		}
		begun = true
		return m.copyFrom(ctx, volume, source, slot)
	}, func(err error) {
		r.what = ""
		if replace && begun && !errors.Is(err, context.Canceled) {
			r.clones = append(r.clones, m.now()) // a failed one has cost the primary as much
		}
		if errors.Is(err, errNotYet) || errors.Is(err, context.Canceled) {
			r.notBefore = m.now() + 200*time.Millisecond
			return
		}
		if err != nil {
			m.fail("the clone from %s failed: %v", leader.Name, err)
			r.later(m.now())
			return
		}
		m.metrics.clones.Inc()
		r.hint, r.rewinds, r.delay, m.failure = "", 0, 0, ""
		m.identity.dir, m.unfit = "", false
		m.observed = observation{}
	})
}

// copyFrom makes the base backup. The old generation goes only after the new one is in force.
func (m *Manager) copyFrom(ctx context.Context, volume *pgproc.Volume, source pgproc.Source, slot string) error {
	g, err := volume.Begin("clone")
	if err != nil {
		return err
	}
	err = m.programs.BaseBackup(ctx, g, pgproc.BaseBackupOptions{Source: source, Slot: slot})
	if err == nil {
		err = pgproc.SetStandby(g.Dir, true)
	}
	if err == nil {
		err = volume.Flip(g)
	}
	if removeErr := volume.RemoveOld(); removeErr != nil {
		m.log.Warn("an old generation cannot be removed", "error", removeErr)
	}
	return err
}

// rewind makes the data of a former primary a standby's: pg_rewind, else a clone.
func (m *Manager) rewind(g pgproc.Generation, leader *instanceapi.Member) {
	m.repair.what = instanceapi.StateRewinding
	source, files := m.source(leader), m.setup(m.standbyRole())
	impossible := false
	m.start(&job{name: "rewind", abandonable: false}, func(ctx context.Context) error {
		s, err := m.leaderStatus(ctx, leader)
		if err != nil {
			return err
		}
		// pg_rewind may have to run crash recovery here first: with the settings of this instance.
		if err := files.write(g, nil); err != nil {
			return err
		}
		result, err := m.programs.Rewind(ctx, m.volume, g, pgproc.RewindOptions{Source: source, SourceTimeline: s.Position.Timeline})
		if err != nil {
			impossible = !errors.Is(err, pgproc.ErrSourceTimeline) && !errors.Is(err, pgproc.ErrSourceUnreachable)
			return err
		}
		m.log.Info("rewound", "diverged", result.Rewound, "at", result.DivergedAt, "timeline", result.DivergedTimeline)
		return pgproc.SetStandby(g.Dir, true)
	}, func(err error) { m.rewound(leader, err, impossible) })
}

func (m *Manager) rewound(leader *instanceapi.Member, err error, impossible bool) {
	r := &m.repair
	r.what = ""
	m.observed, m.unfit = observation{}, false
	switch {
	case err == nil:
		m.metrics.rewinds.Inc()
		r.hint, r.delay, m.failure = "", 0, ""
	case errors.Is(err, errNotYet):
		r.notBefore = m.now() + 200*time.Millisecond
	case impossible && !errors.Is(err, context.Canceled):
		r.rewinds++
		r.hintText = err.Error()
		if r.rewinds >= 2 || errors.Is(err, pgproc.ErrIncomplete) {
			m.clone(leader, true)
			return
		}
		r.later(m.now())
	default:
		r.later(m.now())
	}
}

// mend looks after a standby that runs and does not stream although its leader is up.
func (m *Manager) mend(g pgproc.Generation, leader *instanceapi.Member) {
	r := &m.repair
	if m.job != nil {
		return
	}
	// Replay has stopped although WAL may still come in: the primary has a higher setting than this server was started with. Its control
	// data knows the new one by now, and the next start goes by it.
	if r.hint == hintRestart {
		r.hint = ""
		r.later(m.now())
		m.log.Warn("this standby is restarted", "reason", r.hintText)
		m.stopPostgres("restart for higher settings", nil)
		return
	}
	if m.observed.streaming() {
		r.hint, r.delay, r.rewinds = "", 0, 0
		m.failure = ""
		return
	}
	quiet := m.now() - max(m.observed.streamed, r.since, m.observed.since)
	if quiet > patienceHint && (r.hint == hintClone || r.hint == hintRewind) || quiet > patienceBlind && m.observed.ok {
		m.mendLeader(g, leader, quiet)
	}
}

// mendLeader mends what does not stream once its leader has said that it is up: while it is not, there is nothing to stream, and
// reads are served meanwhile.
func (m *Manager) mendLeader(g pgproc.Generation, leader *instanceapi.Member, quiet time.Duration) {
	r := &m.repair
	if r.asking || m.now()-r.askedAt < askLeaderEvery {
		return
	}
	r.asking, r.askedAt = true, m.now()
	follow := m.follow
	m.spawn(func(ctx context.Context) func() {
		_, err := m.leaderStatus(ctx, leader)
		return func() {
			r.asking = false
			if err != nil || m.job != nil || m.pm == nil || m.follow != follow || m.observed.streaming() {
				return
			}
			m.mendNow(g, leader, quiet)
		}
	})
}

// mendNow does what the hint says, or the little that may help when there is none.
func (m *Manager) mendNow(g pgproc.Generation, leader *instanceapi.Member, quiet time.Duration) {
	r := &m.repair
	switch {
	case r.hint == hintClone && quiet > patienceHint:
		m.log.Warn("this standby is cloned anew", "reason", r.hintText)
		m.stopPostgres("stop for a clone", func() { m.clone(leader, true) })
	case r.hint == hintRewind && quiet > patienceHint:
		m.log.Warn("this standby is rewound", "reason", r.hintText)
		m.stopPostgres("stop for a rewind", func() { m.rewind(g, leader) })
	case quiet > patienceBlind && m.observed.ok:
		m.log.Warn("this standby does not stream for no known reason; PostgreSQL is restarted")
		r.later(m.now())
		m.stopPostgres("restart of a standby that does not stream", nil)
	}
}

// hints in the messages of a standby's WAL receiver and startup process.
var hints = []struct {
	text string
	hint hint
}{
	{"has already been removed", hintClone},
	{"does not contain minimum recovery point", hintClone},
	{"is ahead of the WAL flush position", hintRewind},
	{"forked off current database system timeline", hintRewind},
	{"is behind recovery timeline", hintRewind},
	{"could not find required WAL segment", hintClone},
	{"can no longer get changes from replication slot", hintClone},
	{"hot standby is not possible because of insufficient parameter settings", hintRestart},
}

// hintOf reads a message of PostgreSQL. Only what its own processes say counts: a client can put any text into an error of its own.
func hintOf(r pgproc.LogRecord) hint {
	if r.Program != "postgres" || r.Backend != "startup" && r.Backend != "walreceiver" {
		return ""
	}
	for _, h := range hints {
		if strings.Contains(r.Message, h.text) {
			return h.hint
		}
	}
	return ""
}
