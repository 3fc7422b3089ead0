// Package desired makes the Kubernetes objects of a cluster from what was declared and observed. It is pure: equal inputs give
// equal objects, byte for byte, and nothing here reads a clock, an environment or a server.
package desired

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pki"
)

// Object is a Kubernetes object of any kind. Its TypeMeta is set.
type Object interface {
	metav1.Object
	runtime.Object
}

// Input is all that the objects of a cluster follow from.
type Input struct {
	// Cluster is the declared cluster with the defaults of the schema; its UID makes the owner references.
	// Its postgresql section is not used: Parameters and HBA are.
	Cluster *apiv1.PostgreSQLCluster

	// OperatorImage holds Kumki's binaries, PostgreSQLImage the database. Both must be set.
	OperatorImage   string
	PostgreSQLImage string
	// MajorVersion of PostgreSQL, for example 17.
	MajorVersion int
	// SystemIdentifier as the status has it; from then on no instance makes a new database.
	SystemIdentifier string
	// NoBootstrap: no instance makes a new database although there is no system identifier.
	NoBootstrap bool

	// OpenShift leaves user and groups of the pods to the platform.
	OpenShift bool
	// OperatorNamespace may reach the instances' API. "" (an operator outside of Kubernetes): every namespace may; the
	// certificates protect it then.
	OperatorNamespace string

	// Members is the number of instances, by ordinal from 0, that know of each other and may be started. It exceeds the declared
	// replicas until a scale-down has taken effect in the primary's quorum.
	Members int
	// Pods is the number of pods that the StatefulSet keeps; 0 once a suspended cluster has shut down.
	Pods int32
	// Suspend asks the instances to stop PostgreSQL.
	Suspend bool

	// Primary is the pod that holds leadership, "" when nobody does.
	Primary string
	// StandbyReady: at least one standby is ready, so reads need not go to the primary.
	StandbyReady bool

	// Parameters of postgresql.conf in force: derived ones and the user's. HBA are the user's lines in force.
	Parameters map[string]string
	HBA        []string

	// AppPassword of the owner of the application's database, SuperuserPassword of postgres (used with remote access only).
	AppPassword       string
	SuperuserPassword string

	// Certificates are the contents of the operator-made Secrets.
	Certificates pki.Set
	// ServerCA are the certificates that clients check the server by: ca.crt of spec.tls.serverSecret; nil for the operator's own CA.
	ServerCA []byte
}

// Objects are all objects of the cluster, in the order in which they are applied: what a pod needs comes before the StatefulSet.
// Objects that the input says should not be are not among them, see Absent.
func Objects(in Input) []Object {
	objects := []Object{ServiceAccount(in), Role(in), RoleBinding(in)}
	objects = append(objects, Secrets(in)...)
	objects = append(objects, ConfigMap(in))
	objects = append(objects, Services(in)...)
	objects = append(objects, NetworkPolicy(in))
	if b := DisruptionBudget(in); b != nil {
		objects = append(objects, b)
	}
	return append(objects, StatefulSet(in))
}

// Selector selects the cluster's database pods.
func Selector(cluster string) map[string]string {
	return map[string]string{naming.LabelCluster: cluster, naming.LabelComponent: naming.ValueDatabase}
}

// meta is the metadata of an object of the cluster: its labels and its owner.
func meta(in Input, name string) metav1.ObjectMeta {
	yes := true
	return metav1.ObjectMeta{
		Name:      name,
		Namespace: in.Cluster.Namespace,
		Labels:    naming.ClusterLabels(in.Cluster.Name),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: apiv1.GroupVersion.String(), Kind: "PostgreSQLCluster",
			Name: in.Cluster.Name, UID: in.Cluster.UID, Controller: &yes, BlockOwnerDeletion: &yes,
		}},
	}
}

func typeMeta(apiVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}
}

func copyOf(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
