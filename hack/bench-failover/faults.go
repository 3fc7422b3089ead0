package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/e2e/fault"
	"github.com/kumki-dev/kumki/test/e2e/testbed"
	"github.com/kumki-dev/kumki/test/writer"
)

// kind is one kind of fault. heal may be nil.
type kind struct {
	name         string
	strike, heal func(context.Context, *bench, *corev1.Pod) error
}

var kinds = []kind{
	{name: "postmaster-kill", strike: func(ctx context.Context, b *bench, primary *corev1.Pod) error {
		return b.injector.Signal(ctx, primary, fault.Postmaster, fault.Kill)
	}},
	{name: "switchover", strike: func(ctx context.Context, b *bench, _ *corev1.Pod) error {
		standbys, err := b.postgres.Standbys(ctx)
		if err != nil {
			return err
		}
		_, err = b.postgres.Change(ctx, func(c *databasesv1.PostgreSQLCluster) {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			c.Annotations[naming.AnnotationSwitchover] = standbys[0].Name
		})
		return err
	}},
	{name: "pod-delete", strike: func(ctx context.Context, b *bench, primary *corev1.Pod) error {
		return b.injector.DeletePod(ctx, primary)
	}},
	{name: "pod-force-delete", strike: func(ctx context.Context, b *bench, primary *corev1.Pod) error {
		return b.injector.ForceDeletePod(ctx, primary)
	}},
	{name: "node-cut", strike: func(ctx context.Context, b *bench, primary *corev1.Pod) error {
		return b.injector.Cut(ctx, primary.Spec.NodeName)
	}, heal: func(ctx context.Context, b *bench, primary *corev1.Pod) error {
		return b.injector.Heal(ctx, primary.Spec.NodeName)
	}},
}

// choose returns the kinds of those names, all of them for "".
func choose(names string) ([]kind, error) {
	if names == "" {
		return kinds, nil
	}
	var chosen []kind
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
		if i < 0 {
			var known []string
			for _, k := range kinds {
				known = append(known, k.name)
			}
			return nil, fmt.Errorf("-only: there is no fault %q; there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, kinds[i])
	}
	return chosen, nil
}

// fault strikes again and again.
func (b *bench) fault(ctx context.Context, k kind) (outages, error) {
	var seconds []float64
	o := outages{}
	for i := range b.rounds {
		report, err := b.round(ctx, k)
		if err != nil {
			return o, fmt.Errorf("round %d: %w", i+1, err)
		}
		fmt.Printf("%-17s %2d/%d  writes stopped for %5.1f s, %d rows lost, %d transactions acknowledged\n",
			k.name, i+1, b.rounds, report.OutageS, report.LostRows, report.Acknowledged)
		if report.TwoPrimaries > 0 || report.Torn > 0 {
			return o, fmt.Errorf("round %d: %d acknowledgements by a second primary, %d torn transactions", i+1, report.TwoPrimaries, report.Torn)
		}
		seconds = append(seconds, report.OutageS)
		o.Lost += report.LostRows
	}
	o.MedianS, o.MaxS = median(seconds), slices.Max(seconds)
	fmt.Printf("%-17s median %.1f s, maximum %.1f s, %d rows lost\n", k.name, o.MedianS, o.MaxS, o.Lost)
	return o, nil
}

// round: the client writes from before the fault until the cluster is complete again; the longest gap counts.
func (b *bench) round(ctx context.Context, k kind) (writer.Report, error) {
	if err := b.settle(ctx); err != nil {
		return writer.Report{}, err
	}
	primary, err := b.postgres.Primary(ctx)
	if err != nil {
		return writer.Report{}, err
	}
	w, stop, err := b.startWriter(ctx, primary)
	if err != nil {
		return writer.Report{}, err
	}
	struck := time.Now()
	err = b.strike(ctx, k, primary, w)
	if stopErr := stop(); err != nil || stopErr != nil {
		return writer.Report{}, errors.Join(err, stopErr)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return w.Verify(ctx, struck)
}

// strike breaks, waits until another life of a server takes writes, heals, and waits until the cluster is complete.
func (b *bench) strike(ctx context.Context, k kind, primary *corev1.Pod, w *writer.Writer) error {
	before, _ := w.Last()
	struck := time.Now()
	err := k.strike(ctx, b, primary)
	if err == nil {
		err = wrote(ctx, w, 5*time.Minute, func() int { return w.AckedByOthers(before.Server, struck) })
	}
	if k.heal != nil {
		err = errors.Join(err, k.heal(context.WithoutCancel(ctx), b, primary))
	}
	if err != nil {
		return err
	}
	return b.settle(ctx)
}

// startWriter starts the client on a node that is not the primary's.
func (b *bench) startWriter(ctx context.Context, primary *corev1.Pod) (*writer.Writer, func() error, error) {
	nodes, err := b.bed.Nodes(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == primary.Spec.NodeName })
	if len(nodes) == 0 {
		return nil, nil, errors.New("two nodes or more are needed")
	}
	w, err := b.credentials.Writer(ctx, nodes[0])
	if err != nil {
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	stop := func() error {
		cancel()
		return <-done
	}
	started := time.Now()
	if err := wrote(ctx, w, time.Minute, func() int { return w.AckedSince(started) }); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return w, stop, nil
}

// wrote waits until so many transactions are acknowledged that the client is back in its stride.
func wrote(ctx context.Context, w *writer.Writer, limit time.Duration, count func() int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("nothing is written after %s", limit))
	defer cancel()
	return testbed.Poll(ctx, 100*time.Millisecond, func(context.Context) error {
		if count() < 50 {
			return fmt.Errorf("failures so far: %v", w.Failures())
		}
		return nil
	})
}
