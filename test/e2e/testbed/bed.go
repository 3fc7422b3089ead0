// Package testbed drives a real Kubernetes cluster with Kumki on it: it makes PostgreSQL clusters, observes them, connects to
// them, and writes down what happened when a test fails. Single steps return errors; whoever waits polls.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientconfig "sigs.k8s.io/controller-runtime/pkg/client/config"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/test/writer"
	"github.com/kumki-dev/kumki/test/writer/netns"
)

// OperatorNamespace is where the installation manifests put the operator.
const OperatorNamespace = "kumki-system"

// Bed is a Kubernetes cluster with Kumki on it.
type Bed struct {
	Client     client.WithWatch
	Kubernetes kubernetes.Interface
	// Root of the checkout.
	Root string
	// Kind of Kubernetes cluster: local, kind or current, as in the Makefile.
	Kind string
}

// Connect uses the kubeconfig of the environment (KUBECONFIG), and CLUSTER for the kind of cluster.
func Connect() (*Bed, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	config, err := clientconfig.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster (set KUBECONFIG, or run it through make): %w", err)
	}
	config.QPS, config.Burst = 100, 200
	// A stopped API server has to show as an error, not as a hang.
	config.Timeout = 15 * time.Second
	return connect(config, root)
}

func connect(config *rest.Config, root string) (*Bed, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), databasesv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	watching := rest.CopyConfig(config)
	watching.Timeout = 0 // watches last
	c, err := client.NewWithWatch(watching, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kind := os.Getenv("CLUSTER")
	if kind == "" {
		kind = "local"
	}
	return &Bed{Client: c, Kubernetes: k, Root: root, Kind: kind}, nil
}

// findRoot goes up from the working directory to the main module's go.mod.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		data, readErr := os.ReadFile(filepath.Join(dir, "go.mod"))
		if readErr == nil && strings.HasPrefix(string(data), "module github.com/kumki-dev/kumki\n") {
			return dir, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.Join(errors.New("run it inside of the checkout: no go.mod of the project was found"), err)
}

// Dial returns a function that dials as the node would, so that Service addresses work. For CLUSTER=current it is the host's own.
func (b *Bed) Dial(ctx context.Context, node string) (writer.DialFunc, error) {
	switch b.Kind {
	case "local":
		return netns.Dialer{Path: "/run/netns/kumki-" + node}.DialContext, nil
	case "kind":
		out, err := exec.CommandContext(ctx, "docker", "inspect", "-f", "{{.State.Pid}}", node).Output()
		if err != nil {
			return nil, fmt.Errorf("find the process of kind's node %s: %w", node, err)
		}
		return netns.Dialer{Path: "/proc/" + strings.TrimSpace(string(out)) + "/ns/net"}.DialContext, nil
	default:
		return nil, nil
	}
}

// Nodes returns the names of all nodes that take pods.
func (b *Bed) Nodes(ctx context.Context) ([]string, error) {
	var list corev1.NodeList
	if err := b.Client.List(ctx, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, n := range list.Items {
		if !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// NodesReady fails when a node is not Ready.
func (b *Bed) NodesReady(ctx context.Context) error {
	var list corev1.NodeList
	if err := b.Client.List(ctx, &list); err != nil {
		return err
	}
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s is not ready: %s", n.Name, c.Message)
			}
		}
	}
	return nil
}

// SetUnschedulable cordons a node, or lifts that.
func (b *Bed) SetUnschedulable(ctx context.Context, node string, value bool) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, value))
	return b.Client.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)
}

// operatorLabels are on the operator's Deployment and its pods.
var operatorLabels = client.MatchingLabels{
	"app.kubernetes.io/component": "operator", "app.kubernetes.io/managed-by": "kumki-install",
}

// ScaleOperator sets the number of the operator's pods.
func (b *Bed) ScaleOperator(ctx context.Context, replicas int32) error {
	d, err := b.operator(ctx)
	if err != nil {
		return err
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	return b.Client.Patch(ctx, d, patch)
}

// OperatorSettled fails unless exactly that many pods of the operator are there, and ready.
func (b *Bed) OperatorSettled(ctx context.Context, replicas int32) error {
	pods, err := b.OperatorPods(ctx)
	if err != nil {
		return err
	}
	ready := int32(0)
	for i := range pods {
		if PodReady(&pods[i]) {
			ready++
		}
	}
	if ready != replicas || len(pods) != int(replicas) {
		return fmt.Errorf("%d pods of the operator, %d ready, want %d", len(pods), ready, replicas)
	}
	return nil
}

// OperatorPods returns the operator's pods.
func (b *Bed) OperatorPods(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := b.Client.List(ctx, &pods, client.InNamespace(OperatorNamespace), operatorLabels)
	return pods.Items, err
}

func (b *Bed) operator(ctx context.Context) (*appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := b.Client.List(ctx, &list, client.InNamespace(OperatorNamespace), operatorLabels); err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d Deployments of the operator in namespace %s, want 1: run make deploy", len(list.Items), OperatorNamespace)
	}
	return &list.Items[0], nil
}

// PodReady tells whether a pod's condition Ready is True.
func PodReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Poll tries every interval until try succeeds; when ctx ends first, the last failure is the error.
func Poll(ctx context.Context, interval time.Duration, try func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
