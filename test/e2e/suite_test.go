//go:build e2e

// Package e2e tests Kumki on a real Kubernetes cluster. Run it with "make e2e", or all of it with "make soak".
//
// Specs that take many minutes have the label "long", those that need the local cluster's faults the label "faults".
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/test/e2e/fault"
	"github.com/kumki-dev/kumki/test/e2e/testbed"
)

// How long things may take on a small, busy machine. A test fails on them only when something is stuck.
const (
	settleTime = 4 * time.Minute
	shortTime  = time.Minute
	polling    = 500 * time.Millisecond
)

var (
	bed    *testbed.Bed
	faults *fault.Injector
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Kumki on a real cluster")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	bed, err = testbed.Connect()
	Expect(err).NotTo(HaveOccurred())
	faults = fault.New(bed)
	if bed.Kind == "local" {
		Expect(faults.HealAll(ctx)).To(Succeed(), "undo what an earlier run may have left")
	}
	Expect(bed.ScaleOperator(ctx, 1)).To(Succeed())
	eventually(ctx, shortTime, func() error { return bed.OperatorSettled(ctx, 1) })
	eventually(ctx, shortTime, func() error { return bed.NodesReady(ctx) })
}, NodeTimeout(3*time.Minute))

// scope is what the specs of one container share: a namespace with one cluster in it.
type scope struct {
	namespace   string
	postgres    *testbed.Postgres
	credentials *testbed.Credentials
}

// newScope makes a namespace before the specs of an ordered container and removes it after them. What is in it is written to
// out/e2e when a spec fails.
func newScope() *scope {
	s := &scope{}
	BeforeAll(func(ctx SpecContext) {
		var err error
		s.namespace, err = bed.NewNamespace(ctx, "kumki-e2e")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			Expect(bed.DeleteNamespace(ctx, s.namespace)).To(Succeed())
		}, NodeTimeout(shortTime))
	}, NodeTimeout(shortTime))
	JustAfterEach(func(ctx SpecContext) {
		if !CurrentSpecReport().Failed() {
			return
		}
		dir := filepath.Join(bed.Root, "out", "e2e", fileName(CurrentSpecReport().FullText()))
		if err := bed.Dump(ctx, s.namespace, dir); err != nil {
			GinkgoWriter.Println("no dump:", err)
			return
		}
		AddReportEntry("dump", dir)
	}, NodeTimeout(shortTime))
	return s
}

var notFileName = regexp.MustCompile(`[^A-Za-z0-9]+`)

func fileName(text string) string {
	name := notFileName.ReplaceAllString(text, "-")
	return name[:min(len(name), 120)]
}

// create makes a cluster and waits until it is complete.
func (s *scope) create(ctx context.Context, spec databasesv1.PostgreSQLClusterSpec) {
	GinkgoHelper()
	var err error
	s.postgres, err = bed.NewPostgres(ctx, s.namespace, clientDir(), spec)
	Expect(err).NotTo(HaveOccurred())
	s.settle(ctx)
	s.connect(ctx)
}

func (s *scope) connect(ctx context.Context) {
	GinkgoHelper()
	var err error
	s.credentials, err = s.postgres.Credentials(ctx)
	Expect(err).NotTo(HaveOccurred())
}

// settle waits until all instances are ready and a failover would lose nothing.
func (s *scope) settle(ctx context.Context) {
	GinkgoHelper()
	eventually(ctx, settleTime, func() error { return s.postgres.Settled(ctx) })
}

// change changes the spec and waits until the change is applied.
func (s *scope) change(ctx context.Context, change func(*databasesv1.PostgreSQLClusterSpec)) {
	GinkgoHelper()
	s.request(ctx, change)
	s.settle(ctx)
}

// request changes the spec and does not wait.
func (s *scope) request(ctx context.Context, change func(*databasesv1.PostgreSQLClusterSpec)) {
	GinkgoHelper()
	_, err := s.postgres.Change(ctx, func(c *databasesv1.PostgreSQLCluster) { change(&c.Spec) })
	Expect(err).NotTo(HaveOccurred())
}

// annotate sets an annotation of the cluster.
func (s *scope) annotate(ctx context.Context, key, value string) {
	GinkgoHelper()
	_, err := s.postgres.Change(ctx, func(c *databasesv1.PostgreSQLCluster) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[key] = value
	})
	Expect(err).NotTo(HaveOccurred())
}

// node is any node that can be worked from.
func (s *scope) node(ctx context.Context) string {
	GinkgoHelper()
	nodes, err := bed.Nodes(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(nodes).NotTo(BeEmpty())
	return nodes[0]
}

// primary returns the name of the pod that leads.
func (s *scope) primary(ctx context.Context) string {
	GinkgoHelper()
	var name string
	eventually(ctx, shortTime, func() error {
		pod, err := s.postgres.Primary(ctx)
		if err == nil {
			name = pod.Name
		}
		return err
	})
	return name
}

// write runs SQL through <cluster>-rw; it tries for a while.
func (s *scope) write(ctx context.Context, sql string) []string {
	GinkgoHelper()
	node := s.node(ctx)
	var rows []string
	eventually(ctx, shortTime, func() (err error) {
		rows, err = s.credentials.QueryService(ctx, node, naming.ServiceRW(s.postgres.Name), sql)
		return err
	})
	return rows
}

// readsFromStandby waits until a Service leads to a standby: it leads to the primary as long as no standby is ready.
func (s *scope) readsFromStandby(ctx context.Context, service string) {
	GinkgoHelper()
	node := s.node(ctx)
	eventually(ctx, shortTime, func() error {
		rows, err := s.credentials.QueryService(ctx, node, service, "SELECT pg_is_in_recovery()")
		if err == nil && rows[0] != "t" {
			err = fmt.Errorf("%s leads to the primary", service)
		}
		return err
	})
}

// everywhere waits until SQL gives the same one value on every instance.
func (s *scope) everywhere(ctx context.Context, sql, want string) {
	GinkgoHelper()
	eventually(ctx, 2*time.Minute, func() error {
		pods, err := s.postgres.Pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			rows, err := s.credentials.QueryPod(ctx, &pods[i], sql)
			if err != nil {
				return fmt.Errorf("%s: %w", pods[i].Name, err)
			}
			if len(rows) != 1 || rows[0] != want {
				return fmt.Errorf("%s: %q gives %q, want %q", pods[i].Name, sql, rows, want)
			}
		}
		return nil
	})
}

// condition waits for a condition's status and reason, and returns it.
func (s *scope) condition(ctx context.Context, kind, status, reason string) (message string) {
	GinkgoHelper()
	eventually(ctx, 2*time.Minute, func() error {
		c, err := s.postgres.Condition(ctx, kind)
		if err != nil {
			return err
		}
		if string(c.Status) != status || c.Reason != reason {
			return fmt.Errorf("%s is %s (%s: %s), want %s (%s)", kind, c.Status, c.Reason, c.Message, status, reason)
		}
		message = c.Message
		return nil
	})
	return message
}

func eventually(ctx context.Context, limit time.Duration, try func() error) {
	GinkgoHelper()
	Eventually(try).WithContext(ctx).WithTimeout(limit).WithPolling(polling).Should(Succeed())
}

// clientDir is where clients of this run keep files.
func clientDir() string {
	dir := filepath.Join(bed.Root, "out", "clients")
	Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	return dir
}
