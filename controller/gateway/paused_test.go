package gateway_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A gateway whose process was stopped sends the requests that came meanwhile only when its reports are answered again.
func TestStoppedProcessWaitsForItsShares(t *testing.T) {
	c := newController(t, 1)
	var sent atomic.Int64
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		says("a")(w, r)
	})
	c.place(e)
	t.Setenv(benchController, c.servers[0].URL)
	addr, pids := startBenchRole(t, "gateway", e.HostPort())
	signal := func(s syscall.Signal) { require.NoError(t, syscall.Kill(pids[0], s)) }
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	f := &fixture{t: t, url: "http://" + addr, client: &http.Client{}}
	t.Cleanup(f.client.CloseIdleConnections)
	eventually(t, "the gateway serves", func() bool { return f.post(unaryBody).status == http.StatusOK })

	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	reports := func() int { return c.count(func() int { return len(c.reports) }) }
	eventually(t, "it runs", func() bool { return reports() >= 3 })
	signal(syscall.SIGSTOP)
	eventually(t, "it is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[0]))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	c.change(func() { c.deaf = map[string]bool{port: true} })
	before := sent.Load()
	got := make(chan answer, 1)
	go func() { got <- f.post(unaryBody) }()
	time.Sleep(700 * time.Millisecond)
	from := reports()
	signal(syscall.SIGCONT)
	eventually(t, "it has reported in vain", func() bool { return reports() >= from+5 })
	require.Equal(t, before, sent.Load())
	c.change(func() { c.deaf = nil })
	require.Equal(t, http.StatusOK, (<-got).status)
}
