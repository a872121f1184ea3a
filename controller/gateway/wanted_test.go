package gateway_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestWantedModelsAreReported: at once, once for each request that nobody could serve,
// and only what the controller could do something about.
func TestWantedModelsAreReported(t *testing.T) {
	t.Parallel()
	c := newBoss(t)
	began := time.Now()
	f := newGateway(t, c.config, patient)
	a := newEngine(t, "a", says("a"))
	f.engines(a)
	c.change(func() {
		c.index = 2
		c.state.Models = []api.GatewayModel{{Name: "m"}, {Name: "warm"}, {Name: "other"}, {Name: "off", Stopped: true}}
	})
	f.follows(2)

	type arrival struct {
		at     time.Time
		report api.GatewayReport
	}
	arrivals := make(chan arrival, 1000)
	c.watch(func(r api.GatewayReport) { arrivals <- arrival{time.Now(), r} })
	next := func() arrival {
		t.Helper()
		select {
		case a := <-arrivals:
			return a
		case <-time.After(patience):
			t.Fatal("no report comes")
			return arrival{}
		}
	}
	// Reports at rest are so far apart. One that comes sooner after the last one has not
	// waited for its turn, which a slow machine can hide, but not every time.
	const rest = 2 * time.Second
	var report api.GatewayReport
	var asked time.Time
	for tries, soon := 0, false; !soon; tries++ {
		require.Less(t, tries, 5, "it came with a report at rest each time")
		for len(arrivals) > 0 {
			next()
		}
		last := next()
		got := f.post(`{"model":"warm"}`, "X-Remuda-Timeout", "1s")
		got.requireError(t, http.StatusServiceUnavailable, "model_unavailable")
		require.Equal(t, "5", got.header.Get("Retry-After"))
		asked = time.Now()
		one := next()
		for len(one.report.Demand) == 0 {
			last, one = one, next()
		}
		report, soon = one.report, one.at.Sub(last.at) < rest
	}
	c.watch(nil)
	require.Equal(t, []string{"warm"}, slices.Collect(maps.Keys(report.Demand)))
	require.False(t, report.Demand["warm"].After(asked), "by when it was asked for, and not by when it is reported")
	require.False(t, report.Since.Before(began))
	require.False(t, report.Since.After(asked))

	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	f.post(`{"model":"off"}`)
	f.post(`{"model":"nobody's"}`).requireError(t, http.StatusNotFound, "model_not_found")
	last := c.reported("what m has served", func(r api.GatewayReport) bool {
		return len(r.Replicas) == 1 && r.Replicas[0].InFlight == 0 && !r.Replicas[0].LastRequest.IsZero()
	})
	require.Empty(t, last.Demand)
	require.Equal(t, report.Since, last.Since)

	// What the controller did not take is told again.
	c.change(func() { c.reports, c.down[0] = nil, true })
	f.post(`{"model":"warm"}`, "X-Remuda-Timeout", "1s")
	f.post(`{"model":"other"}`, "X-Remuda-Timeout", "1s")
	eventually(t, "a report that fails", func() bool {
		return c.count(func() int { return c.refused }) > 0
	})
	c.change(func() { c.down[0] = false })
	var names []string
	c.reported("both", func(api.GatewayReport) bool {
		names = nil
		for _, r := range c.reports {
			names = slices.AppendSeq(names, maps.Keys(r.Demand))
		}
		slices.Sort(names)
		return len(names) == 2
	})
	require.Equal(t, []string{"other", "warm"}, names)
}

// TestServedModelIsWantedNoMore: a want that could not be told is void once the model
// was served: told later, it would bring back what was sent away meanwhile.
func TestServedModelIsWantedNoMore(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config)
	f.engines()
	c.change(func() { c.index, c.state.Models = 2, []api.GatewayModel{{Name: "m"}, {Name: "other"}} })
	f.follows(2)
	a := newEngine(t, "a", says("a"))
	c.place(a)
	c.change(func() { c.reports, c.down[0] = nil, true })
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	eventually(t, "a report that fails", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.refused > 0
	})
	f.engines(a)
	eventually(t, "an answer", func() bool { return f.post(`{"model":"m"}`).status == http.StatusOK })
	f.post(`{"model":"other"}`)
	c.change(func() { c.down[0] = false })
	var names []string
	c.reported("the other model", func(api.GatewayReport) bool {
		names = nil
		for _, r := range c.reports {
			names = slices.AppendSeq(names, maps.Keys(r.Demand))
		}
		return len(names) > 0
	})
	require.Equal(t, []string{"other"}, names)
}

// TestModelWhoseEnginesFailIsNotWanted: another replica would not help.
func TestModelWhoseEnginesFailIsNotWanted(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config)
	f.engines(deadEngine(t, "a"))
	c.change(func() { c.index, c.state.Models = 2, []api.GatewayModel{{Name: "m"}} })
	f.follows(2)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "engine_unreachable")
	last := c.reported("the request that failed", func(r api.GatewayReport) bool {
		return len(r.Replicas) == 1 && !r.Replicas[0].LastRequest.IsZero()
	})
	require.Empty(t, last.Demand)
}
