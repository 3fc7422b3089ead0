package desired

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// Names of volumes other than the claims.
const (
	volumeBin       = "bin"
	volumeRun       = "run"
	volumeTmp       = "tmp"
	volumeShm       = "shm"
	volumeConfig    = "config"
	volumeToken     = "token"
	volumeServer    = "tls-server"
	volumePeer      = "tls-peer"
	volumeClientCA  = "tls-client-ca"
	volumeApp       = "app"
	volumeSuperuser = "superuser"
)

// pathToken is where Kubernetes' client libraries look.
const pathToken = "/var/run/secrets/kubernetes.io/serviceaccount"

// pathTarget is where the init container finds the volume that the database container has at naming.PathBin: in the operator's image
// /kumki is a file.
const pathTarget = "/target"

// modeSecret lets the pod's group read: the files belong to root and the fsGroup. The manager hands PostgreSQL copies with mode 0600.
const modeSecret int32 = 0o440

func installContainer(in Input) corev1.Container {
	return corev1.Container{
		Name:            naming.ContainerInit,
		Image:           in.OperatorImage,
		ImagePullPolicy: in.Cluster.Spec.ImagePullPolicy,
		Command:         []string{"/kumki"},
		Args:            []string{"install", "--target", pathTarget},
		// The same as the database's: the pod's sum is the greater of the two, and equal limits keep the class Guaranteed.
		Resources:       resources(in),
		SecurityContext: containerSecurity(),
		VolumeMounts:    []corev1.VolumeMount{{Name: volumeBin, MountPath: pathTarget}},
	}
}

func databaseContainer(in Input) corev1.Container {
	return corev1.Container{
		Name:            naming.ContainerDB,
		Image:           in.PostgreSQLImage,
		ImagePullPolicy: in.Cluster.Spec.ImagePullPolicy,
		Command:         []string{path.Join(naming.PathBin, "kumki")},
		Args:            []string{"instance"},
		Env: []corev1.EnvVar{
			fieldEnv("POD_NAME", "metadata.name"),
			fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("POD_NAMESPACE", "metadata.namespace"),
			{Name: "CLUSTER_NAME", Value: in.Cluster.Name},
		},
		Ports: []corev1.ContainerPort{
			containerPort(portPostgreSQL, naming.PortPostgreSQL),
			containerPort(portAPI, naming.PortAPI),
			containerPort(portProbe, naming.PortProbe),
		},
		Resources:       resources(in),
		SecurityContext: containerSecurity(),
		VolumeMounts:    mounts(in),
		StartupProbe:    startupProbe(),
		LivenessProbe:   livenessProbe(),
		ReadinessProbe:  probe("/readyz", corev1.Probe{PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 2}),
	}
}

// startupProbe succeeds once the instance manager's loop runs; the other two probes begin then. PostgreSQL is started by that loop, so
// crash recovery and clones, which may take hours, come after it. What comes before is short, but for an earlier pod of the same name that
// still uses the volume: it has terminationGrace to end. A manager that is not under way in twice that time is started anew, at once: nothing
// of PostgreSQL runs yet.
func startupProbe() *corev1.Probe {
	grace := int64(1)
	return probe("/startupz", corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: int32(2 * terminationGrace), TerminationGracePeriodSeconds: &grace,
	})
}

// livenessProbe is the second watchdog: a manager that does not answer cannot fence itself, so the kubelet kills the container,
// without the grace that a normal end has.
func livenessProbe() *corev1.Probe {
	grace := int64(1)
	return probe("/livez", corev1.Probe{
		PeriodSeconds: 3, TimeoutSeconds: 3, FailureThreshold: 3, TerminationGracePeriodSeconds: &grace,
	})
}

// probe spells all fields out, so that what is applied equals what the server stores.
func probe(path string, p corev1.Probe) *corev1.Probe {
	p.HTTPGet = &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(naming.PortProbe), Scheme: corev1.URISchemeHTTP}
	p.SuccessThreshold = 1
	return &p
}

func fieldEnv(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: field},
	}}
}

func containerPort(name string, port int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP}
}

func containerSecurity() *corev1.SecurityContext {
	yes, no := true, false
	return &corev1.SecurityContext{
		RunAsNonRoot:             &yes,
		ReadOnlyRootFilesystem:   &yes,
		AllowPrivilegeEscalation: &no,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// resources are the declared ones, or small requests: without any, the pod would be the first to be evicted.
func resources(in Input) corev1.ResourceRequirements {
	declared := in.Cluster.Spec.Resources
	if len(declared.Requests) == 0 && len(declared.Limits) == 0 {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
		}}
	}
	return corev1.ResourceRequirements{Requests: declared.Requests, Limits: declared.Limits}
}

func mounts(in Input) []corev1.VolumeMount {
	all := []corev1.VolumeMount{
		{Name: naming.VolumeData, MountPath: naming.PathData},
		{Name: volumeBin, MountPath: naming.PathBin, ReadOnly: true},
		{Name: volumeBin, MountPath: "/etc/passwd", SubPath: path.Base(naming.PathPasswd), ReadOnly: true},
		{Name: volumeBin, MountPath: "/etc/group", SubPath: path.Base(naming.PathGroup), ReadOnly: true},
		{Name: volumeRun, MountPath: naming.PathRun},
		{Name: volumeTmp, MountPath: "/tmp"},
		{Name: volumeShm, MountPath: "/dev/shm"},
		{Name: volumeConfig, MountPath: naming.PathConfig, ReadOnly: true},
		{Name: volumeServer, MountPath: naming.PathTLSServer, ReadOnly: true},
		{Name: volumePeer, MountPath: naming.PathTLSPeer, ReadOnly: true},
		{Name: volumeClientCA, MountPath: naming.PathTLSClient, ReadOnly: true},
		{Name: volumeApp, MountPath: naming.PathAppSecret, ReadOnly: true},
		{Name: volumeSuperuser, MountPath: naming.PathSuperuser, ReadOnly: true},
		{Name: volumeToken, MountPath: pathToken, ReadOnly: true},
	}
	if in.Cluster.Spec.Storage.WALStorage != nil {
		all = append(all, corev1.VolumeMount{Name: naming.VolumeWAL, MountPath: naming.PathWAL})
	}
	return all
}

func volumes(in Input) []corev1.Volume {
	cluster, tls := in.Cluster.Name, in.Cluster.Spec.TLS
	clientCA := or(tls.ClientCASecret, naming.SecretPeer(cluster))
	return []corev1.Volume{
		emptyDir(volumeBin, "", ""),
		emptyDir(volumeRun, corev1.StorageMediumMemory, "64Mi"), // holds copies of private keys
		emptyDir(volumeTmp, "", ""),
		emptyDir(volumeShm, corev1.StorageMediumMemory, ""), // parallel queries; counts towards the container's memory
		{Name: volumeConfig, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: naming.ConfigMap(cluster)}, DefaultMode: ptr(modeSecret),
		}}},
		secretVolume(volumeServer, or(tls.ServerSecret, naming.SecretServer(cluster)), nil),
		secretVolume(volumePeer, naming.SecretPeer(cluster), nil),
		secretVolume(volumeClientCA, clientCA, []corev1.KeyToPath{{Key: pki.KeyCA, Path: pki.KeyCA}}),
		secretVolume(volumeApp, naming.SecretApp(cluster), nil),
		optional(secretVolume(volumeSuperuser, naming.SecretSuperuser(cluster), nil)),
		tokenVolume(),
	}
}

func emptyDir(name string, medium corev1.StorageMedium, limit string) corev1.Volume {
	source := &corev1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		source.SizeLimit = ptr(resource.MustParse(limit))
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: source}}
}

func secretVolume(name, secret string, items []corev1.KeyToPath) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: secret, Items: items, DefaultMode: ptr(modeSecret),
	}}}
}

func optional(v corev1.Volume) corev1.Volume {
	v.Secret.Optional = ptr(true)
	return v
}

// tokenVolume is what Kubernetes would mount into every container of the pod by itself.
func tokenVolume() corev1.Volume {
	return corev1.Volume{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr(modeSecret),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr(int64(3607))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}}
}

func ptr[T any](v T) *T { return &v }
