package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// defaultUser is user and group of the official image.
const defaultUser int64 = 999

// terminationGrace in seconds: a hand-over takes seconds, but the checkpoint of a big instance with a slow disk may take minutes.
// Being killed at the end loses nothing; it costs crash recovery.
const terminationGrace int64 = 300

// StatefulSet keeps the cluster's pods running, also while the operator is down. It never replaces pods by itself (OnDelete): which one
// goes when is decided where replication is known.
func StatefulSet(in Input) *appsv1.StatefulSet {
	cluster := in.Cluster.Name
	template := podTemplate(in)
	template.Annotations[naming.AnnotationTemplateHash] = templateHash(template)
	pods, history := in.Pods, int32(3)
	return &appsv1.StatefulSet{
		TypeMeta:   typeMeta("apps/v1", "StatefulSet"),
		ObjectMeta: meta(in, naming.StatefulSet(cluster)),
		Spec: appsv1.StatefulSetSpec{
			Replicas:             &pods,
			ServiceName:          naming.ServiceNodes(cluster),
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			RevisionHistoryLimit: &history,
			Selector:             &metav1.LabelSelector{MatchLabels: Selector(cluster)},
			Template:             template,
			VolumeClaimTemplates: claims(in),
		},
	}
}

// TemplateHash tells pod templates apart: the value of naming.AnnotationTemplateHash on pods made from the input's template.
func TemplateHash(in Input) string { return templateHash(podTemplate(in)) }

func templateHash(t corev1.PodTemplateSpec) string {
	text, err := json.Marshal(t)
	if err != nil {
		panic("desired: a pod template is plain data and cannot fail to encode: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func claims(in Input) []corev1.PersistentVolumeClaim {
	storage := in.Cluster.Spec.Storage
	all := []corev1.PersistentVolumeClaim{
		claim(in, naming.VolumeData, apiv1.VolumeSpec{Size: storage.Size, StorageClassName: storage.StorageClassName}),
	}
	if storage.WALStorage != nil {
		all = append(all, claim(in, naming.VolumeWAL, *storage.WALStorage))
	}
	return all
}

func claim(in Input, name string, v apiv1.VolumeSpec) corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeFilesystem
	return corev1.PersistentVolumeClaim{
		TypeMeta: typeMeta("v1", "PersistentVolumeClaim"),
		// No owner: whether volumes outlive the cluster is the reclaim policy's to say, which may change.
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: podLabels(in.Cluster.Name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:       &mode,
			StorageClassName: v.StorageClassName,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: v.Size}},
		},
	}
}

func podLabels(cluster string) map[string]string {
	labels := naming.ClusterLabels(cluster)
	labels[naming.LabelComponent] = naming.ValueDatabase
	return labels
}

func podTemplate(in Input) corev1.PodTemplateSpec {
	spec := in.Cluster.Spec
	no, grace := false, terminationGrace
	return corev1.PodTemplateSpec{
		ObjectMeta: podMeta(in),
		Spec: corev1.PodSpec{
			ServiceAccountName:            naming.ServiceAccount(in.Cluster.Name),
			AutomountServiceAccountToken:  &no, // mounted by hand, into the database container alone
			EnableServiceLinks:            &no, // dozens of unused environment variables otherwise
			TerminationGracePeriodSeconds: &grace,
			SecurityContext:               podSecurity(in),
			ImagePullSecrets:              spec.ImagePullSecrets,
			NodeSelector:                  spec.NodeSelector,
			Tolerations:                   spec.Tolerations,
			PriorityClassName:             spec.PriorityClassName,
			Affinity:                      affinity(in),
			TopologySpreadConstraints:     spread(in),
			InitContainers:                []corev1.Container{installContainer(in)},
			Containers:                    []corev1.Container{databaseContainer(in)},
			Volumes:                       volumes(in),
		},
	}
}

// podMeta has the user's labels and annotations below the operator's own.
func podMeta(in Input) metav1.ObjectMeta {
	labels, annotations := map[string]string{}, map[string]string{}
	if m := in.Cluster.Spec.PodMetadata; m != nil {
		addForeign(labels, m.Labels)
		addForeign(annotations, m.Annotations)
	}
	for k, v := range podLabels(in.Cluster.Name) {
		labels[k] = v
	}
	annotations["kubectl.kubernetes.io/default-container"] = naming.ContainerDB
	// In the template, a changed value makes every pod outdated, so that they are replaced in order.
	if v := in.Cluster.Annotations[naming.AnnotationRestart]; v != "" {
		annotations[naming.AnnotationRestart] = v
	}
	return metav1.ObjectMeta{Labels: labels, Annotations: annotations}
}

func addForeign(to, from map[string]string) {
	for k, v := range from {
		if !strings.HasPrefix(k, naming.Group+"/") {
			to[k] = v
		}
	}
}

func podSecurity(in Input) *corev1.PodSecurityContext {
	yes, policy := true, corev1.FSGroupChangeOnRootMismatch
	sc := &corev1.PodSecurityContext{
		RunAsNonRoot:        &yes,
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		FSGroupChangePolicy: &policy,
	}
	if !in.OpenShift {
		user, group, fs := defaultUser, defaultUser, defaultUser
		sc.RunAsUser, sc.RunAsGroup, sc.FSGroup = &user, &group, &fs
	}
	if o := in.Cluster.Spec.PodSecurityContext; o != nil {
		sc.RunAsUser = override(o.RunAsUser, sc.RunAsUser)
		sc.RunAsGroup = override(o.RunAsGroup, sc.RunAsGroup)
		sc.FSGroup = override(o.FSGroup, sc.FSGroup)
	}
	return sc
}

func override(declared, fallback *int64) *int64 {
	if declared != nil {
		return declared
	}
	return fallback
}

func affinity(in Input) *corev1.Affinity {
	if in.Cluster.Spec.Affinity != nil {
		return in.Cluster.Spec.Affinity
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100,
			PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(in.Cluster.Name)},
			},
		}},
	}}
}

func spread(in Input) []corev1.TopologySpreadConstraint {
	if in.Cluster.Spec.TopologySpreadConstraints != nil {
		return in.Cluster.Spec.TopologySpreadConstraints
	}
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(in.Cluster.Name)},
	}}
}
