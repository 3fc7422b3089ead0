package controllers

// event is an entry of the catalogue of events about a cluster.
type event struct {
	reason  string
	action  string
	warning bool
}

// The catalogue. A reason is never renamed: people match on it.
var (
	eventCertificates       = event{reason: "CertificatesChanged", action: "Certify"}
	eventReplacingPod       = event{reason: "ReplacingPod", action: "RollOut"}
	eventHandover           = event{reason: "HandoverRequested", action: "Handover"}
	eventHandoverRefused    = event{reason: "HandoverRefused", action: "Handover", warning: true}
	eventPrimaryChanged     = event{reason: "PrimaryChanged", action: "Observe"}
	eventSwitchoverDone     = event{reason: "SwitchoverDone", action: "Handover"}
	eventSwitchoverRefused  = event{reason: "SwitchoverRefused", action: "Handover", warning: true}
	eventRestarting         = event{reason: "RestartingPostgreSQL", action: "Restart"}
	eventRestartRefused     = event{reason: "RestartRefused", action: "Restart", warning: true}
	eventReplacingInstance  = event{reason: "ReplacingInstance", action: "Replace", warning: true}
	eventGrowingVolume      = event{reason: "GrowingVolume", action: "Resize"}
	eventRecreatingSet      = event{reason: "RecreatingStatefulSet", action: "Resize"}
	eventDeletingVolume     = event{reason: "DeletingVolume", action: "ScaleDown"}
	eventStaleLease         = event{reason: "StaleLeadershipRemoved", action: "Provision"}
	eventReady              = event{reason: "Ready", action: "Observe"}
	eventNotReady           = event{reason: "NotReady", action: "Observe", warning: true}
	eventDegraded           = event{reason: "Degraded", action: "Observe", warning: true}
	eventRecovered          = event{reason: "Recovered", action: "Observe"}
	eventConfigurationValid = event{reason: "ConfigurationAccepted", action: "Configure"}
	eventConfigurationBad   = event{reason: "ConfigurationRefused", action: "Configure", warning: true}
	eventSuspended          = event{reason: "Suspended", action: "Suspend"}
	eventResuming           = event{reason: "Resuming", action: "Resume"}
	eventDeleting           = event{reason: "Deleting", action: "Delete"}
)
