// Package operator is the subcommand that runs the operator.
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kumki-dev/kumki/controllers"
	"github.com/kumki-dev/kumki/internal/footprint"
	"github.com/kumki-dev/kumki/internal/kube"
	"github.com/kumki-dev/kumki/internal/version"
)

// options are the flags.
type options struct {
	metricsAddress string
	probeAddress   string
	leaderElect    bool
	workers        int
	qps            float32
	verbose        int
}

// New returns the subcommand operator.
func New() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the operator",
		Long: `Run the operator: it makes PostgreSQLClusters be what they are declared to be.

Environment:
  KUMKI_IMAGE                    image with Kumki's binaries, which database pods run (required)
  RELATED_IMAGE_POSTGRES_<NN>    default image of PostgreSQL NN, for resources that name none
  WATCH_NAMESPACE                namespaces to watch, separated by commas; empty: all
  POD_NAMESPACE                  namespace of the operator itself`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return run(ctrl.SetupSignalHandler(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address of the metrics; 0 turns them off")
	f.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of the probes /healthz and /readyz")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "let one of several operators work; its lease is renewed all the time")
	f.IntVar(&o.workers, "workers", 4, "clusters that are reconciled at a time")
	f.Float32Var(&o.qps, "kube-qps", 50, "requests a second to the API server")
	f.IntVarP(&o.verbose, "verbosity", "v", 0, "how much is logged: 0 for what matters, 1 for more")
	return cmd
}

func run(ctx context.Context, o options) error {
	// Much of the heap is caches that live long, so collecting more often costs little: it saves a quarter of the memory.
	debug.SetGCPercent(40)
	log := logger(o.verbose)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w; run in a pod, or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = o.qps, int(o.qps)*2
	config.UserAgent = "kumki-operator/" + version.Version
	settings, err := settingsFromEnvironment(os.Environ())
	if err != nil {
		return err
	}
	mgr, err := newManager(config, o)
	if err != nil {
		return err
	}
	settings.OpenShift, err = onOpenShift(mgr)
	if err != nil {
		return err
	}
	reconciler := &controllers.ClusterReconciler{
		Settings: settings, Client: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Writer:    kube.NewWriter(mgr.GetClient(), mgr.GetAPIReader(), time.Now),
		Instances: &controllers.MutualTLS{},
		Recorder:  mgr.GetEventRecorder("kumki"),
		Now:       time.Now,
	}
	if err := reconciler.SetupWithManager(mgr, o.workers); err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	if err := metrics.Registry.Register(controllers.NewClusterMetrics(mgr.GetClient())); err != nil {
		return fmt.Errorf("set the metrics up: %w", err)
	}
	log.Info("Kumki operator", "version", version.Version, "openshift", settings.OpenShift, "image", settings.OperatorImage)
	go footprint.Settle(ctx)
	if err := mgr.Start(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the operator ended: %w", err)
	}
	return nil
}

func newManager(config *rest.Config, o options) (manager.Manager, error) {
	scheme, err := controllers.NewScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controllers.CacheOptions(namespaces(os.Getenv("WATCH_NAMESPACE"))),
		Client:                        client.Options{FieldOwner: "kumki"},
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "kumki-operator",
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("set the manager up: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("set the probes up: %w", err)
	}
	return mgr, nil
}

// onOpenShift asks the API server whether it knows OpenShift's security context constraints.
func onOpenShift(mgr manager.Manager) (bool, error) {
	kind := schema.GroupKind{Group: "security.openshift.io", Kind: "SecurityContextConstraints"}
	_, err := mgr.GetRESTMapper().RESTMapping(kind)
	switch {
	case err == nil:
		return true, nil
	case apimeta.IsNoMatchError(err):
		return false, nil
	}
	return false, fmt.Errorf("ask the API server for its kinds: %w", err)
}

const imagePrefix = "RELATED_IMAGE_POSTGRES_"

// settingsFromEnvironment reads what holds for all clusters from variables "NAME=value".
func settingsFromEnvironment(environment []string) (controllers.Settings, error) {
	s := controllers.Settings{PostgreSQLImages: map[int]string{}}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case name == "KUMKI_IMAGE":
			s.OperatorImage = value
		case name == "RELATED_IMAGE_KUMKI" && s.OperatorImage == "":
			s.OperatorImage = value
		case name == "POD_NAMESPACE":
			s.OperatorNamespace = value
		case strings.HasPrefix(name, imagePrefix) && value != "":
			major, err := strconv.Atoi(strings.TrimPrefix(name, imagePrefix))
			if err != nil {
				return s, fmt.Errorf("the environment variable %s does not end with a major version of PostgreSQL, as in %s17", name, imagePrefix)
			}
			s.PostgreSQLImages[major] = value
		}
	}
	if s.OperatorImage == "" {
		return s, errors.New("KUMKI_IMAGE is not set: set it to the image of this operator, database pods copy its binaries")
	}
	return s, nil
}

// namespaces splits WATCH_NAMESPACE; nil is all namespaces.
func namespaces(list string) []string {
	var out []string
	for _, n := range strings.Split(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}

// logger writes JSON lines to the standard error stream.
func logger(verbosity int) logr.Logger {
	return logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-verbosity)}))
}
