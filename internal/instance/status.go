package instance

import (
	"fmt"
	"sort"
	"time"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// publish makes the present state known: to the endpoint, the probes and the metrics.
func (m *Manager) publish() {
	v := m.core.View(m.now())
	o := &m.observed
	s := instanceapi.Status{
		Pod: m.opt.Pod, PodUID: m.opt.PodUID, ManagerVersion: m.opt.Version, Primary: m.leading() && m.pm != nil && o.ok,
		Term: v.Term, Position: o.position(), ReplayLSN: uint64(o.ReplayLSN), ConfigHash: m.settings.hash,
		ConfigError: m.settings.refused, PendingRestart: o.PendingRestart, Settings: o.Settings,
		PrimaryOnly: v.PrimaryOnly,
	}
	s.Synced = s.Primary && o.SyncStandbyNames != ""
	s.Checkpointed = s.Primary && m.lead.checkpointed
	if g, ok, err := m.volume.Current(); err == nil {
		s.SystemIdentifier = m.systemIdentifier(g, ok)
	}
	if o.ok {
		s.Version = o.ServerVersion
		s.PostmasterStart = o.PostmasterStart.UTC().Format(time.RFC3339Nano)
	}
	if s.Primary {
		s.Standbys = m.standbys()
	}
	s.State, s.Message = m.state(v.Why)
	ready, why := m.readiness(s)
	s.Ready = ready
	m.report.set(s, ready, why)
	m.metrics.update(&s, v.Leading)
}

func (m *Manager) standbys() []instanceapi.StandbyStatus {
	var list []instanceapi.StandbyStatus
	for _, r := range m.observed.Replication {
		if m.cfg.member(r.ApplicationName) == nil {
			continue
		}
		list = append(list, instanceapi.StandbyStatus{
			Name: r.ApplicationName, State: r.State, SyncState: r.SyncState, FlushLSN: uint64(r.FlushLSN), ReplayLSN: uint64(r.ReplayLSN),
			LagBytes: lag(m.observed.FlushLSN, r.FlushLSN),
		})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

func lag(ahead, behind postgres.LSN) int64 {
	if behind >= ahead {
		return 0
	}
	return int64(ahead - behind) //nolint:gosec // LSNs are far below 2^63
}

// state is the instance's state in one word, and what there is to say about it.
func (m *Manager) state(why string) (instanceapi.State, string) {
	o := &m.observed
	switch {
	case m.failure != "":
		return instanceapi.StateFailed, m.failure
	case m.fencing:
		return instanceapi.StateFenced, why
	case m.job != nil && m.repair.what != "":
		return m.repair.what, why
	case m.lead != nil && m.lead.init && !m.lead.done:
		return instanceapi.StateInit, why
	case m.leading() && o.ok:
		return instanceapi.StateRunning, m.tlsFailure
	case o.streaming():
		return instanceapi.StateStreaming, m.tlsFailure
	case o.ok && o.InRecovery:
		return instanceapi.StateStandby, why
	case m.cfg.Suspend && m.pm == nil && m.job == nil:
		return instanceapi.StateStopped, "suspended"
	case m.pm == nil && m.job == nil && m.lead == nil && m.follow == nil:
		return instanceapi.StateStopped, why
	}
	return instanceapi.StateStarting, why
}

// readyGrace: a standby that stopped streaming a moment ago stays ready, so that a failover does not empty the Services for reads.
const readyGrace = 10 * time.Second

// readiness: a primary that accepts writes, or a standby that streams and is not too far behind.
func (m *Manager) readiness(s instanceapi.Status) (bool, string) {
	o := &m.observed
	switch {
	case m.pm == nil || !o.ok || o.failing != 0:
		return false, fmt.Sprintf("PostgreSQL does not accept connections (%s)", s.State)
	case s.Primary:
		return true, ""
	case !o.InRecovery:
		return false, "PostgreSQL runs as primary and leadership is not confirmed"
	case o.streamed == 0:
		return false, "the standby has not streamed yet"
	case !o.streaming() && m.now()-o.streamed > readyGrace:
		return false, fmt.Sprintf("the standby has not streamed for %.0f s", (m.now() - o.streamed).Seconds())
	}
	if r := o.WALReceiver; r != nil && m.cfg.MaxLagForReads > 0 {
		if behind := lag(r.LatestEnd, o.ReplayLSN); behind > m.cfg.MaxLagForReads {
			return false, fmt.Sprintf("the standby is %d bytes of WAL behind, more than %d (spec.replication.maxLagForReads)", behind, m.cfg.MaxLagForReads)
		}
	}
	return true, ""
}
