// Package instance is the subcommand that runs a database pod.
package instance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kumki-dev/kumki/internal/footprint"
	"github.com/kumki-dev/kumki/internal/instance"
	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/version"
)

// options are the flags that are not the manager's own.
type options struct {
	instance.Options
	kubeconfig string
	logLevel   string
	runAs      string
}

// New returns the subcommand instance.
func New() *cobra.Command {
	o := options{Options: instance.DefaultOptions()}
	c := &cobra.Command{
		Use: "instance", Short: "Run PostgreSQL in a database pod, as its first process", Args: cobra.NoArgs,
		Long: "instance runs one PostgreSQL instance: it makes or clones the data, starts PostgreSQL, takes part in the election of the\n" +
			"primary and fences itself when leadership is in doubt. The operator starts it in every database pod.",
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&o.Pod, "pod-name", os.Getenv("POD_NAME"), "name of this pod")
	f.StringVar(&o.PodUID, "pod-uid", os.Getenv("POD_UID"), "UID of this pod")
	f.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of this pod")
	f.StringVar(&o.Cluster, "cluster", os.Getenv("CLUSTER_NAME"), "name of the PostgreSQLCluster")
	f.StringVar(&o.ConfigDir, "config-dir", o.ConfigDir, "where the ConfigMap is mounted")
	f.StringVar(&o.ServerTLSDir, "server-tls-dir", o.ServerTLSDir, "where the server's certificate is mounted")
	f.StringVar(&o.PeerTLSDir, "peer-tls-dir", o.PeerTLSDir, "where the instances' own certificate is mounted")
	f.StringVar(&o.ClientCADir, "client-ca-dir", o.ClientCADir, "where the authority of clients' certificates is mounted")
	f.StringVar(&o.AppDir, "app-secret-dir", o.AppDir, "where the application's Secret is mounted")
	f.StringVar(&o.SuperuserDir, "superuser-secret-dir", o.SuperuserDir, "where the superuser's Secret is mounted")
	f.StringVar(&o.DataDir, "data-dir", o.DataDir, "mount point of the data volume")
	f.StringVar(&o.WALDir, "wal-dir", o.WALDir, "mount point of the WAL volume")
	f.StringVar(&o.RunDir, "run-dir", o.RunDir, "directory of sockets and private copies of keys")
	f.StringVar(&o.Bind, "bind", o.Bind, "address to listen on; empty: all")
	f.IntVar(&o.PortPG, "port", o.PortPG, "port of PostgreSQL")
	f.IntVar(&o.PortAPI, "api-port", o.PortAPI, "port of the mTLS endpoint")
	f.IntVar(&o.PortProbe, "probe-port", o.PortProbe, "port of probes and metrics")
	f.StringVar(&o.GuardBinary, "guard-binary", o.GuardBinary, "path of kumki-wal")
	f.StringVar(&o.BinDir, "pg-bin-dir", o.BinDir, "directory of PostgreSQL's programs; empty: find it")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: the pod's service account")
	f.StringVar(&o.logLevel, "log-level", "info", "least severe level that is logged: debug, info, warn or error")
	f.StringVar(&o.runAs, "run-as", "", "UID:GID of PostgreSQL's processes when this one is root; for tests without containers")
	f.BoolVar(&o.NoPodGate, "no-pod-status", false, "do not wait for the kubelet's status of this pod; for tests without containers")
	return c
}

func (o *options) run(ctx context.Context) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("--log-level %q is none of debug, info, warn, error", o.logLevel)
	}
	// A small live heap: collecting often costs little and keeps the memory beside PostgreSQL small.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
	// A connection to a lost API server must be given up within the lease's time.
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "3", "HTTP2_PING_TIMEOUT_SECONDS": "2"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value)
		}
	}
	o.Log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	o.Version = version.Version
	if err := o.connect(); err != nil {
		return err
	}
	if o.runAs != "" {
		var uid, gid uint32
		if _, err := fmt.Sscanf(strings.Replace(o.runAs, ":", " ", 1), "%d %d", &uid, &gid); err != nil {
			return fmt.Errorf("--run-as %q is not UID:GID", o.runAs)
		}
		o.RunAs = &pgproc.User{UID: uid, GID: gid}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go footprint.Settle(ctx)
	return instance.Run(ctx, o.Options)
}

func (o *options) connect() error {
	var err error
	if o.kubeconfig != "" {
		o.Kube, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	} else {
		o.Kube, err = rest.InClusterConfig()
	}
	if err != nil {
		return fmt.Errorf("no connection to Kubernetes: %w", err)
	}
	o.Kube.QPS, o.Kube.Burst = 50, 100
	o.Kube.UserAgent = "kumki-instance/" + o.Version
	return nil
}
