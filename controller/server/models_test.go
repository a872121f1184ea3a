package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
)

func TestApply(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.nomad.check = func(_ state.Model, v state.Variant) (string, error) { return "careful with " + v.Name, nil }
	c := m.client
	both := file("m") + file("n")

	dry, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both), DryRun: true})
	require.NoError(t, err)
	require.True(t, dry.DryRun)
	require.Zero(t, dry.Index)
	require.Len(t, dry.Models, 2)
	require.True(t, dry.Models[0].New)
	require.NotEmpty(t, dry.Models[0].Changes)
	require.Equal(t, []string{`variant "a": careful with a`, `variant "b": careful with b`}, dry.Models[0].Warnings)
	list, _, err := c.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, list, "it was a dry run")

	got, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both)})
	require.NoError(t, err)
	require.Positive(t, got.Index)
	for _, a := range got.Models {
		require.True(t, a.New)
		require.Equal(t, got.Index, a.ModifyIndex, "they were written together")
		require.Equal(t, 2, a.Replicas)
	}

	// The same again is no change, and Nomad is not asked.
	asked := m.nomad.calls
	before := m.store.View().TableIndex()
	same, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(both)})
	require.NoError(t, err)
	require.Zero(t, same.Index)
	for _, a := range same.Models {
		require.True(t, a.Unchanged)
		require.False(t, a.New)
		require.Empty(t, a.Changes)
	}
	require.Equal(t, asked, m.nomad.calls)
	require.Equal(t, before, m.store.View().TableIndex())

	// A change keeps the scale, and says what is replaced. The other model stays.
	_, err = c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 4})
	require.NoError(t, err)
	changed := file("m", "10GiB", "12GiB", "max        = 4", "max        = 3") + file("n")
	got, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(changed), DryRun: true})
	require.NoError(t, err)
	texts := map[string]api.Change{}
	for _, ch := range got.Models[0].Changes {
		texts[ch.Path] = ch
	}
	require.Equal(t, "3", texts["max"].New)
	require.NotContains(t, texts, "replicas", "what was asked for stays")
	require.True(t, texts[`variant "a": memory`].ReplacesReplicas, "%v", texts)
	require.Contains(t, texts["max"].Text, "4 -> 3")
	require.True(t, got.Models[1].Unchanged)
	got, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(changed), CAS: map[string]uint64{"m": m.store.View().Model(nil, "m").ModifyIndex}})
	require.NoError(t, err)
	require.Equal(t, 3, got.Models[0].Replicas, "within the new bounds")

	// A stopped model is started by it.
	_, err = c.StopModel(t.Context(), "m")
	require.NoError(t, err)
	got, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(changed)})
	require.NoError(t, err)
	require.False(t, got.Models[0].Unchanged)
	require.Equal(t, "stopped", got.Models[0].Changes[0].Path)
	status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, 3, status.Model.Target)

	// The file that is given out is the one that was applied, without the other model of it.
	text, _, err := c.ModelFile(t.Context(), "m", 0, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, strings.TrimSuffix(changed, file("n")), text)

	kinds := map[string]bool{}
	for _, d := range status.Decisions {
		kinds[d.Kind] = true
		require.Contains(t, d.Reason, "anonymous (no ACL token)")
		require.False(t, d.Time.IsZero())
	}
	require.Equal(t, map[string]bool{"apply": true, "scale": true, "stop": true}, kinds)
	require.NoError(t, c.DeleteModel(t.Context(), "n", nil))
	_, _, err = c.Model(t.Context(), "n", api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `"n"`)
}

// TestApplyWhileItIsScaled has both happen at once: neither is lost, and none fails
// for the other.
func TestApplyWhileItIsScaled(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20 {
			_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1 + i%4})
			if err != nil {
				t.Errorf("scale: %v", err)
			}
		}
	})
	for i := range 10 {
		_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "10GiB", fmt.Sprint(11+i, "GiB")))})
		if err != nil {
			t.Errorf("apply: %v", err)
		}
	}
	wg.Wait()
	have := m.store.View().Model(nil, "m")
	require.Equal(t, 20*gib, have.Variants[0].Memory)
	require.Equal(t, 1+19%4, have.Desired.Total())
}

func TestScale(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	c := m.client
	r1 := m.place("m", "1", 0, 0)
	m.move(r1, state.EventStarted, state.EventServing)
	r2 := m.place("m", "2", 0, 1)
	rep := m.store.View().Replica(nil, r2.String())
	m.apply(&state.Move{Replica: r2.String(), ModifyIndex: rep.ModifyIndex, Event: state.EventFailed, Time: epoch,
		Failures: ptr(3), LastError: ptr("out of memory"), RetryAt: ptr(epoch.Add(time.Hour))})

	got, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	require.Equal(t, api.ScaleResponse{
		Model: "m", Current: 2, Target: 3, Changed: true, ModifyIndex: got.ModifyIndex,
		Replicas: []api.ReplicaOutcome{{Name: r1.String(), Tier: "HOT", Status: "serving"}, {Name: r2.String(), Tier: "HOT", Status: "failed", Error: "out of memory"}},
	}, got)
	require.Equal(t, m.store.View().Model(nil, "m").ModifyIndex, got.ModifyIndex)
	got, err = c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	require.False(t, got.Changed)

	got, err = c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 1, Variant: "b"})
	require.NoError(t, err)
	require.Equal(t, "b", got.Variant)
	require.Equal(t, 1, got.Target)
	require.Zero(t, got.Current)
	require.Empty(t, got.Replicas)
	status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	n, own := status.Model.Own("b")
	require.True(t, own)
	require.Equal(t, 1, n)
	require.Equal(t, api.Counts{Hot: 1, Failed: 1}, status.Counts)
	require.Contains(t, status.StatusDescription, fmt.Sprintf("1 of %d replicas serve: 1 serving, 1 failed.", status.Model.Target))
	require.Contains(t, status.StatusDescription, "Replica "+r2.String()+" failed 3 times: out of memory; next retry at 2026-01-02T04:04:05Z.")
	require.Contains(t, status.StatusDescription, "Last decision, scale: ")
	require.Equal(t, "1", status.Decisions[0].Details["asked"])

	got, err = c.StopModel(t.Context(), "m")
	require.NoError(t, err)
	require.True(t, got.Changed)
	require.Zero(t, got.Target)
	status, _, err = c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, status.StatusDescription, "The model is stopped; 1 serving")
	got, err = c.StartModel(t.Context(), "m")
	require.NoError(t, err)
	require.Positive(t, got.Target)
	got, err = c.StartModel(t.Context(), "m")
	require.NoError(t, err)
	require.False(t, got.Changed)
}

// The time of the last scale is reported although newer decisions have pushed it out of the
// status: an autoscaler that starts cools down by it.
func TestTheLastScaleIsReportedWhateverCameSince(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	status, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Zero(t, status.LastScaledAt)
	_, err = m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	scaled := m.store.View().LastDecision("m", "scale").Time
	var places []state.Decision
	for range 12 {
		places = append(places, state.Decision{Time: epoch, Model: "m", Kind: "place", Reason: "it has room"})
	}
	m.apply(&state.Plan{ID: "p", Decisions: places})
	status, _, err = m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	for _, d := range status.Decisions {
		require.NotEqual(t, "scale", d.Kind)
	}
	require.True(t, scaled.Equal(status.LastScaledAt), status.LastScaledAt)
}

func TestARolloutIsTold(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	r := m.place("m", "1", 0, 0)
	m.move(r, state.EventStarted, state.EventServing)
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "10GiB", "11GiB"))})
	require.NoError(t, err)
	status, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	roll := status.Model.Rollouts["a"]
	require.Equal(t, "canary", roll.Status)
	require.Equal(t, status.Model.Version, roll.Version)
	require.Equal(t, status.Replicas[0].Version, status.Model.StableVersion)
	require.False(t, status.Replicas[0].Current)
	require.Contains(t, status.StatusDescription, `1 serving. Variant "a": a canary of the new definition runs beside the old replicas. Last decision, apply`)
	list, _, err := m.client.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "canary"}, list[0].Rollouts)
	require.Equal(t, api.Counts{Hot: 1}, list[0].Counts)

	// Its first replica is a canary until it is known to be good.
	p := m.placement("m", "2", 1, 0)
	p.Canary = true
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: epoch, Place: []state.Place{p}})
	canary := func() bool {
		got, _, err := m.client.Replica(t.Context(), p.Name.String(), api.QueryOptions{})
		require.NoError(t, err)
		return got.Canary
	}
	require.True(t, canary())
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: epoch, Rollouts: []state.SetRollout{{Model: "m", Variant: "a", Version: roll.Version, Status: state.RolloutRolling}}})
	require.False(t, canary())
}

// The API returns the log of a pair's last failover for a single replica only.
func TestLogOfAFailover(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	name := m.place("m", "1", 0, 0).String()
	m.world.pairs = map[string]api.Pair{name: {Serves: "shadow", LastFailover: api.Takeover{From: "primary", At: epoch, Log: "out of memory"}}}
	one, _, err := m.client.Replica(t.Context(), name, api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "out of memory", one.Pair.LastFailover.Log)
	all, _, err := m.client.Replicas(t.Context(), "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "primary", all[0].Pair.LastFailover.From)
	require.Empty(t, all[0].Pair.LastFailover.Log)
}

func TestEvict(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	c := m.client
	hot := m.place("m", "1", 0, 0)
	m.move(hot, state.EventStarted, state.EventServing)
	placed := m.place("m", "2", 1, 0)

	got, err := c.Evict(t.Context(), api.EvictRequest{Replica: hot.String(), To: "cold"})
	require.NoError(t, err)
	require.Equal(t, []api.Eviction{{Name: hot.String(), Node: "n1", From: "HOT", To: "COLD", FreedGPUs: 1, FreedBytes: 10 * gib}}, got.Replicas)

	// To WARM it keeps its seats; what never served cannot go there, and has nothing to keep.
	warm := m.place("m", "3", 1, 1)
	m.move(warm, state.EventStarted, state.EventServing)
	got, err = c.Evict(t.Context(), api.EvictRequest{Replica: warm.String(), To: "warm"})
	require.NoError(t, err)
	require.Equal(t, []api.Eviction{{Name: warm.String(), Node: "n1", From: "HOT", To: "WARM", FreedBytes: 10 * gib}}, got.Replicas)
	got, err = c.Evict(t.Context(), api.EvictRequest{Replica: warm.String(), To: "WARM"})
	require.NoError(t, err)
	require.Equal(t, "unchanged: already WARM or on its way there (draining)", got.Replicas[0].Error)
	require.Equal(t, "WARM", got.Replicas[0].To)
	_, err = c.Evict(t.Context(), api.EvictRequest{Replica: placed.String(), To: "WARM"})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "only a serving replica can go WARM")
	about, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.Counts{Warm: 1, Starting: 1, Leaving: 1}, about.Counts)
	got, err = c.Evict(t.Context(), api.EvictRequest{Replica: warm.String()})
	require.NoError(t, err)
	require.Empty(t, got.Replicas[0].Error, "it goes all the same")

	got, err = c.Evict(t.Context(), api.EvictRequest{Model: "m"})
	require.NoError(t, err)
	require.Len(t, got.Replicas, 3)
	require.Contains(t, got.Replicas[0].Error, "already leaving (draining)")
	require.Zero(t, got.Replicas[0].FreedGPUs)
	require.Equal(t, api.Eviction{Name: placed.String(), Node: "n1", From: "HOT", FreedGPUs: 1, FreedBytes: 10 * gib}, got.Replicas[1])
	status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Zero(t, status.Model.Target)
	require.Equal(t, "displaced", status.Model.Bound)
	require.Equal(t, status.Model.Desired, status.Model.Displaced.UntilAsked, "what was asked for stays")
	require.Contains(t, status.StatusDescription, "when clients wait")
	require.Equal(t, "evict", status.Decisions[0].Kind)

	_, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("pinned", "management =", "dedicated = true\n  management ="))})
	require.NoError(t, err)
	pinned := m.place("pinned", "1", 0, 1)
	_, err = c.Evict(t.Context(), api.EvictRequest{Replica: pinned.String()})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, "dedicated")
	_, err = c.Evict(t.Context(), api.EvictRequest{Replica: pinned.String(), Force: true})
	require.NoError(t, err)
	ds, _, err := c.Decisions(t.Context(), api.DecisionFilter{Replica: pinned.String(), Limit: 1}, api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, ds, 1)
	require.Equal(t, "true", ds[0].Details["force"])
}

func TestNodes(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n20", "twin", 1), node("n21", "twin", 1)}})
	r := m.place("m", "1", 0, 1)
	nodes, _, err := m.client.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, nodes, 3)
	g := nodes[0].GPUs[0]
	require.Equal(t, 30*gib, g.FreeMemory)
	require.Equal(t, 10*gib, g.MovingMemory, "it is not there yet")
	require.Equal(t, []api.Seat{{ID: g.UUID + "#0"}, {ID: g.UUID + "#1", Replica: r.String()}}, g.Seats)

	for asked, want := range map[string]string{"n1": "n1", "node-one": "n1", "n20": "n20", "n21": "n21"} {
		got, _, err := m.client.Node(t.Context(), asked, api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, want, got.Node.ID)
	}
	for _, asked := range []string{"twin", "n2"} {
		_, _, err = m.client.Node(t.Context(), asked, api.QueryOptions{})
		requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "it matches nodes n20, n21")
	}
	status, _, err := m.client.Node(t.Context(), "node-one", api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, status.Replicas, 1)
	require.Equal(t, "node-one", status.Replicas[0].NodeName)

	n, err := m.client.Cordon(t.Context(), "node-one", api.CordonRequest{GPU: g.UUID, On: true})
	require.NoError(t, err)
	require.True(t, n.GPUs[0].Cordoned)
	status, _, err = m.client.Node(t.Context(), "n1", api.QueryOptions{})
	require.NoError(t, err)
	out := "GPU " + g.UUID + " of node node-one is cordoned: anonymous (no ACL token)"
	require.Equal(t, out, status.Replicas[0].OutOfUse)
	about, _, err := m.client.Model(t.Context(), status.Replicas[0].Model, api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, about.StatusDescription, "Replica "+status.Replicas[0].Name+" should move: "+out+".")
	n, err = m.client.Cordon(t.Context(), "n1", api.CordonRequest{GPU: g.UUID})
	require.NoError(t, err)
	require.False(t, n.GPUs[0].Cordoned)
	n, err = m.client.Cordon(t.Context(), "n1", api.CordonRequest{On: true})
	require.NoError(t, err)
	for _, g := range n.GPUs {
		require.True(t, g.Cordoned, g.UUID)
	}
}

func TestGateways(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	c := m.client
	r1 := m.place("m", "1", 0, 0)
	m.move(r1, state.EventStarted, state.EventServing)
	_, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("n"))})
	require.NoError(t, err)
	_, err = c.StopModel(t.Context(), "n")
	require.NoError(t, err)
	got, meta, err := c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.GatewayState{
		Models: []api.GatewayModel{{Name: "m", Engines: []string{"vllm"}}, {Name: "n", Engines: []string{"vllm"}, Stopped: true}},
		Replicas: []api.GatewayReplica{
			{Name: r1.String(), Model: "m", Variant: "a", Status: "serving", MaxSlots: 8},
		},
	}, got)

	// Where its engines are reaches a waiting gateway.
	placed := wait(func() (api.GatewayState, api.QueryMeta, error) {
		return c.GatewayState(t.Context(), api.QueryOptions{Index: meta.Index})
	})
	m.waitWatches(1)
	m.apply(&state.SetAddresses{Replicas: []state.ReplicaAddresses{{Replica: r1.String(), Addresses: []string{"10.0.0.1:1"}, Generation: 7}}})
	seen := receive(t, placed)
	require.NoError(t, seen.err)
	require.Equal(t, []string{"10.0.0.1:1"}, seen.value.Replicas[0].Addresses)
	require.EqualValues(t, 7, seen.value.Replicas[0].Generation)

	// The replica's own change is told, though no model has changed.
	m.move(r1, state.EventStarted)
	got, _, err = c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "starting", got.Replicas[0].Status)
	m.move(r1, state.EventServing)
	// So is a model's, though no replica has.
	for _, set := range []func(context.Context, string) (api.ScaleResponse, error){c.StopModel, c.StartModel} {
		_, err = set(t.Context(), "m")
		require.NoError(t, err)
		got, _, err = c.GatewayState(t.Context(), api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, m.store.View().Model(nil, "m").Stopped, got.Models[0].Stopped)
	}
	_, meta, err = c.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)

	// Load is told with the replica, and its requests with that one alone.
	reported(t, c, api.GatewayReport{Gateway: "g", Index: meta.Index, Replicas: []api.ReplicaLoad{
		{Name: r1.String(), InFlight: 2, OldestAt: epoch, LastRequest: epoch.Add(time.Second), Requests: []api.Request{{ID: "x", Started: epoch}}},
	}})
	one, _, err := c.Replica(t.Context(), r1.String(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, &api.Load{InFlight: 2, Busy: true, OldestAt: epoch, LastRequest: epoch.Add(time.Second), Requests: []api.Request{{ID: "x", Started: epoch}}}, one.Load)
	all, _, err := c.Replicas(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, all[0].Load.InFlight)
	require.Empty(t, all[0].Load.Requests)
	reported(t, c, api.GatewayReport{Gateway: "g", Index: meta.Index, Replicas: []api.ReplicaLoad{
		{Name: r1.String(), InFlight: 2, Answered: 8, Failed: 6, FailedInARow: 5},
	}})
	one, _, err = c.Replica(t.Context(), r1.String(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, &api.Load{InFlight: 2, Busy: true, Answered: 8, Failed: 6, FailedInARow: 5}, one.Load, "what ended since the report before")
	self, err := c.AgentSelf(t.Context())
	require.NoError(t, err)
	require.Len(t, self.Gateways, 1)
	require.Equal(t, 2, self.Gateways[0].InFlight)
	require.Equal(t, meta.Index, self.Gateways[0].Index)

	// A draining replica gets no new requests, and its change reaches a waiting gateway
	// with an index that is at least the change's own.
	ch := wait(func() (api.GatewayState, api.QueryMeta, error) {
		return c.GatewayState(t.Context(), api.QueryOptions{Index: meta.Index})
	})
	m.waitWatches(1)
	_, err = c.Evict(t.Context(), api.EvictRequest{Replica: r1.String()})
	require.NoError(t, err)
	next := receive(t, ch)
	require.NoError(t, next.err)
	require.True(t, next.value.Replicas[0].Draining)
	require.GreaterOrEqual(t, next.meta.Index, m.store.View().Replica(nil, r1.String()).ModifyIndex)
}

func TestHealth(t *testing.T) {
	t.Parallel()
	m := one(t)
	h, err := m.client.AgentHealth(t.Context())
	require.NoError(t, err)
	require.Equal(t, api.AgentHealth{Healthy: true, Problems: []string{}}, h)
	require.NoError(t, m.client.Ready(t.Context()))
	m.world.status = api.ReconcileStatus{Active: true, Nomad: api.LinkStatus{LastContactAt: epoch, Error: "connection refused"}, Consul: api.LinkStatus{Known: true}, LastError: "plan: no"}
	h, err = m.client.AgentHealth(t.Context())
	require.NoError(t, err)
	require.False(t, h.Healthy)
	require.Equal(t, []string{"cannot reach Nomad: connection refused", "reconciler: plan: no"}, h.Problems)
	require.NoError(t, m.client.Ready(t.Context()), "it can answer all the same")
	self, err := m.client.AgentSelf(t.Context())
	require.NoError(t, err)
	require.Equal(t, "connection refused", self.Reconcile.Nomad.Error)
	require.True(t, self.Leader)
	require.NotEmpty(t, strings.TrimSpace(self.Version))
	l, err := m.client.Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, m.node.ID(), l.ID)
}

// TestDecisionsHaveNoValuesOfVars: what a job is given may be a secret, and decisions
// are kept for longer than it is.
func TestDecisionsHaveNoValuesOfVars(t *testing.T) {
	t.Parallel()
	m := one(t)
	with := func(secret string) string {
		return file("m", "slots  = 8", "slots  = 8\n    vars = { hf_token = \""+secret+"\" }", `job "engine" {`, "variable \"hf_token\" {}\n      job \"engine\" {")
	}
	text := strings.Replace(with("hf_first"), "cost   = 3", "cost   = 3\n    vars = { hf_token = \"hf_other\" }", 1)
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(text)})
	require.NoError(t, err)
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(strings.ReplaceAll(text, "hf_first", "hf_second"))})
	require.NoError(t, err)
	ds, _, err := m.client.Decisions(t.Context(), api.DecisionFilter{Model: "m"}, api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, ds, 2)
	require.Contains(t, ds[0].Reason, "vars: hf_token")
	require.NotContains(t, fmt.Sprint(ds), "hf_first")
	require.NotContains(t, fmt.Sprint(ds), "hf_second")
}

// TestAFileThatWasRolledBackIsToldSo: it is applied, and yet not what runs.
func TestAFileThatWasRolledBackIsToldSo(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	m.move(m.place("m", "1", 0, 0), state.EventStarted, state.EventServing)
	request := api.ApplyRequest{Files: modelFile(file("m", "10GiB", "11GiB"))}
	_, err := m.client.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	got, err := m.client.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	require.True(t, got.Models[0].Unchanged)
	require.Empty(t, got.Models[0].Warnings, "it is on its way")

	v := m.store.View()
	m.apply(&state.Plan{ID: "p2", Index: v.Index(), Time: epoch, Rollouts: []state.SetRollout{{
		Model: "m", Variant: "a", Version: v.Model(nil, "m").Rollouts["a"].Version, Status: state.RolloutRolledBack, Reason: "the canary did not start.",
	}}})
	status, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, status.Model.Version)
	require.Equal(t, api.Rollout{Status: "rolled_back", Version: 2, Reason: "the canary did not start.", Since: epoch}, status.Model.Rollouts["a"])
	request.DryRun = true
	got, err = m.client.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	require.True(t, got.Models[0].Unchanged)
	require.Equal(t, []string{`version 2 with this definition was rolled back because of variant "a": the canary did not start: change the file, or try it again with "remuda model revert m 2"`}, got.Models[0].Warnings)
	vs, _, err := m.client.ModelVersions(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, vs, 2)
	require.Equal(t, `variant "a": the canary did not start.`, vs[0].RolledBack)
	tried, err := m.client.RevertModel(t.Context(), "m", api.RevertRequest{Version: 2})
	require.NoError(t, err)
	require.Equal(t, 3, tried.Version)
	status, _, err = m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "canary", status.Model.Rollouts["a"].Status)
}

func TestVersionsAndRevert(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	c := m.client
	r := m.place("m", "1", 0, 0)
	m.move(r, state.EventStarted, state.EventServing)
	first, _, err := c.ModelFile(t.Context(), "m", 0, "", api.QueryOptions{})
	require.NoError(t, err)
	_, err = c.RevertModel(t.Context(), "m", api.RevertRequest{})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `model "m" has no version before 1`)

	got, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "10GiB", "11GiB", "max        = 4", "max = 6"))})
	require.NoError(t, err)
	require.Equal(t, 2, got.Models[0].Version)
	vs, _, err := c.ModelVersions(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Len(t, vs, 2)
	require.Equal(t, []int{2, 1}, []int{vs[0].Number, vs[1].Number})
	require.Equal(t, []bool{true, false, false, true}, []bool{vs[0].Current, vs[0].Stable, vs[1].Current, vs[1].Stable})
	require.Equal(t, []int{0, 1}, []int{vs[0].Replicas, vs[1].Replicas})
	require.NotEmpty(t, vs[0].Changes)
	require.Empty(t, vs[1].Changes)
	old, _, err := c.ModelFile(t.Context(), "m", 1, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, first, old)
	job, _, err := c.ModelFile(t.Context(), "m", 1, "a", api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, job, "job \"engine\" {")
	_, _, err = c.ModelFile(t.Context(), "m", 1, "z", api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `version 1 of model "m" has no variant "z"`)
	_, _, err = c.ModelFile(t.Context(), "m", 9, "", api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `model "m" has no version 9: its versions are 1, 2`)

	_, err = c.RevertModel(t.Context(), "m", api.RevertRequest{Version: 7})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, "has no version 7")
	_, err = c.RevertModel(t.Context(), "m", api.RevertRequest{CAS: ptr(uint64(1))})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "has changed since it was read")
	_, err = c.RevertModel(t.Context(), "x", api.RevertRequest{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `model "x" does not exist`)
	back, err := c.RevertModel(t.Context(), "m", api.RevertRequest{})
	require.NoError(t, err)
	require.Equal(t, 3, back.Version)
	require.NotEmpty(t, back.Changes)
	now, _, err := c.ModelFile(t.Context(), "m", 0, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, first, now)
	status, _, err := c.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, status.Model.Rollouts, "its replica is of this definition")
	require.True(t, status.Replicas[0].Current)
	require.Contains(t, status.Decisions[0].Reason, "reverted the model to version 1: changed")
	again, err := c.RevertModel(t.Context(), "m", api.RevertRequest{Version: 1})
	require.NoError(t, err)
	require.True(t, again.Unchanged)
	require.Equal(t, 3, again.Version)
}

// TestSourceTexts: each version has its part of the text that a person wrote, with the comments.
func TestSourceTexts(t *testing.T) {
	t.Parallel()
	m := one(t)
	c := m.client
	job := "# the job\njob \"engine\" {}\n"
	block := func(name string, most int) string {
		return fmt.Sprintf("model %q { # of %[1]s\n  max = %d # not more\n  variant \"a\" {\n    weights = \"1GiB\"\n    job     = file(\"jobs/engine.nomad.hcl\")\n  }\n} # end of %[1]s\n", name, most)
	}
	head, between, tail := "# our models\n\n", "\n# the second\n", "# the end\n"
	request := api.ApplyRequest{
		Files: []api.SourceFile{{Name: "/etc/models/one.hcl", Text: head + block("m", 2) + between + block("n", 3) + tail}, {Name: "/etc/models/two.hcl", Text: block("o", 1)}},
		Jobs:  map[string]string{"/etc/models/jobs/engine.nomad.hcl": job},
	}
	_, err := c.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	for name, want := range map[string]string{"m": head + block("m", 2), "n": between + block("n", 3) + tail, "o": block("o", 1)} {
		text, _, err := c.ModelFile(t.Context(), name, 0, "", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, want, text)
		text, _, err = c.ModelFile(t.Context(), name, 0, "a", api.QueryOptions{})
		require.NoError(t, err)
		require.Equal(t, job, text)
	}
	require.Empty(t, m.store.View().Model(nil, "m").Source, "the text is in the version alone")

	// Comments alone make no version; the older ones are kept, and come back with a revert.
	old := request.Files[1].Text
	request.Files[1].Text = "# another comment\n" + old
	applied, err := c.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	require.Zero(t, applied.Index)
	request.Files[1].Text = "# another one\n" + block("o", 2)
	_, err = c.ApplyModels(t.Context(), request)
	require.NoError(t, err)
	_, err = c.RevertModel(t.Context(), "o", api.RevertRequest{})
	require.NoError(t, err)
	text, _, err := c.ModelFile(t.Context(), "o", 3, "", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, old, text)

	// All that is wrong in any of the files.
	_, err = c.ApplyModels(t.Context(), api.ApplyRequest{
		Files: []api.SourceFile{{Name: "a.hcl", Text: block("m", -1)}, {Name: "b.hcl", Text: block("n", 1)}, {Name: "c.hcl", Text: block("n", 2)}},
		Jobs:  map[string]string{"jobs/engine.nomad.hcl": job},
	})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "a.hcl:2:9: model \"m\": max is -1")
	require.Contains(t, e.Message, `c.hcl:1:7: duplicate model "n": first defined in b.hcl on line 1`)
	_, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m")), Jobs: map[string]string{"x.hcl": ""}})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "x.hcl:1:1: no model file names this job file")
}

// TestARolloutWithAGapIsSaid: the only replica goes before its successor comes.
func TestARolloutWithAGapIsSaid(t *testing.T) {
	t.Parallel()
	m := one(t)
	update := func(replicas, memory, block string) api.AppliedModel {
		t.Helper()
		got, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "replicas   = 2", "replicas = "+replicas+"\n  update {\n"+block+"\n}", "10GiB", memory))})
		require.NoError(t, err)
		return got.Models[0]
	}
	require.Empty(t, update("1", "10GiB", "surge = 0").Warnings, "nothing is replaced")
	gap := update("1", "11GiB", "surge = 0").Warnings
	require.Len(t, gap, 1)
	require.Contains(t, gap[0], "nothing serves meanwhile")
	require.Contains(t, update("1", "12GiB", "min_available = 0").Warnings[0], "if there is no room for a second one")
	require.Empty(t, update("1", "13GiB", "surge = 1").Warnings)
	require.Empty(t, update("2", "14GiB", "surge = 0").Warnings)
	status, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []int{0, 1}, []int{status.Model.Surge, status.Model.MinAvailable})
}

// TestTheNumberOfReplicasInTheFile is applied where it changes; where people scaled the model
// since, applying the same file says so.
func TestTheNumberOfReplicasInTheFile(t *testing.T) {
	t.Parallel()
	m := one(t)
	c := m.client
	apply := func(replicas string) api.AppliedModel {
		t.Helper()
		got, err := c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m", "management = \"full\"", "management = \"manual\"", "replicas   = 2", replicas))})
		require.NoError(t, err)
		return got.Models[0]
	}
	require.Equal(t, 2, apply("replicas = 2").Replicas)
	_, err := c.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 4})
	require.NoError(t, err)
	same := apply("replicas = 2")
	require.True(t, same.Unchanged)
	require.Equal(t, 4, same.Replicas)
	require.Len(t, same.Warnings, 1)
	require.Contains(t, same.Warnings[0], "replicas is 2 in the file and remains 4: ")
	require.Contains(t, same.Warnings[0], "asked for 4 replicas")
	changed := apply("replicas = 3")
	require.Equal(t, 3, changed.Replicas)
	require.Empty(t, changed.Warnings)
	require.Equal(t, "~ replicas: 4 -> 3", changed.Changes[0].Text)
}
