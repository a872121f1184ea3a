package upstream_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

func errorsAs(err error, target any) bool { return errors.As(err, target) }

// TestCancelledBefore asks with a context that has ended: a kept connection is not lost
// for it, and no engine hears of it.
func TestCancelledBefore(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	works(t, tr, e.addr)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, addr := range []string{e.addr, "127.0.0.1:1"} {
		for _, n := range sizes {
			q := newQuestion(addr, filled(n))
			_, err := tr.Do(ctx, &q.Request)
			require.ErrorIs(t, err, context.Canceled)
			require.EqualValues(t, 1, q.released.Load(), "releases")
			require.Zero(t, q.connected.Load(), "it got a connection")
		}
	}
	works(t, tr, e.addr)
	require.EqualValues(t, 1, e.accepted.Load(), "connections")
}

// TestCancelledWhile ends the context at every stage of a request.
func TestCancelledWhile(t *testing.T) {
	for stage, act := range map[string]func(p *peer, cancel func()){
		"nothing is read": func(p *peer, cancel func()) { cancel() },
		"no answer": func(p *peer, cancel func()) {
			p.request()
			cancel()
		},
		"in the header": func(p *peer, cancel func()) {
			p.request()
			p.say(fine[:20])
			cancel()
		},
		"informational": func(p *peer, cancel func()) {
			p.request()
			p.say("HTTP/1.1 100 Continue\r\n\r\n")
			cancel()
		},
		"in the body": func(p *peer, cancel func()) {
			p.request()
			p.say(fine[:len(fine)-1])
			cancel()
		},
		"early answer, in the body": func(p *peer, cancel func()) {
			p.say(fine[:len(fine)-1])
			cancel()
		},
	} {
		for size, n := range sizes {
			t.Run(stage+", "+size, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				e := newEngine(t, func(p *peer) {
					if p.nth > 1 {
						always(fine)(p)
						return
					}
					act(p, cancel)
					<-ctx.Done()
					p.gone()
				})
				tr := newTransport(t)
				q := newQuestion(e.addr, filled(n))
				resp, err := tr.Do(ctx, &q.Request)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				require.Error(t, err)
				require.Error(t, ctx.Err(), "it failed before: %v", err)
				q.free(t)
				require.EqualValues(t, 1, e.accepted.Load(), "it was sent again")
				kept(t, tr, 0)
				works(t, tr, e.addr)
			})
		}
	}
}

// TestCancelledAfter ends the contexts of requests that are over: their connections may
// serve others by then.
func TestCancelledAfter(t *testing.T) {
	for _, answer := range []string{fine, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"} {
		e := newEngine(t, always(answer))
		tr := newTransport(t)
		var cancels []func()
		var ended sync.WaitGroup
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended.Add(1)
			q := newQuestion(e.addr, filled(100))
			resp, err := tr.Do(ctx, &q.Request)
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, err)
			kept(t, tr, 1)
			cancels = append(cancels, cancel)
			context.AfterFunc(ctx, ended.Done) // after what the request left there, if it left anything
		}
		// One is under way on the connection while the others' contexts end.
		q := newQuestion(e.addr, nil)
		resp, err := tr.Do(t.Context(), &q.Request)
		require.NoError(t, err)
		for _, cancel := range cancels {
			cancel()
		}
		ended.Wait()
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		_, _, err = ask(t, tr, newQuestion(e.addr, nil))
		require.NoError(t, err)
		require.EqualValues(t, 1, e.accepted.Load(), "connections")
	}
}

// TestCancelledAtTheEnd ends contexts at the moment at which answers end. Whoever comes
// first, the next request is answered.
func TestCancelledAtTheEnd(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	for i := range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQuestion(e.addr, nil)
		resp, err := tr.Do(ctx, &q.Request)
		require.NoError(t, err)
		cancelled := make(chan struct{})
		go func() {
			for range i % 50 * 20 { // another moment each time
				_ = ctx.Err()
			}
			cancel()
			close(cancelled)
		}()
		_, _ = io.ReadAll(resp.Body) // whole or not
		resp.Body.Close()
		q.free(t)
		q = newQuestion(e.addr, nil)
		_, text, err := ask(t, tr, q)
		require.NoError(t, err)
		require.Equal(t, "fine", text)
		require.EqualValues(t, 1, q.connected.Load(), "a connection was kept that is closed")
		<-cancelled
	}
}

// TestDeadlineWhileDialling asks where connections are neither made nor refused.
func TestDeadlineWhileDialling(t *testing.T) {
	addr := deaf(t)
	for name, c := range map[string]struct {
		connect time.Duration
		limit   time.Duration
	}{
		"of the context": {patience, 20 * time.Millisecond},
		"of Connect":     {20 * time.Millisecond, patience},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			tr := newTransport(t, func(cfg *upstream.Config) { cfg.Connect = c.connect })
			q := newQuestion(addr, filled(100))
			began := time.Now()
			_, err := tr.Do(ctx, &q.Request)
			requireStage(t, err, upstream.NotConnected, false)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout())
			require.EqualValues(t, 1, q.released.Load(), "releases")
			require.Less(t, time.Since(began), patience/2)
		})
	}
}

// deaf returns an address whose queue of connections is full.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
	for range 10 {
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	require.FailNow(t, "the queue is not full")
	return ""
}
