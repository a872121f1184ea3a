package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/planner"
	"remuda/controller/server"
	"remuda/controller/state"
)

// planning foresees the same plan for a copy of store, and nothing else.
func planning(store *state.Store, p *state.Plan) func(func(*state.Store) error) (planner.Foresight, error) {
	return func(change func(*state.Store) error) (planner.Foresight, error) {
		fork := store.Fork()
		if err := change(fork); err != nil {
			return planner.Foresight{}, err
		}
		rules := planner.Rules{
			Plan: func(*state.View, planner.Observation, planner.Config) (*state.Plan, time.Time) {
				once := p
				p = nil
				return once, time.Time{}
			},
			Actions: func(*state.View, planner.Observation, planner.Config) []planner.Action { return nil },
			After:   planner.After,
		}
		return planner.Foresee(fork, planner.Observation{Now: epoch}, planner.DefaultConfig(), rules, planner.Bounds{Plans: 2})
	}
}

// withPools has an external pool that is used, and one that is not.
func withPools(w *world) {
	w.pools = []api.Pool{
		{Management: "full", Price: 1, Known: true, LastContactAt: epoch},
		{Name: "cloud", Management: "manual", Price: 2, Batch: 1, Interval: api.Duration(5 * time.Minute), Address: "https://cloud:4646", Known: true, LastContactAt: epoch},
		{Name: "off", Management: "disabled", Price: 1, Error: "connection refused"},
	}
}

// rest puts a running replica to sleep.
func (m *member) rest(name string) {
	m.t.Helper()
	for _, to := range []state.Move{
		{Event: state.EventDrain, Goal: state.GoalWarm}, {Event: state.EventSleep}, {Event: state.EventSlept},
	} {
		to.Replica, to.ModifyIndex, to.Time = name, m.store.View().Replica(nil, name).ModifyIndex, epoch
		m.apply(&to)
	}
}

func TestNodesShowTheirTiers(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	hot, warm := m.place("m", "1", 0, 0), m.place("m", "2", 0, 1)
	m.move(hot, state.EventStarted, state.EventServing)
	m.move(warm, state.EventStarted, state.EventServing)
	m.rest(warm.String())
	s, _, err := m.client.Node(t.Context(), "n1", api.QueryOptions{})
	require.NoError(t, err)
	g := s.Node.GPUs[0]
	require.Equal(t, []int64{40 * gib, 10 * gib, 0, 0, 30 * gib}, []int64{g.Memory, g.HotMemory, g.MovingMemory, g.WarmMemory, g.FreeMemory})
	require.Equal(t, warm.String(), g.Seats[1].Replica, "it keeps its seat")
	require.Equal(t, []int64{100 * gib, gib, 99 * gib, 90 * gib}, []int64{s.Node.HostMemory, s.Node.WarmMemory, s.Node.FreeHostMemory, s.Node.WarmBudget})

	about, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.Counts{Hot: 1, Warm: 1}, about.Counts)
	require.Contains(t, about.StatusDescription, "replicas serve: 1 serving, 1 warm.")
	scaled, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 2})
	require.NoError(t, err)
	require.Equal(t, 1, scaled.Current, "what rests does not count")

	n, err := m.client.Cordon(t.Context(), "n1", api.CordonRequest{GPU: gpuOf("n1", 1), On: true, Reason: "it is hot"})
	require.NoError(t, err)
	require.Equal(t, "anonymous (no ACL token): it is hot", n.GPUs[1].CordonReason)
	n, err = m.client.Cordon(t.Context(), "n1", api.CordonRequest{GPU: gpuOf("n1", 1)})
	require.NoError(t, err)
	require.Empty(t, n.GPUs[1].CordonReason)
}

func TestReportsTellWhatIsWanted(t *testing.T) {
	t.Parallel()
	m := one(t)
	reported(t, m.client, api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{}, Since: epoch, Demand: map[string]time.Time{"m": {}, "n": {}}})
	require.Len(t, m.demand(m.loads), 2)
	since, live := m.loads.Since()
	require.True(t, live)
	require.True(t, since.Equal(epoch))
	_, err := m.client.GatewayReport(t.Context(), api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{}, Demand: map[string]time.Time{"a b": {}}})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `demand: name is "a b"`)
}

func TestPools(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{world: withPools})[0]
	m.applied("m")
	far := node("n2", "node-two", 1)
	far.CapacityPool = "cloud"
	old := node("n3", "node-three", 1)
	old.CapacityPool = "past"
	m.apply(&state.UpsertNodes{Nodes: []state.Node{far, old}})
	m.move(m.place("m", "1", 0, 0), state.EventStarted, state.EventServing)
	r, err := m.client.ScalePool(t.Context(), "m", "cloud", api.ScalePoolRequest{Replicas: 2})
	require.NoError(t, err)
	require.Equal(t, api.ScaleResponse{Model: "m", Pool: "cloud", Target: 2, Changed: true, ModifyIndex: m.store.View().Model(nil, "m").ModifyIndex, Replicas: []api.ReplicaOutcome{}}, r)
	_, err = m.client.ScalePool(t.Context(), "m", "off", api.ScalePoolRequest{Replicas: 1})
	requireError(t, err, http.StatusForbidden, api.CodeForbidden, `pool "off": management is "disabled"`)
	_, err = m.client.ScalePool(t.Context(), "m", "off", api.ScalePoolRequest{})
	require.NoError(t, err, "it may be taken back")
	_, err = m.client.ScalePool(t.Context(), "m", "cloud", api.ScalePoolRequest{Replicas: 1, CAS: ptr(uint64(1))})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "m")

	pools, meta, err := m.client.Pools(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Positive(t, meta.Index)
	require.Len(t, pools, 4)
	require.Equal(t, api.Pool{
		Management: "full", Price: 1, Known: true, LastContactAt: epoch, Nodes: 1, GPUs: 2, Memory: 80 * gib, FreeMemory: 70 * gib, Counts: api.Counts{Hot: 1},
	}, pools[0])
	require.Equal(t, api.Pool{
		Name: "cloud", Management: "manual", Price: 2, Batch: 1, Interval: api.Duration(5 * time.Minute), Address: "https://cloud:4646", Known: true, LastContactAt: epoch,
		Nodes: 1, GPUs: 1, Memory: 40 * gib, FreeMemory: 40 * gib, Desired: map[string]int{"m": 2},
	}, pools[1])
	require.Equal(t, []string{"off", "past"}, []string{pools[2].Name, pools[3].Name})
	require.Contains(t, pools[3].Error, "no longer in this server's config")

	about, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, about.Model.In("cloud"))
	require.Equal(t, `anonymous (no ACL token) asked for 2 replicas in pool "cloud" (was 0)`, about.Decisions[0].Reason)
}

func TestPoolsThatAreNotConfigured(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	_, err := m.client.ScalePool(t.Context(), "m", "cloud", api.ScalePoolRequest{Replicas: 1})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `pool "cloud" does not exist`)
}

// officeHours is a calendar for the model "new".
const officeHours = `timezone = "Europe/Berlin"

window "office" {
  days      = ["mon-fri"]
  from      = "08:00"
  to        = "18:00"
  dedicated = { "new" = 2 }
}

default {
  dedicated = {}
}
`

func TestDedicatedSetsReplaceEachOther(t *testing.T) {
	t.Parallel()
	// A Monday, in the afternoon.
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now = func() time.Time { return at } }})[0]
	m.applied("new")
	m.applied("other")
	c := m.client
	none, _, err := c.Dedicated(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.Dedicated{Models: map[string]int{}}, none)

	set, err := c.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"new": 3}})
	require.NoError(t, err)
	require.Equal(t, api.Dedicated{Models: map[string]int{"new": 3}, Source: "operator", Since: at, ModifyIndex: set.ModifyIndex}, set)
	about, _, err := c.Model(t.Context(), "new", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []any{2, 3, "dedicated"}, []any{about.Model.Replicas, about.Model.Target, about.Model.Bound})
	require.Equal(t, api.Limits{Dedicated: 3}, about.Limits)
	require.True(t, about.Model.DedicatedNow)
	require.False(t, about.Model.Dedicated)
	require.Contains(t, about.StatusDescription, "Dedicated with at least 3 replicas, set by operator.")
	_, err = c.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"other": 1}})
	require.NoError(t, err)
	models, _, err := c.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{models[0].DedicatedNow, models[1].DedicatedNow})
	require.Equal(t, []any{2, 2, ""}, []any{models[0].Replicas, models[0].Target, models[0].Bound}, "it is what was asked for again")
	ds, _, err := c.Decisions(t.Context(), api.DecisionFilter{Limit: 1}, api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "dedicated", ds[0].Kind)
	require.Equal(t, `anonymous (no ACL token) dedicated 1 replica of model "other"`, ds[0].Reason)
	none, err = c.ClearDedicated(t.Context())
	require.NoError(t, err)
	require.Empty(t, none.Models)

	_, err = c.StopModel(t.Context(), "new")
	require.NoError(t, err)
	_, err = c.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"new": 3}})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `model "new" is stopped`)
}

func TestScheduleOfTheDedicatedSet(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now = func() time.Time { return at } }})[0]
	c := m.client
	got, _, err := c.DedicatedSchedule(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, api.DedicatedSchedule{}, got)

	_, err = c.SetDedicatedSchedule(t.Context(), api.ScheduleRequest{File: officeHours, Filename: "cal.hcl"})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `see "remuda model list"`)
	require.Equal(t, []api.Fault{{File: "cal.hcl", Line: 7, Column: 17, Text: "window \"office\": dedicated: model \"new\" does not exist: see \"remuda model list\""}}, e.Faults)
	_, err = c.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("new", "max        = 4", "max = 1", "replicas   = 2", "replicas = 1"))})
	require.NoError(t, err)
	_, err = c.SetDedicatedSchedule(t.Context(), api.ScheduleRequest{File: officeHours})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `schedule.hcl:7:17: window "office": dedicated: model "new" is 2: must be at most 1, the model's max`)
	_, err = c.SetDedicatedSchedule(t.Context(), api.ScheduleRequest{File: "timezone = \"UTC\"\nwindow \"w\" {\n  days = [\"xyz\"]\n}\n"})
	e = requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "schedule.hcl:3:11: ")
	require.Len(t, e.Faults, 2)

	m.applied("new")
	got, err = c.SetDedicatedSchedule(t.Context(), api.ScheduleRequest{File: officeHours})
	require.NoError(t, err)
	until := time.Date(2026, 3, 2, 17, 0, 0, 0, time.UTC)
	require.True(t, got.Until.Equal(until))
	require.Equal(t, []any{officeHours, "Europe/Berlin", "office", map[string]int{"new": 2}}, []any{got.File, got.Timezone, got.Window, got.Models})
	set, _, err := c.Dedicated(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "office", set.Window)
	require.True(t, set.Until.Equal(until))
	require.Empty(t, set.Models, "the planner makes the set")
	_, err = c.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"new": 1}})
	require.NoError(t, err)
	ds, _, err := c.Decisions(t.Context(), api.DecisionFilter{Limit: 2}, api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, ds[0].Reason, "in effect until the schedule's next change at 2026-03-02T17:00:00Z")
	require.Contains(t, ds[1].Reason, `current window is "office", with 2 replicas of model "new", until 2026-03-02T17:00:00Z`)
	require.NoError(t, c.DeleteDedicatedSchedule(t.Context()))
	got, _, err = c.DedicatedSchedule(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, got.File)
}

func TestSwitchesSayWhyNothingIsDone(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	for name, value := range map[string]string{"disable-scaling": "true", "cap-max-replicas/m": "1"} {
		_, err := m.client.SetSwitch(t.Context(), name, api.SwitchRequest{Value: value})
		require.NoError(t, err)
	}
	about, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, about.StatusDescription, "Capped at 1 replica by switch cap-max-replicas/m.")
	require.Contains(t, about.StatusDescription, "Switch disable-scaling is set: only operators change its scale, and nothing evicts it.")
	_, err = m.client.SetSwitch(t.Context(), "cap-max-replicas", api.SwitchRequest{Value: "many"})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `"many"`)
}

func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	p := &state.Plan{}
	m := one(t)
	m.world.preview = planning(m.store, p)
	m.applied("m")
	hot, gone := m.place("m", "1", 0, 0), m.place("m", "2", 0, 1)
	m.move(hot, state.EventStarted, state.EventServing)
	m.move(gone, state.EventStarted, state.EventServing)
	before := m.store.View()
	r := before.Replica(nil, hot.String())
	// The plan makes room for what is asked for, and cannot do all of it.
	p.Move = []state.Move{{Replica: hot.String(), ModifyIndex: r.ModifyIndex, Event: state.EventDrain, Goal: state.GoalWarm, Time: epoch}}
	p.Decisions = []state.Decision{
		{Time: epoch, Model: "m", Replica: hot.String(), Kind: planner.KindEvict, Reason: "it makes room", Details: map[string]string{"cost": "2"}},
		{Time: epoch, Model: "new", Kind: planner.KindCannotPlace, Reason: "no node has room"},
	}
	got, err := m.client.Plan(t.Context(), api.PlanRequest{
		Files: modelFile(file("new")), Scale: map[string]int{"m": 2}, Evict: &api.EvictRequest{Replica: gone.String(), To: "cold"},
	})
	require.NoError(t, err)
	require.Equal(t, []api.PlannedStep{
		{Replica: gone.String(), Node: "n1", NodeName: "node-one", From: "serving", To: "draining, then COLD", Reason: "as requested"},
		{Replica: hot.String(), Node: "n1", NodeName: "node-one", From: "serving", To: "draining, then WARM", Reason: "it makes room"},
	}, got.Steps)
	require.Equal(t, []api.PlanAssumption{
		{Kind: "traffic", Text: "The traffic stays as it is."}, {Kind: "success", Text: "Nothing fails."},
	}, got.Assumptions)
	require.Empty(t, got.Unfinished)
	require.Equal(t, []api.PlannedWait{{Model: "new", Reason: "no node has room"}}, got.Waits)
	require.Len(t, got.Decisions, 2)
	require.Equal(t, "2", got.Decisions[0].Details["cost"])
	require.Equal(t, before.Index(), m.store.View().Index(), "nothing was committed")

	_, err = m.client.Plan(t.Context(), api.PlanRequest{Files: modelFile("model")})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "model.hcl:1:")
	require.NotEmpty(t, e.Faults)
}

func TestPlanSaysWhatWaitedAlready(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("m")
	m.apply(&state.Plan{ID: "p", Decisions: []state.Decision{{Time: epoch, Model: "m", Kind: planner.KindCannotPlace, Reason: "no node has room"}}})
	got, err := m.client.Plan(t.Context(), api.PlanRequest{})
	require.NoError(t, err)
	require.Empty(t, got.Steps)
	require.Empty(t, got.Unfinished)
	require.Equal(t, []api.PlannedWait{{Model: "m", Reason: "no node has room"}}, got.Waits)
}

// TestPlanPricesStandbys: of the models that the request names; the last failover of a pair has shown how long the next
// one takes.
func TestPlanPricesStandbys(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.world.preview = planning(m.store, &state.Plan{})
	pair := strings.Replace(file("m"), "management = \"full\"", "management = \"full\"\n  failover = true", 1)
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: append(modelFile(pair), modelFile(file("other"))...)})
	require.NoError(t, err)
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n1", "node-one", 2)}})
	p := m.placement("m", "1", 0, 0)
	p.Placement.Seats = []string{gpuOf("n1", 0) + "#0", gpuOf("n1", 0) + "#1"}
	p.Placement.SleepMemory = gib
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: epoch, Place: []state.Place{p}})
	m.move(p.Name, state.EventStarted, state.EventServing)
	standbys := func(model string) []api.PlannedStandby {
		t.Helper()
		m.world.preview = planning(m.store, nil)
		got, err := m.client.Plan(t.Context(), api.PlanRequest{Scale: map[string]int{model: 1}})
		require.NoError(t, err)
		return got.Standbys
	}
	rates := planner.DefaultConfig().Rates
	cold := time.Duration(rates.ColdSeconds(10*gib, true) * float64(time.Second))
	want := api.PlannedStandby{
		Replica: p.Name.String(), Kind: "pair", Node: "n1", NodeName: "node-one", Seats: 1, GPUs: 1, GPUMemory: gib / 2,
		Takes: api.Duration(rates.Wake), Cold: api.Duration(cold),
	}
	require.Equal(t, []api.PlannedStandby{want}, standbys("m"))
	require.Empty(t, standbys("other"))
	m.world.pairs = map[string]api.Pair{p.Name.String(): {LastFailover: api.Takeover{Seconds: 0.154}}}
	want.Takes, want.Measured = api.Duration(154*time.Millisecond), true
	require.Equal(t, []api.PlannedStandby{want}, standbys("m"))
}

// TestOnePlanIsMadeAtATime: others wait for a moment and are then rejected.
func TestOnePlanIsMadeAtATime(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}, 2), make(chan struct{})
	m := cluster(t, 1, settings{world: func(w *world) {
		plan := w.preview
		w.preview = func(change func(*state.Store) error) (planner.Foresight, error) {
			begun <- struct{}{}
			<-end
			return plan(change)
		}
	}})[0]
	first := wait(func() (api.PlanResponse, api.QueryMeta, error) {
		p, err := m.client.Plan(t.Context(), api.PlanRequest{})
		return p, api.QueryMeta{}, err
	})
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), patience/4)
	defer cancel()
	_, err := m.client.Plan(ctx, api.PlanRequest{})
	e := requireError(t, err, http.StatusTooManyRequests, api.CodeBusy, "other plans are being made")
	require.Positive(t, e.RetryAfter)
	// A file waits unparsed.
	_, err = m.client.Plan(t.Context(), api.PlanRequest{Files: modelFile("no model file")})
	requireError(t, err, http.StatusTooManyRequests, api.CodeBusy, "other plans are being made")
	close(end)
	require.NoError(t, receive(t, first).err)
	_, err = m.client.Plan(t.Context(), api.PlanRequest{})
	require.NoError(t, err)
}

// demand is what the reconciler sees of clients' demand in loads.
func (m *member) demand(loads *gatewayreport.Store) map[string]time.Time {
	v := m.store.View()
	return loads.Demand(func(name string) time.Time {
		if row := v.Model(nil, name); row != nil {
			return row.ScaledAt
		}
		return time.Time{}
	})
}

// TestDemandBeforeADecision: what clients asked for before an operator scaled a model down
// must not undo it, with this leader or the next. What was rejected decides nothing.
func TestDemandBeforeADecision(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do       func(m *member) error
		rejected string
		void     bool
	}{
		"scale": {do: func(m *member) error {
			_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 0})
			return err
		}, void: true},
		"scale of variants": {do: func(m *member) error {
			_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Variants: map[string]int{"a": 0, "b": 0}})
			return err
		}, void: true},
		"stop": {do: func(m *member) error {
			_, err := m.client.StopModel(t.Context(), "m")
			return err
		}, void: true},
		"evict": {do: func(m *member) error {
			_, err := m.client.Evict(t.Context(), api.EvictRequest{Model: "m"})
			return err
		}, void: true},
		"the autoscaler": {do: func(m *member) error {
			_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 0, Origin: string(state.OriginAutoscaler)})
			return err
		}},
		"scale above max": {do: func(m *member) error {
			_, err := m.client.Scale(t.Context(), "m", api.ScaleRequest{Replicas: 99})
			return err
		}, rejected: "must be 0 to 4"},
		"evict a dedicated model": {do: func(m *member) error {
			_, err := m.client.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"m": 1}})
			require.NoError(t, err)
			_, err = m.client.Evict(t.Context(), api.EvictRequest{Model: "m"})
			return err
		}, rejected: "the model is dedicated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := one(t)
			m.applied("m")
			m.place("m", "1", 0, 0)
			waiting := time.Now()
			reported(t, m.client, api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{}, Demand: map[string]time.Time{"m": waiting, "n": waiting}})
			if err := tc.do(m); tc.rejected != "" {
				require.ErrorContains(t, err, tc.rejected)
			} else {
				require.NoError(t, err)
			}
			next := gatewayreport.New(time.Minute, time.Now)
			queue := api.QueueLoad{Model: "m", State: api.QueueProvisioning, Waiting: 1, OldestAt: waiting}
			next.Put(api.GatewayReport{Gateway: "g", Index: 1, Queues: []api.QueueLoad{queue}})
			require.Contains(t, m.demand(m.loads), "n")
			for _, loads := range []*gatewayreport.Store{m.loads, next} {
				_, asked := m.demand(loads)["m"]
				require.Equal(t, !tc.void, asked)
			}
			queue.OldestAt = time.Now()
			next.Put(api.GatewayReport{Gateway: "g", Index: 1, Queues: []api.QueueLoad{queue}})
			require.Contains(t, m.demand(next), "m", "it came after the decision")
		})
	}
}
