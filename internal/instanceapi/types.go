// Package instanceapi is what the operator and the instances of a cluster say to each other: the configuration that
// the operator writes into the ConfigMap, and the requests and answers of the mTLS endpoint of every instance.
//
// The endpoint (HTTPS with client certificates, port naming.PortAPI) serves
//
//	GET  /v1/status     Status
//	POST /v1/peer       election.Message -> election.Message (seal, promise, position; peers only)
//	POST /v1/release    election.Lease -> ReleaseReply (lets go of the lease in the caller's name; peers only)
//	POST /v1/handover   HandoverRequest  -> HandoverReply (starts it; the lease tells when it is done)
//	POST /v1/restart    RestartRequest   -> 202 (restarts PostgreSQL of a standby, or of a primary in place)
package instanceapi

import "github.com/kumki-dev/kumki/internal/election"

// Config is what the operator wants of every instance of a cluster: key naming.KeyConfig of the ConfigMap.
// It is the same for all instances.
type Config struct {
	// Cluster and Namespace name the PostgreSQLCluster.
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	// SystemIdentifier is set as soon as the status has it; from then on nobody runs initdb.
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	// NoBootstrap: nobody runs initdb although no system identifier is known, because data of an earlier cluster may be on a volume.
	NoBootstrap bool `json:"noBootstrap,omitempty"`
	// MajorVersion of PostgreSQL, for example 17.
	MajorVersion int `json:"majorVersion"`
	// Members are all instances of the cluster, by ordinal.
	Members []Member `json:"members"`
	// Parameters of postgresql.conf: the user's and the derived ones; owned ones are added by the instance.
	Parameters map[string]string `json:"parameters"`
	// HBA are the user's lines of pg_hba.conf.
	HBA []string `json:"hba,omitempty"`
	// Durability and SynchronousStandbys as in the API.
	Durability          string `json:"durability"`
	SynchronousStandbys int    `json:"synchronousStandbys"`
	// MaxLagForReads and MaxLagForPromotion in bytes of WAL.
	MaxLagForReads     int64 `json:"maxLagForReads"`
	MaxLagForPromotion int64 `json:"maxLagForPromotion"`
	// InitDB are the settings of a new database.
	InitDB InitDB `json:"initdb"`
	// SuperuserRemote lets postgres in over TLS with the password of the Secret.
	SuperuserRemote bool `json:"superuserRemote,omitempty"`
	// SeparateWAL says that pg_wal is on the volume at naming.PathWAL.
	SeparateWAL bool `json:"separateWAL,omitempty"`
	// Suspend stops PostgreSQL cleanly; nobody starts it.
	Suspend bool `json:"suspend,omitempty"`
}

// Member is one instance and where it is reached.
type Member struct {
	Name    string `json:"name"`
	Host    string `json:"host"`
	Port    int    `json:"port"`
	APIPort int    `json:"apiPort"`
}

// InitDB are the settings of a new database.
type InitDB struct {
	Database      string   `json:"database"`
	Owner         string   `json:"owner"`
	Encoding      string   `json:"encoding"`
	Locale        string   `json:"locale"`
	DataChecksums bool     `json:"dataChecksums"`
	SQL           []string `json:"sql,omitempty"`
}

// State of an instance, one word.
type State string

// Values of State.
const (
	StateStarting  State = "Starting" // PostgreSQL is not up yet
	StateInit      State = "Initializing"
	StateCloning   State = "Cloning"      // base backup from the primary
	StateRewinding State = "Rewinding"    // pg_rewind against the primary
	StateRunning   State = "Running"      // primary that accepts writes
	StateStreaming State = "Streaming"    // standby that streams
	StateStandby   State = "NotStreaming" // standby that runs and does not stream
	StateStopped   State = "Stopped"
	StateFenced    State = "Fenced"
	StateFailed    State = "Failed" // needs a person; Message says why
)

// Status of an instance.
type Status struct {
	Pod            string `json:"pod"`
	PodUID         string `json:"podUID"`
	ManagerVersion string `json:"managerVersion"`
	State          State  `json:"state"`
	Message        string `json:"message,omitempty"`
	// Primary says that the instance holds leadership and accepts writes.
	Primary bool `json:"primary"`
	// Checkpointed says that the primary made a checkpoint since its promotion, so that others may rewind to it.
	Checkpointed bool `json:"checkpointed,omitempty"`
	// Synced says that commits wait for standbys; PrimaryOnly that the record names no standby that is sure to have every commit.
	Synced           bool   `json:"synced,omitempty"`
	PrimaryOnly      bool   `json:"primaryOnly,omitempty"`
	Ready            bool   `json:"ready"`
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	Version          string `json:"version,omitempty"` // server_version, for example "17.6"
	// Term that the instance last promised or holds.
	Term     int64             `json:"term"`
	Position election.Position `json:"position"`
	// ReplayLSN of a standby; equals Position.LSN on a primary.
	ReplayLSN uint64 `json:"replayLSN,omitempty"`
	// Standbys as the primary sees them.
	Standbys []StandbyStatus `json:"standbys,omitempty"`
	// ConfigHash is the SHA-256 (hex) of the instance.json that is in force.
	ConfigHash string `json:"configHash"`
	// ConfigError is PostgreSQL's own message when the newest configuration was refused; the last good one is in force.
	ConfigError *ConfigError `json:"configError,omitempty"`
	// PendingRestart names parameters that wait for a restart (pg_settings.pending_restart).
	PendingRestart []string `json:"pendingRestart,omitempty"`
	// Settings in force that standbys must match (max_connections, max_worker_processes, max_wal_senders, max_prepared_transactions, max_locks_per_transaction).
	Settings map[string]string `json:"settings,omitempty"`
	// PostmasterStart is when PostgreSQL started, RFC 3339.
	PostmasterStart string `json:"postmasterStart,omitempty"`
}

// ConfigError says why a configuration was refused.
type ConfigError struct {
	// Parameter or "pg_hba.conf".
	Parameter string `json:"parameter"`
	Message   string `json:"message"`
	// ConfigHash of the refused configuration.
	ConfigHash string `json:"configHash"`
}

// StandbyStatus is a standby as the primary's pg_stat_replication shows it.
type StandbyStatus struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	SyncState string `json:"syncState"`
	FlushLSN  uint64 `json:"flushLSN"`
	ReplayLSN uint64 `json:"replayLSN"`
	LagBytes  int64  `json:"lagBytes"`
}

// HandoverRequest asks the primary to hand over. To names the successor; empty: the best standby.
type HandoverRequest struct {
	To     string `json:"to,omitempty"`
	Reason string `json:"reason"`
}

// HandoverReply says which standby was chosen, or why there is no hand-over.
type HandoverReply struct {
	To    string `json:"to,omitempty"`
	Error string `json:"error,omitempty"`
}

// ReleaseReply says what became of a release that a peer wrote: the Lease as it is then, or that somebody else changed it first.
type ReleaseReply struct {
	Lease    election.Lease `json:"lease"`
	Conflict bool           `json:"conflict,omitempty"`
}

// RestartRequest asks for a restart of PostgreSQL (not of the pod). PendingOnly: only when a parameter waits for it.
type RestartRequest struct {
	Reason      string `json:"reason"`
	PendingOnly bool   `json:"pendingOnly"`
}
