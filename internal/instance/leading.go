package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// readyToPromote is how long a standby that runs may take to let anybody in before its promotion is given up.
const readyToPromote = time.Minute

// takeLead makes PostgreSQL the primary: promotes the running standby, or starts what is down.
func (m *Manager) takeLead(l *leadership) {
	pm, sql := m.pm, m.sql
	if pm != nil {
		l.promote = true // a standby that was started while the lease was being taken
	}
	files := m.setup(m.leaderRole())
	in, inErr := m.roleInputs()
	g, whole := m.generation()
	var server *started
	m.start(&job{name: "take the lead"}, func(ctx context.Context) error {
		ack, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := m.guard.AwaitAck(ack)
		cancel()
		if err != nil {
			return fmt.Errorf("the guard did not confirm its deadline: %w", err)
		}
		if l.promote && pm != nil {
			ready, cancel := context.WithTimeout(ctx, readyToPromote)
			err := pm.WaitReady(ready)
			cancel()
			if err != nil {
				return err
			}
			if err := files.write(g, nil); err != nil {
				return err
			}
			if err := sql.Reload(ctx); err != nil {
				return err
			}
			return m.promote(ctx, g, sql, l)
		}
		if l.init && !whole {
			if inErr != nil {
				return inErr
			}
			if err := m.initialize(ctx, files, in); err != nil {
				return err
			}
		}
		server, err = m.startPrimary(ctx, files, l)
		return err
	}, func(err error) {
		if server != nil {
			m.adopt(server)
		}
		if server != nil || l.promote {
			m.settings.applied, m.settings.appliedAt, m.settings.starting = files.key(), m.now(), files.cfg
			m.gate.reloaded(m.now(), files.role.syncNames())
		}
		if err != nil {
			if server != nil && server.pm.State() == pgproc.ProcGone && !errors.Is(err, context.Canceled) {
				m.startRefused(files.cfg, err) // PostgreSQL itself did not start with it
			}
			m.metrics.promotionFailures.Inc()
			m.fail("PostgreSQL cannot be made the primary: %v", err)
			m.step(election.EventPromoteFailed{Reason: err.Error()})
			return
		}
		if m.lead == l {
			m.failure = ""
			m.promoted(l)
		}
	})
}

// promoted: PostgreSQL accepts writes. The position may be a moment old; it only serves the record.
func (m *Manager) promoted(l *leadership) {
	l.done = true
	m.metrics.promotions.Inc()
	m.rolesDone = ""
	m.slotsAt = 0
	m.log.Info("PostgreSQL accepts writes", "term", l.term)
	m.observedAt = 0 // look again at once
	m.step(election.EventPromoted{Position: m.observed.position()})
	if l.promote || l.begun {
		// pg_rewind of the others reads the new timeline from the control file, which a checkpoint writes.
		sql := m.sql
		m.spawn(func(ctx context.Context) func() {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
			defer cancel()
			if err := sql.Checkpoint(ctx); err != nil {
				m.log.Warn("the checkpoint after the promotion failed", "error", err)
			}
			return func() { l.checkpointed = true }
		})
	} else {
		l.checkpointed = true
	}
}

// promote makes the running standby a primary, on a timeline that nobody else can have begun.
func (m *Manager) promote(ctx context.Context, g pgproc.Generation, sql pgsql.Server, l *leadership) error {
	seen, err := sql.Observe(ctx)
	if err != nil {
		return err
	}
	if err := reserveTimelines(g.Dir, seen.Timeline, l.timeline, m.owner()); err != nil {
		return err
	}
	return sql.Promote(ctx)
}

// started is a server that a job started.
type started struct {
	pm    *pgproc.Postmaster
	sql   pgsql.Server
	floor election.Position
	names string // synchronous_standby_names
}

// adopt makes the loop know the server that a job started.
func (m *Manager) adopt(s *started) {
	if s.pm == nil {
		return
	}
	m.pm, m.sql = s.pm, s.sql
	m.observed = observation{floor: s.floor, since: m.now()}
	m.gate.started(s.names)
	m.observedAt = 0
}

// startPrimary starts the data that is here as primary. Only the holder of the lease does so.
func (m *Manager) startPrimary(ctx context.Context, files setup, l *leadership) (*started, error) {
	g, ok, err := m.volume.Current()
	if err != nil || !ok || g.Incomplete != "" {
		return nil, errors.Join(err, pgproc.ErrIncomplete)
	}
	standby := isStandby(g) // then it begins a new timeline
	if err := files.write(g, nil); err != nil {
		return nil, err
	}
	s, err := m.launch(ctx, g, files, true)
	if err == nil && standby {
		l.begun = true
		err = m.promote(ctx, g, s.sql, l)
	}
	return s, err
}

// launch starts a server with the files that are in place and, if asked to, waits until it accepts connections.
func (m *Manager) launch(ctx context.Context, g pgproc.Generation, files setup, ready bool) (*started, error) {
	floor, err := m.programs.LastWAL(ctx, g.Dir)
	if err != nil && (ready || !errors.Is(err, pgproc.ErrWALMissing)) {
		return nil, err
	}
	pm, err := m.programs.Start(pgproc.StartOptions{Dir: g.Dir, Root: m.volume.Root, Settings: files.commandLine(), Volume: m.volume})
	if err != nil {
		return nil, err
	}
	s := &started{pm: pm, sql: files.connect(), floor: floor, names: files.role.syncNames()}
	if !ready {
		return s, nil
	}
	return s, pm.WaitReady(ctx)
}

// initialize makes the new database: initdb, then a start without network in which roles, database and the user's SQL
// are made. Only a generation that has all of it is put in force.
func (m *Manager) initialize(ctx context.Context, files setup, roles roleInputs) error {
	if virgin, err := m.volume.Virgin(); err != nil || !virgin {
		return errors.Join(err, pgproc.ErrNotEmpty)
	}
	if err := m.volume.RemoveOld(); err != nil {
		return err
	}
	g, err := m.volume.Begin("initdb")
	if err != nil {
		return err
	}
	in := files.cfg.InitDB
	m.log.Info("making a new database", "encoding", in.Encoding, "locale", in.Locale, "dataChecksums", in.DataChecksums)
	segment, err := postgres.WALSegmentMB(files.cfg.Parameters)
	if err != nil {
		return err
	}
	if err := m.programs.InitDB(ctx, g, pgproc.InitDBOptions{
		Superuser: naming.RoleSuperuser, Encoding: in.Encoding, Locale: in.Locale, DataChecksums: in.DataChecksums, WALSegmentMB: segment,
	}); err != nil {
		return err
	}
	if err := files.write(g, nil); err != nil {
		return err
	}
	if err := m.populate(ctx, g, files, roles); err != nil {
		return err
	}
	return m.volume.Flip(g)
}

func (m *Manager) populate(ctx context.Context, g pgproc.Generation, files setup, roles roleInputs) error {
	in := files.cfg.InitDB
	settings := files.commandLine()
	settings["listen_addresses"] = ""
	settings["synchronous_standby_names"] = ""
	pm, err := m.programs.Start(pgproc.StartOptions{Dir: g.Dir, Root: m.volume.Root, Settings: settings, Volume: m.volume})
	if err != nil {
		return err
	}
	sql := files.connect()
	defer sql.Close()
	err = pm.WaitReady(ctx)
	if err == nil {
		err = m.makeRoles(ctx, sql, roles)
	}
	for i := 0; err == nil && i < len(in.SQL); i++ {
		if err = sql.ExecScript(ctx, in.Database, in.SQL[i]); err != nil {
			err = fmt.Errorf("bootstrap.initdb.sql[%d]: %w", i, err)
		}
	}
	sql.Close()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if stopErr := pm.StopFast(stop); stopErr != nil {
		return errors.Join(err, stopErr, pgproc.KillTree(stop, m.volume.Root))
	}
	return err
}

// maintain keeps a primary as declared: settings, roles and passwords, slots of the members.
func (m *Manager) maintain() {
	if m.pm == nil || !m.observed.ok || m.observed.InRecovery {
		return
	}
	m.applySettings()
	if m.job == nil {
		m.keepRoles()
	}
	m.keepSlots()
	m.keepService()
}
