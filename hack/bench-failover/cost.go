package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/naming"
)

// rss measures resident memory on the nodes, which are on this machine. The operator's is that of its process; an instance's is
// that of its manager and guard, the mean over the instances.
func (b *bench) rss(ctx context.Context) (cost, error) {
	operators, err := b.bed.OperatorPods(ctx)
	if err != nil {
		return cost{}, err
	}
	instances, err := b.postgres.Pods(ctx)
	if err != nil {
		return cost{}, err
	}
	operator, err := residentMB(operators)
	if err != nil {
		return cost{}, err
	}
	instance, err := residentMB(instances)
	return cost{Operator: operator, Instance: instance / float64(len(instances))}, err
}

// residentMB sums up the processes of our programs in pods, in MB (10^6 bytes).
func residentMB(pods []corev1.Pod) (float64, error) {
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, path := range paths {
		cmdline, err := os.ReadFile(filepath.Join(path, "cmdline"))
		if err != nil {
			continue // it ended
		}
		program, _, _ := bytes.Cut(cmdline, []byte{0})
		if name := filepath.Base(string(program)); name != "kumki" && name != "kumki-wal" {
			continue
		}
		cgroups, err := os.ReadFile(filepath.Join(path, "cgroup"))
		if err != nil || !inAny(string(cgroups), pods) {
			continue
		}
		kb, err := statusKB(filepath.Join(path, "status"))
		if err != nil {
			return 0, err
		}
		total += float64(kb) * 1024 / 1e6
	}
	if total == 0 {
		return 0, errors.New("no process of the pods was found: the nodes have to be on this machine")
	}
	return total, nil
}

func inAny(cgroups string, pods []corev1.Pod) bool {
	for _, pod := range pods {
		uid := string(pod.UID)
		if strings.Contains(cgroups, uid) || strings.Contains(cgroups, strings.ReplaceAll(uid, "-", "_")) {
			return true
		}
	}
	return false
}

func statusKB(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no VmRSS", path)
}

// writesPerMinute counts while nothing happens. The operator counts its own requests; what instances may write is only their
// cluster's Lease and its read-write Service, so each change of these is one write of theirs.
func (b *bench) writesPerMinute(ctx context.Context, window time.Duration) (cost, error) {
	// What a new cluster is still busy with is no steady state.
	if _, err := b.instanceWrites(ctx, 20*time.Second); err != nil {
		return cost{}, err
	}
	before, err := b.operatorWrites(ctx)
	if err != nil {
		return cost{}, err
	}
	changes, err := b.instanceWrites(ctx, window)
	if err != nil {
		return cost{}, err
	}
	after, err := b.operatorWrites(ctx)
	if err != nil {
		return cost{}, err
	}
	return cost{Operator: (after - before) / window.Minutes(), Instance: float64(changes) / window.Minutes()}, nil
}

// operatorWrites is how many writing requests the operator made since it started.
func (b *bench) operatorWrites(ctx context.Context) (float64, error) {
	pods, err := b.bed.OperatorPods(ctx)
	if err != nil {
		return 0, err
	}
	if len(pods) != 1 {
		return 0, fmt.Errorf("%d pods of the operator, want 1", len(pods))
	}
	dial, err := b.bed.Dial(ctx, pods[0].Spec.NodeName)
	if err != nil {
		return 0, err
	}
	httpClient := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := httpClient.Get("http://" + pods[0].Status.PodIP + ":8080/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, err
	}
	family := families["rest_client_requests_total"]
	if family == nil {
		return 0, errors.New("the operator has no metric rest_client_requests_total")
	}
	total := 0.0
	for _, m := range family.Metric {
		if writes(m) {
			total += m.GetCounter().GetValue()
		}
	}
	return total, nil
}

func writes(m *dto.Metric) bool {
	for _, label := range m.Label {
		if label.GetName() == "method" {
			return label.GetValue() != http.MethodGet && label.GetValue() != http.MethodHead
		}
	}
	return false
}

// instanceWrites counts the changes within the window.
func (b *bench) instanceWrites(ctx context.Context, window time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, window)
	defer cancel()
	leases, err := b.changes(ctx, &coordinationv1.LeaseList{}, naming.Lease(b.postgres.Name))
	if err != nil {
		return 0, err
	}
	services, err := b.changes(ctx, &corev1.ServiceList{}, naming.ServiceRW(b.postgres.Name))
	if err != nil {
		return 0, err
	}
	return <-leases + <-services, nil
}

// changes counts the versions of one object until ctx ends. A watch that the API server ends is begun anew.
func (b *bench) changes(ctx context.Context, list client.ObjectList, name string) (<-chan int, error) {
	w, err := b.watch(ctx, list, name)
	if err != nil {
		return nil, err
	}
	counted := make(chan int, 1)
	go func() {
		versions := map[string]bool{}
		for {
			for event := range w.ResultChan() {
				if object, ok := event.Object.(client.Object); ok && event.Type != watch.Bookmark {
					versions[object.GetResourceVersion()] = true
				}
			}
			w.Stop()
			if w, err = b.watch(ctx, list, name); err != nil {
				counted <- max(0, len(versions)-1) // the first is what was there
				return
			}
		}
	}()
	return counted, nil
}

func (b *bench) watch(ctx context.Context, list client.ObjectList, name string) (watch.Interface, error) {
	return b.bed.Client.Watch(ctx, list, client.InNamespace(b.namespace),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", name)})
}
