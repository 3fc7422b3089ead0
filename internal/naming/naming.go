// Package naming holds every name, label, annotation, port and path that two parts of Kumki must agree on.
package naming

import (
	"fmt"
	"strconv"
	"strings"
)

// Group is the API group; it prefixes every label and annotation of ours.
const Group = "databases.kumki.dev"

// FieldManager owns the fields that the operator applies.
const FieldManager = "kumki"

// Finalizer of a PostgreSQLCluster.
const Finalizer = Group + "/cluster"

// Labels of every object of a cluster.
const (
	LabelCluster   = Group + "/cluster"
	LabelInstance  = Group + "/instance"
	LabelComponent = "app.kubernetes.io/component"
	LabelName      = "app.kubernetes.io/name"
	LabelAppInst   = "app.kubernetes.io/instance"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelRole on a pod says what the instance is, for people and for <cluster>-ro; it never decides where writes go.
	LabelRole = Group + "/role"
	// LabelWatch is on user-made Secrets that a cluster names, so that the operator may cache them: nothing else is watched.
	LabelWatch = Group + "/watch"
	// LabelPod is Kubernetes' own label with the pod's name; <cluster>-rw selects by it.
	LabelPod = "statefulset.kubernetes.io/pod-name"
)

// Values of labels.
const (
	ValueName      = "postgresql"
	ValueManagedBy = "kumki"
	ValueDatabase  = "database"
	ValuePrimary   = "primary" // of LabelRole
	ValueStandby   = "standby" // of LabelRole
)

// Annotations.
const (
	// AnnotationRecord on the Lease is the leadership record (JSON of election.Record).
	AnnotationRecord = Group + "/leadership"
	// AnnotationConfigHash on a pod makes its kubelet refresh mounted configuration at once.
	AnnotationConfigHash = Group + "/config-hash"
	// AnnotationTemplateHash on the StatefulSet's template tells which template a pod was made from.
	AnnotationTemplateHash = Group + "/template-hash"
	// AnnotationSwitchover on a PostgreSQLCluster asks for a hand-over to the named pod ("any" leaves the choice to the operator).
	AnnotationSwitchover = Group + "/switchover-to"
	// AnnotationRestart on a PostgreSQLCluster restarts every instance in order when its value changes.
	AnnotationRestart = Group + "/restart"
	// AnnotationRotateCA on a PostgreSQLCluster makes a new CA and new certificates when its value changes.
	AnnotationRotateCA = Group + "/rotate-ca"
)

// Ports of an instance.
const (
	PortPostgreSQL = 5432
	PortAPI        = 8443 // mTLS: operator and peers
	PortProbe      = 8008 // plain HTTP: probes and metrics
)

// Paths in a database pod.
const (
	PathBin       = "/kumki/bin"                    // our two binaries, copied by the init container
	PathPasswd    = "/kumki/bin/passwd"             // a passwd file with the pod's own UID, mounted at /etc/passwd
	PathGroup     = "/kumki/bin/group"              // a group file with the pod's own GID, mounted at /etc/group
	PathRun       = "/kumki/run"                    // unix sockets
	PathConfig    = "/kumki/config"                 // ConfigMap <cluster>-config
	PathTLSServer = "/kumki/tls/server"             // tls.crt tls.key ca.crt of the PostgreSQL server
	PathTLSPeer   = "/kumki/tls/peer"               // tls.crt tls.key ca.crt for replication and the instance API
	PathTLSClient = "/kumki/tls/client-ca"          // ca.crt that signs clients
	PathAppSecret = "/kumki/secrets/app"            // Secret <cluster>-app
	PathSuperuser = "/kumki/secrets/superuser"      // Secret <cluster>-superuser (optional)
	PathData      = "/var/lib/postgresql/kumki"     // data volume
	PathWAL       = "/var/lib/postgresql/kumki-wal" // WAL volume (optional)
	KeyConfig     = "instance.json"                 // key of the ConfigMap: JSON of instanceapi.Config
	ContainerDB   = "postgresql"
	ContainerInit = "install"
)

// Roles inside PostgreSQL.
const (
	RoleSuperuser   = "postgres"
	RoleReplication = "kumki_replication"
)

// The functions below give the names of a cluster's objects.

// Lease is the name of the Lease that says who leads.
func Lease(cluster string) string { return cluster }

// ServiceRW is the Service that leads to the primary.
func ServiceRW(cluster string) string { return cluster + "-rw" }

// ServiceRO is the Service that leads to standbys.
func ServiceRO(cluster string) string { return cluster + "-ro" }

// ServiceR is the Service that leads to any ready instance.
func ServiceR(cluster string) string { return cluster + "-r" }

// ServiceNodes is the headless Service that names the instances' pods.
func ServiceNodes(cluster string) string { return cluster + "-nodes" }

// ConfigMap holds the configuration of the instances.
func ConfigMap(cluster string) string { return cluster + "-config" }

// SecretApp holds what the application needs to connect.
func SecretApp(cluster string) string { return cluster + "-app" }

// SecretSuperuser holds the superuser's password, where remote access is on.
func SecretSuperuser(cluster string) string { return cluster + "-superuser" }

// SecretCA holds the cluster's certificate authority.
func SecretCA(cluster string) string { return cluster + "-ca" }

// SecretServer holds the PostgreSQL server's certificate.
func SecretServer(cluster string) string { return cluster + "-server-tls" }

// SecretPeer holds the certificate of replication and of the instance API.
func SecretPeer(cluster string) string { return cluster + "-peer-tls" }

// SecretOperator holds the certificate by which instances know the operator.
func SecretOperator(cluster string) string { return cluster + "-operator-tls" }

// ServiceAccount is the database pods' account.
func ServiceAccount(cluster string) string { return cluster + "-instance" }

// StatefulSet runs the instances.
func StatefulSet(cluster string) string { return cluster }

// VolumeData and VolumeWAL are the names of the volume claim templates.
const (
	VolumeData = "data"
	VolumeWAL  = "wal"
)

// Pod is the name of the instance with that ordinal.
func Pod(cluster string, ordinal int) string { return fmt.Sprintf("%s-%d", cluster, ordinal) }

// Ordinal of a pod of the cluster; false when the name is not one of them.
func Ordinal(cluster, pod string) (int, bool) {
	tail, ok := strings.CutPrefix(pod, cluster+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(tail)
	if err != nil || n < 0 || strconv.Itoa(n) != tail {
		return 0, false
	}
	return n, true
}

// PodHost is the stable DNS name of an instance.
func PodHost(cluster, namespace, pod string) string {
	return fmt.Sprintf("%s.%s.%s.svc", pod, ServiceNodes(cluster), namespace)
}

// Slot is the physical replication slot of a member; every member keeps one for every other.
func Slot(pod string) string { return "kumki_" + strings.ReplaceAll(pod, "-", "_") }

// PVC is the claim of a volume of an instance.
func PVC(volume, cluster string, ordinal int) string {
	return fmt.Sprintf("%s-%s", volume, Pod(cluster, ordinal))
}

// ClusterLabels are on every object of a cluster.
func ClusterLabels(cluster string) map[string]string {
	return map[string]string{
		LabelCluster: cluster, LabelName: ValueName, LabelAppInst: cluster, LabelManagedBy: ValueManagedBy,
	}
}
