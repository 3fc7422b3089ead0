package pgproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kumki-dev/kumki/internal/postgres"
)

// Bin is a directory with the programs of one major version of PostgreSQL.
type Bin struct {
	Dir   string
	Major int
}

// Path of a program, for example "pg_rewind".
func (b Bin) Path(program string) string { return filepath.Join(b.Dir, program) }

// User that the programs run as. PostgreSQL refuses to run as root.
type User struct{ UID, GID uint32 }

// Programs runs PostgreSQL's programs. Its zero value does not work: Bin is needed.
type Programs struct {
	Bin Bin
	// User to run as; nil: as this process (in a pod).
	User *User
	// Log gets each message of the programs; it must not block for long. May be nil.
	Log func(LogRecord)
}

// ErrNoBin says that the image holds no PostgreSQL of the wanted version.
var ErrNoBin = errors.New("no PostgreSQL programs found")

// FindBin finds the programs of that major version: in PATH, then where Debian, Red Hat and source builds put them.
// The error (ErrNoBin) names what was looked at.
func FindBin(major int) (Bin, error) {
	n := strconv.Itoa(major)
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(p))
		}
	}
	dirs = append(dirs, "/usr/lib/postgresql/"+n+"/bin", "/usr/pgsql-"+n+"/bin", "/usr/local/pgsql/bin", "/usr/local/bin",
		"/usr/lib/postgresql"+n+"/bin", "/usr/libexec/postgresql"+n, "/opt/bitnami/postgresql/bin")
	var seen []string
	for _, dir := range dirs {
		bin := Bin{Dir: dir, Major: major}
		if _, err := os.Stat(bin.Path("postgres")); err != nil {
			continue
		}
		found, err := versionOf(bin)
		if err == nil && found == major {
			return bin, nil
		}
		seen = append(seen, fmt.Sprintf("%s (version %d)", dir, found))
	}
	return Bin{}, fmt.Errorf("%w: want major version %d, found %v; use an image of that version or set spec.version to the image's", ErrNoBin, major, seen)
}

// versionOf is the major version that a postgres program says it has: "postgres (PostgreSQL) 17.6 (Debian 17.6-1)".
func versionOf(b Bin) (int, error) {
	cmd := exec.Command(b.Path("postgres"), "--version")
	cmd.Env = environment()
	var out strings.Builder
	cmd.Stdout = &out
	if err := startChild(cmd); err != nil {
		return 0, err
	}
	if err := waitChild(cmd); err != nil {
		return 0, err
	}
	fields := strings.Fields(out.String())
	if len(fields) < 3 {
		return 0, fmt.Errorf("%s --version printed %q", b.Path("postgres"), out.String())
	}
	return postgres.MajorVersion(fields[2])
}
