package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/long"
)

// TestIdleConnections: thousands of them cost a bounded amount of memory each, hinder nobody,
// and leave nothing behind. The gateway is a process of its own with all defaults.
func TestIdleConnections(t *testing.T) {
	const most = 40 << 10
	connections := long.Pick(2000, 10_000)
	var files syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	require.GreaterOrEqual(t, files.Cur, uint64(connections+500), "this test needs more descriptors; raise the hard limit (ulimit -Hn)")

	engine := newEngine(t, "a", says("x"))
	f := &fixture{t: t, client: &http.Client{Transport: &http.Transport{}}}
	defer f.client.CloseIdleConnections()
	f.addr, f.operators = gatewayProcess(t, address(engine))
	f.url, f.operators = "http://"+f.addr, "http://"+f.operators
	eventually(t, "the gateway is ready", func() bool { return f.do(http.MethodGet, "/ready", "").status == http.StatusOK })
	require.Equal(t, http.StatusOK, f.post(plain).status)

	const goroutines, open = "go_goroutines", "process_open_fds"
	used := func() float64 { // what the race detector keeps beside it does not count
		return f.metric("go_memstats_heap_inuse_bytes") + f.metric("go_memstats_stack_inuse_bytes")
	}
	memory, resident := used(), f.metric("process_resident_memory_bytes")
	routines, descriptors := f.metric(goroutines), f.metric(open)
	conns := make([]net.Conn, connections)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	var dialers sync.WaitGroup
	const dialing = 50
	for first := range dialing {
		dialers.Go(func() {
			for i := first; i < connections; i += dialing {
				c, err := net.Dial("tcp", f.addr)
				if err != nil {
					t.Error(err)
					return
				}
				if conns[i] = c; idleRequest(c) != nil {
					t.Error("a connection is not served")
					return
				}
			}
		})
	}
	dialers.Wait()
	require.False(t, t.Failed())
	require.GreaterOrEqual(t, f.metric(open)-descriptors, float64(connections-8), "all are open; the one to the engine may be gone")
	each := (used() - memory) / float64(connections)
	t.Logf("%d idle connections: %.1f KiB of memory each, %.1f KiB resident", connections, each/1024,
		(f.metric("process_resident_memory_bytes")-resident)/float64(connections)/1024)
	require.Less(t, each, float64(most))

	for range 20 {
		require.Equal(t, http.StatusOK, f.post(plain).status)
	}
	for i := 0; i < connections; i += 100 {
		require.NoError(t, idleRequest(conns[i]), "it is still good")
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	eventually(t, "nothing is left of them", func() bool {
		return f.metric(goroutines) <= routines+8 && f.metric(open) <= descriptors+8
	})
}

// idleRequest is a request of a connection that idles before and after.
func idleRequest(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	var buf [512]byte
	n, err := io.ReadAtLeast(c, buf[:], len("HTTP/1.1 200 OK\r\n"))
	for err == nil && !strings.HasSuffix(string(buf[:n]), "\r\n\r\nalive\n") {
		var m int
		m, err = c.Read(buf[n:])
		n += m
	}
	if err == nil && !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200 OK\r\n") {
		err = fmt.Errorf("answered %q", buf[:n])
	}
	return err
}

// gatewayProcess starts a gateway as the benchmarks do and returns the addresses of its ports. It ends
// with the test.
func gatewayProcess(t *testing.T, engine string) (clients, operators string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), benchRole+"=gateway", benchEngine+"="+engine)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		require.NoError(t, cmd.Wait())
	})
	lines := bufio.NewScanner(stdout)
	for _, addr := range []*string{&clients, &operators} {
		require.True(t, lines.Scan(), "%v", lines.Err())
		*addr = lines.Text()
	}
	return clients, operators
}
