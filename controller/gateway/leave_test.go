package gateway_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestWaiterThatLeaves takes its wish along, if it was not told, and leaves nothing.
func TestWaiterThatLeaves(t *testing.T) {
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "other"})
	f := newGateway(t, patient, c.config, commentsEvery(20*time.Millisecond))
	f.engines()
	f.follows(2)
	c.change(func() { c.down[0] = true }) // so that nothing can be told
	c.servers[0].CloseClientConnections()
	f.up(0)
	f.client.CloseIdleConnections()
	f.metric("remuda_gateway_queue_length")
	goroutines := runtime.NumGoroutine()
	quiet, told := f.listen("quiet", streamBody), f.listen("told", streamBody)
	unary := f.listen("unary", unaryBody)
	f.waiting("m", 3)
	told.comment()
	eventually(t, "a report with the wish that fails", func() bool { return c.count(func() int { return c.refused }) > 0 })
	for i, l := range []*listener{quiet, told, unary} {
		l.leave()
		l.end()
		f.waiting("m", 2-i)
	}
	f.requireRest()
	eventually(t, "no goroutine is left", func() bool {
		f.client.CloseIdleConnections()
		return runtime.NumGoroutine() <= goroutines+2
	})
	f.counted(3, "model", "m", "code", "499")

	c.change(func() { c.down[0], c.reports = false, nil })
	other := f.later("o", `{"model":"other"}`)
	eventually(t, "the controller hears of the other model", func() bool { return c.wanted()["other"] > 0 })
	require.NotContains(t, c.wanted(), "m")
	e := newEngine(t, "a", says("a"))
	e.Name.Model = "other"
	f.engines(e)
	(<-other).requireWhole(t, "a")
}

// TestWaiterThatLeavesWhileItIsTold: a report that fails does not bring a wish back that
// nobody has any more.
func TestWaiterThatLeavesWhileItIsTold(t *testing.T) {
	t.Parallel()
	c := newBossOf(t, api.GatewayModel{Name: "m"}, api.GatewayModel{Name: "other"})
	f := newGateway(t, patient, c.config)
	f.engines()
	f.follows(2)
	here, goOn := make(chan struct{}), make(chan struct{})
	c.watch(func(r api.GatewayReport) {
		if len(r.Demand) > 0 {
			c.watch(nil)
			c.change(func() { c.down[0] = true })
			close(here)
			<-goOn
		}
	})
	l := f.listen("x", unaryBody)
	<-here // the report with the wish is on its way
	l.leave()
	l.end()
	f.requireRest()
	close(goOn)
	eventually(t, "the report fails", func() bool { return c.count(func() int { return c.refused }) > 0 })
	c.change(func() { c.down[0], c.reports = false, nil })
	eventually(t, "a report without the wish", func() bool {
		return c.count(func() (n int) {
			for _, r := range c.reports {
				if len(r.Demand) == 0 {
					n++
				}
			}
			return n
		}) > 0
	})
	require.LessOrEqual(t, c.wanted()["m"], 1, "only the report that failed may have been sent once more")

	// One that gave up in the same time still wants it.
	here, goOn = make(chan struct{}), make(chan struct{})
	c.watch(func(r api.GatewayReport) {
		if len(r.Demand) > 0 {
			c.watch(nil)
			c.change(func() { c.down[0] = true })
			close(here)
			<-goOn
		}
	})
	gaveUp := f.later("y", `{"model":"other"}`, "X-Remuda-Timeout", "300ms")
	<-here
	(<-gaveUp).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	close(goOn)
	refused := c.count(func() int { return c.refused })
	eventually(t, "a report fails", func() bool { return c.count(func() int { return c.refused }) > refused || refused > 1 })
	c.change(func() { c.down[0] = false })
	eventually(t, "it is wanted", func() bool { return c.wanted()["other"] > 0 })
}

// TestClientThatIsGoneUnnoticed: the server does not look for the end of a connection on
// which the next request has begun; a comment finds out. The request must not take an engine
// afterwards.
func TestClientThatIsGoneUnnoticed(t *testing.T) {
	t.Parallel()
	f := newGateway(t, patient, commentsEvery(20*time.Millisecond))
	s := newTurnstile(t, "a", 1)
	f.engines(s.Engine)
	first := f.later("first", unaryBody)
	s.next()
	for range 3 {
		conn, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chat, len(streamBody), streamBody)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		lines := bufio.NewScanner(resp.Body)
		for i := range 6 { // each second one is blank
			require.True(t, lines.Scan())
			if i == 0 {
				require.Regexp(t, commentLine, lines.Text())
				_, err = conn.Write([]byte("G")) // the next request, as far as the server can tell
				require.NoError(t, err)
			}
		}
		require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
		require.NoError(t, conn.Close())
		f.waiting("m", 0)
	}
	f.counted(3, "model", "m", "code", "499")
	s.leave <- struct{}{}
	(<-first).requireWhole(t, "first")
	f.requireRest()
	f.requireSlots(s, 1)
}
