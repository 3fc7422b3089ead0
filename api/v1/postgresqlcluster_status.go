package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// InstanceRole is what an instance does.
type InstanceRole string

// Values of InstanceRole.
const (
	RolePrimary InstanceRole = "Primary"
	RoleStandby InstanceRole = "Standby"
	RoleUnknown InstanceRole = "Unknown"
)

// InstanceStatus is what is known of one instance.
type InstanceStatus struct {
	// name of the instance's pod.
	Name string `json:"name"`
	// role of the instance. Valid values: Primary, Standby, Unknown.
	Role InstanceRole `json:"role"`
	// state of the instance: Running, Streaming, NotStreaming, Starting, Initializing, Cloning, Rewinding, Stopped, Fenced, Failed or Unreachable.
	State string `json:"state"`
	// message says more about the state when it is not the normal one.
	// +optional
	Message string `json:"message,omitempty"`
	// ready says whether the pod is ready.
	Ready bool `json:"ready"`
	// lagBytes is how far the instance is behind the primary, in bytes of WAL, rounded up to a power of two; 0 below 1 MiB. Absent when it is not known.
	// +optional
	LagBytes *int64 `json:"lagBytes,omitempty"`
	// synchronous says whether commits may wait for this instance.
	// +optional
	Synchronous bool `json:"synchronous,omitempty"`
	// node that the pod runs on.
	// +optional
	Node string `json:"node,omitempty"`
	// timeline that the instance is on.
	// +optional
	Timeline int64 `json:"timeline,omitempty"`
	// managerVersion is the version of the instance manager in the pod.
	// +optional
	ManagerVersion string `json:"managerVersion,omitempty"`
	// pendingRestart names parameters that take effect only after a restart.
	// +optional
	PendingRestart []string `json:"pendingRestart,omitempty"`
}

// PostgreSQLClusterStatus is what the operator observed.
type PostgreSQLClusterStatus struct {
	// conditions of the cluster: Ready, Progressing, Degraded, ConfigurationValid, FailoverReady, Suspended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the newest generation of the spec that is completely applied.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase sums the conditions up in one word for people.
	// +optional
	Phase string `json:"phase,omitempty"`
	// replicas is the number of pods.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of ready pods.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// ready is readyReplicas/replicas, for people.
	// +optional
	Ready string `json:"ready,omitempty"`
	// selector of the cluster's pods, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// primary is the pod that holds leadership.
	// +optional
	Primary string `json:"primary,omitempty"`
	// term of the leadership; it rises with each change.
	// +optional
	Term int64 `json:"term,omitempty"`
	// timeline of the primary.
	// +optional
	Timeline int64 `json:"timeline,omitempty"`
	// systemIdentifier of the database cluster, set once.
	// +optional
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	// version of PostgreSQL that the primary runs, for example 17.6.
	// +optional
	Version string `json:"version,omitempty"`
	// majorVersion of the data.
	// +optional
	MajorVersion string `json:"majorVersion,omitempty"`
	// image of the running instances.
	// +optional
	Image string `json:"image,omitempty"`
	// instances lists what is known of each instance.
	// +listType=map
	// +listMapKey=name
	// +optional
	Instances []InstanceStatus `json:"instances,omitempty"`
	// certificatesExpireAt is when the first of the operator-made certificates expires.
	// +optional
	CertificatesExpireAt *metav1.Time `json:"certificatesExpireAt,omitempty"`
}
