package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/server"
	"remuda/controller/state"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.busy()
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("a-model") + file("z-model"))})
	require.NoError(t, err)
	_, err = m.client.Scale(t.Context(), "a-model", api.ScaleRequest{Replicas: 0})
	require.NoError(t, err)
	o, err := m.client.Overview(t.Context(), api.OverviewQuery{})
	require.NoError(t, err)
	require.Equal(t, api.ClusterSums{Nodes: 2, NodesUsable: 2, GPUs: 3, GPUsUsable: 1, Memory: 120 * gib, HotMemory: 10 * gib, FreeMemory: 110 * gib,
		HostMemory: 200 * gib, HostWarmMemory: gib}, o.Cluster)
	require.Equal(t, []api.Problem{
		{Kind: "model", Model: "z-model", Text: "no replica serves; 2 replicas should run"},
		{Kind: "replica", Model: "m", Replica: "m:a:1", Text: "no other engine could take over: the primary loads its model"},
		{Kind: "gpu", Node: "n1", NodeName: "node-one", GPU: "GPU-n1-1", Text: "cordoned: anonymous (no ACL token): it is hot"},
		{Kind: "gpu", Node: "n2", NodeName: "node-two", GPU: "GPU-n2-0", Text: "unhealthy: XID 79: fell off the bus"},
	}, o.Problems)
	require.Equal(t, len(o.Problems), o.ProblemsTotal)
	var names []string
	for _, one := range o.Models {
		names = append(names, one.Name)
	}
	require.Equal(t, []string{"z-model", "a-model", "m"}, names, "one with a problem comes first")
	require.Equal(t, "READY", o.Models[2].Queue.State)

	o, err = m.client.Overview(t.Context(), api.OverviewQuery{Filter: "model", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []any{1, 2, "z-model", 4}, []any{len(o.Models), o.ModelsTotal, o.Models[0].Name, len(o.Problems)})

	var nodes []state.Node
	for i := range 60 {
		n := node(gpuOf("sick", i), gpuOf("sick", i), 1)
		n.GPUs[0].Healthy = false
		nodes = append(nodes, n)
	}
	m.apply(&state.UpsertNodes{Nodes: nodes})
	o, err = m.client.Overview(t.Context(), api.OverviewQuery{})
	require.NoError(t, err)
	require.Equal(t, []int{api.MaxProblems, 64}, []int{len(o.Problems), o.ProblemsTotal})
}

// TestHistory: each minute has what was counted in it, across midnight too; an hour is kept; a model that is
// gone is forgotten, and so is all when another server leads.
func TestHistory(t *testing.T) {
	t.Parallel()
	clock := time.Now().UTC().Truncate(24 * time.Hour).Add(23*time.Hour + 58*time.Minute + 30*time.Second)
	now := func() time.Time { return clock }
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now, c.Loads = now, gatewayreport.New(61*time.Second, now) }})[0]
	m.applied("m")
	history := func() *api.History {
		q, err := m.client.Queue(t.Context(), "m")
		require.NoError(t, err)
		return q.History
	}
	var finished int64
	used := map[string]int64{} // by day
	step := func(requests, tokens int64) {
		t.Helper()
		clock = clock.Add(time.Minute)
		finished += requests
		reported(t, m.client, api.GatewayReport{Gateway: "g", Index: 1, Since: epoch, Replicas: []api.ReplicaLoad{},
			Queues:   []api.QueueLoad{{Model: "m", State: api.QueueBusy, Waiting: int(requests), InFlight: 1}},
			Counters: []api.ModelCounters{{Model: "m", Counters: api.Counters{Finished: finished, Refused: finished, Errors: finished, Answers: finished, FirstByteSeconds: float64(finished) / 4, FirstTokens: finished, FirstTokenSeconds: float64(finished) / 2}}}})
		if tokens > 0 {
			day := state.UsageDay(clock)
			used[day] += tokens
			row := state.UsageRow{Day: day, Key: "k", Model: "m", Usage: state.Usage{PromptTokens: used[day], CompletionTokens: used[day]}}
			eventually(t, "usage is counted, beside the recorder", func() bool {
				index := m.store.View().TableIndex(state.TableUsage, state.TableUsageMarks)
				if len(m.store.View().UsageRows(nil, "")) == 0 {
					index = 0
				}
				_, err := m.node.Apply(t.Context(), &state.CountUsage{Rows: []state.UsageRow{row}, Index: index})
				return err == nil
			})
		}
		m.server.SampleHistory()
	}
	hot := m.place("m", "1", 0, 0)
	m.move(hot, state.EventStarted, state.EventServing)
	clock = clock.Add(-3 * time.Minute)
	for range 3 {
		step(0, 0) // What was counted before the first step is not known to be of it.
	}
	for i, want := range [][2]int64{{3, 10}, {0, 0}, {4, 5}, {2, 7}} {
		step(want[0], want[1])
		h := history()
		last := len(h.Requests) - 1
		require.Equal(t, []int64{want[0], want[0], 2 * want[1], want[0], 250 * min(want[0], 1), 500 * min(want[0], 1)},
			[]int64{h.Requests[last], h.Refused[last], h.Tokens[last], h.Errors[last], h.FirstByteMillis[last], h.FirstTokenMillis[last]}, "step %d at %s", i, clock)
		require.Equal(t, []int{1, 1, int(want[0])}, []int{h.Serving[last], h.InFlight[last], h.Waiting[last]})
		require.Equal(t, []any{api.Duration(time.Minute), clock}, []any{h.Step, h.End})
	}
	for range api.HistorySteps {
		step(1, 0)
	}
	h := history()
	require.Len(t, h.Tokens, api.HistorySteps)
	require.Len(t, h.Waiting, api.HistorySteps)
	require.NotContains(t, h.Tokens, int64(14), "it is more than an hour ago")
	o, err := m.client.Overview(t.Context(), api.OverviewQuery{})
	require.NoError(t, err)
	require.Nil(t, o.Models[0].Tokens, "an idle model needs no line")
	step(1, 1)
	o, err = m.client.Overview(t.Context(), api.OverviewQuery{})
	require.NoError(t, err)
	require.Equal(t, int64(2), o.Models[0].Tokens[api.HistorySteps-1])
	require.Contains(t, m.page("/ui", ""), `aria-label="Milliseconds to the first token in the last 60 minutes: now 500, at most 500"`)
	require.Contains(t, m.page("/ui", ""), `<td class="n trend">500ms<svg`)
	for _, line := range []string{"HOT replicas", "Requests in flight", "Requests that wait"} {
		require.Contains(t, m.page("/ui", ""), line+" in the last 60 minutes: now 1, at most 1\"")
	}
	require.Contains(t, words(m.page("/ui", "")), "1 of 1 models; lines are the last hour; tokens, first token and errors are of its last full minute")
	require.Contains(t, words(m.page("/ui/model?name=m", "")), "The last hour, and its last minute, until "+clock.Format("2006-01-02 15:04:05"))
	require.Contains(t, m.page("/ui/model?name=m", ""), `<dt>First token</dt><dd>500ms `)
	require.Contains(t, m.page("/ui/model?name=m", ""), `<dt>First byte</dt><dd>250ms `)
	require.Contains(t, m.page("/ui", ""), `aria-label="Errors a minute in the last 60 minutes: now 1, at most 1"`)
	require.Contains(t, m.page("/ui", ""), `aria-label="Tokens a minute in the last 60 minutes: now 2, at most 2"`)
	require.Contains(t, m.page("/ui/model?name=m", ""), `aria-label="HOT replicas in the last 60 minutes: now 1, at most 1"`)
}

// TestReplicaHistory: what the replicas of a model were in the last hour, with those that are gone.
func TestReplicaHistory(t *testing.T) {
	t.Parallel()
	clock := epoch
	m := cluster(t, 1, settings{server: func(c *server.Config) { c.Now = func() time.Time { return clock } }})[0]
	m.applied("m")
	history := func() []api.ReplicaHistory {
		t.Helper()
		m.server.SampleHistory()
		q, err := m.client.Queue(t.Context(), "m")
		require.NoError(t, err)
		return q.History.Replicas
	}
	at := func(minute int) time.Time { return epoch.Add(time.Duration(minute) * time.Minute) }
	one := m.place("m", "1", 0, 0)
	move := func(minute int, events ...state.Event) {
		t.Helper()
		for _, event := range events {
			r := m.store.View().Replica(nil, one.String())
			c := &state.Move{Replica: one.String(), ModifyIndex: r.ModifyIndex, Event: event, Time: at(minute)}
			if event == state.EventDrain {
				c.Goal = state.GoalWarm
			}
			if event == state.EventStop {
				c.Goal = state.GoalGone
			}
			m.apply(c)
		}
		clock = at(minute + 1)
	}
	move(0, state.EventStarted, state.EventServing)
	require.Equal(t, []api.StateSince{{State: "HOT", Since: at(0)}}, history()[0].States)
	move(20, state.EventDrain)
	history()
	move(22, state.EventSleep, state.EventSlept)
	history()
	move(40, state.EventWake)
	want := []api.StateSince{{State: "HOT", Since: at(0)}, {State: "moving", Since: at(20)}, {State: "WARM", Since: at(22)}, {State: "moving", Since: at(40)}}
	require.Equal(t, []api.ReplicaHistory{{Replica: "1", Variant: one.Variant, States: want}}, history())
	page := m.page("/ui/model?name=m", "")
	require.Contains(t, page, `aria-label="In the last hour: HOT 20m0s, moving 3m0s, WARM 18m0s"`)
	require.Contains(t, page, `<rect class="hot" x="1140" width="1200" height="12"/><rect class="moving" x="2340" width="120" height="12"/>`)

	clock = at(81) // what ended before minute 21 is more than an hour ago
	require.Equal(t, want[1:], history()[0].States)
	require.Contains(t, m.page("/ui/model?name=m", ""), `aria-label="In the last hour: moving 42m0s, WARM 18m0s"`)

	move(82, state.EventStop)
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: at(82), Remove: []state.Remove{{Replica: one.String(), ModifyIndex: m.store.View().Replica(nil, one.String()).ModifyIndex}}})
	gone := history()[0]
	require.Equal(t, at(83), gone.GoneAt)
	clock = at(140)
	require.Len(t, history(), 1)
	clock = at(144)
	require.Empty(t, history())

	require.Equal(t, api.MaxReplicaHistories, server.Followed(api.MaxReplicaHistories+5))
}
