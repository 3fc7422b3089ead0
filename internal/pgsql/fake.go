package pgsql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// Errors that a Fake can be told to answer with (FakeState.Fail).
var (
	// ErrDown is like no socket: IsDown.
	ErrDown = errors.New("connect to PostgreSQL: nothing answers")
	// ErrStarting is like a server in crash recovery: IsStarting.
	ErrStarting error = &pgconn.PgError{Severity: "FATAL", Code: "57P03", Message: "the database system is starting up"}
)

// FakeState is everything that a Fake is.
type FakeState struct {
	// Observed is what Observe returns.
	Observed Observation
	// Fail, when set, is what every method returns.
	Fail error
	// Files are the parameters in the configuration files, AutoConf those of ALTER SYSTEM. Reload takes them over.
	Files, AutoConf map[string]string
	// HBAError is what pg_hba.conf is refused for; "" when it is valid.
	HBAError string
	// Refused gives messages for parameters whose value CheckConfig refuses, whatever it is.
	Refused map[string]string
	// Roles are the roles with their verifiers, "" without password. Databases are the databases with their owners.
	Roles, Databases map[string]string
	// Scripts that ran, oldest first.
	Scripts []string
	// Reloads, Checkpoints and Promotions count.
	Reloads, Checkpoints, Promotions int
}

// Fake is a Server in memory for tests. It passes the same contract suite as Client.
type Fake struct {
	mu sync.Mutex
	s  FakeState
}

var _ Server = (*Fake)(nil)

// NewFake makes a fake that shows this observation.
func NewFake(o Observation) *Fake {
	if o.Settings == nil {
		o.Settings = map[string]string{
			"max_connections": "100", "max_locks_per_transaction": "64", "max_prepared_transactions": "0",
			"max_wal_senders": "48", "max_worker_processes": "16",
		}
	}
	files := maps.Clone(o.Settings)
	files["synchronous_standby_names"], files["primary_conninfo"] = o.SyncStandbyNames, o.PrimaryConnInfo
	return &Fake{s: FakeState{
		Observed: o, Files: files, AutoConf: map[string]string{}, Refused: map[string]string{},
		Roles:     map[string]string{naming.RoleSuperuser: ""},
		Databases: map[string]string{"postgres": naming.RoleSuperuser},
	}}
}

// Edit changes the state.
func (f *Fake) Edit(change func(*FakeState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.s)
}

// State is a copy of the state; its maps and slices must not be changed.
func (f *Fake) State() FakeState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s
}

// with runs a method's body on the state unless the fake fails.
func (f *Fake) with(ctx context.Context, body func(*FakeState) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.s.Fail != nil {
		return f.s.Fail
	}
	return body(&f.s)
}

// Close does nothing.
func (f *Fake) Close() {}

// Ping answers unless the fake fails.
func (f *Fake) Ping(ctx context.Context) error {
	return f.with(ctx, func(*FakeState) error { return nil })
}

// Observe returns a copy of FakeState.Observed.
func (f *Fake) Observe(ctx context.Context) (o Observation, err error) {
	err = f.with(ctx, func(s *FakeState) error {
		o = s.Observed
		o.Settings = maps.Clone(o.Settings)
		o.Slots, o.Replication = slices.Clone(o.Slots), slices.Clone(o.Replication)
		o.PendingRestart = slices.Clone(o.PendingRestart)
		if o.WALReceiver != nil {
			w := *o.WALReceiver
			o.WALReceiver = &w
		}
		return nil
	})
	return o, err
}

// CheckConfig refuses what FakeState.Refused names and numbers that are none.
func (f *Fake) CheckConfig(ctx context.Context) (problems []ConfigProblem, err error) {
	err = f.with(ctx, func(s *FakeState) error {
		for _, name := range slices.Sorted(maps.Keys(s.Files)) {
			if m := s.refusal(name); m != "" {
				problems = append(problems, ConfigProblem{Parameter: name, Message: m, File: "postgresql.conf", Line: 1})
			}
		}
		if s.HBAError != "" {
			problems = append(problems, ConfigProblem{Parameter: "pg_hba.conf", Message: s.HBAError, File: "pg_hba.conf", Line: 1})
		}
		return nil
	})
	return problems, err
}

func (s *FakeState) refusal(name string) string {
	if m := s.Refused[name]; m != "" {
		return m
	}
	value := strings.TrimRight(s.Files[name], "kMGTB")
	numeric := name == "work_mem" || slices.Contains(postgres.StandbyMustMatch, name)
	if _, err := strconv.Atoi(value); numeric && err != nil {
		return fmt.Sprintf("invalid value for parameter %q: %q", name, s.Files[name])
	}
	return ""
}

// Reload takes the files over; what needs a restart becomes pending.
func (f *Fake) Reload(ctx context.Context) error {
	return f.with(ctx, func(s *FakeState) error {
		s.Reloads++
		now := postgres.Merge(s.Files, s.AutoConf)
		s.Observed.SyncStandbyNames, s.Observed.PrimaryConnInfo = now["synchronous_standby_names"], now["primary_conninfo"]
		s.Observed.PendingRestart = nil
		for _, name := range postgres.StandbyMustMatch {
			if v, ok := now[name]; ok && v != s.Observed.Settings[name] {
				s.Observed.PendingRestart = append(s.Observed.PendingRestart, name)
			}
		}
		return nil
	})
}

// Restart does what a restart of the server does: what was pending is in force.
func (f *Fake) Restart() {
	f.Edit(func(s *FakeState) {
		for _, name := range s.Observed.PendingRestart {
			s.Observed.Settings[name] = postgres.Merge(s.Files, s.AutoConf)[name]
		}
		s.Observed.PendingRestart = nil
	})
}

// Checkpoint counts.
func (f *Fake) Checkpoint(ctx context.Context) error {
	return f.with(ctx, func(s *FakeState) error { s.Checkpoints++; return nil })
}

var errReadOnly error = &pgconn.PgError{Severity: "ERROR", Code: "25006", Message: "cannot execute this command in a read-only transaction"}

// onPrimary is with on a primary only.
func (f *Fake) onPrimary(ctx context.Context, body func(*FakeState) error) error {
	return f.with(ctx, func(s *FakeState) error {
		if s.Observed.InRecovery {
			return errReadOnly
		}
		return body(s)
	})
}

// SwitchWAL moves the position to the next segment of 16 MB.
func (f *Fake) SwitchWAL(ctx context.Context) (end postgres.LSN, err error) {
	err = f.onPrimary(ctx, func(s *FakeState) error {
		const segment = 16 << 20
		end = s.Observed.FlushLSN
		s.Observed.FlushLSN = (end/segment + 1) * segment
		s.Observed.ReplayLSN = s.Observed.FlushLSN
		return nil
	})
	return end, err
}

// Promote ends recovery on the next timeline.
func (f *Fake) Promote(ctx context.Context) error {
	return f.with(ctx, func(s *FakeState) error {
		if s.Observed.InRecovery {
			s.Promotions++
			s.Observed.InRecovery, s.Observed.WALReceiver = false, nil
			s.Observed.Timeline++
			s.Observed.ReplayLSN = s.Observed.FlushLSN
		}
		return nil
	})
}

// StopWALReceiver removes the receiver.
func (f *Fake) StopWALReceiver(ctx context.Context) error {
	return f.with(ctx, func(s *FakeState) error { s.Observed.WALReceiver = nil; return nil })
}

// EnsureSlots appends to FakeState.Observed.Slots.
func (f *Fake) EnsureSlots(ctx context.Context, names []string) error {
	return f.with(ctx, func(s *FakeState) error {
		s.dropSlots(names, func(l Slot) bool { return l.WALStatus == "lost" && !l.Active })
		for _, name := range names {
			if !slices.ContainsFunc(s.Observed.Slots, func(l Slot) bool { return l.Name == name }) {
				s.Observed.Slots = append(s.Observed.Slots,
					Slot{Name: name, Physical: true, WALStatus: "reserved", RestartLSN: max(s.Observed.ReplayLSN&^0xFFFFFF, 1)})
			}
		}
		sort.Slice(s.Observed.Slots, func(i, j int) bool { return s.Observed.Slots[i].Name < s.Observed.Slots[j].Name })
		return nil
	})
}

func (s *FakeState) dropSlots(names []string, which func(Slot) bool) {
	s.Observed.Slots = slices.DeleteFunc(slices.Clone(s.Observed.Slots), func(l Slot) bool {
		return l.Physical && slices.Contains(names, l.Name) && which(l)
	})
}

// DropSlots removes them.
func (f *Fake) DropSlots(ctx context.Context, names []string) error {
	return f.with(ctx, func(s *FakeState) error {
		for _, l := range s.Observed.Slots {
			if l.Active && l.Physical && slices.Contains(names, l.Name) {
				return &pgconn.PgError{Severity: "ERROR", Code: objectInUse, Message: fmt.Sprintf("replication slot %q is active", l.Name)}
			}
		}
		s.dropSlots(names, func(Slot) bool { return true })
		return nil
	})
}

// AdvanceSlots moves them, not beyond what is replayed.
func (f *Fake) AdvanceSlots(ctx context.Context, to map[string]postgres.LSN) error {
	return f.with(ctx, func(s *FakeState) error {
		s.Observed.Slots = slices.Clone(s.Observed.Slots)
		for i, l := range s.Observed.Slots {
			target := min(to[l.Name], s.Observed.ReplayLSN)
			if l.Physical && !l.Active && l.WALStatus != "lost" && l.RestartLSN < target {
				s.Observed.Slots[i].RestartLSN = target
			}
		}
		return nil
	})
}

// EnsureReplicationRole adds the role.
func (f *Fake) EnsureReplicationRole(ctx context.Context) error {
	return f.onPrimary(ctx, func(s *FakeState) error { s.Roles[naming.RoleReplication] = ""; return nil })
}

// EnsureApp adds role and database.
func (f *Fake) EnsureApp(ctx context.Context, app App) error {
	if app.Verifier != "" && !postgres.IsVerifier(app.Verifier) {
		return errNotVerifier
	}
	return f.onPrimary(ctx, func(s *FakeState) error {
		if _, ok := s.Roles[app.Owner]; !ok || app.Verifier != "" {
			s.Roles[app.Owner] = app.Verifier
		}
		s.Databases[app.Database] = app.Owner
		return nil
	})
}

// SetPassword sets a verifier.
func (f *Fake) SetPassword(ctx context.Context, role, verifier string) error {
	if !postgres.IsVerifier(verifier) {
		return errNotVerifier
	}
	return f.password(ctx, role, verifier)
}

// DropPassword takes it away.
func (f *Fake) DropPassword(ctx context.Context, role string) error { return f.password(ctx, role, "") }

func (f *Fake) password(ctx context.Context, role, verifier string) error {
	return f.with(ctx, func(s *FakeState) error {
		have, ok := s.Roles[role]
		switch {
		case ok && have == verifier:
			return nil
		case s.Observed.InRecovery:
			return errReadOnly
		case !ok:
			return &pgconn.PgError{Severity: "ERROR", Code: "42704", Message: fmt.Sprintf("role %q does not exist", role)}
		}
		s.Roles[role] = verifier
		return nil
	})
}

// ExecScript remembers the script. A database that is not there is an error, and so is a script with the word "syntax error" in it.
func (f *Fake) ExecScript(ctx context.Context, database, script string) error {
	return f.with(ctx, func(s *FakeState) error {
		if _, ok := s.Databases[database]; !ok {
			return &pgconn.PgError{Severity: "FATAL", Code: "3D000", Message: fmt.Sprintf("database %q does not exist", database)}
		}
		if strings.Contains(script, "syntax error") {
			return &pgconn.PgError{Severity: "ERROR", Code: "42601", Message: "syntax error"}
		}
		s.Scripts = append(s.Scripts, script)
		return nil
	})
}
