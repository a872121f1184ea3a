package gatewayreport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

func at(sec int) time.Time { return began.Add(time.Duration(sec) * time.Second) }

// queued is a report with queues.
func queued(gateway string, qs ...api.QueueLoad) api.GatewayReport {
	return api.GatewayReport{Gateway: gateway, Index: 1, Queues: qs}
}

// waits is a queue in which so many wait, the oldest since that second.
func waits(model string, state api.QueueState, n, since int) api.QueueLoad {
	return api.QueueLoad{Model: model, State: state, Waiting: n, OldestAt: at(since)}
}

func TestQueuesAreSummedOverGateways(t *testing.T) {
	s, c := listening()
	require.Empty(t, s.Queues())
	s.Put(queued("a",
		api.QueueLoad{Model: "m", State: api.QueueBusy, Waiting: 2, WaitingTokens: 70, InFlight: 4, OldestAt: at(3), CompletedPerSecond: 1.5, Requests: []api.Request{{ID: "w1", Key: "team", Started: at(3)}, {ID: "w2", Started: at(5)}}},
		waits("n", api.QueueDeploying, 1, 4)))
	s.Put(api.GatewayReport{Gateway: "b", Index: 1, Replicas: []api.ReplicaLoad{{Name: r1, InFlight: 1, Requests: []api.Request{{ID: "f1", Key: "team", Started: at(1)}}}}, Queues: []api.QueueLoad{
		{Model: "m", State: api.QueueReady, Waiting: 1, WaitingTokens: 30, InFlight: 1, OldestAt: at(2), CompletedPerSecond: 0.5, Requests: []api.Request{{ID: "w3", Started: at(2)}}},
		waits("n", api.QueueProvisioning, 2, 1),
		{Model: "idle", State: api.QueueStopped},
	}})
	require.Equal(t, map[string]api.Queue{
		"m":    {Model: "m", State: api.QueueBusy, Waiting: 3, WaitingTokens: 100, InFlight: 5, OldestAt: at(2), CompletedPerSecond: 2, Gateways: 2},
		"n":    {Model: "n", State: api.QueueDeploying, Waiting: 3, OldestAt: at(1), Gateways: 2},
		"idle": {Model: "idle", State: api.QueueStopped, Gateways: 1},
	}, s.Queues())
	require.Equal(t, map[string]int{"m": 3, "n": 3}, s.Waiting())

	of, requests := s.QueueOf("m")
	require.Equal(t, []api.GatewayQueue{
		{Gateway: "a", State: api.QueueBusy, Waiting: 2, InFlight: 4, OldestAt: at(3), CompletedPerSecond: 1.5},
		{Gateway: "b", State: api.QueueReady, Waiting: 1, InFlight: 1, OldestAt: at(2), CompletedPerSecond: 0.5},
	}, of)
	require.Equal(t, []api.QueuedRequest{
		{ID: "w3", Started: at(2), Gateway: "b", Model: "m", Position: 1},
		{ID: "w1", Key: "team", Started: at(3), Gateway: "a", Model: "m", Position: 1},
		{ID: "w2", Started: at(5), Gateway: "a", Model: "m", Position: 2},
		{ID: "f1", Key: "team", Started: at(1), Gateway: "b", Model: "m", Replica: r1},
	}, requests)
	of, requests = s.QueueOf("x")
	require.Empty(t, of)
	require.Empty(t, requests)

	g := s.Gateways()
	require.Equal(t, []int{3, 3}, []int{g[0].Waiting, g[1].Waiting})
	require.False(t, g[0].Draining)
	s.Put(api.GatewayReport{Gateway: "a", Index: 1, Draining: true})
	require.True(t, s.Gateways()[0].Draining)
	require.Equal(t, 1, s.Queues()["m"].Waiting, "a report replaces the one before it")
	c.advance(ttl)
	require.Empty(t, s.Queues())
	require.Empty(t, s.Waiting())
}

// A report that has no room for all queues still has the requests at its replicas.
func TestAModelWithoutAQueueIsBusyByItsReplicas(t *testing.T) {
	s, _ := listening()
	s.Put(api.GatewayReport{Gateway: "a", Index: 1, Replicas: []api.ReplicaLoad{busy("x/y:8b:v:1", 2), busy("x/y:8b:v:2", 1), busy("z:v:1", 0), busy(r1, 9)}, Queues: []api.QueueLoad{{Model: "m", State: api.QueueBusy, InFlight: 9}}})
	require.Equal(t, map[string]api.Queue{
		"x/y:8b": {Model: "x/y:8b", State: api.QueueBusy, InFlight: 3, Gateways: 1},
		"m":      {Model: "m", State: api.QueueBusy, InFlight: 9, Gateways: 1},
	}, s.Queues())
}

// The state of all gateways together says the most that any of them knows, in whatever
// order they report.
func TestStatesTogether(t *testing.T) {
	order := []api.QueueState{api.QueueStopped, api.QueueProvisioning, api.QueueDeploying, api.QueueReady, api.QueueBusy}
	rapid.Check(t, func(t *rapid.T) {
		s, _ := listening()
		picks := rapid.SliceOfN(rapid.IntRange(0, len(order)-1), 1, 6).Draw(t, "states")
		most, waiting, inFlight := 0, 0, 0
		for i, p := range picks {
			q := api.QueueLoad{Model: "m", State: order[p], Waiting: rapid.IntRange(0, 9).Draw(t, "waiting"), InFlight: rapid.IntRange(0, 9).Draw(t, "in flight")}
			s.Put(queued(fmt.Sprint("g", i), q))
			most, waiting, inFlight = max(most, p), waiting+q.Waiting, inFlight+q.InFlight
		}
		require.Equal(t, api.Queue{Model: "m", State: order[most], Waiting: waiting, InFlight: inFlight, Gateways: len(picks)}, s.Queues()["m"])
	})
}

func TestFind(t *testing.T) {
	s, _ := listening()
	s.Put(api.GatewayReport{Gateway: "a", Index: 1, Replicas: []api.ReplicaLoad{{Name: r1, InFlight: 1, Requests: []api.Request{{ID: "x", Started: at(1)}}}}})
	s.Put(queued("b", api.QueueLoad{Model: "n", State: api.QueueDeploying, Waiting: 2, Requests: []api.Request{{ID: "y", Started: at(1)}, {ID: "x", Started: at(2)}}}))
	require.Equal(t, []api.QueuedRequest{
		{ID: "x", Started: at(2), Gateway: "b", Model: "n", Position: 2},
		{ID: "x", Started: at(1), Gateway: "a", Model: "m", Replica: r1},
	}, s.Find("x"))
	require.Empty(t, s.Find("z"))
}

// What waits where nothing serves, or all that serves is busy, is asked for with each report: a new leader, or one
// whose last replica of the model has gone, hears of it.
func TestWhatWaitsIsDemand(t *testing.T) {
	s, c := listening()
	s.Put(queued("a", waits("m", api.QueueProvisioning, 1, 0), waits("coming", api.QueueDeploying, 1, 0), waits("full", api.QueueBusy, 9, 0), waits("stopped", api.QueueStopped, 1, 0), api.QueueLoad{Model: "none", State: api.QueueProvisioning}))
	require.Equal(t, map[string]time.Time{"m": c.now, "full": c.now}, s.Demand(ever), "where an engine comes, there is nothing to ask for")
	c.advance(ttl / 2)
	s.Put(queued("a", waits("m", api.QueueProvisioning, 1, 0)))
	require.Equal(t, map[string]time.Time{"m": c.now}, s.Demand(ever))
	s.Put(queued("a"))
	require.Empty(t, s.Demand(ever), "its client has gone")

	s.Put(queued("a", waits("m", api.QueueProvisioning, 1, 0)))
	s.Begin(1)
	require.Empty(t, s.Demand(ever))
	s.Put(queued("a", waits("m", api.QueueProvisioning, 1, 0)))
	require.Contains(t, s.Demand(ever), "m")
	c.advance(ttl)
	require.Empty(t, s.Demand(ever), "its gateway is gone")
}

// An operator who scales a model to nothing while requests wait means it: only requests that
// come later count, also for a new leader, which hears the same queue.
func TestOnlyWhatCameAfterADecisionCounts(t *testing.T) {
	s, c := listening()
	old := queued("a", waits("m", api.QueueProvisioning, 1, 0))
	decided := since("m", c.now)
	for range 10 { // however long it waits
		s.Put(old)
		require.Empty(t, s.Demand(decided))
		c.advance(ttl / 2)
	}
	later := api.QueueLoad{Model: "m", State: api.QueueProvisioning, Waiting: 2, OldestAt: at(0), Requests: []api.Request{{ID: "y", Started: c.now}, {ID: "x", Started: at(0)}}}
	s.Put(queued("a", later))
	require.Contains(t, s.Demand(decided), "m", "one of the two came after it")
	s.Put(queued("a", api.QueueLoad{Model: "m", State: api.QueueProvisioning, Waiting: 1, OldestAt: c.now}))
	require.Contains(t, s.Demand(decided), "m", "it is not named, and came after it")
}

// What is only a number of a queue wakes nobody.
func TestANumberOfAQueueIsNoNews(t *testing.T) {
	s, _ := listening()
	told := func(r api.GatewayReport) bool {
		ch := s.Changed()
		s.Put(r)
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	q := api.QueueLoad{Model: "m", State: api.QueueBusy, Waiting: 1, InFlight: 1, OldestAt: at(1)}
	require.True(t, told(queued("a", q)))
	q.Waiting, q.InFlight, q.CompletedPerSecond, q.OldestAt = 5, 2, 3, at(2)
	require.False(t, told(queued("a", q)))
	q.Waiting = 0
	require.True(t, told(queued("a", q)))
	q.State = api.QueueReady
	require.True(t, told(queued("a", q)))
	require.True(t, told(queued("a")))
	require.True(t, told(api.GatewayReport{Gateway: "a", Index: 1, Draining: true}))
}

func TestValidateNamesEveryFaultOfQueues(t *testing.T) {
	good := api.GatewayReport{Gateway: "g", Index: 1, Draining: true, Queues: []api.QueueLoad{
		{Model: "meta/llama:8b", State: api.QueueBusy, Waiting: 2, InFlight: 1, OldestAt: at(1), CompletedPerSecond: 0.1, Requests: []api.Request{{ID: "a", Started: at(1)}}},
		{Model: "n", State: api.QueueStopped},
	}}
	require.NoError(t, gatewayreport.Validate(good))
	err := gatewayreport.Validate(queued("g",
		api.QueueLoad{Model: "a b", State: api.QueueBusy}, api.QueueLoad{Model: "m", State: "ASLEEP", Waiting: -1, CompletedPerSecond: -1},
		api.QueueLoad{Model: "m", State: api.QueueReady, InFlight: -2, Waiting: 1, Requests: make([]api.Request, 2)},
		api.QueueLoad{Model: "n", State: api.QueueReady, Waiting: 100, Requests: make([]api.Request, api.MaxReportRequests+1)}))
	for _, want := range []string{
		`queue of model "a b": name is "a b"`, `queue of model "m": state is "ASLEEP": must be one of [STOPPED PROVISIONING CANT_PLACE LOAD_FAILED DEPLOYING READY BUSY]`,
		`queue of model "m": waiting is -1 and in flight is 0`, "completed per second is -1", `queue of model "m": state is "ASLEEP"`,
		"waiting is -1 and in flight is 0", "2 requests but only 1 waiting", `queue of model "n": 65 requests: must be at most 64`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, gatewayreport.Validate(queued("g", make([]api.QueueLoad, api.MaxReportQueues+1)...)), "1001 queues: must be at most 1000")
}
