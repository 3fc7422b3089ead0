package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgsql"
)

// act begins the next piece of work, if there is any and none is going on. It is called after everything that happened.
func (m *Manager) act() {
	if m.job != nil || m.fencing || m.exiting {
		return
	}
	if m.pm == nil && m.stop == nil && m.examine() {
		return
	}
	switch {
	case m.stop != nil:
		m.stopForHandover(*m.stop)
	case m.sealing != nil && m.now() >= m.sealAfter:
		m.seal(*m.sealing)
	case m.stopping:
		m.wind()
	case m.cfg.Suspend && (m.lead == nil || m.lead.done): // leadership that was won is taken up first; the core then hands it over
		m.hibernate()
	case m.restart != nil:
		m.restartPostgres()
	case m.lead != nil && !m.lead.done:
		m.takeLead(m.lead)
	case m.lead != nil:
		m.maintain()
	case m.follow != nil:
		m.actFollow()
	default:
		m.actLeaderless()
	}
}

// actLeaderless: no leader is known. A standby's data is started without a sender, so that it can be asked and promoted.
// The data of a former primary stays down: it has to be rewound to the next leader.
func (m *Manager) actLeaderless() {
	if m.pm != nil {
		m.applySettings()
		return
	}
	g, ok := m.generation()
	if !ok || m.now() < m.repair.notBefore || !isStandby(g) {
		return
	}
	m.startStandby(g)
}

// hibernate keeps PostgreSQL down while the cluster is suspended. The primary goes first, through the core.
func (m *Manager) hibernate() {
	if m.lead != nil || m.pm == nil {
		return
	}
	if r := m.lease.Record; r.Released == nil || !r.Released.Suspended {
		return
	}
	m.stopPostgres("stop for suspension", nil)
}

// stopPostgres shuts a standby down; then runs after it.
func (m *Manager) stopPostgres(name string, then func()) {
	pm := m.pm
	root := m.volume.Root
	m.start(&job{name: name}, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := pm.StopFast(ctx)
		if err != nil {
			err = errors.Join(err, pgproc.KillTree(context.WithoutCancel(ctx), root))
		}
		return err
	}, func(error) {
		m.down()
		if then != nil {
			then()
		}
	})
}

// generation in force; false when there is none that could be started.
func (m *Manager) generation() (pgproc.Generation, bool) {
	g, ok, err := m.volume.Current()
	if err != nil {
		m.fail("the data volume is damaged: %v; see docs/runbooks/volume.md", err)
		return g, false
	}
	return g, ok && g.Incomplete == ""
}

// fail says what a person has to look at. It is cleared when something succeeds.
func (m *Manager) fail(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if s != m.failure {
		m.failure = s
		m.log.Error(s)
	}
}

// seal makes sure that no WAL of a lower term comes in any more, then tells where it ends here.
func (m *Manager) seal(e election.EffectSeal) {
	g, ok := m.generation()
	pm, sql := m.pm, m.sql
	if m.follow != nil && m.follow.Term < e.Term {
		m.follow = nil // a leader of that term or a later one may have been found while the seal waited for its turn
	}
	if e.Term > m.sealed {
		m.sealed = e.Term
	}
	running := pm != nil && m.observed.ok && m.observed.InRecovery
	floor, files := m.observed.floor, m.setup(role{})
	var at election.Position
	m.start(&job{name: "seal"}, func(ctx context.Context) error {
		if err := m.promise(e.Term); err != nil {
			return err
		}
		if !ok {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if running {
			var err error
			if at, err = m.stopReceiving(ctx, g, files, sql); err == nil {
				at = later(at, floor)
				return nil
			}
			m.log.Warn("the WAL receiver cannot be stopped; PostgreSQL is killed to be sure", "error", err)
		}
		if pm != nil {
			if err := pgproc.KillTree(ctx, m.volume.Root); err != nil {
				return err
			}
			running = false
		}
		var err error
		at, err = m.programs.LastWAL(ctx, g.Dir)
		return err
	}, func(err error) {
		if pm != nil && !running && ok {
			m.down()
		}
		if errors.Is(err, pgproc.ErrWALMissing) { // it never acknowledged anything since it was copied
			m.unfit, err = true, nil
		}
		if pm != nil && !running && ok {
			m.tellLocal() // before EventSealed: the core may take the lease in that very step
		}
		if err != nil {
			m.sealAfter = m.now() + time.Second // the effect stays, unless a leader is found meanwhile
			return
		}
		if m.sealing != nil && m.sealing.Term == e.Term {
			m.sealing = nil
		}
		m.settings.applied = "" // the files were written for no leader
		m.step(election.EventSealed{Term: e.Term, Position: at, Empty: !ok})
	})
}

func later(a, b election.Position) election.Position {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// stopForHandover shuts the primary down so that the successor has every commit.
func (m *Manager) stopForHandover(e election.EffectStop) {
	m.stop = nil
	pm, sql := m.pm, m.sql
	g, ok := m.generation()
	if pm == nil || !ok {
		m.step(election.EventStopped{})
		return
	}
	m.report.setHeld(0)
	successor := m.cfg.member(e.Successor)
	var end election.Position
	m.start(&job{name: "stop for hand-over"}, func(ctx context.Context) error {
		// A checkpoint first, so that the one of the shutdown is short.
		call, cancel := context.WithTimeout(ctx, 20*time.Second)
		if err := sql.Checkpoint(call); err != nil {
			m.log.Warn("the checkpoint before the hand-over failed", "error", err)
		}
		cancel()
		call, cancel = context.WithTimeout(ctx, 60*time.Second)
		defer cancel()
		if err := pm.StopFast(call); err != nil {
			return errors.Join(err, pgproc.KillTree(context.WithoutCancel(ctx), m.volume.Root))
		}
		control, err := m.programs.ControlData(call, g.Dir)
		if err != nil {
			return err
		}
		if !control.CleanShutdown() {
			return errors.New("PostgreSQL did not shut down cleanly")
		}
		if end, err = m.programs.LastWAL(call, g.Dir); err != nil {
			return err
		}
		m.awaitSuccessor(call, successor, end)
		return nil
	}, func(err error) {
		m.down()
		m.lead = nil
		m.log.Info("PostgreSQL is stopped", "clean", err == nil, "end", end.String())
		m.step(election.EventStopped{Clean: err == nil, End: end})
	})
}

// awaitSuccessor waits a moment until the successor has the end of WAL. PostgreSQL itself waits for its standbys at a fast
// shutdown; this only keeps the successor from being told before it knows.
func (m *Manager) awaitSuccessor(ctx context.Context, member *instanceapi.Member, end election.Position) {
	if member == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		s, err := m.peers.Status(ctx, member.Target())
		if err == nil && s.Position.Compare(end) >= 0 {
			return
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			m.log.Warn("the successor does not have the end of WAL", "successor", member.Name, "end", end.String(), "has", s.Position.String())
			return
		}
	}
}

// stopReceiving takes from the running standby what it needs to stream, ends its WAL receiver, and reads how far it got.
func (m *Manager) stopReceiving(ctx context.Context, g pgproc.Generation, files setup, sql pgsql.Server) (election.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	control, err := m.programs.ControlData(ctx, g.Dir)
	if err != nil {
		return election.Position{}, err
	}
	if err := files.write(g, &control); err != nil {
		return election.Position{}, err
	}
	if err := sql.Reload(ctx); err != nil {
		return election.Position{}, err
	}
	if err := sql.StopWALReceiver(ctx); err != nil {
		return election.Position{}, err
	}
	seen, err := sql.Observe(ctx)
	if err != nil {
		return election.Position{}, err
	}
	if !seen.InRecovery || seen.WALReceiver != nil {
		return election.Position{}, errors.New("it is no standby at rest")
	}
	return election.Position{Timeline: seen.Timeline, LSN: uint64(seen.FlushLSN)}, nil
}
