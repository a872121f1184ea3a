package reconcile_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/state"
	"remuda/internal/testkit/nomadtest"
)

// Two Nomads over HTTP, with the real planner: each has its jobs, and what is wrong with
// the one does not touch the other.
func TestTwoNomads(t *testing.T) {
	far := nomadtest.New(t)
	far.SetNode(nomadNode("far-1"))
	nc := nomad.DefaultConfig()
	nc.Address, nc.Timeout, nc.Wait, nc.Settle, nc.Isolated = far.URL, 5*time.Second, 200*time.Millisecond, time.Millisecond, true
	client, err := nomad.New(nc)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	c := newClusterOf(t, func(cfg *reconcile.Config) {
		cfg.Planner.Pools = []planner.Pool{planner.DefaultPool("far")}
		cfg.Pools = map[string]reconcile.Nomad{"far": client}
	})
	far.OnParse(func(in api.JobsParseRequest) (*api.Job, error) { return c.nomad.Parse(in) })
	// What is registered in far runs as elsewhere.
	c.also = far
	c.model(2)
	c.run(2)
	require.Equal(t, 2, c.count("PUT /v1/jobs"))

	c.apply(&state.ScaleRequest{Model: "m", Pool: "far", Replicas: new(1), Origin: state.OriginOperator})
	c.until("one is in each", func() bool {
		c.work()
		in := map[string]int{}
		for _, r := range c.replicas() {
			if n := c.raft.Store().View().Node(nil, r.Placement.Node); n != nil && r.Status == "serving" {
				in[n.CapacityPool]++
			}
		}
		return in["far"] == 1 && in[""] >= 1
	})
	s := c.r.Status()
	require.True(t, s.Pools[0].Known() && s.Pools[1].Known())

	far.Break(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "Permission denied", http.StatusForbidden)
		return true
	})
	c.until("far is missed", func() bool { return !c.r.Status().Pools[1].Known() })
	require.Contains(t, c.r.Status().Pools[1].Error(), "Permission denied")
	before := len(c.replicas())
	c.scale(before + 1)
	c.until("the other pool takes one more", func() bool { c.work(); return c.stages()["serving"] == before+1 })
	require.Zero(t, c.raft.Store().View().Node(nil, "far-1").DownSince)
	require.True(t, c.r.Status().Pools[0].Known())
	far.Break(nil)
	c.until("far is back", func() bool { return c.r.Status().Pools[1].Known() })
	c.rest()
}
