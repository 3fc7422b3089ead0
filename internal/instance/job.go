package instance

import (
	"context"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

// job is one piece of work on PostgreSQL's processes or files. There is one at a time.
type job struct {
	name   string
	cancel context.CancelFunc
	// abandonable: it may be cancelled when the leader changes, nothing is lost.
	abandonable bool
	since       time.Duration
}

// start runs work as the job; done runs in the loop with its error.
func (m *Manager) start(j *job, work func(context.Context) error, done func(error)) {
	ctx, cancel := context.WithCancel(m.ctx)
	j.cancel, j.since = cancel, m.now()
	m.job = j
	m.log.Debug("begins", "job", j.name)
	m.spawn(func(context.Context) func() {
		err := work(ctx)
		return func() {
			cancel()
			m.job = nil
			if err != nil {
				m.log.Warn("did not succeed", "job", j.name, "error", err, "seconds", (m.now() - j.since).Seconds())
			} else {
				m.log.Debug("done", "job", j.name, "seconds", (m.now() - j.since).Seconds())
			}
			if !m.exiting {
				done(err)
				m.act()
			}
		}
	})
}

// fence kills PostgreSQL's process tree at once, whatever else is going on, and goes on until nothing is left.
func (m *Manager) fence(reason string) {
	m.report.setHeld(0)
	m.lead, m.follow, m.stop = nil, nil, nil
	m.fenceOwed = true
	if m.fencing {
		return // the tree is being killed already; the core is told when nothing is left
	}
	m.log.Warn("fencing: PostgreSQL is killed", "reason", reason)
	m.metrics.fences.Inc()
	m.fencing = true
	if m.job != nil {
		m.job.cancel()
	}
	root := m.volume.Root
	m.spawn(func(ctx context.Context) func() {
		for {
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := pgproc.KillTree(call, root)
			cancel()
			if err == nil {
				break
			}
			m.log.Error("PostgreSQL's processes cannot be ended yet", "error", err)
			if ctx.Err() != nil {
				return nil
			}
		}
		return m.fenced
	})
}

// fenced waits for the job that was cut off, then tells the core.
func (m *Manager) fenced() {
	if m.job != nil {
		m.spawn(func(ctx context.Context) func() {
			if wait(ctx, 20*time.Millisecond) != nil {
				return nil
			}
			return m.fenced
		})
		return
	}
	// The job may have started PostgreSQL after the kill.
	if m.pm != nil && m.pm.State() != pgproc.ProcGone && m.pm.State() != pgproc.ProcZombie {
		m.fencing = false
		m.fence("PostgreSQL was started meanwhile")
		return
	}
	m.fencing, m.fenceOwed = false, false
	m.down()
	m.log.Info("fenced: nothing of PostgreSQL is left")
	m.step(election.EventFenced{})
}

// down forgets the server that ended.
func (m *Manager) down() {
	if m.sql != nil {
		m.sql.Close()
	}
	m.pm, m.sql, m.unfit = nil, nil, false
	m.observed = observation{}
	m.settings.applied = ""
}
