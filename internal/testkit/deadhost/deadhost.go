// Package deadhost makes one end of a TCP connection behave as a host that lost its power: its kernel drops what comes
// and acknowledges nothing.
package deadhost

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Silence drops all that comes over a connection from now on. What was sent over it has arrived.
func Silence(t testing.TB, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	for waits := true; waits; time.Sleep(time.Millisecond) {
		require.NoError(t, raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			waits = info.Unacked > 0
		}))
	}
	Drop(t, raw)
}

// Drop drops what comes to a TCP socket from now on, to a listener new connections. A listener must be one without
// multipath TCP, which takes no filters.
func Drop(t testing.TB, socket syscall.RawConn) {
	t.Helper()
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keeps 0 bytes of a packet
	require.NoError(t, socket.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop}))
	}))
}
