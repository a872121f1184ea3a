package gatewayreport_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

const (
	ttl = 10 * time.Second
	// shareTTL is for how long a report keeps shares.
	shareTTL = gatewayreport.ShareTTL
	r1       = "m:v:1"
	r2       = "m:v:2"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// clock is a clock that stands still.
type clock struct{ now time.Time }

func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// listening is a store that has listened for long enough.
func listening() (*gatewayreport.Store, *clock) {
	c := &clock{now: began}
	s := gatewayreport.New(ttl, func() time.Time { return c.now })
	c.advance(ttl)
	return s, c
}

func report(gateway string, index uint64, rs ...api.ReplicaLoad) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: index, Replicas: rs}
}

func busy(name string, n int) api.ReplicaLoad { return api.ReplicaLoad{Name: name, InFlight: n} }

func TestLoadsAreSummedOverGateways(t *testing.T) {
	s, c := listening()
	at := func(sec int) time.Time { return began.Add(time.Duration(sec) * time.Second) }
	s.Put(report("a", 5, api.ReplicaLoad{Name: r1, InFlight: 2, OldestAt: at(3), LastRequest: at(4), Requests: []api.Request{{ID: "x", Started: at(3)}, {ID: "z", Started: at(4)}}}))
	s.Put(report("b", 7,
		api.ReplicaLoad{Name: r1, InFlight: 1, OldestAt: at(2), LastRequest: at(2), Requests: []api.Request{{ID: "y", Started: at(2)}}},
		api.ReplicaLoad{Name: r2, LastRequest: at(1)}))
	require.Equal(t, map[string]api.Load{
		r1: {InFlight: 3, Busy: true, OldestAt: at(2), LastRequest: at(4), Requests: []api.Request{{ID: "y", Started: at(2)}, {ID: "x", Started: at(3)}, {ID: "z", Started: at(4)}}},
		r2: {LastRequest: at(1)},
	}, s.Loads())
	require.Equal(t, map[string]gatewayreport.Load{r1: {Load: api.Load{InFlight: 3, Busy: true, OldestAt: at(2), LastRequest: at(4)}}, r2: {Load: api.Load{LastRequest: at(1)}}}, s.Totals())
	require.Equal(t, []api.Gateway{
		{Name: "a", Index: 5, InFlight: 2, Since: c.now, LastReportAt: c.now, ExpiresAt: c.now.Add(ttl)},
		{Name: "b", Index: 7, InFlight: 1, Since: c.now, LastReportAt: c.now, ExpiresAt: c.now.Add(ttl)},
	}, s.Gateways())

	// A report replaces the one before it, whatever it says.
	s.Put(report("a", 6))
	require.Equal(t, 1, s.Loads()[r1].InFlight)
	c.advance(ttl)
	require.Empty(t, s.Loads(), "they have expired")
	require.Empty(t, s.Gateways())
}

func TestRequestsAreBounded(t *testing.T) {
	s, _ := listening()
	for g := range 3 {
		r := api.ReplicaLoad{Name: r1, InFlight: 100}
		for i := range 100 {
			r.Requests = append(r.Requests, api.Request{ID: fmt.Sprint(i), Started: began.Add(time.Duration(3*i+g) * time.Second)})
		}
		s.Put(report(fmt.Sprint(g), 1, r))
	}
	l := s.Loads()[r1]
	require.Equal(t, 300, l.InFlight)
	require.Len(t, l.Requests, api.MaxReportRequests)
	require.Equal(t, began.Add(63*time.Second), l.Requests[63].Started, "the oldest of all")
}

func TestKnownOnceAllGatewaysCanHaveReported(t *testing.T) {
	c := &clock{now: began}
	s := gatewayreport.New(ttl, func() time.Time { return c.now })
	s.Put(report("a", 9))
	require.False(t, s.Known(), "another gateway may not have reported yet")
	require.Equal(t, began.Add(ttl), s.Next())
	c.advance(ttl - 1)
	s.Put(report("a", 9))
	require.False(t, s.Known())
	c.advance(1)
	require.True(t, s.Known())
	require.Equal(t, began.Add(2*ttl-1), s.Next(), "when a's report expires")

	s.Begin(1)
	require.Empty(t, s.Gateways())
	s.Put(report("a", 9))
	require.False(t, s.Known(), "a new time of leading begins with nothing")
	c.advance(2 * ttl)
	require.False(t, s.Known())
	require.Zero(t, s.Next())
}

// ever counts all demand, since returns that of the model counts after at only.
func ever(string) time.Time { return time.Time{} }

func since(model string, at time.Time) func(string) time.Time {
	return func(asked string) time.Time {
		if asked == model {
			return at
		}
		return time.Time{}
	}
}

func wants(gateway string, models ...string) api.GatewayReport {
	r := api.GatewayReport{Gateway: gateway, Index: 1, Demand: map[string]time.Time{}}
	for _, m := range models {
		r.Demand[m] = time.Time{}
	}
	return r
}

func TestDemandLastsForOneTimeToLive(t *testing.T) {
	s, c := listening()
	require.Empty(t, s.Demand(ever))
	first := c.now
	s.Put(wants("a", "m", "n"))
	s.Put(wants("a"))
	require.Equal(t, map[string]time.Time{"m": first, "n": first}, s.Demand(ever), "the next report is about what came since")
	c.advance(ttl / 2)
	s.Put(wants("b", "m"))
	require.Equal(t, map[string]time.Time{"m": c.now, "n": first}, s.Demand(ever), "the newest of all gateways")
	require.Equal(t, first.Add(ttl), s.Next())
	c.advance(ttl / 2)
	require.Equal(t, map[string]time.Time{"m": first.Add(ttl / 2)}, s.Demand(ever))
	c.advance(ttl)
	require.Empty(t, s.Demand(ever))

	s.Put(wants("a", "m"))
	got := s.Demand(ever)
	got["x"] = c.now
	require.Len(t, s.Demand(ever), 1, "the answer is the caller's own")
	s.Begin(1)
	require.Empty(t, s.Demand(ever))
}

func TestOnlyDemandAfterADecisionCounts(t *testing.T) {
	s, c := listening()
	s.Put(wants("a", "m", "n"))
	decided := since("m", c.now)
	require.Equal(t, map[string]time.Time{"n": c.now}, s.Demand(decided))
	require.Len(t, s.Demand(ever), 2, "nothing is forgotten")
	c.advance(1)
	s.Put(wants("a", "m", "n"))
	require.Equal(t, c.now, s.Demand(decided)["m"], "it is asked for again")

	// A report that was sent late has what was asked for before the decision.
	late := api.GatewayReport{Gateway: "b", Index: 1, Demand: map[string]time.Time{"l": c.now}}
	decided = since("l", c.now.Add(1))
	c.advance(2)
	s.Put(late)
	require.NotContains(t, s.Demand(decided), "l")
	require.Equal(t, c.now, s.Demand(ever)["l"], "it lasts from when it was heard")
	late.Demand = map[string]time.Time{"l": c.now.Add(time.Hour)}
	s.Put(late)
	require.Contains(t, s.Demand(decided), "l")
	require.NotContains(t, s.Demand(since("l", c.now)), "l", "a gateway's clock may be fast")
	late.Demand = map[string]time.Time{"l": c.now.Add(-2)}
	s.Put(late)
	require.Contains(t, s.Demand(decided), "l", "the newest request counts")
}

// TestReportsAreBounded by what they take together.
func TestReportsAreBounded(t *testing.T) {
	s, c := listening()
	large := func(gateway string, mib int) api.GatewayReport {
		return api.GatewayReport{Gateway: gateway, Index: 1, Queues: []api.QueueLoad{{Model: strings.Repeat("m", mib<<20)}}}
	}
	require.NoError(t, s.Put(large("a", 40)))
	require.ErrorIs(t, s.Put(large("b", 40)), gatewayreport.ErrTooManyBytes)
	require.NoError(t, s.Put(large("a", 50)), "a report takes the place of the one before")
	require.NoError(t, s.Put(large("b", 10)))
	require.ErrorIs(t, s.Put(large("a", 60)), gatewayreport.ErrTooManyBytes)
	require.Len(t, s.Gateways(), 2)
	c.advance(ttl)
	require.NoError(t, s.Put(large("b", 60)))
}

func TestDemandIsNews(t *testing.T) {
	s, c := listening()
	s.Put(wants("a", "m"))
	c.advance(ttl - 1)
	s.Put(wants("b", "n"))
	ch := s.Changed()
	s.Put(wants("b", "n"))
	select {
	case <-ch:
		t.Fatal("it was wanted already")
	default:
	}
	s.Put(wants("b", "n", "o"))
	select {
	case <-ch:
	default:
		t.Fatal("a model is wanted that was not before")
	}
}

func TestSinceIsWhenTheLastGatewayBegan(t *testing.T) {
	s, c := listening()
	since, live := s.Since()
	require.Zero(t, since)
	require.False(t, live)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	put := func(gateway string, began time.Time) { s.Put(api.GatewayReport{Gateway: gateway, Since: began}) }
	require.False(t, s.Known())
	put("a", at(-time.Hour))
	put("b", at(-time.Minute))
	since, live = s.Since()
	require.True(t, live)
	require.Equal(t, at(-time.Minute), since)
	require.True(t, s.Known())

	// One that does not say is believed from when it was first heard.
	c.advance(ttl / 4)
	heard := c.now
	put("old", time.Time{})
	c.advance(ttl / 4)
	put("old", time.Time{})
	put("a", at(-time.Hour))
	since, _ = s.Since()
	require.Equal(t, heard, since)

	// One that is not heard any more takes with it what it knew.
	c.advance(ttl / 2)
	put("old", time.Time{})
	put("a", at(-time.Hour))
	since, live = s.Since()
	require.True(t, live)
	require.Equal(t, at(2*ttl), since, "b was given up one time to live after it reported")
	c.advance(ttl)
	_, live = s.Since()
	require.False(t, live)
	require.False(t, s.Known(), "nobody reports")

	s.Begin(1)
	put("a", at(-time.Hour))
	since, _ = s.Since()
	require.Equal(t, at(-time.Hour), since)
	require.False(t, s.Known(), "the others may not have reported yet")
	c.advance(ttl)
	put("a", at(-time.Hour))
	require.True(t, s.Known())
}

// TestATermBeginsEmpty: the first Begin of a term empties the store; later ones of the same
// term keep its content.
func TestATermBeginsEmpty(t *testing.T) {
	s, _ := listening()
	s.Begin(7)
	require.NoError(t, s.Put(report("a", 1)))
	require.NoError(t, s.Kill("x"))
	s.Begin(7)
	s.Begin(6)
	require.Len(t, s.Gateways(), 1)
	require.True(t, s.Killed("x"))
	s.Begin(9)
	require.Empty(t, s.Gateways())
	require.False(t, s.Killed("x"))
}

func TestGatewaysAreBounded(t *testing.T) {
	s, c := listening()
	for i := range gatewayreport.MaxGateways {
		require.NoError(t, s.Put(report(fmt.Sprint(i), 1)))
	}
	require.ErrorIs(t, s.Put(report("one more", 1)), gatewayreport.ErrTooManyGateways)
	require.NoError(t, s.Put(report("7", 2)), "that one is among them")
	c.advance(ttl)
	require.NoError(t, s.Put(report("one more", 1)))
}

func TestChanged(t *testing.T) {
	s, _ := listening()
	closed := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	ch := s.Changed()
	require.False(t, closed(ch))
	s.Put(report("a", 1, busy(r1, 1)))
	require.True(t, closed(ch))
	ch = s.Changed()
	s.Put(report("a", 1, busy(r1, 1)))
	require.False(t, closed(ch), "it says nothing new")
	s.Put(report("a", 2, busy(r1, 1)))
	require.True(t, closed(ch))
	ch = s.Changed()
	s.Begin(1)
	require.True(t, closed(ch))
}

func TestValidateNamesEveryFault(t *testing.T) {
	good := report("gw-1", 1, api.ReplicaLoad{Name: r1, InFlight: 1, Requests: []api.Request{{ID: "a"}}}, busy(r2, 0))
	require.NoError(t, gatewayreport.Validate(good))
	bad := report("g w", 1,
		busy("nonsense", 0), busy(r1, -1), busy(r1, 0),
		api.ReplicaLoad{Name: r2, InFlight: 100, Requests: make([]api.Request, api.MaxReportRequests+1)},
		api.ReplicaLoad{Name: "m:v:3", InFlight: 1, Requests: make([]api.Request, 2)})
	err := gatewayreport.Validate(bad)
	for _, want := range []string{
		`gateway: name is "g w"`, `bad replica name "nonsense"`, "m:v:1: in flight is -1", "replica m:v:1: in flight is -1: must be 0 or more",
		"m:v:2: 65 requests: must be at most 64", "replica m:v:3: 2 requests but only 1 in flight",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, gatewayreport.Validate(wants("gw", "m", "meta/llama:8b")))
	err = gatewayreport.Validate(wants("gw", "m", "", "m", "a b"))
	for _, want := range []string{"demand: name is empty", `demand: name is empty`, `demand: name is "a b"`} {
		require.ErrorContains(t, err, want)
	}
	var many []string
	for i := range api.MaxReportDemand + 1 {
		many = append(many, fmt.Sprint("m", i))
	}
	require.ErrorContains(t, gatewayreport.Validate(wants("gw", many...)), "demand for 1001 models: must be at most 1000")
	require.ErrorContains(t, gatewayreport.Validate(report("", 0)), "name is empty")
	require.ErrorContains(t, gatewayreport.Validate(report(strings.Repeat("x", 600), 1)), "name is 600 bytes")
	require.ErrorContains(t, gatewayreport.Validate(report("a", 1, make([]api.ReplicaLoad, gatewayreport.MaxReplicas+1)...)), "10001 replicas")
}

// BenchmarkTotals is what each look of the reconciler asks, with 1,000 replicas of 64
// requests each over four gateways.
func BenchmarkTotals(b *testing.B) {
	s, _ := listening()
	for g := range 4 {
		r := report(fmt.Sprint("g", g), 1)
		for i := range 1000 {
			one := busy(fmt.Sprint("m:v:", i), 64)
			for n := range 64 {
				one.Requests = append(one.Requests, api.Request{ID: fmt.Sprint(g, n), Started: began.Add(time.Duration(n) * time.Second)})
			}
			r.Replicas = append(r.Replicas, one)
		}
		s.Put(r)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Totals()
	}
}
