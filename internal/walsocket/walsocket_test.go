package walsocket_test

import (
	"bufio"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kumki-dev/kumki/internal/walsocket"
)

// archiver answers each request with what answer makes of it, in pieces; "" ends the connection.
func archiver(t *testing.T, answer func(string) string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			for _, b := range []byte(answer(line)) {
				_, _ = c.Write([]byte{b})
			}
			_ = c.Close()
		}
	}()
	return socket
}

func TestAnswers(t *testing.T) {
	const path = "/var/lib/pg/pg_wal/000000010000000000000007"
	for name, test := range map[string]struct {
		answer string
		check  func(error) bool
	}{
		"done":              {"ok\n", func(err error) bool { return err == nil }},
		"missing":           {"missing\n", func(err error) bool { return errors.Is(err, walsocket.ErrMissing) }},
		"refused":           {"error the bucket is full\n", func(err error) bool { return err != nil && err.Error() == "the bucket is full" }},
		"no answer":         {"", unreachable},
		"half an answer":    {"ok", unreachable},
		"an unknown word":   {"maybe\n", func(err error) bool { return err != nil && !unreachable(err) && strings.Contains(err.Error(), "maybe") }},
		"an endless answer": {strings.Repeat("x", 2*walsocket.MaxLine), func(err error) bool { return err != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			socket := archiver(t, func(line string) string { got <- line; return test.answer })
			if err := walsocket.Ask(socket, walsocket.Push, path); !test.check(err) {
				t.Errorf("error is %v", err)
			}
			if line := <-got; line != "push\t"+path+"\n" {
				t.Errorf("the archiver was asked %q", line)
			}
		})
	}
}

func unreachable(err error) bool {
	var u *walsocket.Unreachable
	return errors.As(err, &u)
}

func TestNobodyThere(t *testing.T) {
	if err := walsocket.Ask(filepath.Join(t.TempDir(), "none"), walsocket.Push, "/x"); !unreachable(err) {
		t.Errorf("error is %v", err)
	}
}

func TestRequestsAreOneLine(t *testing.T) {
	socket := archiver(t, func(string) string { t.Error("it was sent"); return "ok\n" })
	for _, path := range []string{"/a\nb", strings.Repeat("x", walsocket.MaxLine)} {
		if err := walsocket.Ask(socket, walsocket.Push, path); err == nil || unreachable(err) {
			t.Errorf("error is %v", err)
		}
	}
}

func TestAbsolute(t *testing.T) {
	for path, want := range map[string]string{"pg_wal/1": "/data/pg_wal/1", "/wal/1": "/wal/1"} {
		if got := walsocket.Absolute("/data", path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
