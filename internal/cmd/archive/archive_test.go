package archive

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	. "github.com/onsi/gomega"

	"github.com/kumki-dev/kumki/internal/archive"
	"github.com/kumki-dev/kumki/internal/walsocket"
)

const bin = "/usr/lib/postgresql/15/bin"

// rig is a PostgreSQL that is archived by the programs themselves, in a directory that goes with the test.
type rig struct {
	t      *testing.T
	root   string
	cred   *syscall.Credential // of the user postgres, when the test runs as root
	config string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := os.MkdirTemp("", "kumki-archive-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	r := &rig{t: t, root: root}
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatalf("the user postgres comes with Debian's package postgresql-15: %v", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		r.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	for out, pkg := range map[string]string{"kumki-wal": "../../../cmd/kumki-wal", "kumki-archive": "../../../cmd/kumki-archive"} {
		build := exec.Command("go", "build", "-o", filepath.Join(root, out), pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
	}
	for _, d := range []string{"store", "run"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.own()
	return r
}

// in is the rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	sub := *r
	sub.t = t
	return &sub
}

// own gives everything to the user who runs PostgreSQL.
func (r *rig) own() {
	r.t.Helper()
	if r.cred == nil {
		return
	}
	if err := filepath.WalkDir(r.root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(r.cred.Uid), int(r.cred.Gid))
	}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.root, name) }

func (r *rig) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = r.root
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.cred, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (r *rig) run(program string, args ...string) string {
	r.t.Helper()
	out, err := r.command(program, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// archive runs kumki-archive and returns its last line of JSON.
func (r *rig) archive(args ...string) map[string]any {
	r.t.Helper()
	lines := strings.Split(r.run(r.path("kumki-archive"), append(args, "--config", r.config)...), "\n")
	var v map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &v); err != nil {
		r.t.Fatalf("%q: %v", lines, err)
	}
	return v
}

// configure writes the file that says where the archive is.
func (r *rig) configure(c Config) {
	r.t.Helper()
	raw, err := json.Marshal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.config = r.path("archive.json")
	if err := os.WriteFile(r.config, raw, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// serve starts kumki-archive serve and waits until it answers.
func (r *rig) serve(args ...string) {
	r.t.Helper()
	cmd := r.command(r.path("kumki-archive"), append([]string{"serve", "--config", r.config}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			r.t.Errorf("serve: %v", err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "serving") {
		r.t.Fatalf("serve printed %q, %v", line, err)
	}
}

// postgres starts a server on a data directory; it is stopped with the test.
func (r *rig) postgres(dir string, settings ...string) *exec.Cmd {
	r.t.Helper()
	args := []string{"-D", r.path(dir), "-c", "unix_socket_directories=" + r.path("run"), "-c", "listen_addresses=", "-c", "fsync=off"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	cmd := r.command(filepath.Join(bin, "postgres"), args...)
	log, err := os.Create(r.path(dir + ".log"))
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return cmd
}

func (r *rig) stop(cmd *exec.Cmd) {
	r.t.Helper()
	_ = cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) psql(sql string) (string, error) {
	out, err := r.command(filepath.Join(bin, "psql"), "-h", r.path("run"), "-U", "postgres", "-d", "postgres", "-XAtqc", sql).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r *rig) sql(sql string) string {
	r.t.Helper()
	out, err := r.psql(sql)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return out
}

// primary waits until the server has left recovery.
func (r *rig) primary(g *WithT, dir string) {
	r.t.Helper()
	g.Eventually(func() string {
		out, _ := r.psql("SELECT pg_is_in_recovery()")
		return out
	}).WithTimeout(60*time.Second).WithPolling(100*time.Millisecond).Should(Equal("f"), func() string {
		log, _ := os.ReadFile(r.path(dir + ".log"))
		return string(log)
	})
}

// TestArchiveAndRestore goes the whole way with a real PostgreSQL and the programs as processes: WAL is archived by archive_command while rows
// are written, a base backup is taken, and the database is restored to its end, to a position and to a time. The rows are those that were
// committed by then, no more and no less.
func TestArchiveAndRestore(t *testing.T) {
	g, r := NewWithT(t), newRig(t)
	identity, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(r.path("identity"), []byte(identity.String()+"\n"), 0o600)).To(Succeed())
	r.own()
	r.run(filepath.Join(bin, "initdb"), "-D", r.path("pg"), "-U", "postgres", "-A", "trust", "--data-checksums", "-N", "-E", "UTF8", "--locale=C.UTF-8")
	control := r.run(filepath.Join(bin, "pg_controldata"), r.path("pg"))
	system := strings.Fields(control[strings.Index(control, "Database system identifier:"):])[3]
	cfg := Config{
		Cluster: "orders", SystemIdentifier: system, Destination: "file://" + r.path("store"), Recipients: []string{identity.Recipient().String()},
		CompressionLevel: 1,
	}
	r.configure(cfg)
	g.Expect(r.archive("check")).To(HaveKeyWithValue("folder", "orders-"+system))

	socket := r.path("run/archive.sock")
	r.serve("--socket", socket, "--spool", r.path("spool"), "--data-dir", r.path("pg"))
	push := "archive_command='" + r.path("kumki-wal") + "' push '" + socket + "' '%p'"
	server := r.postgres("pg", "archive_mode=on", push)
	r.primary(g, "pg")
	r.sql("CREATE TABLE t (i int PRIMARY KEY, at timestamptz DEFAULT clock_timestamp()); INSERT INTO t SELECT generate_series(1, 1000)")
	b := r.archive("backup", "--socket-dir", r.path("run"), "--instance", "orders-0")["backup"].(map[string]any)
	g.Expect(b).To(HaveKeyWithValue("instance", "orders-0"))
	g.Expect(b).To(HaveKeyWithValue("encrypted", true))

	r.sql("INSERT INTO t SELECT generate_series(1001, 1500)")
	lsn := r.sql("SELECT pg_current_wal_insert_lsn()")
	r.sql("INSERT INTO t SELECT generate_series(1501, 2000)")
	at := r.sql(`SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)
	g.Eventually(func() string { return r.sql("SELECT clock_timestamp() > '" + at + "'::timestamptz + interval '50ms'") }).Should(Equal("t"))
	r.sql("INSERT INTO t SELECT generate_series(2001, 3000)")
	last := r.sql("SELECT pg_walfile_name(pg_switch_wal())")
	g.Eventually(func() string { return r.sql("SELECT last_archived_wal FROM pg_stat_archiver") }).WithTimeout(30 * time.Second).Should(Equal(last))
	g.Expect(r.sql("SELECT failed_count FROM pg_stat_archiver")).To(Equal("0"))
	r.stop(server)

	cfg.SystemIdentifier, cfg.Recipients, cfg.IdentityFile = "", nil, r.path("identity") // what one has who comes with the archive and the key alone
	r.configure(cfg)
	listed := r.archive("list")
	g.Expect(listed["backups"]).To(HaveLen(1))
	g.Expect(listed["windows"]).To(HaveLen(1))
	g.Expect(listed).NotTo(HaveKey("missing"))
	fetch := r.path("run/fetch.sock")
	r.serve("--socket", fetch, "--spool", r.path("spool-fetch"))
	command := "'" + r.path("kumki-wal") + "' fetch '" + fetch + "' '%f' '%p'"

	for name, test := range map[string]struct {
		args []string
		rows string
	}{
		"latest":    {nil, "3000"},
		"position":  {[]string{"--target-lsn", lsn, "--target-exclusive"}, "1500"},
		"time":      {[]string{"--target-time", at}, "2000"},
		"immediate": {[]string{"--target-immediate"}, "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			g, r := NewWithT(t), r.in(t)
			dir := "restored-" + name
			g.Expect(os.Mkdir(r.path(dir), 0o700)).To(Succeed())
			r.own()
			args := append([]string{"restore", "--dir", r.path(dir), "--restore-command", command}, test.args...)
			g.Expect(r.archive(args...)).To(HaveKeyWithValue("restored", b["id"]))
			server := r.postgres(dir)
			r.primary(g, dir)
			g.Expect(r.sql("SELECT count(*) || ' ' || max(i) FROM t")).To(Equal(test.rows + " " + test.rows))
			r.stop(server)
		})
	}

	t.Run("a target that is not there", func(t *testing.T) {
		g, r := NewWithT(t), r.in(t)
		g.Expect(os.Mkdir(r.path("beyond"), 0o700)).To(Succeed())
		r.own()
		r.archive("restore", "--dir", r.path("beyond"), "--restore-command", command, "--target-lsn", "FF/0")
		g.Expect(r.postgres("beyond").Wait()).NotTo(Succeed(), "PostgreSQL must not stop short of the target without a word")
		log, err := os.ReadFile(r.path("beyond.log"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(log)).To(ContainSubstring("recovery ended before configured recovery target was reached"))
	})
	t.Run("a target before the first backup", func(t *testing.T) {
		g, r := NewWithT(t), r.in(t)
		out, err := r.command(r.path("kumki-archive"), "restore", "--config", r.config, "--dir", r.path("x"), "--restore-command", command,
			"--target-time", "2020-01-01T00:00:00Z").CombinedOutput()
		g.Expect(err).To(HaveOccurred())
		g.Expect(string(out)).To(ContainSubstring("nothing before"))
	})
	t.Run("prune keeps the newest", func(t *testing.T) {
		g, r := NewWithT(t), r.in(t)
		gone := r.archive("prune", "--count", "1", "--dry-run")
		g.Expect(gone["kept"]).To(HaveLen(1))
	})
}

// stub answers as it is told.
type stub struct{ push, fetch func(context.Context) error }

func (s stub) Push(ctx context.Context, _ string) error            { return s.push(ctx) }
func (s stub) Fetch(ctx context.Context, _ string, _ string) error { return s.fetch(ctx) }

func TestServe(t *testing.T) {
	give := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, test := range map[string]struct {
		request []string
		answer  stub
		check   func(error) bool
	}{
		"pushed":     {[]string{walsocket.Push, "/x"}, stub{push: give(nil)}, func(err error) bool { return err == nil }},
		"not pushed": {[]string{walsocket.Push, "/x"}, stub{push: give(errors.New("two\nlines"))}, func(err error) bool { return err.Error() == "two lines" }},
		"a push of nothing": {[]string{walsocket.Push, "/x"}, stub{push: give(archive.ErrNotFound)}, func(err error) bool {
			return err != nil && !errors.Is(err, walsocket.ErrMissing)
		}},
		"fetched":    {[]string{walsocket.Fetch, "f", "/x"}, stub{fetch: give(nil)}, func(err error) bool { return err == nil }},
		"missing":    {[]string{walsocket.Fetch, "f", "/x"}, stub{fetch: give(archive.ErrNotFound)}, func(err error) bool { return errors.Is(err, walsocket.ErrMissing) }},
		"a failure":  {[]string{walsocket.Fetch, "f", "/x"}, stub{fetch: give(errors.New("no"))}, func(err error) bool { return err.Error() == "no" }},
		"an unknown": {[]string{"steal", "/x"}, stub{}, func(err error) bool { return strings.Contains(err.Error(), "steal") }},
		"a long error": {[]string{walsocket.Push, "/x"}, stub{push: give(errors.New(strings.Repeat("long ", 10000)))}, func(err error) bool {
			return strings.HasPrefix(err.Error(), "long long")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			socket := filepath.Join(t.TempDir(), "s")
			l, err := listen(ctx, socket)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- serve(ctx, l, test.answer) }()
			if err := walsocket.Ask(socket, test.request...); !test.check(err) {
				t.Errorf("error is %v", err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// PostgreSQL ends an archive_command that it does not want any more; what it asked for is given up.
func TestServeNoticesThatTheClientIsGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := listen(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		_ = serve(ctx, l, stub{push: func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}})
	}()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("push\t/x\n")); err != nil {
		t.Fatal(err)
	}
	<-begun
	_ = conn.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the request goes on")
	}
}

func TestTargets(t *testing.T) {
	for name, test := range map[string]struct {
		target target
		want   map[string]string
		says   string
	}{
		"the end":   {target{timeline: "latest", action: "promote"}, map[string]string{"recovery_target_timeline": "latest"}, ""},
		"a time":    {target{time: "2026-01-02T03:04:05Z", timeline: "latest", action: "pause"}, map[string]string{"recovery_target_time": "2026-01-02 03:04:05+00", "recovery_target_action": "pause"}, ""},
		"exclusive": {target{lsn: "0/3000000", exclusive: true, action: "promote"}, map[string]string{"recovery_target_lsn": "0/3000000", "recovery_target_inclusive": "off"}, ""},
		"immediate": {target{immediate: true, action: "promote"}, map[string]string{"recovery_target": "immediate"}, ""},
		"two":       {target{lsn: "0/3000000", xid: "7"}, nil, "only one"},
		"bad time":  {target{time: "yesterday"}, nil, "--target-time"},
		"bad lsn":   {target{lsn: "12"}, nil, "--target-lsn"},
	} {
		got, err := test.target.settings()
		if (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v", name, err)
		}
		for k, v := range test.want {
			if got[k] != v {
				t.Errorf("%s: %s is %q, want %q", name, k, got[k], v)
			}
		}
	}
}

func TestConfigurationErrorsNameTheField(t *testing.T) {
	for name, test := range map[string]struct{ text, says string }{
		"unknown field": {`{"cluster": "c", "bucket": "x"}`, "bucket"},
		"no cluster":    {`{"destination": "s3://b/p"}`, "cluster is missing"},
		"destination":   {`{"cluster": "c", "destination": "ftp://x"}`, "ftp://x"},
		"recipient":     {`{"cluster": "c", "destination": "file:///tmp", "recipients": ["me"]}`, "recipients[0]"},
		"identity":      {`{"cluster": "c", "destination": "file:///tmp", "identityFile": "/none"}`, "identityFile"},
		"system":        {`{"cluster": "c", "destination": "file:///tmp", "systemIdentifier": "x"}`, "systemIdentifier"},
	} {
		file := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := (&common{config: file}).open(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
