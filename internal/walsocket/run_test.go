package walsocket

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func listen(t *testing.T, socket string, answers ...string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for _, answer := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}()
}

// Of fetch's exit codes only "missing" may be one that PostgreSQL takes for the end of WAL.
func TestFetchNeverTellsAFailureForTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		answers []string
		code    int
		pauses  int
	}{
		"there":                         {[]string{"ok\n"}, ExitOK, 0},
		"missing":                       {[]string{"missing\n"}, ExitMissing, 0},
		"a failure":                     {[]string{"error access denied\n"}, ExitAbort, 0},
		"an answer of another age":      {[]string{"perhaps\n"}, ExitAbort, 0},
		"the archiver died and is back": {[]string{"", "", "ok\n"}, ExitOK, 2},
		"back, and missing":             {[]string{"", "missing\n"}, ExitMissing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			listen(t, socket, test.answers...)
			pauses := 0
			if code := fetch(socket, "f", "pg_wal/RECOVERYXLOG", func() { pauses++ }); code != test.code || pauses != test.pauses {
				t.Errorf("code %d after %d pauses, want %d after %d", code, pauses, test.code, test.pauses)
			}
		})
	}
	t.Run("nobody there for long", func(t *testing.T) {
		pauses := 0
		if code := fetch(filepath.Join(t.TempDir(), "s"), "f", "p", func() { pauses++ }); code != ExitAbort || pauses != fetchTries-1 {
			t.Errorf("code %d after %d pauses", code, pauses)
		}
	})
}

func TestPush(t *testing.T) {
	for answer, want := range map[string]int{"ok\n": ExitOK, "error no\n": ExitFailed, "missing\n": ExitFailed, "": ExitFailed} {
		socket := filepath.Join(t.TempDir(), "s")
		listen(t, socket, answer)
		if code := RunPush(socket, "pg_wal/000000010000000000000007"); code != want {
			t.Errorf("%q: code %d, want %d", strings.TrimSpace(answer), code, want)
		}
	}
}
