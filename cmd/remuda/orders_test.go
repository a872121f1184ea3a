package main

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// obedient has a gateway report to the agent that has these requests waiting, and does what
// it is ordered to.
func (r *running) obedient(name string, ids ...string) {
	r.t.Helper()
	client, err := api.NewClient(api.Config{Addresses: []string{r.url}})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	began := time.Now()
	wg.Go(func() {
		draining := false
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			report := api.GatewayReport{Gateway: name, Index: 1, Since: began, Replicas: []api.ReplicaLoad{}, Draining: draining}
			if len(ids) > 0 {
				q := api.QueueLoad{Model: "m", State: api.QueueDeploying, Waiting: len(ids), OldestAt: began}
				for _, id := range ids {
					q.Requests = append(q.Requests, api.Request{ID: id, Started: began})
				}
				report.Queues = []api.QueueLoad{q}
			}
			orders, err := client.GatewayReport(ctx, report)
			if err != nil {
				continue // the test's end, or an agent that does not lead yet
			}
			ids = slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(orders.Kill, id) })
			draining = draining || orders.Drain
		}
	})
	r.t.Cleanup(func() { cancel(); wg.Wait(); client.Close() })
}

// TestOrdersReachGateways goes the whole way: the verb, the agent, and the answer to a
// gateway's report.
func TestOrdersReachGateways(t *testing.T) {
	t.Parallel()
	r := newWorld(t).dev()
	r.obedient("host:1:a", "x", "y")
	r.eventually("the gateway reports", func() bool {
		var all []api.Queue
		r.json(&all, "queue", "list")
		return len(all) == 1 && all[0].Waiting == 2
	})
	require.Equal(t, "x waits for m at gateway host:1:a: kill ordered.\nx has ended.\n", r.ok("request", "kill", "x"))
	var q api.QueueStatus
	r.json(&q, "queue", "status", "m")
	require.Equal(t, 1, q.Queue.Waiting)
	require.Equal(t, "y", q.Waiting[0].ID)
	got := r.do("request", "kill", "z")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "all gateways are ordered to end it if present")

	r.ok("gateway", "drain", "host", "-detach")
	r.eventually("it drains", func() bool {
		var all []api.Gateway
		r.json(&all, "gateway", "list")
		return len(all) == 1 && all[0].Draining
	})
}
