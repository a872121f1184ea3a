package upstream

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

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

// TestRequestsToDeadHosts: a request ends when the engine's host goes silent, whether it waits for the answer or
// for the rest of it.
func TestRequestsToDeadHosts(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"no answer": "", "half an answer": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			ended := make(chan error, 1)
			go func() {
				resp, err := New(Config{}).Do(t.Context(), &Request{Addr: l.Addr().String(), Target: "/", Header: http.Header{}, Body: []byte("{}")})
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				ended <- err
			}()
			host, err := l.Accept()
			require.NoError(t, err)
			defer host.Close()
			r, err := http.ReadRequest(bufio.NewReader(host))
			require.NoError(t, err)
			_, err = io.ReadAll(r.Body)
			require.NoError(t, err)
			_, err = io.WriteString(host, answer)
			require.NoError(t, err)
			silence(t, host.(*net.TCPConn))
			began := time.Now()
			select {
			case err := <-ended:
				require.ErrorIs(t, err, unix.ETIMEDOUT)
				require.Greater(t, time.Since(began), userTimeout/2)
			case <-time.After(2 * userTimeout):
				t.Fatal("the request waits for a dead host")
			}
		})
	}
}

// silence drops all that comes over a connection from now on, as a host does that lost its power. What was
// sent over it has arrived.
func silence(t *testing.T, c *net.TCPConn) {
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
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keeps 0 bytes of a packet
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop}))
	}))
}
