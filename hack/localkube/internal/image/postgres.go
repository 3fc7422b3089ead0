package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kumki-dev/kumki/hack/localkube/internal/artifact"
	"github.com/kumki-dev/kumki/hack/localkube/internal/host"
	"github.com/kumki-dev/kumki/hack/localkube/internal/layout"
)

// suites maps PostgreSQL's major versions to the Debian release that has them.
var suites = map[string]string{"15": "bookworm", "17": "trixie", "18": "forky"}

var postgresName = regexp.MustCompile(`^(?:` + regexp.QuoteMeta(layout.ImageBase) + `/)?postgres:([0-9]+)$`)

// PostgresMajor returns the major version that an image's name like "postgres:15" stands for.
func PostgresMajor(image string) (string, error) {
	m := postgresName.FindStringSubmatch(image)
	if m == nil || suites[m[1]] == "" {
		return "", fmt.Errorf("%q is not one of postgres:15, postgres:17, postgres:18", image)
	}
	return m[1], nil
}

// PostgresRef is the full name of an image.
func PostgresRef(major string) string { return layout.ImageBase + "/postgres:" + major }

func postgresEntry(major string) string { return "images/postgres-" + major + "-r1.tar" }

// CachedPostgres returns the path of an image that was built before.
func CachedPostgres(major string) (string, bool) {
	path := filepath.Join(layout.CacheDir(), postgresEntry(major))
	_, err := os.Stat(path)
	return path, err == nil
}

// Postgres builds an image like the official one of that name: PostgreSQL from Debian, the user postgres
// with UID 999, and none of our own programs.
func Postgres(ctx context.Context, log artifact.Log, major string) (string, error) {
	if path, ok := CachedPostgres(major); ok {
		return path, nil
	}
	if err := artifact.EnsureTools(ctx, log, artifact.ImageTools); err != nil {
		return "", err
	}
	return artifact.Cached(ctx, log, postgresEntry(major), func(tmp string) error {
		log("building %s from Debian %s (about a minute)", PostgresRef(major), suites[major])
		root := tmp + ".root.tar"
		defer func() { _ = os.Remove(root) }()
		args := append(mmdebstrapArgs(major), suites[major], root)
		if _, err := host.Run(ctx, "nice", append([]string{"-n", "5", "mmdebstrap"}, args...)...); err != nil {
			return err
		}
		layer, err := layerOfFile(root)
		if err != nil {
			return err
		}
		return write(tmp, PostgresRef(major), layer, postgresConfig(major))
	})
}

func mmdebstrapArgs(major string) []string {
	args := []string{
		"--variant=minbase", "--mode=root", "--include=postgresql-" + major,
		// A mirror that lags behind is good enough for an image that only tests use.
		"--aptopt=Acquire::Check-Valid-Until \"false\"",
	}
	for _, path := range []string{"doc", "man", "info", "locale"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+path+"/*")
	}
	return append(args,
		// The packages take a user that exists as it is, and would else make one with another UID.
		`--essential-hook=echo 'postgres:x:999:999:PostgreSQL:/var/lib/postgresql:/bin/bash' >> "$1/etc/passwd"`,
		`--essential-hook=echo 'postgres:!:19000::::::' >> "$1/etc/shadow"`,
		`--essential-hook=echo 'postgres:x:999:' >> "$1/etc/group"`,
		`--essential-hook=mkdir -p "$1/etc/postgresql-common"`,
		`--essential-hook=echo 'create_main_cluster = false' > "$1/etc/postgresql-common/createcluster.conf"`,
		`--customize-hook=rm -f "$1"/etc/ssl/private/*.key "$1"/etc/ssl/certs/ssl-cert-snakeoil.pem`,
		`--customize-hook=install -d -o 999 -g 999 -m 1777 "$1/var/lib/postgresql" "$1/var/lib/postgresql/data"`,
		`--customize-hook=install -d -o 999 -g 999 -m 3777 "$1/run/postgresql"`,
		`--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/*`,
	)
}

func postgresConfig(major string) v1.Config {
	bin := "/usr/lib/postgresql/" + major + "/bin"
	return v1.Config{
		Env: []string{
			"PATH=" + strings.Join([]string{
				"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", bin,
			}, ":"),
			"LANG=C.UTF-8",
			"PG_MAJOR=" + major,
			"PGDATA=/var/lib/postgresql/data",
		},
		Cmd:          []string{"postgres"},
		StopSignal:   "SIGINT",
		ExposedPorts: map[string]struct{}{"5432/tcp": {}},
	}
}
