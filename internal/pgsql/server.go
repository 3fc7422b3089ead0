// Package pgsql is what Kumki asks of a running PostgreSQL server: a small interface, its implementation over the unix
// socket, and a fake that passes the same contract suite.
package pgsql

import (
	"context"
	"time"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Server is a running PostgreSQL server, asked as superuser. All methods are safe for concurrent use and return when ctx ends;
// without a deadline in ctx the short ones give up after ShortTimeout. A method may be called again after any error: connections are
// re-made. Errors carry PostgreSQL's own message; use IsStarting and IsDown to tell why nothing answered.
type Server interface {
	Observer
	Configurer
	Replicator
	Roles
	// Close drops the connections. The server may be used again afterwards.
	Close()
}

// Observer looks and changes nothing.
type Observer interface {
	// Ping opens a new connection, asks for nothing and closes it: nil says that the server accepts connections now.
	Ping(ctx context.Context) error
	// Observe returns everything that decisions are made from, in one look.
	Observe(ctx context.Context) (Observation, error)
}

// Configurer makes the server read its files. The files themselves are written by the caller.
type Configurer interface {
	// CheckConfig reads the configuration files as a reload would, without applying anything, and returns what PostgreSQL
	// refuses in them, in PostgreSQL's own words. A setting that waits for a restart is no problem. Libraries that are not loaded are not asked.
	CheckConfig(ctx context.Context) ([]ConfigProblem, error)
	// Reload makes the server read its files and returns when this session works by them; other sessions follow within moments.
	Reload(ctx context.Context) error
	// Checkpoint returns when a checkpoint (on a standby a restartpoint) is done. It takes as long as it takes: bound it by ctx.
	Checkpoint(ctx context.Context) error
	// SwitchWAL closes the current WAL segment of a primary and returns the end of what was written.
	SwitchWAL(ctx context.Context) (postgres.LSN, error)
}

// Replicator changes the server's part in replication.
type Replicator interface {
	// Promote makes a standby a primary and returns when it accepts writes. On a primary it returns at once. It is bounded by ctx only.
	Promote(ctx context.Context) error
	// StopWALReceiver ends the WAL receiver of a standby and returns when no such process is left; then what was received is flushed.
	// The caller has to take away what a new one would need first, so that none can stream again: primary_conninfo emptied and
	// reloaded, and, because the startup process may still go by the old value, the client key that it names removed.
	StopWALReceiver(ctx context.Context) error
	// EnsureSlots creates the missing ones of these physical replication slots, WAL reserved from now on, and makes anew those whose
	// WAL is lost. It works on primary and standby. Other slots are untouched.
	EnsureSlots(ctx context.Context, names []string) error
	// DropSlots drops those of these physical slots that exist and are not active; an active one is an error.
	DropSlots(ctx context.Context, names []string) error
	// AdvanceSlots moves inactive physical slots forward, so that a standby keeps no more WAL for its peers than they need.
	// A slot never moves back nor beyond what is replayed; active, missing and lost ones are left alone.
	AdvanceSlots(ctx context.Context, to map[string]postgres.LSN) error
}

// Roles makes roles and databases; primary only. Passwords are given as SCRAM-SHA-256 verifiers: a clear one never reaches the server.
type Roles interface {
	// EnsureReplicationRole creates naming.RoleReplication with what pg_basebackup, streaming and pg_rewind need, and no password.
	EnsureReplicationRole(ctx context.Context) error
	// EnsureApp creates the login role with that verifier and the database that it owns, or sets owner and verifier of existing ones.
	EnsureApp(ctx context.Context, app App) error
	// SetPassword sets the verifier of an existing role, unless it has it already.
	SetPassword(ctx context.Context, role, verifier string) error
	// DropPassword takes the password of an existing role away, unless it has none.
	DropPassword(ctx context.Context, role string) error
	// ExecScript runs the text of SQL commands in a database. Several commands are one transaction, so they are done all or not at all;
	// a command that cannot be part of a transaction (CREATE DATABASE, VACUUM) has to be a text of its own. It is bounded by ctx only.
	ExecScript(ctx context.Context, database, script string) error
}

// ShortTimeout bounds the methods that ought to answer at once when ctx has no deadline.
const ShortTimeout = 5 * time.Second

// App is the application's database.
type App struct {
	Database string
	Owner    string
	// Verifier of the owner's password (postgres.SCRAMVerifier); empty leaves the password as it is.
	Verifier string
}

// Observation is what a server says of itself.
type Observation struct {
	InRecovery       bool
	SystemIdentifier string
	// Timeline and FlushLSN are the position up to which WAL is safely on this server's disk, in one history.
	// Primary: what was flushed. Standby: the farther of what the WAL receiver flushed and what was replayed.
	Timeline uint32
	FlushLSN postgres.LSN
	// ReplayLSN of a standby; equals FlushLSN on a primary.
	ReplayLSN postgres.LSN
	// ReplayPaused says that replay waits: somebody paused it, or a setting is lower than the primary's.
	ReplayPaused bool
	// WALReceiver of a standby; nil when there is no such process.
	WALReceiver *WALReceiver
	// Replication are those who stream from here, and pg_basebackup with its State; connections of Kumki's own are left out.
	Replication []Standby
	// SyncStandbyNames is synchronous_standby_names as this session goes by it.
	SyncStandbyNames string
	// CheckpointerPID and CheckpointerWait are the checkpointer and what it waits for, "" when it works. It is the checkpointer that
	// tells all sessions whether commits wait for standbys at all.
	CheckpointerPID  int
	CheckpointerWait string
	// PrimaryConnInfo is primary_conninfo as this session goes by it; it holds no password.
	PrimaryConnInfo string
	// PendingRestart names parameters that wait for a restart, sorted.
	PendingRestart []string
	// Settings in force of postgres.StandbyMustMatch.
	Settings map[string]string
	// Slots are all replication slots.
	Slots []Slot
	// ServerVersion is server_version without the packager's addition, for example 17.6; VersionNum is server_version_num, 170006.
	ServerVersion string
	VersionNum    int
	// PostmasterStart is when the postmaster started.
	PostmasterStart time.Time
}

// WALReceiver is the process of a standby that receives WAL.
type WALReceiver struct {
	// Status is starting, streaming, waiting, restarting or stopping; "connecting" while it has no connection.
	Status      string
	SenderHost  string
	SenderPort  int
	ReceivedTLI uint32
	FlushedLSN  postgres.LSN
	// LatestEnd is the sender's end of WAL as last told.
	LatestEnd postgres.LSN
	SlotName  string
}

// Streaming says whether WAL comes in.
func (w *WALReceiver) Streaming() bool { return w != nil && w.Status == "streaming" }

// Standby is a row of pg_stat_replication.
type Standby struct {
	ApplicationName string
	ClientAddr      string
	State           string // startup, catchup, streaming, backup, stopping
	SyncState       string // async, potential, sync, quorum
	SentLSN         postgres.LSN
	FlushLSN        postgres.LSN
	ReplayLSN       postgres.LSN
	// SlotName that it streams by; empty when by none.
	SlotName string
}

// Slot is a replication slot.
type Slot struct {
	Name     string
	Physical bool
	Active   bool
	// WALStatus is reserved, extended, unreserved, lost, or empty when no WAL is reserved.
	WALStatus  string
	RestartLSN postgres.LSN
	// InvalidReason says why a slot is lost, where the server tells (17 and later).
	InvalidReason string
}

// ConfigProblem is something in the configuration files that PostgreSQL refuses.
type ConfigProblem struct {
	// Parameter, or "pg_hba.conf" or "pg_ident.conf"; empty when a line of postgresql.conf cannot be read at all.
	Parameter string
	// Message is PostgreSQL's own, with its hint.
	Message string
	// File and Line (from 1) where it is.
	File string
	Line int
}
