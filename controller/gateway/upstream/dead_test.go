package upstream

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDeadHostsAreNoticed: the kernel ends a connection to an engine whose host acknowledges nothing
// for 15 s, also while an answer is awaited.
func TestDeadHostsAreNoticed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := New(Config{}).conn(t.Context(), l.Addr().String())
	require.NoError(t, err)
	defer c.close()
	require.NoError(t, c.raw.Control(func(fd uintptr) {
		for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 15_000, unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 5} {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
			require.NoError(t, err)
			require.Equal(t, want, got, option)
		}
		on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		require.NoError(t, err)
		require.NotZero(t, on)
	}))
}
