package testbed

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	databasesv1 "github.com/kumki-dev/kumki/api/v1"
)

// Dump writes what is in a namespace into dir: objects, events, and logs of now and before. Secrets are left out.
// It does what it can and says in dir/errors.txt what it could not.
func (b *Bed) Dump(ctx context.Context, namespace, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	d := &dump{bed: b, dir: dir}
	for name, list := range map[string]client.ObjectList{
		"postgresqlclusters": &databasesv1.PostgreSQLClusterList{}, "leases": &coordinationv1.LeaseList{}, "pods": &corev1.PodList{},
		"services": &corev1.ServiceList{}, "endpointslices": &discoveryv1.EndpointSliceList{}, "configmaps": &corev1.ConfigMapList{},
		"statefulsets": &appsv1.StatefulSetList{}, "volumeclaims": &corev1.PersistentVolumeClaimList{}, "events": &corev1.EventList{},
	} {
		d.objects(ctx, name, list, client.InNamespace(namespace))
	}
	d.objects(ctx, "nodes", &corev1.NodeList{})
	d.logs(ctx, namespace)
	d.logs(ctx, OperatorNamespace)
	return d.finish()
}

type dump struct {
	bed      *Bed
	dir      string
	problems string
}

func (d *dump) note(what string, err error) {
	if err != nil {
		d.problems += fmt.Sprintf("%s: %v\n", what, err)
	}
}

func (d *dump) objects(ctx context.Context, name string, list client.ObjectList, options ...client.ListOption) {
	if err := d.bed.Client.List(ctx, list, options...); err != nil {
		d.note("list "+name, err)
		return
	}
	data, err := yaml.Marshal(list)
	d.note("write "+name, err)
	d.note("write "+name, os.WriteFile(filepath.Join(d.dir, name+".yaml"), data, 0o644))
}

func (d *dump) logs(ctx context.Context, namespace string) {
	var pods corev1.PodList
	if err := d.bed.Client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		d.note("list pods", err)
		return
	}
	for _, pod := range pods.Items {
		for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			d.log(ctx, &pod, status.Name, false)
			if status.RestartCount > 0 {
				d.log(ctx, &pod, status.Name, true)
			}
		}
	}
}

func (d *dump) log(ctx context.Context, pod *corev1.Pod, container string, previous bool) {
	name := pod.Name + "." + container
	if previous {
		name += ".previous"
	}
	stream, err := d.bed.Kubernetes.CoreV1().Pods(pod.Namespace).
		GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}).Stream(ctx)
	if err != nil {
		d.note("log of "+name, err)
		return
	}
	defer func() { _ = stream.Close() }()
	file, err := os.Create(filepath.Join(d.dir, name+".log"))
	if err != nil {
		d.note("log of "+name, err)
		return
	}
	_, err = io.Copy(file, stream)
	d.note("log of "+name, err)
	d.note("log of "+name, file.Close())
}

func (d *dump) finish() error {
	if d.problems == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(d.dir, "errors.txt"), []byte(d.problems), 0o644)
}
