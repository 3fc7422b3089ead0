package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kumki-dev/kumki/internal/desired"
	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/naming"
)

// world stands for what the API server of the tests lacks: the StatefulSet controller, kubelets, and the instances of one cluster.
type world struct {
	client  client.Client
	cluster types.NamespacedName
	api     *instanceapi.Fake

	mu      sync.Mutex
	record  election.Record
	data    map[string]bool     // pods whose volume has data
	pending map[string][]string // parameters that wait for a restart, by pod
	inForce map[string]map[string]string
	broken  map[string]bool // pods that do not become ready
	// brokenTemplate is an image that cannot be pulled.
	brokenTemplate string
	// silent: no instance does or answers anything any more.
	silent bool
	nodes  map[string]string
	known  map[string]types.UID
	log    []string // what happened, in order
}

func newWorld(c client.Client, cluster types.NamespacedName) *world {
	w := &world{
		client: c, cluster: cluster, api: instanceapi.NewFake(), data: map[string]bool{}, pending: map[string][]string{},
		inForce: map[string]map[string]string{}, broken: map[string]bool{}, nodes: map[string]string{}, known: map[string]types.UID{},
	}
	w.api.On(w.called)
	return w
}

// did returns what happened so far, and forgets it.
func (w *world) did() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// seen is what happened so far.
func (w *world) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) primary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record.Released != nil {
		return ""
	}
	return w.record.Holder
}

// change changes the world under its lock.
func (w *world) change(do func(*world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do(w)
}

// called is what the instances do when the operator asks.
func (w *world) called(c instanceapi.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch request := c.Request.(type) {
	case instanceapi.HandoverRequest:
		w.log = append(w.log, "handover "+c.Pod+" "+request.To)
		w.record.Released = &election.Release{To: request.To, Clean: true}
		w.restarted(c.Pod) // it goes on as a standby, with its present settings
	case instanceapi.RestartRequest:
		w.log = append(w.log, "restart "+c.Pod)
		w.restarted(c.Pod)
	}
	return nil
}

func (w *world) restarted(pod string) {
	delete(w.pending, pod)
	delete(w.inForce, pod)
}

// step lets a moment pass.
func (w *world) step(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set := &appsv1.StatefulSet{}
	if err := w.client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: w.cluster.Name}, set); err != nil {
		return
	}
	config := w.config(ctx)
	pods := &corev1.PodList{}
	if err := w.client.List(ctx, pods, client.InNamespace(w.cluster.Namespace), client.MatchingLabels{naming.LabelCluster: w.cluster.Name}); err != nil {
		return
	}
	have := map[string]*corev1.Pod{}
	for i := range pods.Items {
		have[pods.Items[i].Name] = &pods.Items[i]
	}
	if set.DeletionTimestamp.IsZero() {
		w.controlSet(ctx, set, have)
	} else { // the garbage collector takes its owner's reference off the pods and lets it go
		set.Finalizers = nil
		_ = w.client.Update(ctx, set)
	}
	for name, pod := range have {
		if w.brokenTemplate != "" && pod.Spec.Containers[0].Image == w.brokenTemplate {
			w.waits(ctx, pod)
			delete(have, name)
		}
	}
	if w.silent {
		for name, pod := range have {
			w.api.Remove(name)
			w.ready(ctx, pod, false)
		}
		return
	}
	if config != nil {
		w.lead(have, config)
		w.publish(ctx, have, config)
	}
}

func (w *world) config(ctx context.Context) *instanceapi.Config {
	object := &corev1.ConfigMap{}
	if err := w.client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: naming.ConfigMap(w.cluster.Name)}, object); err != nil {
		return nil
	}
	config := &instanceapi.Config{}
	if json.Unmarshal([]byte(object.Data[naming.KeyConfig]), config) != nil {
		return nil
	}
	return config
}

// controlSet makes and removes pods and makes claims, as the StatefulSet controller does.
func (w *world) controlSet(ctx context.Context, set *appsv1.StatefulSet, have map[string]*corev1.Pod) {
	want := int(*set.Spec.Replicas)
	for name, uid := range w.known { // deleted by somebody else
		if pod := have[name]; pod == nil || pod.UID != uid {
			w.gone(name, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		}
	}
	for name, pod := range have {
		w.known[name] = pod.UID
	}
	for name, pod := range have {
		if n, ok := naming.Ordinal(w.cluster.Name, name); ok && n >= want {
			_ = w.client.Delete(ctx, pod, client.GracePeriodSeconds(0))
			w.gone(name, pod)
			delete(have, name)
		}
	}
	for n := range want {
		name := naming.Pod(w.cluster.Name, n)
		for _, template := range set.Spec.VolumeClaimTemplates {
			w.makeClaim(ctx, set, template, n)
		}
		if pod := have[name]; pod != nil {
			if !pod.DeletionTimestamp.IsZero() { // a kubelet would end it
				_ = w.client.Delete(ctx, pod, client.GracePeriodSeconds(0))
				delete(have, name)
			}
			continue
		}
		pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace = name, set.Namespace
		pod.Labels[naming.LabelPod] = name
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		pod.Spec.NodeName = w.nodes[name]
		for _, v := range []string{"data", "wal"} {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: naming.PVC(v, w.cluster.Name, n)},
			}})
		}
		if err := w.client.Create(ctx, pod); err == nil {
			w.log = append(w.log, "pod "+name)
			have[name] = pod
			w.known[name] = pod.UID
			w.restarted(name)
		} else if !apierrors.IsAlreadyExists(err) {
			panic(fmt.Sprintf("create pod: %v", err))
		}
	}
}

func (w *world) makeClaim(ctx context.Context, set *appsv1.StatefulSet, template corev1.PersistentVolumeClaim, n int) {
	claim := &corev1.PersistentVolumeClaim{}
	key := types.NamespacedName{Namespace: set.Namespace, Name: naming.PVC(template.Name, w.cluster.Name, n)}
	err := w.client.Get(ctx, key, claim)
	if err == nil && !claim.DeletionTimestamp.IsZero() { // its protection ends with the pod; nobody else looks after it here
		claim.Finalizers = nil
		_ = w.client.Update(ctx, claim)
		delete(w.data, naming.Pod(w.cluster.Name, n))
		return
	}
	if apierrors.IsNotFound(err) {
		claim = &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, Labels: template.Labels}, Spec: template.Spec,
		}
		_ = w.client.Create(ctx, claim)
	}
}

// gone is what the death of a pod means: the leader's is followed by another.
func (w *world) gone(name string, pod *corev1.Pod) {
	w.log = append(w.log, "gone "+name)
	delete(w.known, name)
	w.api.Remove(name)
	if w.record.Holder == name && w.record.HolderUID == string(pod.UID) && w.record.Released == nil {
		w.record.Released = &election.Release{Clean: true}
	}
}

// lead lets an instance take leadership when it is free.
func (w *world) lead(have map[string]*corev1.Pod, config *instanceapi.Config) {
	holder := have[w.record.Holder]
	if w.record.Term > 0 && w.record.Released == nil && (holder == nil || string(holder.UID) != w.record.HolderUID) {
		w.record.Released = &election.Release{}
	}
	if config.Suspend {
		if w.record.Released == nil && w.record.Term > 0 {
			w.record.Released = &election.Release{Clean: true, Suspended: true}
			w.log = append(w.log, "stopped "+w.record.Holder)
		}
		return
	}
	if w.record.Term > 0 && w.record.Released == nil {
		w.quorum(have, config)
		return
	}
	to := ""
	for _, m := range config.Members {
		if have[m.Name] == nil || w.broken[m.Name] || (w.record.SystemIdentifier != "" && !w.data[m.Name]) {
			continue
		}
		if to == "" || (w.record.Released != nil && w.record.Released.To == m.Name) {
			to = m.Name
		}
	}
	if to == "" {
		return
	}
	w.record = election.Record{
		Term: w.record.Term + 1, Holder: to, HolderUID: string(have[to].UID), SystemIdentifier: "7300000000000000001",
	}
	w.restarted(to)
	w.quorum(have, config)
}

// quorum records on whom commits wait.
func (w *world) quorum(have map[string]*corev1.Pod, config *instanceapi.Config) {
	w.record.Members, w.record.Quorums = nil, nil
	var standbys []string
	for _, m := range config.Members {
		w.record.Members = append(w.record.Members, m.Name)
		if m.Name != w.record.Holder && have[m.Name] != nil && !w.broken[m.Name] {
			standbys = append(standbys, m.Name)
		}
	}
	if len(standbys) > 0 {
		w.record.Quorums = []election.Quorum{{Standbys: standbys, Num: min(len(standbys), config.SynchronousStandbys)}}
	}
}

// publish writes the Lease, readiness of pods, and the instances' answers.
func (w *world) publish(ctx context.Context, have map[string]*corev1.Pod, config *instanceapi.Config) {
	w.publishLease(ctx)
	hash := w.hash(ctx)
	var standbys []instanceapi.StandbyStatus
	for name := range have {
		if name != w.record.Holder && !w.broken[name] && w.record.Released == nil && w.record.Term > 0 {
			standbys = append(standbys, instanceapi.StandbyStatus{Name: name, State: "streaming", SyncState: "quorum"})
		}
	}
	slices.SortFunc(standbys, func(a, b instanceapi.StandbyStatus) int { return len(a.Name) - len(b.Name) })
	for name, pod := range have {
		leads := w.record.Holder == name && w.record.HolderUID == string(pod.UID) && w.record.Released == nil
		running := !config.Suspend && !w.broken[name] && w.record.Released == nil && w.record.Term > 0
		status := instanceapi.Status{
			Pod: name, PodUID: string(pod.UID), Primary: leads, Ready: running, Term: w.record.Term, ConfigHash: hash,
			SystemIdentifier: w.record.SystemIdentifier, Version: "17.6", State: instanceapi.StateStreaming, ManagerVersion: "test",
			Position: election.Position{Timeline: uint32(w.record.Term), LSN: 1 << 24}, Settings: w.settings(name, config),
			PendingRestart: w.pending[name],
		}
		switch {
		case config.Suspend:
			status.State = instanceapi.StateStopped
		case !running:
			status.State = instanceapi.StateStarting
		case leads:
			status.State, status.Standbys = instanceapi.StateRunning, standbys
		}
		if running {
			w.data[name] = true
		}
		w.api.Set(name, status)
		w.ready(ctx, pod, running)
	}
}

// settings are those in force that need a restart; a wanted one that differs is pending.
func (w *world) settings(name string, config *instanceapi.Config) map[string]string {
	const watched = "max_connections"
	if w.inForce[name] == nil {
		w.inForce[name] = map[string]string{watched: config.Parameters[watched]}
	}
	if w.inForce[name][watched] != config.Parameters[watched] {
		w.pending[name] = []string{watched}
	}
	return w.inForce[name]
}

func (w *world) hash(ctx context.Context) string {
	object := &corev1.ConfigMap{}
	_ = w.client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: naming.ConfigMap(w.cluster.Name)}, object)
	return desired.ConfigHash([]byte(object.Data[naming.KeyConfig]))
}

func (w *world) publishLease(ctx context.Context) {
	if w.record.Term == 0 {
		return
	}
	lease := &coordinationv1.Lease{}
	if err := w.client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: naming.Lease(w.cluster.Name)}, lease); err != nil {
		return
	}
	text, _ := json.Marshal(w.record)
	if lease.Annotations[naming.AnnotationRecord] == string(text) {
		return
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[naming.AnnotationRecord] = string(text)
	_ = w.client.Update(ctx, lease)
}

// ready makes the pod's status what a kubelet would report.
func (w *world) ready(ctx context.Context, pod *corev1.Pod, ready bool) {
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == is && pod.Status.PodIP != "" {
			return
		}
	}
	pod = pod.DeepCopy()
	n, _ := naming.Ordinal(w.cluster.Name, pod.Name)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = fmt.Sprintf("10.0.0.%d", n+1)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: naming.ContainerDB, Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is, LastTransitionTime: metav1.NewTime(clock.Now())}}
	_ = w.client.Status().Update(ctx, pod)
}

// waits is the status of a pod whose image cannot be pulled.
func (w *world) waits(ctx context.Context, pod *corev1.Pod) {
	if len(pod.Status.ContainerStatuses) > 0 {
		return
	}
	w.api.Remove(pod.Name)
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: naming.ContainerDB, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
	}}
	_ = w.client.Status().Update(ctx, pod)
}

// collect deletes what the cluster owned, as the garbage collector does.
func (w *world) collect(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in, of := client.InNamespace(w.cluster.Namespace), client.MatchingLabels{naming.LabelCluster: w.cluster.Name}
	for _, kind := range []client.Object{
		&appsv1.StatefulSet{}, &corev1.Pod{}, &corev1.ConfigMap{}, &corev1.Secret{}, &corev1.Service{}, &corev1.ServiceAccount{},
		&rbacv1.Role{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
	} {
		if _, services := kind.(*corev1.Service); services { // has no deletion of a collection everywhere
			all := &corev1.ServiceList{}
			_ = w.client.List(ctx, all, in, of)
			for i := range all.Items {
				_ = w.client.Delete(ctx, &all.Items[i])
			}
			continue
		}
		if err := w.client.DeleteAllOf(ctx, kind, in, of, client.GracePeriodSeconds(0)); err != nil {
			panic(err)
		}
	}
	w.known = map[string]types.UID{}
}

func lease() *coordinationv1.Lease { return &coordinationv1.Lease{} }
