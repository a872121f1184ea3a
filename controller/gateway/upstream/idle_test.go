package upstream_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// crowd asks n requests at the same time, so that there are n connections.
func crowd(t *testing.T, tr *upstream.Transport, addr string, n int) {
	t.Helper()
	var all []*http.Response
	for range n {
		resp, err := tr.Do(t.Context(), &newQuestion(addr, nil).Request)
		require.NoError(t, err)
		all = append(all, resp)
	}
	for _, resp := range all {
		_, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
	}
}

// TestMaxIdle keeps no more connections of an address than are allowed.
func TestMaxIdle(t *testing.T) {
	for _, c := range []struct {
		name      string
		max, want int
		idle      time.Duration
	}{
		{"three", 3, 3, time.Minute}, {"all", 100, 5, time.Minute}, {"none", 0, 0, time.Minute}, {"for no time", 100, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newEngine(t, always(fine)), newEngine(t, always(fine))
			tr := newTransport(t, func(cfg *upstream.Config) { cfg.MaxIdle, cfg.Idle = c.max, c.idle })
			crowd(t, tr, a.addr, 5)
			kept(t, tr, c.want)
			crowd(t, tr, b.addr, 5)
			kept(t, tr, 2*c.want)
			for _, e := range []*engine{a, b} {
				soon(t, "the ends of those that are too many", func() bool { return e.open.Load() == int64(c.want) })
			}
			works(t, tr, a.addr)
		})
	}
}

// TestCrowd takes and puts back many connections of one address.
func TestCrowd(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	for range 3 {
		crowd(t, tr, e.addr, 200)
		kept(t, tr, 200)
	}
	require.EqualValues(t, 200, e.accepted.Load(), "connections")
}

// TestIdleExpiry keeps connections no longer than is allowed.
func TestIdleExpiry(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t, func(cfg *upstream.Config) { cfg.Idle = 20 * time.Millisecond })
	for range 3 { // the sweeping stops when there is nothing, and begins again
		crowd(t, tr, e.addr, 4)
		soon(t, "the end of the connections", func() bool { return e.open.Load() == 0 })
		kept(t, tr, 0)
		soon(t, "the end of the list", func() bool { return upstream.Lists(tr) == 0 })
	}
	// The one used last is taken first: the others grow old beside it.
	tr = newTransport(t, func(cfg *upstream.Config) { cfg.Idle = 100 * time.Millisecond })
	crowd(t, tr, e.addr, 4)
	soon(t, "the end of the connections that nobody needs", func() bool {
		works(t, tr, e.addr)
		return e.open.Load() == 1
	})
}

// TestSweepOfTheDead finds connections that engines have closed long before they are old.
func TestSweepOfTheDead(t *testing.T) {
	e := newEngine(t, func(p *peer) {
		p.request()
		p.say(fine)
	})
	tr := newTransport(t)
	before := descriptors(t)
	crowd(t, tr, e.addr, 4)
	soon(t, "the ends of the connections", func() bool { _, quiet := upstream.Kept(tr); return quiet == 0 })
	upstream.Sweep(tr)
	kept(t, tr, 0)
	require.Zero(t, upstream.Lists(tr))
	soon(t, "the descriptors", func() bool { return descriptors(t) <= before })
}

// TestCloseIdle closes what is kept and nothing else. The transport works on.
func TestCloseIdle(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	tr.CloseIdle()
	crowd(t, tr, e.addr, 3)
	resp, err := tr.Do(t.Context(), &newQuestion(e.addr, nil).Request)
	require.NoError(t, err)
	kept(t, tr, 2)
	tr.CloseIdle()
	kept(t, tr, 0)
	soon(t, "the ends of the others", func() bool { return e.open.Load() == 1 })
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "fine", string(text))
	kept(t, tr, 1)
	works(t, tr, e.addr)
	require.EqualValues(t, 3, e.accepted.Load(), "connections")
}

// TestSweepBesideRequests sweeps and closes while connections are taken and put back.
func TestSweepBesideRequests(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t, func(cfg *upstream.Config) { cfg.Idle, cfg.MaxIdle = 2*time.Millisecond, 4 })
	stop := make(chan struct{})
	var sweeping, asking sync.WaitGroup
	for i := range 2 {
		sweeping.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Microsecond):
				}
				if upstream.Sweep(tr); i == 0 && n%10 == 0 {
					tr.CloseIdle()
				}
			}
		})
	}
	failed := make(chan error, 8)
	for range 8 {
		asking.Go(func() {
			for range 200 {
				resp, err := tr.Do(t.Context(), &newQuestion(e.addr, filled(10)).Request)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	asking.Wait()
	close(stop)
	sweeping.Wait()
	close(failed)
	require.NoError(t, <-failed)
	soon(t, "the end of the connections", func() bool { return e.open.Load() == 0 })
}
