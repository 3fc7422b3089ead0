package v1

// Condition types of a PostgreSQLCluster.
const (
	// ConditionReady is True when a primary accepts writes and every declared instance is ready.
	ConditionReady = "Ready"
	// ConditionProgressing is True while a change is being applied.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True when something is broken that the operator works on or that needs a person.
	ConditionDegraded = "Degraded"
	// ConditionConfigurationValid is False when the declared configuration is refused; the last good one stays in force.
	ConditionConfigurationValid = "ConfigurationValid"
	// ConditionFailoverReady is True when the primary's death would be followed by a promotion that loses no acknowledged commit.
	ConditionFailoverReady = "FailoverReady"
	// ConditionSuspended is True when the cluster hibernates.
	ConditionSuspended = "Suspended"
)

// Reasons of conditions. A reason is never renamed: people match on it.
const (
	ReasonAllReady            = "AllReady"
	ReasonNoPrimary           = "NoPrimary"
	ReasonInstancesNotReady   = "InstancesNotReady"
	ReasonProvisioning        = "Provisioning"
	ReasonScaling             = "Scaling"
	ReasonRollingUpdate       = "RollingUpdate"
	ReasonRestarting          = "Restarting"
	ReasonReloading           = "Reloading"
	ReasonSwitchover          = "Switchover"
	ReasonGrowingVolumes      = "GrowingVolumes"
	ReasonSuspending          = "Suspending"
	ReasonSuspended           = "Suspended"
	ReasonResuming            = "Resuming"
	ReasonActive              = "Active"
	ReasonApplied             = "Applied"
	ReasonHealthy             = "Healthy"
	ReasonUnreachable         = "InstanceUnreachable"
	ReasonStandbyNotStreaming = "StandbyNotStreaming"
	ReasonNodeLost            = "NodeLost"
	ReasonRolloutHalted       = "RolloutHalted"
	ReasonVolumeNotGrown      = "VolumeNotGrown"
	ReasonBootstrapFailed     = "BootstrapFailed"
	ReasonEarlierData         = "VolumesOfEarlierCluster"
	ReasonValid               = "Valid"
	ReasonParameterOwned      = "ParameterOwnedByOperator"
	ReasonParameterRejected   = "ParameterRejectedByPostgreSQL"
	ReasonHBARejected         = "HBARejectedByPostgreSQL"
	ReasonVersionChange       = "MajorVersionChangeNotSupported"
	ReasonVersionUnsupported  = "VersionNotSupported"
	ReasonVersionUnknown      = "VersionUnknown"
	ReasonNoImage             = "NoImageForVersion"
	ReasonSecretMissing       = "SecretMissing"
	ReasonSecretInvalid       = "SecretInvalid"
	ReasonQuorum              = "QuorumRecorded"
	ReasonPrimaryOnly         = "PrimaryIsTheOnlyCopy"
	ReasonSingleInstance      = "SingleInstance"
	ReasonReplicationLag      = "ReplicationLag"
	ReasonReconcileError      = "ReconcileError"
)
