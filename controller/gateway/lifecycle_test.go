package gateway_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

func errorsAs(err error, target any) bool { return err != nil && errors.As(err, target) }

func TestStopLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	goOn := make(chan struct{})
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {}\n\n")
		<-goOn
		sse(w, "data: [DONE]\n\n")
	}))
	resp := f.open(t.Context(), streamBody)
	defer resp.Body.Close()
	f.stop()
	eventually(t, "no new connection is taken", func() bool {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			return true
		}
		c.Close()
		return false
	})
	close(goOn)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: {}\n\ndata: [DONE]\n\n", string(b))
	f.wait()
}

func TestStopCutsOffWhatDoesNotFinish(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.Drain = 100 * time.Millisecond })
	entered, left := make(chan struct{}, 2), make(chan struct{}, 2)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Stream") != "" {
			sse(w, "data: {}\n\n")
		}
		entered <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	}))
	stream, whole := make(chan answer, 1), make(chan answer, 1)
	go func() { stream <- f.do(http.MethodPost, chat, streamBody, "X-Stream", "1") }()
	go func() { whole <- f.post(`{"model":"m"}`) }()
	<-entered
	<-entered
	f.wait()
	requireBroken(t, <-stream, "data: {}\n\n", "gateway_stopping")
	(<-whole).requireError(t, http.StatusServiceUnavailable, "gateway_stopping")
	<-left
	<-left
}

// TestStopWithNothingInFlight does not wait for connections on which nothing was asked, or not all
// of a header.
func TestStopWithNothingInFlight(t *testing.T) {
	t.Parallel()
	for scheme, gateway := range gateways {
		t.Run(scheme, func(t *testing.T) {
			f := gateway(t)
			f.engines(newEngine(t, "a", says("x")))
			require.Equal(t, http.StatusOK, f.post(plain).status) // its connection is kept
			f.talk()                                              // nothing was sent
			f.talk().say("GET /live HTTP/1.1\r\nHost: x\r\n")     // half a header
			half := f.talk()
			half.say("GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /live")
			require.Equal(t, http.StatusOK, half.hear().status)
			began := time.Now()
			f.wait()
			require.Less(t, time.Since(began), 9*time.Second, "it was ten seconds and more")
		})
	}
}

func TestLameDuck(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.LameDuck = 5 * time.Second })
	f.engines(newEngine(t, "a", says("x")))
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/ready", "").status)
	f.stop()
	eventually(t, "not ready", func() bool { return f.do(http.MethodGet, "/ready", "").status == http.StatusServiceUnavailable })
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status, "requests are still served")
	f.wait()
}

func TestRunErrors(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	cfg.Watcher = &feed{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cfg.Listen, cfg.OperatorListen = l.Addr().String(), "127.0.0.1:0"
	g, err := gateway.New(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, g.Run(t.Context()), "address already in use")

	cfg.Listen, cfg.OperatorListen = "127.0.0.1:0", l.Addr().String()
	g, err = gateway.New(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, g.Run(t.Context()), "listen for operators (operator_listen)")

	cfg.OperatorListen = "127.0.0.1:0"
	for _, c := range []struct {
		w    gateway.Watcher
		want string
	}{{brokenWatcher{errors.New("no permission")}, "no permission"}, {brokenWatcher{}, "the watch ended without an error"}} {
		cfg.Watcher = c.w
		g, err = gateway.New(cfg)
		require.NoError(t, err)
		require.ErrorContains(t, g.Run(t.Context()), c.want)
	}
}

type brokenWatcher struct{ err error }

func (w brokenWatcher) Watch(context.Context, func([]replica.Engine, bool), func()) error {
	return w.err
}
