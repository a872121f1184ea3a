package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

func TestQueueListAndStatus(t *testing.T) {
	since := time.Now().Add(-12 * time.Second)
	queue := api.Queue{Model: "m", State: api.QueueBusy, Waiting: 3, InFlight: 2, OldestAt: since, CompletedPerSecond: 1.25, Serving: 1, Gateways: 2}
	r := said(t, map[string]any{
		"GET /v1/queues": []api.Queue{queue, {Model: "n", State: api.QueueIdle}},
		"GET /v1/queue/m": api.QueueStatus{
			Queue:    queue,
			Gateways: []api.GatewayQueue{{Gateway: "a", State: api.QueueBusy, Waiting: 3, InFlight: 2, OldestAt: since, CompletedPerSecond: 1.25}},
			Waiting:  []api.QueuedRequest{{ID: "w1", Key: "team", Started: since, Gateway: "a", Model: "m", Position: 1}},
			InFlight: []api.QueuedRequest{{ID: "f1", Key: "team", Started: since, Gateway: "a", Model: "m", Replica: "m:v:1"}, {ID: "f2", Started: since, Gateway: "a", Model: "m", Replica: "m:v:1"}},
			Replicas: []api.Replica{{Name: "m:v:1", Tier: "HOT", Status: "serving", Goal: "run", Current: true}},
		},
	})
	out := r.ok("queue", "list")
	require.Regexp(t, `(?m)^MODEL +STATE +WAITING +OLDEST +IN FLIGHT +SERVED +SERVING +GATEWAYS$`, out)
	require.Regexp(t, `(?m)^m +BUSY +3 +1[23]s +2 +1\.2/s +1 +2$`, out)
	require.Regexp(t, `(?m)^n +IDLE +0 +- +0 +0/s +0 +0$`, out)
	out = r.ok("queue", "status", "m")
	require.Regexp(t, `(?m)^Waiting += 3, the oldest for 1[23]s$`, out)
	require.Contains(t, out, "Waiting requests (1 of 3), next first")
	require.Regexp(t, `(?m)^1 +1[23]s +team +w1 +a$`, out)
	require.Contains(t, out, "\nRequests in flight, oldest first\n")
	require.Regexp(t, `(?m)^1[23]s +team +f1 +m:v:1 +a$`, out)
	require.Contains(t, out, "\nReplicas\n")
	var all []api.Queue
	r.json(&all, "queue", "list")
	require.Equal(t, 3, all[0].Waiting)
	var one api.QueueStatus
	r.json(&one, "queue", "status", "m")
	require.Equal(t, "w1", one.Waiting[0].ID)

	require.Equal(t, "No models and no requests.\n", said(t, map[string]any{"GET /v1/queues": []api.Queue{}}).ok("queue", "list"))
	require.Equal(t, 1, r.do("queue", "status", "x").code)
	require.Equal(t, 2, r.do("queue", "status").code)
}

func TestModelStatusTellsRequests(t *testing.T) {
	status := api.ModelStatus{Model: api.Model{Name: "m"}, Queue: &api.Queue{Model: "m", State: api.QueueDeploying, Waiting: 5, OldestAt: time.Now().Add(-3 * time.Minute), InFlight: 2}}
	require.Regexp(t, `(?m)^Requests += 2 in flight, waiting 5, the oldest for 3m0[0-9]s$`, said(t, map[string]any{"GET /v1/model/m": status}).ok("model", "status", "m"))
	status.Queue = &api.Queue{Model: "m", State: api.QueueIdle}
	require.Regexp(t, `(?m)^Requests += 0 in flight, waiting 0$`, said(t, map[string]any{"GET /v1/model/m": status}).ok("model", "status", "m"))
	status.Queue = nil
	require.NotContains(t, said(t, map[string]any{"GET /v1/model/m": status}).ok("model", "status", "m"), "Continuation")
	status.Model.Continuation, status.Model.Scaling = true, &api.Scaling{Strategy: "remuda-hpa"}
	require.Regexp(t, `(?s)Continuation += yes: a broken stream goes on at another engine.*Scaling += remuda-hpa`, said(t, map[string]any{"GET /v1/model/m": status}).ok("model", "status", "m"))
	require.Regexp(t, `(?m)^Requests += unknown: no gateway reports$`, said(t, map[string]any{"GET /v1/model/m": status}).ok("model", "status", "m"))
}

// script answers one call after the other as it says, and the last for ever.
func script(answers ...any) func() any {
	var mu sync.Mutex
	n := 0
	return func() any {
		mu.Lock()
		defer mu.Unlock()
		a := answers[min(n, len(answers)-1)]
		n++
		return a
	}
}

func TestRequestKill(t *testing.T) {
	t.Parallel()
	flies := api.QueuedRequest{ID: "x", Gateway: "a", Model: "m", Replica: "m:v:1"}
	there := api.RequestStatus{ID: "x", Places: []api.QueuedRequest{flies}, Killed: true}
	gone := api.RequestStatus{ID: "x", Places: []api.QueuedRequest{}, Killed: true}
	unknown := &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: `request "x" is not among those that the gateways name`}
	kill, look := "POST /v1/request/x/kill", "GET /v1/request/x"

	r := said(t, map[string]any{kill: there, look: script(there, there, gone)})
	require.Equal(t, "x is in flight at m:v:1 by gateway a: kill ordered.\nx has ended.\n", r.ok("request", "kill", "x"))
	var s api.RequestStatus
	said(t, map[string]any{kill: there, look: gone}).json(&s, "request", "kill", "x")
	require.Equal(t, gone, s)

	waits := api.RequestStatus{ID: "x", Places: []api.QueuedRequest{{ID: "x", Gateway: "a", Model: "m", Position: 3}}, Killed: true}
	r = said(t, map[string]any{kill: waits})
	require.Equal(t, "x waits for m at gateway a: kill ordered.\n", r.ok("request", "kill", "-detach", "x"))

	got := said(t, map[string]any{kill: unknown}).do("request", "kill", "x")
	require.Equal(t, result{1, "", "remuda request kill: request \"x\" is not among those that the gateways name\n"}, got)

	got = said(t, map[string]any{kill: there, look: there}).do("request", "kill", "x", "-timeout", "3s")
	require.Equal(t, 1, got.code)
	require.Equal(t, "remuda request kill: after 3s: x still is in flight at m:v:1 by gateway a\n", got.errout)
	got = said(t, map[string]any{kill: there, look: &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeNoLeader, Message: "no leader"}}).do("request", "kill", "x", "-timeout", "3s")
	require.Equal(t, "remuda request kill: after 3s: cannot tell whether x has ended: no leader\n", got.errout)
	require.Equal(t, 2, r.do("request", "kill").code)
	require.Equal(t, 2, r.do("request", "kill", "").code)
}

// The order is lost with the leader: a new one is given it again, and is believed that a
// request is gone only once it has heard all gateways.
func TestAKillOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	place := []api.QueuedRequest{{ID: "x", Gateway: "a", Model: "m", Replica: "m:v:1"}}
	var mu sync.Mutex
	kills, looks := 0, 0
	r := said(t, map[string]any{
		"POST /v1/request/x/kill": func() any {
			mu.Lock()
			defer mu.Unlock()
			kills++
			return api.RequestStatus{ID: "x", Places: place, Killed: true}
		},
		"GET /v1/request/x": func() any {
			mu.Lock()
			defer mu.Unlock()
			looks++
			switch looks {
			case 1: // a new leader, to which nobody has reported
				return api.RequestStatus{ID: "x", Places: []api.QueuedRequest{}}
			case 2: // the gateway has
				return api.RequestStatus{ID: "x", Places: place}
			}
			return api.RequestStatus{ID: "x", Places: []api.QueuedRequest{}, Killed: kills > 1}
		},
	})
	require.Contains(t, r.ok("request", "kill", "x"), "x has ended.\n")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []int{2, 3}, []int{kills, looks})

	silent := said(t, map[string]any{"POST /v1/request/x/kill": api.RequestStatus{ID: "x", Places: place, Killed: true}, "GET /v1/request/x": api.RequestStatus{ID: "x", Places: []api.QueuedRequest{}}})
	got := silent.do("request", "kill", "x", "-timeout", "3s")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "after 3s: cannot tell whether x has ended: the leader is new, and not all gateways have reported yet")
}

func TestGatewayListAndDrain(t *testing.T) {
	t.Parallel()
	seen := time.Now()
	gateway := func(name string, inFlight int, draining, ordered bool) api.Gateway {
		return api.Gateway{Name: name, InFlight: inFlight, Waiting: 1, Draining: draining, DrainOrdered: ordered, Since: seen.Add(-time.Hour), LastReportAt: seen, ExpiresAt: seen.Add(100 * time.Millisecond)}
	}
	r := said(t, map[string]any{"GET /v1/gateways": []api.Gateway{gateway("host:1:a", 2, false, false), gateway("host:1:b", 0, true, true)}})
	out := r.ok("gateway", "list")
	require.Regexp(t, `(?m)^host:1:a +serving +2 +1 +1h00m +[0-9]+s ago$`, out)
	require.Regexp(t, `(?m)^host:1:b +draining +0 +1 `, out)
	var all []api.Gateway
	r.json(&all, "gateway", "list")
	require.Len(t, all, 2)
	require.Equal(t, "No gateways report to the controller.\n", said(t, map[string]any{"GET /v1/gateways": []api.Gateway{}}).ok("gateway", "list"))
	require.Contains(t, r.do("gateway", "drain", "host").errout, "\"host\" is ambiguous: use a longer prefix of one of\n  host:1:a\n  host:1:b")
	require.Contains(t, r.do("gateway", "drain", "other").errout, `see "remuda gateway list"`)

	other := gateway("z", 9, false, false)
	told := gateway("host:1:a", 2, false, true)
	r = said(t, map[string]any{
		"POST /v1/gateway/host:1:a/drain": told,
		// A new leader has heard of nobody; then of this one, which was not told by it.
		"GET /v1/gateways": script(
			[]api.Gateway{gateway("host:1:a", 2, false, false), other}, []api.Gateway{told, other}, []api.Gateway{}, []api.Gateway{gateway("host:1:a", 2, false, false)},
			[]api.Gateway{gateway("host:1:a", 1, true, true)}, []api.Gateway{gateway("host:1:a", 0, true, true), other}, []api.Gateway{other}),
	})
	require.Equal(t, strings.Join([]string{
		"host:1:a is ordered to drain: 2 in flight, 1 waiting", "host:1:a is serving: 2 in flight, 1 waiting", "host:1:a is draining: 1 in flight, 1 waiting",
		"host:1:a is draining: 0 in flight, 1 waiting", "host:1:a has stopped.", "",
	}, "\n"), r.ok("gateway", "drain", "host"))

	r = said(t, map[string]any{"POST /v1/gateway/host:1:a/drain": told, "GET /v1/gateways": []api.Gateway{told}})
	require.Equal(t, "host:1:a is draining: see \"remuda gateway list\".\n", r.ok("gateway", "drain", "host:1:a", "-detach"))
	got := r.do("gateway", "drain", "host:1:a", "-timeout", "300ms")
	require.Equal(t, 1, got.code)
	require.Equal(t, "remuda gateway drain: after 300ms: host:1:a is ordered to drain: 2 in flight, 1 waiting\n", got.errout)
	require.Equal(t, 2, r.do("gateway", "drain").code)
	// The daemon does not take a verb that it does not know for something to run.
	got = remuda(t, "gateway", "drian", "x")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errout, `unexpected argument "drian"`)
}
