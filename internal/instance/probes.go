package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

// beat tells that the loop is alive.
type beat struct {
	at    atomic.Int64
	begun atomic.Bool
}

// touch is a beat of the loop.
func (b *beat) touch(now time.Duration) {
	b.at.Store(int64(now))
	b.begun.Store(true)
}

// wedgedAfter: a loop that did not beat for so long is wedged, and the kubelet shall restart the container.
const wedgedAfter = 15 * time.Second

// serveProbes serves probes and metrics by plain HTTP. The liveness probe is the second watchdog: a stopped process does not answer it,
// and a wedged loop answers with an error. It says nothing of PostgreSQL: a restart of the container does not repair that.
func (m *Manager) serveProbes(ctx context.Context) {
	server := &http.Server{
		Addr: net.JoinHostPort(m.opt.Bind, strconv.Itoa(m.opt.PortProbe)), Handler: m.probes(),
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	go func() {
		if err := server.ListenAndServe(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			m.log.Error("probes cannot be served", "address", server.Addr, "error", err)
		}
	}()
}

// probes answers /livez, /readyz, /startupz and /metrics. The startup probe succeeds with the first beat of the loop: until then there is
// nothing to be alive or ready, and the kubelet asks for neither.
func (m *Manager) probes() http.Handler {
	m.beat.at.Store(int64(pgproc.Clock())) // the loop has the time of a standstill to begin
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		quiet := pgproc.Clock() - time.Duration(m.beat.at.Load())
		answer(w, quiet < wedgedAfter, fmt.Sprintf("the loop of the instance manager has stood still for %.0f s", quiet.Seconds()))
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		_, ready, why := m.report.get()
		answer(w, ready, why)
	})
	mux.HandleFunc("/startupz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, m.beat.begun.Load(), "the loop of the instance manager has not begun: it waits for its configuration or its volume, see its log")
	})
	mux.Handle("/metrics", promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

func answer(w http.ResponseWriter, ok bool, why string) {
	if !ok {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// metrics of an instance.
type metrics struct {
	registry                                                                     *prometheus.Registry
	fences, crashes, promotions, promotionFailures, clones, rewinds, apiFailures prometheus.Counter
	primary, ready, term, timeline, lagBytes, leading                            prometheus.Gauge
	standbyLag                                                                   *prometheus.GaugeVec
	info                                                                         *prometheus.GaugeVec
}

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kumki", Subsystem: "instance", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kumki", Subsystem: "instance", Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	m := &metrics{
		registry:          r,
		fences:            counter("fences_total", "Times that PostgreSQL was killed because leadership was lost or in doubt."),
		crashes:           counter("postgres_crashes_total", "Times that PostgreSQL ended unexpectedly."),
		promotions:        counter("promotions_total", "Times that PostgreSQL here became the primary."),
		promotionFailures: counter("promotion_failures_total", "Times that it should have and could not."),
		clones:            counter("clones_total", "Base backups taken from the primary to make this instance."),
		rewinds:           counter("rewinds_total", "Times that this instance was rewound to follow a new primary."),
		apiFailures:       counter("lease_failures_total", "Reads and writes of the leadership lease that failed."),
		primary:           gauge("primary", "1 if this instance is the primary and accepts writes."),
		leading:           gauge("leading", "1 if this instance holds leadership."),
		ready:             gauge("ready", "1 if this instance is ready for clients."),
		term:              gauge("term", "Leadership term that this instance holds, follows or promised."),
		timeline:          gauge("timeline", "Timeline that this instance is on."),
		lagBytes:          gauge("replay_lag_bytes", "WAL in bytes that a standby has on disk and not yet replayed."),
		standbyLag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kumki", Subsystem: "instance", Name: "standby_lag_bytes",
			Help: "WAL in bytes that a standby has not flushed yet, as the primary sees it."}, []string{"standby"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kumki", Subsystem: "instance", Name: "info",
			Help: "1, with the versions of manager and PostgreSQL."}, []string{"manager_version", "postgres_version", "state"}),
	}
	r.MustRegister(m.standbyLag, m.info)
	return m
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) update(s *instanceapi.Status, leading bool) {
	m.primary.Set(flag(s.Primary))
	m.leading.Set(flag(leading))
	m.ready.Set(flag(s.Ready))
	m.term.Set(float64(s.Term))
	m.timeline.Set(float64(s.Position.Timeline))
	m.lagBytes.Set(max(0, float64(s.Position.LSN)-float64(s.ReplayLSN)))
	m.standbyLag.Reset()
	for _, standby := range s.Standbys {
		m.standbyLag.WithLabelValues(standby.Name).Set(float64(standby.LagBytes))
	}
	m.info.Reset()
	m.info.WithLabelValues(s.ManagerVersion, s.Version, string(s.State)).Set(1)
}
