package postgres

import (
	"strconv"
)

const (
	whyAddress   = "is the operator's: Services and probes reach PostgreSQL where the operator put it; shape access by spec.service and spec.postgresql.hba"
	whySocket    = "is the operator's: the instance manager talks to PostgreSQL through this unix socket"
	whyFiles     = "is the operator's: it writes PostgreSQL's files itself; set parameters in spec.postgresql.parameters and rules in spec.postgresql.hba"
	whySync      = "is the operator's: failover goes by it; set spec.replication.durability and spec.replication.synchronousStandbys"
	whyFollow    = "is the operator's: standbys follow whoever leads; ask for another primary with the annotation databases.kumki.dev/switchover-to"
	whyTLS       = "is the operator's: it makes and rotates the certificates; name your own in spec.tls.serverSecret and spec.tls.clientCASecret"
	whyArchive   = "is the operator's: WAL is archived and fetched by the instance manager, and a foreign command here would break backups"
	whyRecovery  = "is the operator's: a target or delay here would keep a standby from being promoted; restore to a point in time into a new cluster"
	whyLog       = "is the operator's: the container's log is PostgreSQL's log, as JSON; what is logged is yours (log_statement, log_min_duration_statement, …)"
	whyRewind    = "is the operator's and on: pg_rewind needs it to bring a former primary back"
	whyStandby   = "is the operator's and on: standbys serve reads"
	whyCluster   = "is the operator's: it names the instance"
	whyAlterSys  = "is the operator's and off: ALTER SYSTEM would win over spec.postgresql.parameters on one instance only"
	whyDebugging = "is refused for a whole server: it hides or makes corruption; if a recovery expert asks for it, set it in one session"
	whyPID       = "is the operator's: it knows the process by itself"
)

// ownedParameters are those that Kumki sets or keeps at their default. "is …" completes the parameter's name to a sentence.
var ownedParameters = map[string]string{
	"listen_addresses": whyAddress, "port": whyAddress, "bonjour": whyAddress, "bonjour_name": whyAddress,
	"unix_socket_directories": whySocket, "unix_socket_group": whySocket, "unix_socket_permissions": whySocket,

	"config_file": whyFiles, "data_directory": whyFiles, "hba_file": whyFiles, "ident_file": whyFiles,
	"external_pid_file": whyPID, "cluster_name": whyCluster,

	"synchronous_standby_names": whySync,
	"primary_conninfo":          whyFollow, "primary_slot_name": whyFollow, "promote_trigger_file": whyFollow,
	"hot_standby": whyStandby, "wal_log_hints": whyRewind,

	"ssl": whyTLS, "ssl_cert_file": whyTLS, "ssl_key_file": whyTLS, "ssl_ca_file": whyTLS, "ssl_crl_file": whyTLS,
	"ssl_crl_dir": whyTLS, "ssl_passphrase_command": whyTLS, "ssl_passphrase_command_supports_reload": whyTLS,

	"archive_mode": whyArchive, "archive_command": whyArchive, "archive_library": whyArchive, "archive_timeout": whyArchive,
	"archive_cleanup_command": whyArchive, "restore_command": whyArchive, "recovery_end_command": whyArchive,

	"recovery_target": whyRecovery, "recovery_target_action": whyRecovery, "recovery_target_inclusive": whyRecovery,
	"recovery_target_lsn": whyRecovery, "recovery_target_name": whyRecovery, "recovery_target_time": whyRecovery,
	"recovery_target_timeline": whyRecovery, "recovery_target_xid": whyRecovery, "recovery_min_apply_delay": whyRecovery,

	"log_destination": whyLog, "logging_collector": whyLog, "log_directory": whyLog, "log_filename": whyLog, "log_file_mode": whyLog,
	"log_rotation_age": whyLog, "log_rotation_size": whyLog, "log_truncate_on_rotation": whyLog, "log_line_prefix": whyLog,
	"lc_messages": whyLog, "log_timezone": whyLog, "event_source": whyLog, "syslog_facility": whyLog, "syslog_ident": whyLog,
	"syslog_sequence_numbers": whyLog, "syslog_split_messages": whyLog,

	"allow_alter_system":      whyAlterSys,
	"zero_damaged_pages":      whyDebugging,
	"ignore_checksum_failure": whyDebugging, "ignore_invalid_pages": whyDebugging, "ignore_system_indexes": whyDebugging,
	"data_sync_retry": whyDebugging, "wal_consistency_checking": whyDebugging, "trace_recovery_messages": whyDebugging,
}

// Least numbers of sender processes and slots: up to 31 peers stream, and clones and backups need some on top.
const (
	minWALSenders = 40
	minSlots      = 40
)

// refusedValues tell why a value of a parameter that is otherwise the user's is refused; "" when it is not.
var refusedValues = map[string]func(string) string{
	"fsync":            mustStayOn("off would lose the database at the next crash; to load data faster use spec.replication.durability: Asynchronous"),
	"full_page_writes": mustStayOn("off would corrupt pages at the next crash; wal_compression makes the log smaller instead"),
	"synchronous_commit": func(v string) string {
		switch v {
		case "on", "remote_apply", "true", "yes", "1":
			return ""
		}
		return "must be on or remote_apply for a whole cluster: anything less acknowledges commits that a failover loses; " +
			"use spec.replication.durability: Asynchronous, or set it for a role, session or transaction that can bear the loss"
	},
	"wal_level": func(v string) string {
		if v == "replica" || v == "logical" {
			return ""
		}
		return "must be replica or logical: standbys cannot be fed with less"
	},
	"max_wal_senders":       atLeast(minWALSenders, "standbys, clones and backups each need one"),
	"max_replication_slots": atLeast(minSlots, "every instance keeps one for every other"),
}

func mustStayOn(why string) func(string) string {
	return func(v string) string {
		switch v {
		case "on", "true", "yes", "1", "t", "y", "tr", "tru", "ye":
			return ""
		}
		return "must be on: " + why
	}
}

func atLeast(low int, why string) func(string) string {
	return func(v string) string {
		// What is no plain number is left to PostgreSQL, whose message says more.
		if n, err := strconv.Atoi(v); err == nil && n < low {
			return "must be " + strconv.Itoa(low) + " or more: " + why + "; leave it out to get the operator's value"
		}
		return ""
	}
}

// LogLinePrefix makes PostgreSQL's lines on stderr readable for machines: fields that end with |, in the order time, process,
// process kind, SQLSTATE, user, database. A line that begins with a tab continues the one before it.
const LogLinePrefix = "%m|%p|%b|%e|%u|%d|"

// OwnInputs is what the owned settings of one instance follow from.
type OwnInputs struct {
	Major int
	// ClusterName names the instance in process titles: its pod's name. It is application_name of its replication too.
	ClusterName string
	// ListenAddresses as PostgreSQL takes it; empty for all.
	ListenAddresses string
	Port            int
	SocketDir       string
	// HBAFile and IdentFile are absolute paths; empty: beside postgresql.conf.
	HBAFile, IdentFile string
	// TLSCert, TLSKey and TLSClientCA are absolute paths; no TLS when TLSCert is empty. TLSClientCA holds the authorities of
	// clients and of peers: replication logs in by it too.
	TLSCert, TLSKey, TLSClientCA string
	// SyncStandbyNames is synchronous_standby_names, see the function of that name.
	SyncStandbyNames string
	// PrimaryConnInfo (no password) and PrimarySlot of a standby; empty: stream from nobody.
	PrimaryConnInfo, PrimarySlot string
	// ArchiveCommand; empty: nothing is archived, and segments are let go as if they were.
	ArchiveCommand string
	RestoreCommand string
}

// OwnSettings are the values of the owned parameters of an instance, to be laid over everything else with Merge.
func OwnSettings(in OwnInputs) map[string]string {
	listen := in.ListenAddresses
	if listen == "" {
		listen = "*"
	}
	archive := in.ArchiveCommand
	if archive == "" {
		// archive_mode takes a restart to change, the command does not: so backups can be turned on at any time. The shell's own
		// "true" exists wherever initdb works, which needs a shell as well.
		archive = "true"
	}
	own := map[string]string{
		"listen_addresses":          listen,
		"port":                      strconv.Itoa(in.Port),
		"unix_socket_directories":   in.SocketDir,
		"unix_socket_permissions":   "0700",
		"cluster_name":              in.ClusterName,
		"synchronous_standby_names": in.SyncStandbyNames,
		"primary_conninfo":          in.PrimaryConnInfo,
		"primary_slot_name":         in.PrimarySlot,
		"hot_standby":               "on",
		"wal_log_hints":             "on",
		"archive_mode":              "on",
		"archive_command":           archive,
		"restore_command":           in.RestoreCommand,
		"recovery_target_timeline":  "latest",
		"log_destination":           "stderr",
		"logging_collector":         "off",
		"log_line_prefix":           LogLinePrefix,
		"log_timezone":              "UTC",
		"lc_messages":               "C",
		"ssl":                       "off",
	}
	for name, path := range map[string]string{"hba_file": in.HBAFile, "ident_file": in.IdentFile} {
		if path != "" {
			own[name] = path
		}
	}
	if in.TLSCert != "" {
		own["ssl"], own["ssl_cert_file"], own["ssl_key_file"] = "on", in.TLSCert, in.TLSKey
		own["ssl_ca_file"] = in.TLSClientCA
	}
	if in.Major >= 17 {
		own["allow_alter_system"] = "off"
	}
	return own
}
