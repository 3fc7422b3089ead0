package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/election/kubelease"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pgsql"
)

// tickEvery is the beat of the loop.
const tickEvery = 100 * time.Millisecond

// Manager runs one instance. Everything below "state of the loop" belongs to the loop's goroutine alone.
type Manager struct {
	opt   Options
	log   *slog.Logger
	inbox chan func()
	ctx   context.Context // ends everything that spawn started

	volume  *pgproc.Volume
	guard   *pgproc.Guard
	kube    *kubeAPI
	leases  *kubelease.Client
	peers   instanceapi.Client
	metrics *metrics
	beat    beat
	report  report // what other goroutines may read

	promiseMu sync.Mutex
	promised  int64 // on the volume

	// State of the loop.
	core     *election.Core
	cfg      *config // newest that could be read
	lease    election.Lease
	leaseAt  time.Duration // last time it was read or seen by the watch
	programs *pgproc.Programs
	pm       *pgproc.Postmaster // nil when PostgreSQL is down
	sql      pgsql.Server       // connection to it; set whenever pm is
	job      *job
	fencing  bool
	// fenceOwed: the core waits for EventFenced.
	fenceOwed bool
	stopping  bool // SIGTERM came
	restart   *instanceapi.RestartRequest

	follow  *election.EffectFollow // what the core wants: follow, or
	lead    *leadership            // lead
	sealing *election.EffectSeal   // a seal that has not been carried out yet
	sealed  int64                  // term of the last seal; the WAL receiver stays off until a leader of that term or later is followed
	stop    *election.EffectStop   // a stop that has not been carried out yet

	observed   observation
	observing  bool
	observedAt time.Duration
	settings   settings
	gate       commitGate
	replies    map[replyKey]chan election.Message
	probe      holderProbe
	repair     repair
	failure    string // what needs a person
	tlsFailure string // why new certificates are not in use
	sealAfter  time.Duration
	exit       error
	exiting    bool

	started       time.Time // of this process
	stoppingSince time.Duration
	identity      identity
	examineAt     time.Duration
	unfit         bool // the data needs WAL that is only at the leader: a copy or a rewind that has not caught up yet
	gateOpen      bool // the own pod's status tells of this container
	reading       bool

	peersAsked   time.Duration
	asking       bool
	peerStatuses map[string]instanceapi.Status
	slotsAt      time.Duration
	slotsBusy    bool
	rolesDone    string
	rolesBusy    bool
	rolesAt      time.Duration
	serviceAt    time.Duration // the Service was last pointed here
	pointing     bool
}

// leadership that was won, or is being taken up.
type leadership struct {
	term    int64
	sync    election.Quorum
	promote bool // PostgreSQL runs as a standby; else it is down
	init    bool
	done    bool // PostgreSQL accepts writes
	begun   bool // a standby's data was started and then promoted: a timeline was begun
	// timeline that a promotion has to begin, or a later one.
	timeline     uint32
	checkpointed bool // after the promotion: others may rewind to it
}

// Run runs the instance until ctx ends (SIGTERM), then hands over or shuts down. It returns an error when the instance cannot go on.
func Run(ctx context.Context, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	m := &Manager{opt: o, log: o.Log, inbox: make(chan func(), 256), started: time.Now(), replies: map[replyKey]chan election.Message{}}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	m.ctx = run
	if err := m.setUp(run); err != nil {
		return err
	}
	defer func() { _ = m.guard.Close() }()
	return m.loop(ctx)
}

// setUp opens the volume, starts guard and servers, and reads the first configuration.
func (m *Manager) setUp(ctx context.Context) error {
	go func() {
		if err := pgproc.Reap(ctx); err != nil {
			m.log.Error("orphans cannot be reaped", "error", err)
		}
	}()
	m.metrics = newMetrics()
	m.serveProbes(ctx)
	var err error
	if m.cfg, err = m.awaitConfig(ctx); err != nil {
		return err
	}
	walRoot := ""
	if m.cfg.SeparateWAL {
		walRoot = m.opt.WALDir
	}
	if m.volume, err = m.awaitVolume(ctx, walRoot); err != nil {
		return err
	}
	promised, err := m.volume.Promise()
	if err != nil {
		return fmt.Errorf("the leadership promise on the volume cannot be read; docs/runbooks/promise.md tells what to do: %w", err)
	}
	if m.guard, err = pgproc.StartGuard(pgproc.GuardOptions{
		Bin: m.opt.GuardBinary, Root: m.volume.Root,
		OnRestart: func(reason error) { m.log.Warn("the guard process was started again", "reason", reason) },
	}); err != nil {
		return fmt.Errorf("the guard process cannot be started: %w", err)
	}
	if m.kube, err = newKubeAPI(m.opt.Kube, m.opt.Namespace); err != nil {
		return err
	}
	if m.leases, err = kubelease.New(m.opt.Kube, m.opt.Namespace, naming.Lease(m.opt.Cluster),
		kubelease.WithLabels(naming.ClusterLabels(m.opt.Cluster))); err != nil {
		return err
	}
	if err := m.findPrograms(); err != nil {
		return err
	}
	m.promised = promised
	m.loadGood()
	if _, err := m.syncTLS(); err != nil {
		return err
	}
	m.core = election.New(m.cfg.election(&m.opt), promised)
	source := instanceapi.NewFileSource(m.opt.PeerTLSDir)
	m.peers = instanceapi.NewClient(source)
	m.serveAPI(ctx, source)
	go m.watchLease(ctx)
	return nil
}

// awaitConfig waits for a configuration: kubelet mounts it before the container starts, so this is quick.
func (m *Manager) awaitConfig(ctx context.Context) (*config, error) {
	said := false
	for {
		cfg, err := readConfig(m.opt.ConfigDir)
		if err == nil {
			if cfg.member(m.opt.Pod) != nil {
				return cfg, nil
			}
			err = fmt.Errorf("%s does not list %s as a member", naming.KeyConfig, m.opt.Pod)
		}
		if !said && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("waiting for a configuration", "error", err)
			said = true
		}
		if err := wait(ctx, tickEvery); err != nil {
			return nil, err
		}
	}
}

// awaitVolume takes the volume's lock. An earlier pod of the same name may still be shutting down on it.
func (m *Manager) awaitVolume(ctx context.Context, walRoot string) (*pgproc.Volume, error) {
	for said := false; ; said = true {
		v, err := pgproc.OpenVolume(m.opt.DataDir, walRoot, m.owner())
		if err == nil || !errors.Is(err, pgproc.ErrLocked) {
			return v, err
		}
		if !said {
			m.log.Warn("waiting for the data volume: another process of this instance still uses it", "error", err)
		}
		if err := wait(ctx, tickEvery); err != nil {
			return nil, err
		}
	}
}

// owner of PostgreSQL's files and processes: this process, but in tests that run as root.
func (m *Manager) owner() *pgproc.User { return m.opt.RunAs }

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (m *Manager) findPrograms() error {
	bin := pgproc.Bin{Dir: m.opt.BinDir, Major: m.cfg.MajorVersion}
	if bin.Dir == "" {
		var err error
		if bin, err = pgproc.FindBin(m.cfg.MajorVersion); err != nil {
			return err
		}
	}
	m.programs = &pgproc.Programs{Bin: bin, User: m.owner(), Log: m.logRecord}
	return nil
}

// now is the loop's clock: time since boot, time in suspension too. Deadlines of the guard are on the same clock.
func (m *Manager) now() time.Duration { return pgproc.Clock() }

// post hands f to the loop.
func (m *Manager) post(f func()) {
	select {
	case m.inbox <- f:
	case <-m.ctx.Done():
	}
}

// spawn runs f elsewhere; what it returns is run by the loop.
func (m *Manager) spawn(f func(context.Context) func()) {
	go func() {
		if done := f(m.ctx); done != nil {
			m.post(done)
		}
	}()
}

func (m *Manager) loop(ctx context.Context) error {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	m.log.Info("the instance manager runs", "pod", m.opt.Pod, "uid", m.opt.PodUID, "version", m.opt.Version)
	term := ctx.Done()
	for !m.exiting {
		select {
		case f := <-m.inbox:
			f()
		case <-ticker.C:
			m.tick()
		case <-term:
			term = nil
			m.terminate()
		case <-m.guard.Exited():
			m.fence("the guard process cannot be started again")
			m.leave(errors.New("there is no guard process"))
		}
	}
	return m.exit
}

// leave ends the loop.
func (m *Manager) leave(err error) {
	m.exit, m.exiting = err, true
}

// tick does what is due.
func (m *Manager) tick() {
	m.beat.touch(m.now())
	m.readConfig()
	m.freshLease()
	m.watchPostmaster()
	m.observe()
	m.step(election.EventTick{})
	m.probeHolder(m.suspicious())
	m.act()
	m.askPeers()
	m.publish()
}

// suspicious: the holder may be dead. A standby that streams from it knows that it is not.
func (m *Manager) suspicious() bool {
	return m.lead == nil && !m.observed.streaming()
}

// readConfig takes over a changed instance.json.
func (m *Manager) readConfig() {
	if m.now()-m.settings.readAt < time.Second {
		return
	}
	m.refreshTLS()
	m.settings.readAt = m.now()
	cfg, err := readConfig(m.opt.ConfigDir)
	if err != nil {
		m.log.Warn("the configuration cannot be read; the last one stays in force", "error", err)
		return
	}
	if cfg.hash == m.cfg.hash {
		return
	}
	m.log.Info("the configuration changed", "hash", cfg.hash)
	m.cfg = cfg
	m.step(election.EventConfig{Config: cfg.election(&m.opt)})
}

// leading: PostgreSQL here is the primary and accepts writes.
func (m *Manager) leading() bool { return m.lead != nil && m.lead.done }

// step feeds the core and carries out what it decides.
func (m *Manager) step(ev election.Event) {
	if m.exiting {
		return
	}
	if l, ok := ev.(election.EventLease); ok {
		m.lease, m.leaseAt = l.Lease, m.now()
	}
	for _, effect := range m.core.Step(m.now(), ev) {
		m.do(effect)
	}
}

// do carries out one effect.
func (m *Manager) do(effect election.Effect) {
	switch e := effect.(type) {
	case election.EffectCAS:
		m.writeLease(e)
	case election.EffectRead:
		m.readLease()
	case election.EffectSend:
		m.send(e.Message)
	case election.EffectSeal:
		m.log.Info("sealing for a new term", "term", e.Term)
		m.sealing = &e
	case election.EffectPromise:
		m.spawn(func(ctx context.Context) func() {
			for err := m.promise(e.Term); err != nil; err = m.promise(e.Term) {
				m.log.Error("the promise of a term cannot be written; trying again", "term", e.Term, "error", err)
				if wait(ctx, time.Second) != nil {
					return nil
				}
			}
			return func() { m.step(election.EventPromised{Term: e.Term}) }
		})
	case election.EffectFence:
		m.fence(e.Reason)
	case election.EffectDeadline:
		if err := m.guard.SetDeadline(e.At); err != nil {
			m.log.Error("the guard does not take the deadline", "error", err)
		}
	case election.EffectPromote:
		m.log.Info("leadership won: promoting", "term", e.Term, "sync", e.Sync)
		m.takeUp(&leadership{term: e.Term, sync: e.Sync, promote: true, timeline: e.Timeline})
	case election.EffectLead:
		m.log.Info("leadership won: starting as primary", "term", e.Term, "sync", e.Sync, "init", e.Init)
		m.takeUp(&leadership{term: e.Term, sync: e.Sync, init: e.Init, timeline: e.Timeline})
	case election.EffectFollow:
		m.log.Info("following", "leader", e.Leader, "term", e.Term)
		m.takeUpFollowing(&e)
	case election.EffectSetSync:
		m.log.Info("synchronous standbys change", "sync", e.Sync)
		if m.lead != nil {
			m.lead.sync = e.Sync
		}
	case election.EffectPointService:
		m.pointService(e.Term)
	case election.EffectStop:
		m.log.Info("stopping PostgreSQL for a hand-over", "successor", e.Successor)
		m.stop = &e
	}
	m.act()
}

// promise makes sure that the volume holds a promise of that term or a higher one. Jobs and the loop call it.
func (m *Manager) promise(term int64) error {
	m.promiseMu.Lock()
	defer m.promiseMu.Unlock()
	if term <= m.promised {
		return nil
	}
	if err := m.volume.SavePromise(term); err != nil {
		return err
	}
	m.promised = term
	return nil
}

func (m *Manager) takeUp(l *leadership) {
	m.lead, m.follow, m.stop = l, nil, nil
	m.repair = repair{}
	m.settings.applied = ""
}

func (m *Manager) takeUpFollowing(e *election.EffectFollow) {
	if j := m.job; j != nil && m.follow != nil && m.follow.Leader != e.Leader && j.abandonable {
		j.cancel()
	}
	m.lead, m.follow = nil, e
	if m.sealing != nil && m.sealing.Term <= e.Term {
		m.sealing = nil // nobody waits for it any more
	}
	m.settings.applied = ""
	m.repair.since = m.now()
}

// serviceEvery is how often the primary looks whether the Service still leads to it: it may have been deleted and made again, or edited.
const serviceEvery = 10 * time.Second

// keepService points the Service here again when it leads elsewhere.
func (m *Manager) keepService() {
	if m.leading() && m.lease.Version != "" && !m.pointing && m.now()-m.serviceAt > serviceEvery {
		m.pointService(m.lease.Record.Term)
	}
}

// pointService makes <cluster>-rw lead here, and tries again until it does or leadership is over.
func (m *Manager) pointService(term int64) {
	still := func() bool { return m.report.holds(term) }
	m.report.setHeld(term)
	m.pointing = true
	pointed := func() { m.pointing, m.serviceAt = false, m.now() }
	m.spawn(func(ctx context.Context) func() {
		for pause := 200 * time.Millisecond; still(); pause = min(2*pause, 2*time.Second) {
			call, cancel := context.WithTimeout(ctx, 2*time.Second)
			err := m.kube.pointService(call, naming.ServiceRW(m.opt.Cluster), m.opt.Pod, still)
			cancel()
			if err == nil {
				return pointed
			}
			if !errors.Is(err, errConflict) {
				m.log.Warn("the Service for writes is not pointed here yet; trying again", "error", err)
			}
			if wait(ctx, pause) != nil {
				return nil
			}
		}
		return pointed
	})
}
