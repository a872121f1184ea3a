// Package loopback gives tests addresses to listen on.
//
// A port that was free a moment ago need not be free still: whoever connects on this
// machine takes ports of 127.0.0.1, ten thousand at a time in some tests. So each address
// has a host of its own, of the sixteen million that 127.0.0.0/8 has, which nobody else
// uses.
package loopback

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
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
