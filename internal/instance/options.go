// Package instance is the manager of one PostgreSQL instance, the first process of a database pod. It runs PostgreSQL's programs,
// takes part in the election of the primary, and does what the election decides: observe, plan, act.
//
// One goroutine, the loop, owns all state. Whatever takes time runs elsewhere and comes back as a function that the loop runs.
// docs/design/instance.md describes the states.
package instance

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgproc"
)

// Options say who the instance is and where its inputs are. In a pod nearly all are the defaults of package naming.
type Options struct {
	Pod, PodUID, Namespace, Cluster string

	ConfigDir    string // instance.json
	ServerTLSDir string // tls.crt, tls.key, ca.crt of PostgreSQL
	PeerTLSDir   string // the same for replication and the instance API
	ClientCADir  string // ca.crt for clients' certificates
	AppDir       string // Secret of the application user
	SuperuserDir string // Secret of the superuser; may be missing
	DataDir      string // data volume
	WALDir       string // WAL volume, used when the configuration says so
	RunDir       string // sockets and private copies of keys

	// Bind is the address that PostgreSQL and the endpoints listen on; "" is all.
	Bind        string
	PortPG      int
	PortAPI     int
	PortProbe   int
	GuardBinary string       // kumki-wal
	BinDir      string       // PostgreSQL's programs; "" finds them
	Version     string       // of the manager
	RunAs       *pgproc.User // PostgreSQL's user when this process is root, in tests; nil in a pod
	NoPodGate   bool         // there is no kubelet that writes the pod's status, in tests

	Kube   *rest.Config
	Timing election.Timing
	Log    *slog.Logger
}

// DefaultOptions are those of a pod.
func DefaultOptions() Options {
	return Options{
		ConfigDir: naming.PathConfig, ServerTLSDir: naming.PathTLSServer, PeerTLSDir: naming.PathTLSPeer,
		ClientCADir: naming.PathTLSClient, AppDir: naming.PathAppSecret, SuperuserDir: naming.PathSuperuser,
		DataDir: naming.PathData, WALDir: naming.PathWAL, RunDir: naming.PathRun,
		PortPG: naming.PortPostgreSQL, PortAPI: naming.PortAPI, PortProbe: naming.PortProbe,
		GuardBinary: filepath.Join(naming.PathBin, "kumki-wal"),
		Timing:      election.DefaultTiming(),
	}
}

// privateTLS is where the process keeps its own copy of certificates and keys of a kind, as PostgreSQL and libpq want them.
func (o *Options) privateTLS(kind string) string { return filepath.Join(o.RunDir, "tls", kind) }

// validate names the first option that is missing.
func (o *Options) validate() error {
	required := []struct{ name, value string }{
		{"pod name (POD_NAME)", o.Pod}, {"pod UID (POD_UID)", o.PodUID}, {"namespace (POD_NAMESPACE)", o.Namespace},
		{"cluster name (CLUSTER_NAME)", o.Cluster},
	}
	for _, r := range required {
		if r.value == "" {
			return fmt.Errorf("the %s is not set: the instance manager runs in a pod that the operator made; set the flag or the variable", r.name)
		}
	}
	if o.Kube == nil {
		return errors.New("no connection to the Kubernetes API server is configured: run in a pod with a service account, or give --kubeconfig")
	}
	return nil
}
