// Package netns dials from inside of another network namespace of this machine, so that a test program on the host uses a
// node's own view of the network: its kube-proxy, its routes, and whatever was cut off there.
package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Dialer dials from the network namespace at Path, for example /run/netns/NAME or /proc/PID/ns/net.
// Addresses must be literal: names would be looked up in the caller's own namespace. It needs CAP_SYS_ADMIN.
type Dialer struct{ Path string }

type dialed struct {
	conn net.Conn
	err  error
}

// DialContext opens a connection. A socket belongs to the namespace that it was created in for all of its life, so the
// thread that creates it is all that has to enter the namespace.
func (d Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	result := make(chan dialed, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine, and nobody else inherits the namespace.
		runtime.LockOSThread()
		conn, err := d.dial(ctx, network, address)
		result <- dialed{conn, err}
	}()
	r := <-result
	return r.conn, r.err
}

func (d Dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ns, err := os.Open(d.Path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace (is the node up?): %w", err)
	}
	defer func() { _ = ns.Close() }()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter network namespace %s (run as root): %w", d.Path, err)
	}
	dialer := net.Dialer{FallbackDelay: -1, KeepAlive: 15 * time.Second}
	return dialer.DialContext(ctx, network, address)
}
