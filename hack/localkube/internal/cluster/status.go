package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// Status prints what runs; the error says what is wrong.
func (c *Cluster) Status(ctx context.Context, out io.Writer) error {
	nodes := RecordedNodes()
	if len(nodes) == 0 {
		if c.leftovers() {
			return errors.New("no cluster is up, but parts of one are left (\"localkube down\" clears up)")
		}
		return errors.New("no cluster is up")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, name := range daemons(nodes) {
		state := "down"
		if pid := c.super.PID(name); pid != 0 {
			state = fmt.Sprintf("pid %d", pid)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", name, state, c.super.LogPath(name))
	}
	var problems []string
	if missing := c.missing(nodes); len(missing) > 0 {
		problems = append(problems, "missing: "+strings.Join(missing, ", "))
	}
	problems = append(problems, nodeStatus(ctx, w, nodes)...)
	if err := lookupAPI(ctx); err != nil {
		problems = append(problems, "DNS: "+err.Error())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	_, err := fmt.Fprintln(out, "all is well; export KUBECONFIG="+layout.Kubeconfig())
	return err
}

func nodeStatus(ctx context.Context, w io.Writer, nodes []layout.Node) []string {
	client, err := Client()
	if err != nil {
		return []string{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []string{"API server: " + err.Error()}
	}
	var problems []string
	if len(list.Items) != len(nodes) {
		problems = append(problems, fmt.Sprintf("%d of %d nodes have registered", len(list.Items), len(nodes)))
	}
	for i := range list.Items {
		node := &list.Items[i]
		condition := readyCondition(node)
		state := "ready"
		if condition.Status != corev1.ConditionTrue {
			state = "not ready"
			problems = append(problems, node.Name+": "+condition.Message)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s %s\n", node.Name, state, node.Status.NodeInfo.KubeletVersion,
			node.Labels[corev1.LabelTopologyZone])
	}
	return problems
}
