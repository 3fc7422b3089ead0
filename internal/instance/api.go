package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
)

// report is what other goroutines may know of the loop's state.
type report struct {
	mu     sync.Mutex
	status instanceapi.Status
	ready  bool
	why    string
	held   int64 // term for which the Service may be pointed here
}

func (r *report) set(s instanceapi.Status, ready bool, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.ready, r.why = s, ready, why
}

func (r *report) get() (instanceapi.Status, bool, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.ready, r.why
}

func (r *report) setHeld(term int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = term
}

func (r *report) holds(term int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held == term && term != 0
}

// serveAPI serves the mTLS endpoint until ctx ends.
func (m *Manager) serveAPI(ctx context.Context, source instanceapi.Source) {
	server := instanceapi.NewServer(m.opt.Pod, source, m)
	addr := net.JoinHostPort(m.opt.Bind, strconv.Itoa(m.opt.PortAPI))
	go func() {
		if err := server.ListenAndServe(ctx, addr); err != nil && ctx.Err() == nil {
			m.post(func() { m.leave(fmt.Errorf("the instance endpoint cannot be served on %s: %w", addr, err)) })
		}
	}()
}

// Status is the last published one; it does not wait for the loop.
func (m *Manager) Status(context.Context) instanceapi.Status {
	s, _, _ := m.report.get()
	return s
}

// ask runs f in the loop and waits for its answer.
func (m *Manager) ask(ctx context.Context, f func() error) error {
	answer := make(chan error, 1)
	m.post(func() { answer <- f() })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Handover starts a hand-over of leadership.
func (m *Manager) Handover(ctx context.Context, r instanceapi.HandoverRequest) instanceapi.HandoverReply {
	chosen := make(chan string, 1)
	err := m.ask(ctx, func() error {
		if !m.leading() {
			return errors.New("this instance is not the primary")
		}
		to := r.To
		streaming, _ := m.streamers()
		if to == "" && len(streaming) == 0 {
			return errors.New("no standby streams and has caught up: there is nobody to hand over to")
		}
		if to != "" && !slices.Contains(streaming, to) {
			return fmt.Errorf("%s does not stream or has not caught up: choose one of %v, or wait", to, streaming)
		}
		m.log.Info("a hand-over is asked for", "to", to, "reason", r.Reason)
		m.step(election.EventHandover{To: to})
		chosen <- to
		return nil
	})
	if err != nil {
		return instanceapi.HandoverReply{Error: err.Error()}
	}
	return instanceapi.HandoverReply{To: <-chosen}
}

// Restart asks for a restart of PostgreSQL; the loop does it when nothing else is going on.
func (m *Manager) Restart(ctx context.Context, r instanceapi.RestartRequest) error {
	return m.ask(ctx, func() error {
		if m.pm == nil {
			return errors.New("PostgreSQL is not running here")
		}
		if r.PendingOnly && len(m.observed.PendingRestart) == 0 {
			return nil
		}
		m.log.Info("a restart is asked for", "reason", r.Reason)
		m.restart = &r
		m.act()
		return nil
	})
}

// restartPostgres restarts PostgreSQL in place. A primary keeps leadership through it: the lease is renewed meanwhile.
func (m *Manager) restartPostgres() {
	m.restart = nil
	if m.pm == nil || !m.observed.ok {
		return
	}
	if m.lead == nil {
		m.stopPostgres("stop for a restart", nil) // what follows starts it again, with new settings
		return
	}
	g, ok := m.generation()
	if !ok {
		return
	}
	pm, sql := m.pm, m.sql
	files := m.setup(m.leaderRole())
	var server *started
	m.start(&job{name: "restart"}, func(ctx context.Context) error {
		call, cancel := context.WithTimeout(ctx, 20*time.Second)
		_ = sql.Checkpoint(call) // so that the one of the shutdown is short
		cancel()
		call, cancel = context.WithTimeout(ctx, 60*time.Second)
		defer cancel()
		if err := pm.StopFast(call); err != nil {
			return err
		}
		if err := files.write(g, nil); err != nil {
			return err
		}
		var err error
		server, err = m.launch(ctx, g, files, true)
		return err
	}, func(err error) {
		m.down()
		if server != nil {
			m.adopt(server)
			m.settings.applied, m.settings.appliedAt, m.settings.starting = files.key(), m.now(), files.cfg
		}
		if err == nil {
			m.log.Info("PostgreSQL was restarted as primary")
			return
		}
		if server != nil && !errors.Is(err, context.Canceled) {
			m.startRefused(files.cfg, err)
		}
		m.kill("the restart failed: " + err.Error())
	})
}
