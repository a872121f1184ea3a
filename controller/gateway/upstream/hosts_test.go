package upstream

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/internal/testkit/deadhost"
)

// halfAnswer is the beginning of an answer, rest what is missing of it.
const halfAnswer, rest = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{", "}"

// TestRequestsToLostHosts: a request ends soon when the engine is not passing any more and its host is silent.
func TestRequestsToLostHosts(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"no answer": "", "half an answer": halfAnswer} {
		for _, first := range []string{"the host goes silent first", "the list comes first"} {
			t.Run(name+", "+first, func(t *testing.T) {
				t.Parallel()
				tr := New(Config{})
				q := begin(t, tr, answer)
				tr.SetPassing(map[string]bool{q.listener.Addr().String(): true})
				if first == "the list comes first" {
					tr.SetPassing(map[string]bool{})
				}
				deadhost.Silence(t, q.host)
				neverEnds(t, tr)
				tr.SetPassing(map[string]bool{})
				select {
				case err := <-q.ended:
					require.ErrorIs(t, err, errLost)
					var op *net.OpError
					require.ErrorAs(t, err, &op, "as of a connection that was lost")
					require.Equal(t, q.listener.Addr().String(), op.Addr.String())
				case <-time.After(time.Minute):
					t.Fatal("the request waits for a lost host")
				}
			})
		}
	}
}

// neverEnds keeps the kernel from ending the connections of a transport.
func neverEnds(t *testing.T, tr *Transport) {
	t.Helper()
	tr.hosts.mu.Lock()
	defer tr.hosts.mu.Unlock()
	require.NotEmpty(t, tr.hosts.open)
	for c := range tr.hosts.open {
		require.NoError(t, c.raw.Control(func(fd uintptr) {
			require.NoError(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(time.Hour.Milliseconds())))
		}))
	}
}

// TestWritesToLostHosts: the end of a request that is still being written.
func TestWritesToLostHosts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	tr := New(Config{})
	ended := make(chan error, 1)
	go func() {
		_, err := tr.Do(t.Context(), &Request{Addr: l.Addr().String(), Target: "/", Body: make([]byte, 64<<20)})
		ended <- err
	}()
	host, err := l.Accept()
	require.NoError(t, err)
	defer host.Close()
	_, err = io.ReadFull(host, make([]byte, 1<<20))
	require.NoError(t, err)
	raw, err := host.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	deadhost.Drop(t, raw)
	neverEnds(t, tr)
	tr.SetPassing(map[string]bool{})
	select {
	case err := <-ended:
		require.ErrorIs(t, err, errLost)
	case <-time.After(time.Minute):
		t.Fatal("the request waits for a lost host")
	}
}

// TestEnginesThatDrainKeepTheirRequests: an engine that is not passing any more finishes its requests, however
// long it takes, whatever its port does with new connections.
func TestEnginesThatDrainKeepTheirRequests(t *testing.T) {
	t.Parallel()
	for name, listener := range map[string]func(*testing.T, *net.TCPListener){
		"its port is open": func(*testing.T, *net.TCPListener) {},
		"its port is closed": func(t *testing.T, l *net.TCPListener) {
			t.Helper()
			require.NoError(t, l.Close())
		},
		"its port is silent": func(t *testing.T, l *net.TCPListener) { // a full backlog
			t.Helper()
			raw, err := l.SyscallConn()
			require.NoError(t, err)
			deadhost.Drop(t, raw)
			_, err = net.DialTimeout("tcp", l.Addr().String(), 100*time.Millisecond)
			var failed net.Error
			require.ErrorAs(t, err, &failed)
			require.True(t, failed.Timeout())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := New(Config{})
			q := begin(t, tr, halfAnswer)
			listener(t, q.listener)
			tr.SetPassing(map[string]bool{})
			select {
			case err := <-q.ended:
				t.Fatalf("the request ended: %v", err)
			case <-time.After(2 * lostAfter):
			}
			_, err := io.WriteString(q.host, rest)
			require.NoError(t, err)
			require.NoError(t, <-q.ended)
		})
	}
}

// TestEnginesThatDrainMayReadLate: an engine that reads nothing for long answers in its kernel.
func TestEnginesThatDrainMayReadLate(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	const size = 64 << 20
	tr := New(Config{})
	ended := make(chan error, 1)
	go func() {
		resp, err := tr.Do(t.Context(), &Request{Addr: l.Addr().String(), Target: "/", Body: make([]byte, size)})
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		ended <- err
	}()
	host, err := l.Accept()
	require.NoError(t, err)
	defer host.Close()
	_, err = io.ReadFull(host, make([]byte, 1))
	require.NoError(t, err)
	neverEnds(t, tr)
	tr.SetPassing(map[string]bool{})
	select {
	case err := <-ended:
		t.Fatalf("the request ended: %v", err)
	case <-time.After(2 * lostAfter):
	}
	_, err = io.CopyN(io.Discard, host, size-1)
	require.NoError(t, err)
	_, err = io.WriteString(host, halfAnswer+rest)
	require.NoError(t, err)
	require.NoError(t, <-ended)
}

// TestHostsAreAskedWhileTheirEnginesDoNotPass: each second, and else as often as keep-alive does.
func TestHostsAreAskedWhileTheirEnginesDoNotPass(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	addr := l.Addr().String()
	tr := New(Config{})
	dial := func() *conn {
		c, err := tr.conn(t.Context(), addr)
		require.NoError(t, err)
		t.Cleanup(c.close)
		return c
	}
	probed := func(c *conn, every time.Duration) {
		t.Helper()
		require.NoError(t, c.raw.Control(func(fd uintptr) {
			for _, option := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL} {
				got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
				require.NoError(t, err)
				require.Equal(t, int(every.Seconds()), got)
			}
		}))
	}
	looking := func() bool {
		tr.hosts.mu.Lock()
		defer tr.hosts.mu.Unlock()
		return tr.hosts.looking
	}
	c := dial()
	probed(c, keepAlive.Idle) // before the first list
	tr.SetPassing(map[string]bool{addr: true, "10.0.0.1:80": true})
	probed(c, keepAlive.Idle)
	require.False(t, looking())
	tr.SetPassing(map[string]bool{"10.0.0.1:80": true})
	probed(c, askEvery)
	probed(dial(), askEvery) // of a node that Consul cannot see
	require.True(t, looking())
	tr.SetPassing(map[string]bool{addr: true})
	probed(c, keepAlive.Idle)
	tr.hosts.look()
	require.False(t, looking(), "the registration is back")
	tr.SetPassing(map[string]bool{})
	require.True(t, looking())
	c.close()
	tr.hosts.mu.Lock()
	require.Len(t, tr.hosts.open, 1)
	tr.hosts.mu.Unlock()
}

// TestLostByItsNumbers: no single packet that is lost, and no short silence, is enough.
func TestLostByItsNumbers(t *testing.T) {
	t.Parallel()
	const long = uint32(lostAfter / time.Millisecond)
	for i, tc := range []struct {
		info unix.TCPInfo
		lost bool
	}{
		{unix.TCPInfo{}, false},
		{unix.TCPInfo{Last_ack_recv: 10 * long, Last_data_recv: 10 * long}, false},
		{unix.TCPInfo{Last_ack_recv: 10 * long, Last_data_recv: 10 * long, Probes: lostPackets - 1}, false},
		{unix.TCPInfo{Last_ack_recv: long - 1, Last_data_recv: 10 * long, Probes: lostPackets}, false},
		{unix.TCPInfo{Last_ack_recv: 10 * long, Last_data_recv: long - 1, Probes: lostPackets}, false},
		{unix.TCPInfo{Last_ack_recv: long, Last_data_recv: long, Probes: lostPackets}, true},
		{unix.TCPInfo{Last_ack_recv: long, Last_data_recv: long, Retransmits: lostPackets}, true},
	} {
		require.Equal(t, tc.lost, lost(&tc.info), strconv.Itoa(i))
	}
}
