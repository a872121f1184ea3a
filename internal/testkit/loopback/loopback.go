// Package loopback gives tests addresses to listen on.
//
// A port that was free a moment ago need not be free still: whoever connects on this
// machine takes ports of 127.0.0.1, ten thousand at a time in some tests. So each address
// has a host of its own, of the sixteen million that 127.0.0.0/8 has, which nobody else
// uses.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var hosts atomic.Int64

// Free returns a "host:port" at which nobody listens, and nobody will but by it.
func Free(t testing.TB) string {
	t.Helper()
	pid, n := os.Getpid(), hosts.Add(1)
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 64+(pid>>8&63), pid&255, 1+n%254))
	if err != nil {
		t.Fatalf("find a free address: %v", err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatalf("find a free address: %v", err)
	}
	return address
}

// Listen listens on an address that was given up a moment ago. A process that is being started has
// the closed socket until its program runs, which takes a while on a busy machine.
func Listen(t testing.TB, address string) net.Listener {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			t.Fatalf("listen on an address of this test: %v", err)
		}
	}
}
