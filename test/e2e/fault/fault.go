// Package fault breaks pieces of a local cluster, and heals them. It drives the tool localkube, which needs no API server for it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/test/e2e/testbed"
)

// Process is a process of a database pod.
type Process string

// Processes that can be hit.
const (
	Manager    Process = "manager"
	Postmaster Process = "postmaster"
	Guard      Process = "guard"
	Backend    Process = "backend" // one that serves a client
)

// Signals.
const (
	Kill = "KILL"
	Stop = "STOP"
	Cont = "CONT"
)

// API stands for the API server among what a node can be cut off from.
const API = "api"

// Injector breaks and heals.
type Injector struct{ bed *testbed.Bed }

// New makes an injector for a local cluster (CLUSTER=local).
func New(bed *testbed.Bed) *Injector { return &Injector{bed} }

func (i *Injector) localkube(ctx context.Context, args ...string) error {
	if i.bed.Kind != "local" {
		return fmt.Errorf("faults need CLUSTER=local, not %s", i.bed.Kind)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(i.bed.Root, "bin", "localkube"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("localkube %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Signal sends a signal to a process of a pod.
func (i *Injector) Signal(ctx context.Context, pod *corev1.Pod, process Process, signal string) error {
	return i.localkube(ctx, "fault", "kill", pod.Name, "-n", pod.Namespace, "-c", "postgresql",
		"--process", string(process), "--signal", signal)
}

// Freeze stops all processes of a pod at one instant.
func (i *Injector) Freeze(ctx context.Context, pod *corev1.Pod) error {
	return i.localkube(ctx, "fault", "freeze", pod.Name, "-n", pod.Namespace)
}

// Thaw lets the processes of a frozen pod go on.
func (i *Injector) Thaw(ctx context.Context, pod *corev1.Pod) error {
	return i.localkube(ctx, "fault", "thaw", pod.Name, "-n", pod.Namespace)
}

// Cut drops all traffic of a node, or only that with what is named: API or other nodes.
func (i *Injector) Cut(ctx context.Context, node string, from ...string) error {
	args := []string{"fault", "cut", node}
	if len(from) > 0 {
		args = append(args, "--from", strings.Join(from, ","))
	}
	return i.localkube(ctx, args...)
}

// Heal undoes all cuts of nodes.
func (i *Injector) Heal(ctx context.Context, nodes ...string) error {
	return i.localkube(ctx, append([]string{"fault", "heal"}, nodes...)...)
}

// StopAPI stops the API server.
func (i *Injector) StopAPI(ctx context.Context) error { return i.localkube(ctx, "fault", "stop-api") }

// StartAPI starts the API server again.
func (i *Injector) StartAPI(ctx context.Context) error { return i.localkube(ctx, "fault", "start-api") }

// HealAll undoes what an earlier run may have left.
func (i *Injector) HealAll(ctx context.Context) error {
	if err := i.StartAPI(ctx); err != nil {
		return err
	}
	nodes, err := i.bed.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nodes.Items {
		errs = append(errs, i.Heal(ctx, n.Name))
		if n.Spec.Unschedulable {
			errs = append(errs, i.bed.SetUnschedulable(ctx, n.Name, false))
		}
	}
	return errors.Join(errs...)
}

// DeletePod deletes a pod as a person does: it has its grace period.
func (i *Injector) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	return i.bed.Client.Delete(ctx, pod.DeepCopy(), client.Preconditions{UID: &pod.UID})
}

// ForceDeletePod removes a pod from the API at once, although its processes may still run.
func (i *Injector) ForceDeletePod(ctx context.Context, pod *corev1.Pod) error {
	return i.bed.Client.Delete(ctx, pod.DeepCopy(), client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(0))
}

// EvictPod asks for an eviction, as kubectl drain does; a PodDisruptionBudget may refuse it.
func (i *Injector) EvictPod(ctx context.Context, pod *corev1.Pod) error {
	return i.bed.Kubernetes.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	})
}
