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

	"remuda/internal/testkit/deadhost"
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
			q := begin(t, New(Config{}), answer)
			deadhost.Silence(t, q.host)
			began := time.Now()
			select {
			case err := <-q.ended:
				require.ErrorIs(t, err, unix.ETIMEDOUT)
				require.Greater(t, time.Since(began), userTimeout/2)
			case <-time.After(2 * userTimeout):
				t.Fatal("the request waits for a dead host")
			}
		})
	}
}

// begun is a request that an engine has read.
type begun struct {
	listener *net.TCPListener
	// host is the engine's side of the connection.
	host *net.TCPConn
	// ended gets the error of the request or of its answer, nil where the answer is whole.
	ended chan error
}

// begin sends a request to an engine of its own, which sends the beginning of an answer.
func begin(t *testing.T, tr *Transport, answer string) *begun {
	t.Helper()
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // it takes no filters
	l, err := plain.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	q := &begun{listener: l.(*net.TCPListener), ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := tr.Do(t.Context(), &Request{Addr: l.Addr().String(), Target: "/", Header: http.Header{}, Body: []byte("{}")})
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		q.ended <- err
	}()
	host, err := l.Accept()
	require.NoError(t, err)
	q.host = host.(*net.TCPConn)
	t.Cleanup(func() {
		host.Close()
		<-done
	})
	r, err := http.ReadRequest(bufio.NewReader(host))
	require.NoError(t, err)
	_, err = io.ReadAll(r.Body)
	require.NoError(t, err)
	_, err = io.WriteString(host, answer)
	require.NoError(t, err)
	return q
}
