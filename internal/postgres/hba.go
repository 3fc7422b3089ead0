package postgres

import (
	"fmt"
	"strings"

	"github.com/kumki-dev/kumki/internal/naming"
)

// identMap is the name of our map in pg_ident.conf.
const identMap = "kumki"

// HBAOptions say who may log in from where.
type HBAOptions struct {
	// User are the user's lines; they come after Kumki's own and before the last one.
	User []string
	// SuperuserRemote lets postgres in over TLS with its password.
	SuperuserRemote bool
	// Plain is for servers without TLS in tests of one host: replication is then trusted to 127.0.0.0/8 only, and passwords go without TLS.
	Plain bool
}

// RenderHBA writes pg_hba.conf. The first line that matches decides. https://www.postgresql.org/docs/current/auth-pg-hba-conf.html
func RenderHBA(o HBAOptions) string {
	su, repl := naming.RoleSuperuser, naming.RoleReplication
	lines := []string{
		"# Written by Kumki, and written anew at every change: set rules in spec.postgresql.hba.",
		"# The instance manager and people in the pod, over the unix socket.",
		fmt.Sprintf("local all %s peer map=%s", su, identMap),
		fmt.Sprintf("local replication %s peer map=%s", su, identMap),
		"# Replication and pg_rewind, by the cluster's own client certificates.",
	}
	if o.Plain {
		lines = append(lines,
			fmt.Sprintf("host replication %s 127.0.0.0/8 trust", repl),
			fmt.Sprintf("host postgres %s 127.0.0.0/8 trust", repl))
	} else {
		lines = append(lines,
			fmt.Sprintf("hostssl replication %s all cert", repl),
			fmt.Sprintf("hostssl postgres %s all cert", repl))
	}
	lines = append(lines,
		fmt.Sprintf("local all %s reject", repl), fmt.Sprintf("host all %s all reject", repl),
		fmt.Sprintf("local replication %s reject", repl), fmt.Sprintf("host replication %s all reject", repl))
	kind := "hostssl"
	if o.Plain {
		kind = "host"
	}
	if o.SuperuserRemote {
		lines = append(lines, "# The superuser, over TLS with its password.",
			fmt.Sprintf("%s all %s all scram-sha-256", kind, su))
	}
	lines = append(lines, "# The superuser is let in no other way.",
		fmt.Sprintf("host all %s all reject", su), fmt.Sprintf("host replication %s all reject", su))
	if len(o.User) > 0 {
		lines = append(lines, "# spec.postgresql.hba")
	}
	for _, l := range o.User {
		// A line break inside of one would be a second rule.
		lines = append(lines, strings.NewReplacer("\n", " ", "\r", " ").Replace(strings.TrimSpace(l)))
	}
	lines = append(lines, "# Everybody else: over the unix socket or TLS with a password; nobody without TLS.",
		"local all all scram-sha-256", kind+" all all all scram-sha-256")
	return strings.Join(lines, "\n") + "\n"
}

// RenderIdent writes pg_ident.conf: the operating system's users who are the superuser over the unix socket. https://www.postgresql.org/docs/current/auth-username-maps.html
func RenderIdent(osUsers ...string) string {
	var b strings.Builder
	b.WriteString("# Written by Kumki.\n")
	for _, u := range osUsers {
		fmt.Fprintf(&b, "%s %s %s\n", identMap, quoteHBA(u), naming.RoleSuperuser)
	}
	return b.String()
}

// quoteHBA quotes a word of pg_hba.conf or pg_ident.conf; keywords lose their meaning by it.
func quoteHBA(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
