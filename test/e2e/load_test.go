//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/writer"
)

// load is a writing client that runs during a spec.
type load struct {
	*writer.Writer
	scope *scope
	stop  context.CancelFunc
	done  chan error
}

// load starts a writing client on a node and waits until it writes.
func (s *scope) load(ctx context.Context, node string) *load {
	GinkgoHelper()
	w, err := s.credentials.Writer(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	running, stop := context.WithCancel(context.Background())
	l := &load{Writer: w, scope: s, stop: stop, done: make(chan error, 1)}
	go func() { l.done <- w.Run(running) }()
	DeferCleanup(stop)
	l.written(ctx, time.Now(), shortTime)
	return l
}

// written waits until transactions that were begun after t are acknowledged.
func (l *load) written(ctx context.Context, t time.Time, limit time.Duration) {
	GinkgoHelper()
	eventually(ctx, limit, func() error {
		if n := l.AckedSince(t); n < 20 {
			return fmt.Errorf("%d transactions acknowledged since %s; failures so far: %v", n, t.Format(time.TimeOnly), l.Failures())
		}
		return nil
	})
}

// writtenByOthers waits until another server, or another life of this one, acknowledges transactions that were begun after t.
func (l *load) writtenByOthers(ctx context.Context, server writer.Server, t time.Time, limit time.Duration) {
	GinkgoHelper()
	eventually(ctx, limit, func() error {
		if n := l.AckedByOthers(server, t); n < 20 {
			return fmt.Errorf("only %d transactions acknowledged by another server than the %s of before", n, server.Address)
		}
		return nil
	})
}

// finish stops the client and proves that nothing acknowledged is lost, on the primary and on every standby, and that there
// never were two primaries. The report's outage is the longest one since t.
func (l *load) finish(ctx context.Context, t time.Time) writer.Report {
	GinkgoHelper()
	l.stop()
	Expect(<-l.done).To(Succeed())
	report, err := l.Verify(ctx, t)
	Expect(err).NotTo(HaveOccurred())
	AddReportEntry("client", fmt.Sprintf("%d transactions sent, %d acknowledged, %d rows lost, longest outage %.1f s, failures %v",
		report.Transactions, report.Acknowledged, report.LostRows, report.OutageS, report.Failures))
	Expect(report.LostRows).To(BeZero(), "acknowledged rows are lost: %v", report.Lost)
	Expect(report.Torn).To(BeZero(), "transactions are torn")
	Expect(report.Stale).To(BeEmpty(), "two primaries acknowledged commits at one time")
	return report
}

// sameEverywhere waits until every instance has exactly the rows that the primary has: one that diverged and was not rewound
// has others.
func (l *load) sameEverywhere(ctx context.Context) {
	GinkgoHelper()
	s := l.scope
	primary, err := s.postgres.Primary(ctx)
	Expect(err).NotTo(HaveOccurred())
	want, err := l.rows(ctx, primary)
	Expect(err).NotTo(HaveOccurred())
	eventually(ctx, 2*time.Minute, func() error {
		pods, err := s.postgres.Pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			got, err := l.rows(ctx, &pods[i])
			if err != nil {
				return fmt.Errorf("%s: %w", pods[i].Name, err)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s has %d rows, the primary %s has %d, or others", pods[i].Name, len(got), primary.Name, len(want))
			}
		}
		return nil
	})
}

func (l *load) rows(ctx context.Context, pod *corev1.Pod) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dial, err := bed.Dial(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	return l.Present(ctx, writer.Target{DSN: l.scope.credentials.DSN(pod.Status.PodIP, naming.PortPostgreSQL), Dial: dial})
}
