package controllers_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/controllers"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/kube"
)

func TestControllers(t *testing.T) {
	RegisterFailHandler(Fail)
	suite, reporter := GinkgoConfiguration()
	RunSpecs(t, "Controllers", suite, reporter)
}

var (
	environment *envtest.Environment
	// people is a client of its own: what tests write is not counted as the operator's.
	people client.Client
	writes = &writeCounter{}
	pods   *worlds
	clock  = &testClock{}
	stop   context.CancelFunc
	ended  chan struct{}
)

var _ = BeforeSuite(func() {
	logf.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(time.Minute) // on a busy machine; a second or two on an idle one
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(), "KUBEBUILDER_ASSETS is not set: use 'make test'")

	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(apiv1.AddToScheme(scheme)).To(Succeed())
	environment = &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	config, err := environment.Start()
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	people, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	pods = newWorlds(people)

	counted := operatorUser(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { writes.next = next; return writes })
	own, err := controllers.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(counted, ctrl.Options{
		Scheme: own, Cache: controllers.CacheOptions(nil), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	Expect(err).NotTo(HaveOccurred())
	reconciler := &controllers.ClusterReconciler{
		Settings: controllers.Settings{
			OperatorImage: "example.com/kumki:test", OperatorNamespace: "kumki",
			PostgreSQLImages: map[int]string{15: "postgres:15", 17: "postgres:17"},
		},
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Writer: kube.NewWriter(mgr.GetClient(), mgr.GetAPIReader(), clock.Now),
		Instances: pods, Recorder: mgr.GetEventRecorder("kumki"), Now: clock.Now,
	}
	Expect(reconciler.SetupWithManager(mgr, 4)).To(Succeed())

	var ctx context.Context
	ctx, stop = context.WithCancel(context.Background())
	ended = make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(ended)
		Expect(mgr.Start(ctx)).To(Succeed())
	}()
	go pods.run(ctx)
})

var _ = AfterSuite(func() {
	if stop != nil {
		stop()
		<-ended
	}
	if environment != nil {
		Expect(environment.Stop()).To(Succeed())
	}
})

// operatorUser is a user that may do what config/rbac/role.yaml says and nothing else.
func operatorUser(admin *rest.Config) *rest.Config {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.ClusterRole{}
	Expect(yaml.Unmarshal(text, role)).To(Succeed())
	ctx := context.Background()
	Expect(people.Create(ctx, role)).To(Succeed())
	Expect(people.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "operator"}},
	})).To(Succeed())
	user, err := environment.AddUser(envtest.User{Name: "operator"}, rest.CopyConfig(admin))
	Expect(err).NotTo(HaveOccurred())
	return user.Config()
}

// writeCounter counts requests of the operator that change something.
type writeCounter struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen []string
}

// RoundTrip implements http.RoundTripper.
func (w *writeCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		w.mu.Lock()
		w.seen = append(w.seen, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
	}
	return w.next.RoundTrip(r)
}

// in returns the writes to objects of a namespace.
func (w *writeCounter) in(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, request := range w.seen {
		if strings.Contains(request, "/namespaces/"+namespace+"/") {
			out = append(out, request)
		}
	}
	return out
}

// testClock is the time of day, moved forward by what a test wants to be over.
type testClock struct {
	mu    sync.Mutex
	ahead time.Duration
}

// Now is the present time of the tests.
func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// forward moves the clock until the end of the test.
func (c *testClock) forward(d time.Duration) {
	c.add(d)
	DeferCleanup(c.add, -d)
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// newNamespace makes a namespace for one test.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(people.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// worlds are the simulated instances of all clusters of the suite.
type worlds struct {
	client client.Client
	fake   map[types.NamespacedName]*world
	mu     sync.Mutex
}

func newWorlds(c client.Client) *worlds {
	return &worlds{client: c, fake: map[types.NamespacedName]*world{}}
}

// Client implements controllers.Instances.
func (w *worlds) Client(cluster types.NamespacedName, secret map[string][]byte) (instanceapi.Client, error) {
	if _, err := instanceapi.ParseIdentity(secret["tls.crt"], secret["tls.key"], secret["ca.crt"]); err != nil {
		return nil, err
	}
	return w.of(cluster).api, nil
}

// Forget implements controllers.Instances.
func (w *worlds) Forget(types.NamespacedName) {}

// retire ends the world of a test's cluster, and the cluster with it.
func (w *worlds) retire(ctx context.Context, cluster types.NamespacedName) {
	w.mu.Lock()
	delete(w.fake, cluster)
	w.mu.Unlock()
	object := &apiv1.PostgreSQLCluster{}
	if err := w.client.Get(ctx, cluster, object); err != nil {
		return
	}
	_ = w.client.Delete(ctx, object)
	_ = w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

func (w *worlds) of(cluster types.NamespacedName) *world {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fake[cluster] == nil {
		w.fake[cluster] = newWorld(w.client, cluster)
	}
	return w.fake[cluster]
}

// run lets time pass in all worlds until the context ends.
func (w *worlds) run(ctx context.Context) {
	defer GinkgoRecover()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		all := make([]*world, 0, len(w.fake))
		for _, one := range w.fake {
			all = append(all, one)
		}
		w.mu.Unlock()
		for _, one := range all {
			one.step(ctx)
		}
	}
}
