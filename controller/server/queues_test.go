package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/server"
	"remuda/controller/state"
)

// inQueue is a report of a gateway that has these queues.
func inQueue(gateway string, qs ...api.QueueLoad) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Since: epoch, Replicas: []api.ReplicaLoad{}, Queues: qs}
}

// atReplica is a report of a gateway that has one request in flight.
func atReplica(gateway, name, id string) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Since: epoch, Replicas: []api.ReplicaLoad{
		{Name: name, InFlight: 1, OldestAt: epoch, LastRequest: epoch, Requests: []api.Request{{ID: id, Started: epoch}}},
	}}
}

func TestQueuesOfAllModels(t *testing.T) {
	t.Parallel()
	m := one(t)
	for _, name := range []string{"ready", "coming", "stopped", "idle", "queued"} {
		m.applied(name)
	}
	m.move(m.place("ready", "1", 0, 0), state.EventStarted, state.EventServing)
	m.place("coming", "1", 0, 1)
	_, err := m.client.StopModel(t.Context(), "stopped")
	require.NoError(t, err)
	_, err = m.client.Scale(t.Context(), "idle", api.ScaleRequest{Replicas: 0})
	require.NoError(t, err)
	about, _, err := m.client.Model(t.Context(), "queued", api.QueryOptions{})
	require.NoError(t, err)
	require.Nil(t, about.Queue, "no gateway reports: nobody knows")

	reported(t, m.client, inQueue("a",
		api.QueueLoad{Model: "queued", State: api.QueueBusy, Waiting: 2, InFlight: 3, OldestAt: epoch.Add(time.Second), CompletedPerSecond: 1},
		api.QueueLoad{Model: "gone", State: api.QueueProvisioning, Waiting: 1, OldestAt: epoch}))
	reported(t, m.client, inQueue("b", api.QueueLoad{Model: "queued", State: api.QueueProvisioning, Waiting: 1, OldestAt: epoch, CompletedPerSecond: 0.5}))
	got, err := m.client.Queues(t.Context())
	require.NoError(t, err)
	queued := api.Queue{Model: "queued", State: api.QueueBusy, Waiting: 3, InFlight: 3, OldestAt: epoch, CompletedPerSecond: 1.5, Gateways: 2, Incomplete: true}
	require.Equal(t, []api.Queue{
		{Model: "coming", State: api.QueueDeploying, Incomplete: true},
		{Model: "gone", State: api.QueueProvisioning, Waiting: 1, OldestAt: epoch, Gateways: 1, Incomplete: true},
		{Model: "idle", State: api.QueueIdle, Incomplete: true},
		queued,
		{Model: "ready", State: api.QueueReady, Serving: 1, Incomplete: true},
		{Model: "stopped", State: api.QueueStopped, Incomplete: true},
	}, got)
	about, _, err = m.client.Model(t.Context(), "queued", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, &queued, about.Queue)

	// What reports are made of has no index to wait for, and only the leader has it.
	for _, path := range []string{"/v1/queues", "/v1/queue/queued", "/v1/gateways", "/v1/request/x"} {
		for _, param := range []string{"index=1", "stale"} {
			resp, body := m.raw(http.MethodGet, path+"?"+param, "", "")
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, body)
			require.Contains(t, body, " of GET "+path[:6])
		}
	}
}

func TestQueueOfOneModel(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("org/m")
	r := m.place("org/m", "1", 0, 0)
	m.move(r, state.EventStarted, state.EventServing)
	reported(t, m.client, inQueue("b", api.QueueLoad{Model: "org/m", State: api.QueueBusy, Waiting: 1, InFlight: 1, OldestAt: epoch, Requests: []api.Request{{ID: "w1", Started: epoch}}}))
	busy := atReplica("a", r.String(), "f1")
	busy.Queues = []api.QueueLoad{{Model: "org/m", State: api.QueueBusy, InFlight: 1, CompletedPerSecond: 2}, {Model: "gone", State: api.QueueBusy, InFlight: 1}}
	reported(t, m.client, busy)
	got, err := m.client.Queue(t.Context(), "org/m")
	require.NoError(t, err)
	require.Equal(t, api.Queue{Model: "org/m", State: api.QueueBusy, Waiting: 1, InFlight: 2, OldestAt: epoch, CompletedPerSecond: 2, Serving: 1, Gateways: 2, Incomplete: true}, got.Queue)
	require.Equal(t, []api.GatewayQueue{
		{Gateway: "a", State: api.QueueBusy, InFlight: 1, CompletedPerSecond: 2},
		{Gateway: "b", State: api.QueueBusy, Waiting: 1, InFlight: 1, OldestAt: epoch},
	}, got.Gateways)
	require.Equal(t, []api.QueuedRequest{{ID: "w1", Started: epoch, Gateway: "b", Model: "org/m", Position: 1}}, got.Waiting)
	require.Equal(t, []api.QueuedRequest{{ID: "f1", Started: epoch, Gateway: "a", Model: "org/m", Replica: r.String()}}, got.InFlight)
	require.Len(t, got.Replicas, 1)
	require.Equal(t, []api.Request{{ID: "f1", Started: epoch}}, got.Replicas[0].Load.Requests)

	gone, err := m.client.Queue(t.Context(), "gone")
	require.NoError(t, err)
	require.Equal(t, 1, gone.Queue.InFlight)
	require.Equal(t, []api.Replica{}, gone.Replicas)
}

func TestKillOfARequest(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	r := m.place("m", "1", 0, 0)
	flying := atReplica("a", r.String(), "a/b c")
	require.Zero(t, reported(t, m.client, flying))
	reported(t, m.client, inQueue("b"))
	place := api.QueuedRequest{ID: "a/b c", Started: epoch, Gateway: "a", Model: "m", Replica: r.String()}
	before, err := m.client.Request(t.Context(), "a/b c")
	require.NoError(t, err)
	require.Equal(t, api.RequestStatus{ID: "a/b c", Places: []api.QueuedRequest{place}}, before, "the leader is young")
	got, err := m.client.KillRequest(t.Context(), "a/b c")
	require.NoError(t, err)
	require.Equal(t, api.RequestStatus{ID: "a/b c", Places: []api.QueuedRequest{place}, Killed: true}, got)
	for range 3 {
		require.Equal(t, api.GatewayOrders{Kill: []string{"a/b c"}}, reported(t, m.client, flying))
	}
	require.Zero(t, reported(t, m.client, inQueue("a")))
	after, err := m.client.Request(t.Context(), "a/b c")
	require.NoError(t, err)
	require.Equal(t, api.RequestStatus{ID: "a/b c", Places: []api.QueuedRequest{}, Killed: true}, after)

	// One that no gateway names may be there all the same.
	got, err = m.client.KillRequest(t.Context(), "hidden")
	require.NoError(t, err)
	require.Equal(t, api.RequestStatus{ID: "hidden", Places: []api.QueuedRequest{}, Killed: true}, got)
	require.Contains(t, reported(t, m.client, inQueue("b")).Kill, "hidden")

	_, err = m.client.KillRequest(t.Context(), strings.Repeat("x", 300))
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "300 bytes")
	_, err = m.client.Request(t.Context(), "a\nb")
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `"a\nb": control characters`)
	for i := range gatewayreport.MaxKills {
		_ = m.loads.Kill(fmt.Sprint(i)) // the last of them find no room
	}
	_, err = m.client.KillRequest(t.Context(), "one more")
	e := requireError(t, err, http.StatusServiceUnavailable, api.CodeBusy, "request one more")
	require.Positive(t, e.RetryAfter)
}

func TestGatewaysAreListedAndDrained(t *testing.T) {
	t.Parallel()
	m := one(t)
	got, err := m.client.Gateways(t.Context())
	require.NoError(t, err)
	require.Equal(t, []api.Gateway{}, got)
	reported(t, m.client, inQueue("host:8080:1", api.QueueLoad{Model: "m", State: api.QueueDeploying, Waiting: 2, OldestAt: epoch}))
	reported(t, m.client, atReplica("host:8080:2", "m:v:1", "x"))
	got, err = m.client.Gateways(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"host:8080:1", "host:8080:2"}, []string{got[0].Name, got[1].Name})
	require.Equal(t, []int{2, 0, 0, 1}, []int{got[0].Waiting, got[0].InFlight, got[1].Waiting, got[1].InFlight})
	require.True(t, got[0].Since.Equal(epoch))
	require.Equal(t, time.Minute, got[0].ExpiresAt.Sub(got[0].LastReportAt))

	g, err := m.client.DrainGateway(t.Context(), "host:8080:1")
	require.NoError(t, err)
	require.True(t, g.DrainOrdered)
	require.False(t, g.Draining)
	require.Zero(t, reported(t, m.client, inQueue("host:8080:2")))
	require.Equal(t, api.GatewayOrders{Drain: true}, reported(t, m.client, inQueue("host:8080:1")))
	drains := inQueue("host:8080:1")
	drains.Draining = true
	require.Zero(t, reported(t, m.client, drains))
	got, err = m.client.Gateways(t.Context())
	require.NoError(t, err)
	require.True(t, got[0].Draining)
	_, err = m.client.DrainGateway(t.Context(), "host:8080:3")
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `see "remuda gateway list"`)
}

// TestAKillThatIsRejectedOrdersNothing: a gateway that reports later is given no order.
func TestAKillThatIsRejectedOrdersNothing(t *testing.T) {
	t.Parallel()
	m := one(t)
	_, err := m.client.KillRequest(t.Context(), "x")
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `request "x": no gateway reports to the controller`)
	require.Zero(t, reported(t, m.client, inQueue("a")))
}

func TestInventedGatewaysAreBounded(t *testing.T) {
	t.Parallel()
	m := one(t)
	reported(t, m.client, inQueue("a"))
	for i := range gatewayreport.MaxGateways {
		_ = m.loads.Put(api.GatewayReport{Gateway: fmt.Sprint(i), Index: 1}) // the last finds no room
	}
	_, err := m.client.GatewayReport(t.Context(), inQueue("b"))
	e := requireError(t, err, http.StatusServiceUnavailable, api.CodeBusy, `gateway "b": too many gateways report`)
	require.Positive(t, e.RetryAfter)
	reported(t, m.client, inQueue("a"))
}

// Reports and orders are the leader's, whichever server is asked.
func TestOrdersGoThroughAnyServer(t *testing.T) {
	t.Parallel()
	ms := cluster(t, 3, settings{})
	f := followersOf(t, ms)[0]
	reported(t, f.client, atReplica("a", "m:v:1", "x"))
	got, err := f.client.KillRequest(t.Context(), "x")
	require.NoError(t, err)
	require.Len(t, got.Places, 1)
	require.True(t, leaderOf(t, ms).loads.Killed("x"))
	require.False(t, f.loads.Killed("x"))
	queues, err := f.client.Queues(t.Context())
	require.NoError(t, err)
	require.Equal(t, "m", queues[0].Model)
	_, err = f.client.DrainGateway(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, api.GatewayOrders{Kill: []string{"x"}, Drain: true}, reported(t, f.client, atReplica("a", "m:v:1", "x")))
}

func TestReportsWithWrongQueuesAreRefused(t *testing.T) {
	t.Parallel()
	m := one(t)
	_, err := m.client.GatewayReport(t.Context(), inQueue("g", api.QueueLoad{Model: "m", State: "ASLEEP", Waiting: -1}))
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `state is "ASLEEP"`)
	require.Empty(t, m.loads.Gateways())
}

// What gateways count is told once every one of them can have reported, and that there may be
// more until then.
func TestCountersOfAQueue(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	now.Store(epoch.UnixNano())
	loads := gatewayreport.New(time.Minute, func() time.Time { return time.Unix(0, now.Load()) })
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Loads = loads }})[0]
	m.applied("m")
	counts := func(gateway string, arrived int64, queues ...api.QueueLoad) {
		report := inQueue(gateway, queues...)
		report.Counters = []api.ModelCounters{{Model: "m", Counters: api.Counters{Arrived: arrived, Finished: arrived / 2, ServedSeconds: float64(arrived) / 4, Refused: arrived / 8}}}
		reported(t, m.client, report)
	}
	queue := func() api.Queue {
		got, err := m.client.Queue(t.Context(), "m")
		require.NoError(t, err)
		about, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, got.Queue, *about.Queue)
		list, err := m.client.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []api.Queue{got.Queue}, list)
		return got.Queue
	}
	counts("a", 100)
	counts("b", 1000)
	require.True(t, queue().Incomplete)
	require.Nil(t, queue().Counters)
	now.Add(int64(time.Minute))
	counts("a", 120)
	counts("b", 1000)
	require.False(t, queue().Incomplete)
	require.Equal(t, &api.Counters{}, queue().Counters, "both were away for a minute: it counts from here")
	counts("a", 128, api.QueueLoad{Model: "m", State: api.QueueBusy, InFlight: 1})
	counts("b", 1008)
	require.Equal(t, &api.Counters{Arrived: 16, Finished: 8, ServedSeconds: 4, Refused: 2}, queue().Counters)
	reported(t, m.client, inQueue("old", api.QueueLoad{Model: "m", State: api.QueueBusy, InFlight: 1}))
	require.Nil(t, queue().Counters, "one has a request and does not count")

	bad := inQueue("a")
	bad.Counters = []api.ModelCounters{{Model: "m", Counters: api.Counters{Arrived: -1}}}
	_, err := m.client.GatewayReport(t.Context(), bad)
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `counters of model "m": arrived is -1 and finished is 0`)
}

// TestSharesAreAnswered: the answer to a report has the gateway's shares.
func TestSharesAreAnswered(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	now.Store(epoch.UnixNano())
	loads := gatewayreport.New(time.Minute, func() time.Time { return time.Unix(0, now.Load()) })
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Loads = loads }})[0]
	sequence := uint64(0)
	report := func(gateway string, slots, queue api.ShareClaim) []api.GatewayShare {
		r := inQueue(gateway)
		slots.Kind, slots.Name, slots.Of = api.ShareSlots, "m:v:1", 16
		queue.Kind, queue.Name, queue.Of = api.ShareQueue, "m", 100
		sequence++
		r.Sequence, r.Shares = sequence, []api.ShareClaim{slots, queue}
		return reported(t, m.client, r).Shares
	}
	units := func(slots, queue int) []api.GatewayShare {
		return []api.GatewayShare{{Kind: api.ShareSlots, Name: "m:v:1", Units: slots}, {Kind: api.ShareQueue, Name: "m", Units: queue}}
	}
	claim := func(held, used, need int) api.ShareClaim { return api.ShareClaim{Held: held, Used: used, Need: need} }
	require.Equal(t, units(3, 0), report("a", claim(3, 3, 30), claim(0, 0, 14)), "the leader may not know all gateways")
	now.Add(int64(time.Minute))
	require.Equal(t, units(16, 100), report("a", claim(3, 3, 30), claim(0, 0, 14)))
	require.Equal(t, units(0, 0), report("b", claim(0, 0, 6), claim(0, 0, 0)))
	require.Equal(t, units(10, 57), report("a", claim(16, 16, 16), claim(100, 14, 14)))
	require.Equal(t, units(0, 0), report("b", claim(0, 0, 6), claim(0, 0, 0)))
	require.Equal(t, units(10, 57), report("a", claim(10, 12, 16), claim(57, 14, 14)))
	require.Equal(t, units(4, 43), report("b", claim(0, 0, 6), claim(0, 0, 0)), "a still uses 12 slots")
	require.Empty(t, reported(t, m.client, inQueue("c")).Shares)
}
