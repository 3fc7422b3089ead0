// Command bench-failover measures, on a real cluster and under a writing client, for how long writes stop when things go wrong,
// what is lost, how long a new cluster takes, and what Kumki costs when nothing happens. Run it with "make bench-failover".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/test/e2e/fault"
	"github.com/kumki-dev/kumki/test/e2e/testbed"
)

func main() {
	rounds := flag.Int("rounds", 10, "rounds of each fault")
	out := flag.String("out", "out/bench-failover.json", "file for the result")
	only := flag.String("only", "", "kinds of faults to measure, separated by commas; none: all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(*only)
	if err == nil {
		err = run(ctx, chosen, *rounds, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-failover:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	bed      *testbed.Bed
	injector *fault.Injector
	kinds    []kind
	rounds   int
	dir      string

	namespace   string
	postgres    *testbed.Postgres
	credentials *testbed.Credentials
}

func run(ctx context.Context, chosen []kind, rounds int, out string) (err error) {
	if rounds < 1 {
		return errors.New("-rounds must be 1 or more")
	}
	bed, err := testbed.Connect()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-failover")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{bed: bed, injector: fault.New(bed), kinds: chosen, rounds: rounds, dir: dir}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.clean()) }()
	result, err := b.measure(ctx)
	if result == nil {
		return err
	}
	return errors.Join(err, write(result, out))
}

func (b *bench) prepare(ctx context.Context) error {
	if err := b.injector.HealAll(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return testbed.Poll(ctx, time.Second, func(ctx context.Context) error {
		return errors.Join(b.bed.OperatorSettled(ctx, 1), b.bed.NodesReady(ctx))
	})
}

func (b *bench) clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(b.injector.HealAll(ctx), b.bed.DeleteNamespace(ctx, b.namespace))
}

func (b *bench) measure(ctx context.Context) (*result, error) {
	r := &result{Rounds: b.rounds, Faults: map[string]outages{}}
	var err error
	if r.ProvisionS, err = b.provisions(ctx); err != nil {
		return nil, err
	}
	if r.Writes, err = b.writesPerMinute(ctx, time.Minute); err != nil {
		return nil, err
	}
	if r.RSS, err = b.rss(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("resident: operator %.0f MB, instance %.0f MB; writes to the API a minute: operator %.1f, instances %.1f\n",
		r.RSS.Operator, r.RSS.Instance, r.Writes.Operator, r.Writes.Instance)
	for _, k := range b.kinds {
		o, err := b.fault(ctx, k)
		if err != nil {
			return r, fmt.Errorf("%s: %w", k.name, err)
		}
		r.Faults[k.name] = o
	}
	return r, nil
}

// provisions is the median time from nothing to three ready instances. The last cluster stays.
func (b *bench) provisions(ctx context.Context) (float64, error) {
	var seconds []float64
	for range min(b.rounds, 3) {
		if b.namespace != "" {
			if err := b.bed.DeleteNamespace(ctx, b.namespace); err != nil {
				return 0, err
			}
		}
		s, err := b.provision(ctx)
		if err != nil {
			return 0, err
		}
		fmt.Printf("three instances ready after %.1f s\n", s)
		seconds = append(seconds, s)
	}
	return median(seconds), nil
}

func (b *bench) provision(ctx context.Context) (float64, error) {
	var err error
	if b.namespace, err = b.bed.NewNamespace(ctx, "kumki-bench"); err != nil {
		return 0, err
	}
	begin := time.Now()
	if b.postgres, err = b.bed.NewPostgres(ctx, b.namespace, b.dir, databasesv1.PostgreSQLClusterSpec{Replicas: 3}); err != nil {
		return 0, err
	}
	if err := b.settle(ctx); err != nil {
		return 0, err
	}
	seconds := time.Since(begin).Seconds()
	b.credentials, err = b.postgres.Credentials(ctx)
	return seconds, err
}

func (b *bench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("the cluster is not complete after 5 minutes"))
	defer cancel()
	return testbed.Poll(ctx, 250*time.Millisecond, b.postgres.Settled)
}

func write(r *result, path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
