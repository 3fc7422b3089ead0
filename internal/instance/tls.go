package instance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kumki-dev/kumki/internal/pgproc"
	"github.com/kumki-dev/kumki/internal/pki"
)

// syncTLS keeps private copies of the mounted certificates: PostgreSQL wants keys that only it can read, and a mount that belongs to
// root with a group is not always that. It says whether anything changed. A half-written mount changes nothing.
func (m *Manager) syncTLS() (bool, error) {
	changed := false
	owner := m.owner()
	pairs := []struct{ kind, from string }{{"server", m.opt.ServerTLSDir}, {"peer", m.opt.PeerTLSDir}}
	for _, p := range pairs {
		did, err := syncPair(p.from, m.privateTLS(p.kind), owner)
		if err != nil {
			return changed, fmt.Errorf("certificate of %s: %w", p.kind, err)
		}
		changed = changed || did
	}
	did, err := m.syncClientCA(owner)
	return changed || did, err
}

// syncPair copies a certificate, its key and its authority if they belong together: a running server would go on with what it has, and never
// start again with files that do not.
func syncPair(from, to string, owner *pgproc.User) (bool, error) {
	files := map[string][]byte{}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return false, err
		}
		files[name] = content
	}
	if err := pki.CheckServer(files["tls.crt"], files["tls.key"], files["ca.crt"]); err != nil {
		return false, err
	}
	if err := makeDir(to, owner); err != nil {
		return false, err
	}
	changed := false
	for name, content := range files {
		did, err := refresh(content, filepath.Join(to, name), owner)
		if err != nil {
			return changed, err
		}
		changed = changed || did
	}
	return changed, nil
}

// syncClientCA joins the authorities that sign clients: the cluster's own, for replication, and the user's.
func (m *Manager) syncClientCA(owner *pgproc.User) (bool, error) {
	bundle, err := os.ReadFile(filepath.Join(m.opt.PeerTLSDir, "ca.crt"))
	if err != nil {
		return false, err
	}
	if more, err := os.ReadFile(filepath.Join(m.opt.ClientCADir, "ca.crt")); err == nil && !bytes.Contains(bundle, bytes.TrimSpace(more)) {
		bundle = append(append(bytes.TrimSpace(bundle), '\n'), more...)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	dir := m.privateTLS("clients")
	if err := makeDir(dir, owner); err != nil {
		return false, err
	}
	return refresh(bundle, filepath.Join(dir, "ca.crt"), owner)
}

func makeDir(dir string, owner *pgproc.User) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if owner != nil {
		for _, d := range []string{filepath.Dir(dir), dir} {
			if err := os.Chown(d, int(owner.UID), int(owner.GID)); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyFile(from, to string, owner *pgproc.User) error {
	_, err := refreshFile(from, to, owner)
	return err
}

func refreshFile(from, to string, owner *pgproc.User) (bool, error) {
	content, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	return refresh(content, to, owner)
}

func refresh(content []byte, to string, owner *pgproc.User) (bool, error) {
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	return true, pgproc.WriteFile(to, content, owner)
}

// refreshTLS takes over rotated certificates; PostgreSQL uses them for new connections after a reload.
func (m *Manager) refreshTLS() {
	changed, err := m.syncTLS()
	if err != nil {
		if text := "certificates cannot be taken over; the old ones stay in use: " + err.Error(); text != m.tlsFailure {
			m.tlsFailure = text
			m.log.Warn(text)
		}
		return
	}
	m.tlsFailure = ""
	if !changed || m.pm == nil {
		return
	}
	m.log.Info("certificates changed; PostgreSQL reloads")
	m.settings.applied = "" // the key of replication is copied anew
	if err := m.pm.Reload(); err != nil {
		m.log.Warn("PostgreSQL cannot be told to reload", "error", err)
	}
}
