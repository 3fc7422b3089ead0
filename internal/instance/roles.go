package instance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/kumki-dev/kumki/internal/naming"
	"github.com/kumki-dev/kumki/internal/pgsql"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// credentials are read from the mounted Secrets.
type credentials struct {
	appPassword, superPassword string
	superRemote                bool
}

func (m *Manager) credentials() (credentials, error) {
	app, err := secret(m.opt.AppDir, "password")
	if err != nil {
		return credentials{}, err
	}
	super, err := secret(m.opt.SuperuserDir, "password")
	return credentials{appPassword: app, superPassword: super, superRemote: m.cfg.SuperuserRemote}, err
}

// key tells whether something changed, without being the passwords.
func (c credentials) key() string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%q %q %t", c.appPassword, c.superPassword, c.superRemote)))
	return hex.EncodeToString(sum[:])
}

// makeRoles makes the cluster's roles and the application's database. It is run at bootstrap, before clients are let in.
func (m *Manager) makeRoles(ctx context.Context, sql pgsql.Server, in roleInputs) error {
	if err := sql.EnsureReplicationRole(ctx); err != nil {
		return err
	}
	app := pgsql.App{Database: in.database, Owner: in.owner}
	var err error
	if in.appPassword != "" {
		if app.Verifier, err = postgres.SCRAMVerifier(in.appPassword, nil); err != nil {
			return fmt.Errorf("the password in Secret %s: %w", naming.SecretApp(m.opt.Cluster), err)
		}
	}
	if err := sql.EnsureApp(ctx, app); err != nil {
		return err
	}
	return m.setPasswords(ctx, sql, in)
}

type roleInputs struct {
	credentials
	database, owner string
}

func (m *Manager) roleInputs() (roleInputs, error) {
	c, err := m.credentials()
	return roleInputs{credentials: c, database: m.cfg.InitDB.Database, owner: m.cfg.InitDB.Owner}, err
}

// setPasswords brings the passwords of the owner and the superuser in line with the Secrets.
func (m *Manager) setPasswords(ctx context.Context, sql pgsql.Server, in roleInputs) error {
	if in.appPassword != "" {
		v, err := postgres.SCRAMVerifier(in.appPassword, nil)
		if err != nil {
			return fmt.Errorf("the password in Secret %s: %w", naming.SecretApp(m.opt.Cluster), err)
		}
		if err := sql.SetPassword(ctx, in.owner, v); err != nil {
			return err
		}
	}
	if !in.superRemote || in.superPassword == "" {
		return sql.DropPassword(ctx, naming.RoleSuperuser)
	}
	v, err := postgres.SCRAMVerifier(in.superPassword, nil)
	if err != nil {
		return fmt.Errorf("the password in Secret %s: %w", naming.SecretSuperuser(m.opt.Cluster), err)
	}
	return sql.SetPassword(ctx, naming.RoleSuperuser, v)
}

// keepRoles sets changed passwords, on the primary.
func (m *Manager) keepRoles() {
	if m.now() < m.rolesAt {
		return
	}
	m.rolesAt = m.now() + 2*time.Second
	in, err := m.roleInputs()
	if err != nil {
		m.log.Warn("the Secrets cannot be read", "error", err)
		return
	}
	if in.key() == m.rolesDone || m.rolesBusy {
		return
	}
	m.rolesBusy = true
	sql := m.sql
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := sql.EnsureReplicationRole(ctx)
		if err == nil {
			err = m.setPasswords(ctx, sql, in)
		}
		return func() {
			m.rolesBusy = false
			if err != nil {
				m.log.Warn("passwords cannot be set yet", "error", err)
				return
			}
			m.rolesDone = in.key()
		}
	})
}

const (
	slotsEvery     = 15 * time.Second
	slotsEveryBusy = time.Second
)

// keepSlots keeps a physical slot for every other member on every member, moved forward on standbys so that WAL is kept
// for as long as a member may need it and no longer.
func (m *Manager) keepSlots() {
	if m.now() < m.slotsAt || m.pm == nil || !m.observed.ok || m.slotsBusy {
		return
	}
	m.slotsBusy = true
	var want, drop []string
	have := map[string]bool{}
	for _, s := range m.observed.Slots {
		have[s.Name] = true
	}
	wanted := map[string]bool{}
	for _, name := range m.cfg.others(m.opt.Pod) {
		slot := naming.Slot(name)
		want = append(want, slot)
		wanted[slot] = true
	}
	prefix := naming.Slot(m.opt.Cluster + "-")
	for _, s := range m.observed.Slots {
		if s.Physical && !s.Active && strings.HasPrefix(s.Name, prefix) && !wanted[s.Name] {
			drop = append(drop, s.Name)
		}
	}
	to := map[string]postgres.LSN{}
	if m.lead == nil {
		for name, s := range m.peerStatuses {
			to[naming.Slot(name)] = postgres.LSN(s.Position.LSN)
		}
	}
	sql := m.sql
	m.spawn(func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := sql.EnsureSlots(ctx, want)
		if err == nil && len(drop) > 0 {
			err = sql.DropSlots(ctx, drop)
		}
		if err == nil && len(to) > 0 {
			err = sql.AdvanceSlots(ctx, to)
		}
		return func() {
			m.slotsBusy = false
			m.slotsAt = m.now() + slotsEvery
			if err != nil {
				m.slotsAt = m.now() + slotsEveryBusy
				m.log.Debug("replication slots are not as wanted yet", "error", err)
			}
		}
	})
}
