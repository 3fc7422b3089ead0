package instance

import (
	"context"
	"errors"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

const (
	// observeSteady and observeBusy are how often PostgreSQL is looked at, in calm and while something changes.
	observeSteady = time.Second
	observeBusy   = 200 * time.Millisecond
	// observeTimeout of one look.
	observeTimeout = 3 * time.Second
	// hungAfter: a primary that answered nothing for so long is taken for hung.
	hungAfter = 10 * time.Second
	// stoppedAfter: a postmaster in the state "stopped" for so long is not coming back by itself.
	stoppedAfter = time.Second
)

// observation is the last look at PostgreSQL.
type observation struct {
	pgsql.Observation
	ok bool
	// floor is the end of WAL that was on disk when the server was started: what it has, whatever it says while it recovers.
	floor election.Position
	// since is when the server was started; failing since when looks fail; stopped since when the postmaster is stopped.
	since, failing, stopped time.Duration
	// streamed is when the standby was last seen to stream; at is when the last look began.
	streamed, at time.Duration
}

func (o *observation) streaming() bool {
	return o.ok && o.InRecovery && o.WALReceiver.Streaming()
}

// position up to which WAL is on disk here.
func (o *observation) position() election.Position {
	if !o.ok {
		return o.floor
	}
	return later(o.floor, election.Position{Timeline: o.Timeline, LSN: uint64(o.FlushLSN)})
}

// busy: something is changing, so look more often.
func (m *Manager) busy() bool {
	return !m.observed.ok || m.job != nil || m.now()-m.observed.since < 10*time.Second ||
		(m.lead == nil && !m.observed.streaming()) || (m.lead != nil && m.unsettled())
}

// unsettled: the synchronous standbys in force are not those that are wanted, or a member does not stream.
func (m *Manager) unsettled() bool {
	names, _ := m.streamers()
	return !m.syncCertain() || m.observed.SyncStandbyNames != syncNames(m.lead.sync) || len(names) < len(m.cfg.Members)-1
}

// observe looks at PostgreSQL when it is time to.
func (m *Manager) observe() {
	every := observeSteady
	if m.busy() {
		every = observeBusy
	}
	if m.observing || m.now()-m.observedAt < every {
		return
	}
	m.observedAt = m.now()
	if m.pm == nil || !m.pm.Ready() {
		m.tellLocal()
		return
	}
	m.observing = true
	pm, sql, began := m.pm, m.sql, m.now()
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, observeTimeout)
		defer cancel()
		seen, err := sql.Observe(ctx)
		return func() {
			m.observing = false
			if m.pm == pm {
				m.seen(began, seen, err)
			}
		}
	})
}

// seen takes in a look at PostgreSQL that began at that time.
func (m *Manager) seen(began time.Duration, seen pgsql.Observation, err error) {
	o := &m.observed
	if err != nil {
		if o.failing == 0 {
			o.failing = m.now()
		}
		m.log.Debug("PostgreSQL does not answer", "error", err)
		if m.leading() && m.job == nil && m.now()-o.failing > hungAfter {
			m.kill("it answered nothing for " + hungAfter.String())
		}
		return
	}
	o.Observation, o.ok, o.failing, o.at, m.unfit = seen, true, 0, began, false
	m.recognize(seen.SystemIdentifier)
	m.gate.looked(began, seen.CheckpointerWait, pgproc.Stopped(seen.CheckpointerPID))
	if o.streaming() {
		o.streamed = m.now()
	}
	m.tellLocal()
	m.act()
}

// tellLocal gives the core the state of PostgreSQL.
func (m *Manager) tellLocal() {
	g, ok, err := m.volume.Current()
	local := election.Local{
		HasData: ok, NeedsRepair: err != nil || g.Incomplete != "" || m.unfit, SystemIdentifier: m.systemIdentifier(g, ok),
	}
	if m.pm != nil && m.observed.ok {
		local.Running = m.observed.failing == 0
		local.InRecovery = m.observed.InRecovery
		local.Position = m.observed.position()
		local.Standbys, local.Flushed = m.streamers()
		if num, names, err := postgres.ParseSyncStandbyNames(m.observed.SyncStandbyNames); err == nil {
			local.SyncInForce = election.Quorum{Standbys: names, Num: num}
		}
		if !m.syncCertain() {
			local.SyncInForce = unknownSync
		}
	} else if ok { // down, or started and not seen yet: what its files say
		local.Position = m.observed.floor
		local.InRecovery = isStandby(g)
	}
	m.step(election.EventLocal{Local: local})
}

// unknownSync equals no quorum that the core may wait for.
var unknownSync = election.Quorum{Num: 1}

// syncCertain: what PostgreSQL shows of synchronous_standby_names is what is wanted, and no file is on disk, nor a job under way,
// by which an older value could come into force at the next reload, whoever asks for it, and commits do wait.
func (m *Manager) syncCertain() bool {
	if m.lead == nil {
		return true
	}
	want := m.leaderRole()
	return m.job == nil && m.settings.applied == m.setup(want).key() && (m.gate.shut || want.syncNames() == "")
}

// identity of the data directory in force.
type identity struct{ dir, system string }

// recognize remembers whose data the running server has. A database that was just made here is known by nothing else, and the record has to
// name it from the first term on: as long as it does not, an instance without data may make another one.
func (m *Manager) recognize(system string) {
	if g, ok := m.generation(); ok && system != "" {
		m.identity = identity{g.Dir, system}
	}
}

// systemIdentifier of the data; "" until it was read.
func (m *Manager) systemIdentifier(g pgproc.Generation, ok bool) string {
	if m.observed.ok && m.observed.SystemIdentifier != "" {
		return m.observed.SystemIdentifier
	}
	if !ok || m.identity.dir != g.Dir {
		return ""
	}
	return m.identity.system
}

// examine reads what is known only from the files of a server that is down: whose data it is, and where its WAL ends.
// It says whether there was something to read.
func (m *Manager) examine() bool {
	g, ok := m.generation()
	if !ok || m.pm != nil || (m.identity.dir == g.Dir && (m.observed.floor.LSN != 0 || m.unfit)) || m.now() < m.examineAt {
		return false
	}
	var system string
	var end election.Position
	m.start(&job{name: "examine"}, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		control, err := m.programs.ControlData(ctx, g.Dir)
		if err != nil {
			return err
		}
		system = control.SystemIdentifier
		end, err = m.programs.LastWAL(ctx, g.Dir)
		return err
	}, func(err error) {
		if system != "" {
			m.identity = identity{g.Dir, system}
		}
		m.observed.floor = end
		if m.unfit = errors.Is(err, pgproc.ErrWALMissing); err != nil && !m.unfit {
			m.fail("the data directory cannot be read: %v", err)
			m.examineAt = m.now() + 5*time.Second
		}
		m.observedAt = 0
		m.tellLocal()
	})
	return true
}

// streamers are the members that stream from here and have caught up, and how far each has flushed.
func (m *Manager) streamers() (names []string, flushed []uint64) {
	for _, member := range m.cfg.Members {
		for _, s := range m.observed.Replication {
			if s.ApplicationName == member.Name && s.State == "streaming" {
				names, flushed = append(names, member.Name), append(flushed, uint64(s.FlushLSN))
				break
			}
		}
	}
	return names, flushed
}

// watchPostmaster notices the end and the standstill of the postmaster.
func (m *Manager) watchPostmaster() {
	if m.pm == nil || m.fencing {
		return
	}
	select {
	case <-m.pm.Done():
		if m.job == nil || m.job.name == "apply settings" {
			m.died()
		}
		return
	default:
	}
	o := &m.observed
	if m.pm.State() != pgproc.ProcStopped {
		o.stopped = 0
	} else if o.stopped == 0 {
		o.stopped = m.now()
	} else if m.now()-o.stopped > stoppedAfter {
		m.kill("the postmaster is stopped (signal STOP)")
	}
}

// died: the postmaster ended by itself. What is left of its tree is killed before anyone is told.
func (m *Manager) died() {
	m.log.Error("PostgreSQL ended unexpectedly", "error", m.pm.Err())
	m.metrics.crashes.Inc()
	if m.lead == nil {
		m.startRefused(m.settings.starting, m.pm.Err()) // a primary's start is looked at where it is waited for
	}
	m.kill("its postmaster ended")
}

// kill ends PostgreSQL's tree because it is dead or hung, and tells the core.
func (m *Manager) kill(why string) {
	if m.fencing {
		return
	}
	m.log.Warn("PostgreSQL's processes are killed", "reason", why)
	m.report.setHeld(0)
	m.fencing = true
	if m.job != nil {
		m.job.cancel()
	}
	m.repair.crashed(m.now())
	root := m.volume.Root
	m.spawn(func(ctx context.Context) func() {
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := pgproc.KillTree(call, root)
			cancel()
			if err == nil {
				return m.killed
			}
			m.log.Error("PostgreSQL's processes cannot be ended yet", "error", err)
		}
		return nil
	})
}

func (m *Manager) killed() {
	if m.job != nil {
		m.spawn(func(ctx context.Context) func() {
			if wait(ctx, 20*time.Millisecond) != nil {
				return nil
			}
			return m.killed
		})
		return
	}
	if m.pm != nil && m.pm.State() != pgproc.ProcGone && m.pm.State() != pgproc.ProcZombie {
		m.fencing = false
		m.kill("PostgreSQL was started meanwhile") // by the job that was cut off
		return
	}
	m.fencing = false
	m.down()
	m.lead = nil
	owed := m.fenceOwed
	m.fenceOwed = false
	m.step(election.EventPostgresDied{})
	if owed { // the core asked for a fence while the tree was being killed
		m.step(election.EventFenced{})
	}
}
