package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PostgreSQLClusterSpec is what a user declares of a PostgreSQL cluster: one primary and its hot standbys.
// +kubebuilder:validation:XValidation:rule="!has(self.replication) || !has(self.replication.synchronousStandbys) || self.replication.durability == 'Asynchronous' || self.replicas == 1 || self.replication.synchronousStandbys < self.replicas",message="replication.synchronousStandbys must be less than replicas: one instance is the primary; raise replicas or lower synchronousStandbys"
// +kubebuilder:validation:XValidation:rule="!has(self.replication) || self.replication.durability != 'Required' || self.replicas > 1",message="replication.durability Required needs replicas of at least 2: with one instance every write would wait for ever; raise replicas or use Preferred"
type PostgreSQLClusterSpec struct {
	// replicas is the number of instances: one primary, the rest hot standbys. Valid values: 1 to 32. Default: 3.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// version is the major version of PostgreSQL. Valid values: "15", "16", "17", "18".
	// Default: "17", or the version that the image's tag begins with when image is given. It chooses the operator's default image
	// of that version (environment variable RELATED_IMAGE_POSTGRES_<version> of the operator); with image set it says what the image holds.
	// A change of the major version of a running cluster is refused by the operator and shown in the condition ConfigurationValid.
	// +kubebuilder:validation:Enum="15";"16";"17";"18"
	// +optional
	Version string `json:"version,omitempty"`

	// image is the PostgreSQL image of the instances: any image that has PostgreSQL's own programs, the official postgres:NN for one.
	// Default: the operator's image of spec.version. The major version is read from version, else from the image's tag.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Image string `json:"image,omitempty"`

	// imagePullPolicy of all containers of a database pod. Valid values: Always, IfNotPresent, Never. Default: IfNotPresent.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +kubebuilder:default=IfNotPresent
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// imagePullSecrets name Secrets of this namespace with the credentials of image registries.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// storage of each instance. Default: one volume of 10Gi of the default StorageClass.
	// +kubebuilder:default={}
	// +optional
	Storage StorageSpec `json:"storage,omitzero"`

	// resources of the PostgreSQL container. Memory-derived settings (shared_buffers, …) follow from the memory limit,
	// else from the memory request. Default: requests of 100m CPU and 256Mi memory, no limits.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// postgresql is PostgreSQL's own configuration.
	// +optional
	PostgreSQL PostgreSQLConfiguration `json:"postgresql,omitzero"`

	// bootstrap says how the first instance's data comes to be. It is read once, when the cluster is created; as long as there is no
	// database (status.systemIdentifier) it can be corrected.
	// +optional
	Bootstrap BootstrapSpec `json:"bootstrap,omitzero"`

	// replication sets durability and the limits of lag.
	// +kubebuilder:default={}
	// +optional
	Replication ReplicationSpec `json:"replication,omitzero"`

	// service shapes the Services <cluster>-rw, <cluster>-ro and <cluster>-r, and may add more.
	// +kubebuilder:default={}
	// +optional
	Service ServiceSpec `json:"service,omitzero"`

	// tls certificates. Default: made, signed and rotated by the operator.
	// +optional
	TLS TLSSpec `json:"tls,omitzero"`

	// superuser sets access of the superuser postgres.
	// +optional
	Superuser SuperuserSpec `json:"superuser,omitzero"`

	// affinity of the database pods. Default: spread over nodes (preferred). Given, it replaces the default.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// tolerations of the database pods.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// nodeSelector of the database pods: labels that a node must have.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// topologySpreadConstraints of the database pods. Default: spread over zones (ScheduleAnyway). Given, they replace the default.
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// priorityClassName of the database pods.
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// podMetadata is added to the database pods: labels and annotations. Keys below databases.kumki.dev/ are the operator's and are ignored.
	// +optional
	PodMetadata *PodMetadata `json:"podMetadata,omitempty"`

	// podSecurityContext overrides user and groups of the database pods. Default: user and group 999 (official image),
	// and nothing at all on OpenShift, where the namespace's range decides. runAsNonRoot and the seccomp profile stay as the operator sets them.
	// +optional
	PodSecurityContext *PodSecurityContext `json:"podSecurityContext,omitempty"`

	// suspend hibernates the cluster: after a clean shutdown all pods are gone, volumes and status are kept. Default: false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// nodeLost says when a pod on a lost node is replaced by a new one with a new volume.
	// +kubebuilder:default={}
	// +optional
	NodeLost NodeLostSpec `json:"nodeLost,omitzero"`
}

// StorageSpec describes the volumes of each instance.
// +kubebuilder:validation:XValidation:rule="!has(self.size) || !has(oldSelf.size) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",message="storage.size cannot shrink: volumes only grow; create a new cluster with the smaller size and move the data"
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",message="storage.storageClassName cannot change on a running cluster: create a new cluster with the other class and move the data"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.walStorage) || has(self.walStorage)",message="storage.walStorage cannot be removed from a running cluster: move the data to a new cluster instead"
// +kubebuilder:validation:XValidation:rule="has(oldSelf.walStorage) || !has(self.walStorage)",message="storage.walStorage cannot be added to a running cluster: set it when the cluster is created"
type StorageSpec struct {
	// size of the data volume, for example 10Gi. At least 64Mi. It can be raised at any time and never lowered. Default: 10Gi.
	// +kubebuilder:default="10Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="storage.size must be 64Mi or more"
	// +optional
	Size resource.Quantity `json:"size,omitzero"`

	// storageClassName of the data volume. Default: the Kubernetes cluster's default StorageClass.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`

	// walStorage puts the write-ahead log on a volume of its own. Default: none, the log is on the data volume.
	// +optional
	WALStorage *VolumeSpec `json:"walStorage,omitempty"`

	// reclaimPolicy says what becomes of the volumes when the cluster is deleted or scaled down.
	// Valid values: Retain, Delete. Default: Retain. A cluster that is created again with the same name adopts retained volumes.
	// +kubebuilder:validation:Enum=Retain;Delete
	// +kubebuilder:default=Retain
	// +optional
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`
}

// VolumeSpec describes one more volume of each instance.
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",message="storageClassName cannot change on a running cluster: create a new cluster with the other class and move the data"
// +kubebuilder:validation:XValidation:rule="!has(self.size) || !has(oldSelf.size) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",message="size cannot shrink: volumes only grow"
type VolumeSpec struct {
	// size of the volume, for example 5Gi. It can be raised at any time and never lowered.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="size must be 64Mi or more"
	Size resource.Quantity `json:"size"`

	// storageClassName of the volume. Default: the Kubernetes cluster's default StorageClass.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// ReclaimPolicy says what becomes of volumes that are no longer used.
type ReclaimPolicy string

// Values of ReclaimPolicy.
const (
	ReclaimRetain ReclaimPolicy = "Retain"
	ReclaimDelete ReclaimPolicy = "Delete"
)

// PostgreSQLConfiguration is PostgreSQL's own configuration.
type PostgreSQLConfiguration struct {
	// parameters of postgresql.conf, name to value, as text: {"work_mem": "64MB"}. A value given here wins over the one derived
	// from resources. Parameters that the operator owns (listen_addresses, synchronous_standby_names, …) are refused with the reason
	// in the condition ConfigurationValid, and the last good configuration stays in force.
	// +kubebuilder:validation:MaxProperties=400
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`

	// hba are lines of pg_hba.conf. They come after the operator's own lines (local access and replication) and
	// before its last one, which lets every user in from anywhere over TLS with a SCRAM-SHA-256 password; a rule given here that matches wins over it.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:Pattern=`^[ \t]*(local|host|hostssl|hostnossl|hostgssenc|hostnogssenc)[ \t]+[^ \t\r\n]+[ \t]+[^ \t\r\n]+[^\r\n]*$`
	// +optional
	HBA []string `json:"hba,omitempty"`
}

// BootstrapSpec says how the first instance's data comes to be.
type BootstrapSpec struct {
	// initdb makes a new, empty database. Default: database and owner "app".
	// +optional
	InitDB *InitDBSpec `json:"initdb,omitempty"`
}

// InitDBSpec are the settings of a new, empty database.
type InitDBSpec struct {
	// database that is created for the application. Default: app.
	// +kubebuilder:default=app
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!(self in ['postgres','template0','template1'])",message="bootstrap.initdb.database must not be postgres, template0 or template1: choose another name"
	// +optional
	Database string `json:"database,omitempty"`

	// owner of that database: a role that can log in; its password is in the Secret <cluster>-app. Default: app.
	// +kubebuilder:default=app
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!(self in ['postgres','public','none']) && !self.startsWith('pg_') && !self.startsWith('kumki_')",message="bootstrap.initdb.owner must not be postgres, public or none nor begin with pg_ or kumki_: choose another name"
	// +optional
	Owner string `json:"owner,omitempty"`

	// encoding of the databases. Default: UTF8.
	// +kubebuilder:default=UTF8
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_]+$`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Encoding string `json:"encoding,omitempty"`

	// locale of the databases, one that the image has. Default: C.UTF-8.
	// +kubebuilder:default="C.UTF-8"
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.@-]+$`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Locale string `json:"locale,omitempty"`

	// dataChecksums turns on checksums of data pages. Default: true.
	// +kubebuilder:default=true
	// +optional
	DataChecksums *bool `json:"dataChecksums,omitempty"`

	// sql is run once by the superuser in the new database, after it was made and before clients are let in.
	// An error in it makes the bootstrap fail with PostgreSQL's message in the condition Ready.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=16384
	// +optional
	SQL []string `json:"sql,omitempty"`
}

// Durability says what a commit waits for.
type Durability string

// Values of Durability.
const (
	DurabilityPreferred    Durability = "Preferred"
	DurabilityRequired     Durability = "Required"
	DurabilityAsynchronous Durability = "Asynchronous"
)

// ReplicationSpec sets durability and the limits of lag.
type ReplicationSpec struct {
	// durability says what a commit waits for. Valid values:
	// Preferred: for a quorum of standbys while one is there; when none is left the primary goes on alone and nobody else may be promoted until a standby has caught up.
	// Required: for a quorum of standbys always; writes block rather than be acknowledged on one copy.
	// Asynchronous: for nothing; a failover may lose the last moments.
	// Default: Preferred.
	// +kubebuilder:validation:Enum=Preferred;Required;Asynchronous
	// +kubebuilder:default=Preferred
	// +optional
	Durability Durability `json:"durability,omitempty"`

	// synchronousStandbys is the number of standbys that must have a commit on disk before it is acknowledged
	// (Preferred and Required). Valid values: 1 to 31, less than replicas. Default: 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31
	// +optional
	SynchronousStandbys int32 `json:"synchronousStandbys,omitempty"`

	// maxLagForReads is how far a standby may be behind, in bytes of WAL, and still be ready (and so get reads from <cluster>-ro). Default: 256Mi.
	// +kubebuilder:default="256Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0",message="replication.maxLagForReads must be 0 or more bytes"
	// +optional
	MaxLagForReads resource.Quantity `json:"maxLagForReads,omitzero"`

	// maxLagForPromotion is how far behind the primary's last recorded position, in bytes of WAL, a standby may be and still be promoted
	// when durability is Asynchronous. Default: 64Mi.
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0",message="replication.maxLagForPromotion must be 0 or more bytes"
	// +optional
	MaxLagForPromotion resource.Quantity `json:"maxLagForPromotion,omitzero"`
}

// ServiceType is the type of a Service for clients.
// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
type ServiceType string

// ServiceSpec shapes the Services for clients.
type ServiceSpec struct {
	// type of <cluster>-rw, <cluster>-ro and <cluster>-r. Valid values: ClusterIP, NodePort, LoadBalancer. Default: ClusterIP.
	// +kubebuilder:default=ClusterIP
	// +optional
	Type ServiceType `json:"type,omitempty"`

	// annotations of those Services, for a cloud's load balancer for example.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// additional Services.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Additional []AdditionalService `json:"additional,omitempty"`
}

// ServiceTarget says which instances a Service leads to.
type ServiceTarget string

// Values of ServiceTarget.
const (
	TargetPrimary  ServiceTarget = "Primary"
	TargetStandbys ServiceTarget = "Standbys"
	TargetAny      ServiceTarget = "Any"
)

// AdditionalService is a template of one more Service.
type AdditionalService struct {
	// name is appended to the cluster's: the Service is named <cluster>-<name>. rw, ro, r and nodes are taken.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:XValidation:rule="!(self in ['rw','ro','r','nodes'])",message="service.additional name must not be rw, ro, r or nodes: these are the cluster's own Services"
	Name string `json:"name"`

	// target says which instances it leads to. Valid values: Primary, Standbys, Any. Default: Primary.
	// +kubebuilder:validation:Enum=Primary;Standbys;Any
	// +kubebuilder:default=Primary
	// +optional
	Target ServiceTarget `json:"target,omitempty"`

	// type of the Service. Valid values: ClusterIP, NodePort, LoadBalancer. Default: ClusterIP.
	// +kubebuilder:default=ClusterIP
	// +optional
	Type ServiceType `json:"type,omitempty"`

	// annotations of the Service.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// labels of the Service.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`

	// loadBalancerClass of a Service of type LoadBalancer.
	// +optional
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// loadBalancerSourceRanges of a Service of type LoadBalancer.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// nodePort of a Service of type NodePort or LoadBalancer. Default: chosen by Kubernetes.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	NodePort *int32 `json:"nodePort,omitempty"`
}

// TLSSpec names the certificates of the cluster.
type TLSSpec struct {
	// serverSecret names a Secret of this namespace with tls.crt, tls.key and ca.crt (as cert-manager makes it) for the PostgreSQL server.
	// Default: the operator's own CA signs one for all of the cluster's Service and pod names.
	// +optional
	ServerSecret string `json:"serverSecret,omitempty"`

	// clientCASecret names a Secret of this namespace with a ca.crt that signs clients' certificates (hba method cert).
	// Default: the operator's own CA.
	// +optional
	ClientCASecret string `json:"clientCASecret,omitempty"`
}

// SuperuserSpec sets access of the superuser postgres.
type SuperuserSpec struct {
	// remoteAccess gives postgres a password (Secret <cluster>-superuser) and lets it in over TLS. Default: false, only from inside the pod.
	// +optional
	RemoteAccess bool `json:"remoteAccess,omitempty"`
}

// PodMetadata are labels and annotations that are added to pods.
type PodMetadata struct {
	// labels that are added to the pods.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations that are added to the pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodSecurityContext overrides user and groups of the database pods.
type PodSecurityContext struct {
	// runAsUser is the numeric user. Valid values: 1 or more; root is refused.
	// +kubebuilder:validation:Minimum=1
	// +optional
	RunAsUser *int64 `json:"runAsUser,omitempty"`
	// runAsGroup is the numeric group.
	// +kubebuilder:validation:Minimum=0
	// +optional
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
	// fsGroup is the group that owns the volumes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	FSGroup *int64 `json:"fsGroup,omitempty"`
}

// NodeLostSpec says when a pod on a lost node is replaced.
type NodeLostSpec struct {
	// replaceAfter is how long a node must be NotReady or gone before an instance on it is replaced by a new pod with a new volume
	// that is cloned from the primary. 0s turns replacement off. Never below the number of good copies. Default: 30m.
	// +kubebuilder:default="30m"
	// +kubebuilder:validation:XValidation:rule="self == duration('0s') || self >= duration('10s')",message="nodeLost.replaceAfter must be 0s (off) or 10s and more"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +optional
	ReplaceAfter *metav1.Duration `json:"replaceAfter,omitempty"`
}

// PostgreSQLCluster is a PostgreSQL primary with its hot standbys.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=pgc,categories=all
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Primary",type=string,JSONPath=`.status.primary`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 45",message="metadata.name must have 45 characters or less: names of pods, Services and certificates are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must begin with a letter and hold only lower-case letters, digits and '-': names of Services are made from it"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.systemIdentifier) || (has(self.spec.bootstrap) && has(self.spec.bootstrap.initdb) ? has(oldSelf.spec.bootstrap) && has(oldSelf.spec.bootstrap.initdb) && self.spec.bootstrap.initdb == oldSelf.spec.bootstrap.initdb : !has(oldSelf.spec.bootstrap) || !has(oldSelf.spec.bootstrap.initdb))",message="bootstrap.initdb is read once, when the cluster is created, and cannot change: use SQL on the running database"
type PostgreSQLCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the user declares.
	// +kubebuilder:default={}
	// +optional
	Spec PostgreSQLClusterSpec `json:"spec,omitempty"`
	// status is what the operator observed.
	// +optional
	Status PostgreSQLClusterStatus `json:"status,omitempty"`
}

// PostgreSQLClusterList is a list of clusters.
// +kubebuilder:object:root=true
type PostgreSQLClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PostgreSQLCluster `json:"items"`
}
