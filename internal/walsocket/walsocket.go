// Package walsocket is how PostgreSQL's archive_command and restore_command reach the archiver: a request and an answer, a line each,
// over a unix socket. The client needs nothing but system calls, since it is started for every segment.
//
//	push <path>          -> ok | error <why>
//	fetch <file> <path>  -> ok | missing | error <why>
//
// The parts of a request are separated by tabs. Paths are absolute.
package walsocket

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// Words of requests and answers.
const (
	Push    = "push"
	Fetch   = "fetch"
	OK      = "ok"
	Missing = "missing"
	Error   = "error"
)

// MaxLine is the longest request or answer, in bytes with its end.
const MaxLine = 8 << 10

// ErrMissing says that the archive does not have the file.
var ErrMissing = errors.New("the archive does not have the file")

// Unreachable says that nobody answered: the archiver is down, or went away meanwhile.
type Unreachable struct{ Err error }

func (e *Unreachable) Error() string {
	return "the archiver does not answer: " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Unreachable) Unwrap() error { return e.Err }

// Ask sends a request to the archiver at socket and waits for its answer, however long that takes. It returns nil for OK, ErrMissing,
// Unreachable, or the archiver's own reason.
func Ask(socket string, request ...string) error {
	line := strings.Join(request, "\t")
	if strings.Contains(line, "\n") || len(line) >= MaxLine {
		return fmt.Errorf("the request %.60q cannot be sent: it is too long or has a line break", line)
	}
	answer, err := exchange(socket, line+"\n")
	if err != nil {
		return &Unreachable{err}
	}
	word, why, _ := strings.Cut(strings.TrimSuffix(answer, "\n"), " ")
	switch word {
	case OK:
		return nil
	case Missing:
		return ErrMissing
	case Error:
		return errors.New(why)
	}
	return fmt.Errorf("the archiver gave the answer %.60q, which this program does not know: do both come from the same image?", answer)
}

func exchange(socket, request string) (string, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := again(func() error { return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) }); err != nil {
		return "", fmt.Errorf("connect to %s: %w", socket, err)
	}
	for rest := []byte(request); len(rest) > 0; {
		n := 0
		err := again(func() (err error) {
			n, err = syscall.SendmsgN(fd, rest, nil, nil, syscall.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("send to %s: %w", socket, err)
		}
		rest = rest[n:]
	}
	var answer []byte
	chunk := make([]byte, MaxLine)
	for len(answer) < MaxLine && !bytes.HasSuffix(answer, []byte("\n")) {
		n := 0
		err := again(func() (err error) {
			n, err = syscall.Read(fd, chunk)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("receive from %s: %w", socket, err)
		}
		if n == 0 {
			return "", fmt.Errorf("receive from %s: the connection ended without an answer", socket)
		}
		answer = append(answer, chunk[:n]...)
	}
	return string(answer), nil
}

// again repeats a system call that a signal cut short.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Absolute makes a path that PostgreSQL gave, which is relative to the data directory in which it starts commands, absolute.
func Absolute(directory, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(directory, path)
}
