package observe_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
)

// controller is an HTTP server that answers as the controller's leader does.
type controller struct {
	status atomic.Pointer[api.ModelStatus]
	refuse atomic.Int64 // a status code
	asked  atomic.Int64
}

func (c *controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked.Add(1)
	s := c.status.Load()
	switch code := int(c.refuse.Load()); {
	case code != 0:
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(api.Error{Code: api.CodeNoLeader, Message: "the cluster has no leader now"})
	case r.URL.Path != "/v1/model/"+s.Model.Name || r.URL.Query().Has("stale"):
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Error{Code: api.CodeNotFound, Message: "model does not exist"})
	default:
		_ = json.NewEncoder(w).Encode(s)
	}
}

func start(t *testing.T, s api.ModelStatus) (*controller, observe.Controller) {
	t.Helper()
	c := &controller{}
	c.status.Store(&s)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	client, err := api.NewClient(api.Config{Addresses: []string{server.URL}})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return c, observe.NewController(client, nil)
}

func rep(variant, id, status, goal string) api.Replica {
	return api.Replica{Name: "llama:" + variant + ":" + id, Model: "llama", Variant: variant, ID: id, Status: status, Goal: goal}
}

// everything has a replica of each kind.
func everything() api.ModelStatus {
	failed := rep("a100", "8", "failed", "run")
	failed.LastError = "out of memory"
	busy := rep("a100", "1", "serving", "run")
	busy.Load = &api.Load{InFlight: 7, Busy: true}
	return api.ModelStatus{
		Model: api.Model{Name: "llama", Min: 1, Max: 9, Replicas: 6, Target: 6, TTFTP95: api.Duration(2 * time.Second), ITLP95: api.Duration(50 * time.Millisecond), Management: "full", ModifyIndex: 42, Desired: []api.Share{{Variant: "a100", Replicas: 6}},
			Variants: []api.Variant{{Name: "a100", GPUModel: "A100", Cost: 20, Slots: 16, Engine: "vllm"}, {Name: "l4", Cost: 5, Engine: "ollama"}}},
		VariantCounts: map[string]api.Counts{"a100": {Hot: 2, Warm: 3, Cold: 1, Starting: 3, Leaving: 2, Failed: 1}, "l4": {}},
		VariantStarts: map[string]api.Start{"a100": {Cold: api.Duration(90 * time.Second), Warm: api.Duration(time.Second)}},
		Unplaceable:   map[string]string{"l4": "no node has an L4"},
		Replicas: []api.Replica{
			busy, rep("a100", "2", "serving", "run"),
			rep("a100", "3", "placed", "run"), rep("a100", "4", "starting", "run"), rep("a100", "5", "waking", "run"),
			rep("a100", "6", "draining", "gone"), rep("a100", "7", "draining", "warm"), failed,
			rep("a100", "9", "sleeping", "warm"), rep("a100", "10", "warm", "warm"), rep("a100", "11", "cold", "cold"),
			rep("a100", "12", "stopping", "gone"),
		},
		Queue: &api.Queue{Model: "llama", State: "BUSY", Waiting: 4, WaitingTokens: 4000, InFlight: 7, OldestAt: time.Date(2026, 11, 22, 10, 0, 0, 0, time.FixedZone("CET", 3600)), CompletedPerSecond: 2.5, Gateways: 2,
			Counters: &api.Counters{Arrived: 900, Finished: 880, ServedSeconds: 1234.5, Refused: 12, Late: 15}},
	}
}

func TestWhatTheControllerKnows(t *testing.T) {
	_, source := start(t, everything())
	m, err := source.Model(t.Context(), "llama")
	require.NoError(t, err)
	require.Equal(t, uint64(42), m.ModifyIndex)
	require.Equal(t, []int{1, 9}, []int{m.Min, m.Max})
	require.Equal(t, "full", m.Management)
	require.Equal(t, []observe.Variant{
		{Variant: "a100", Cost: enginemetrics.Of(20), Accelerator: "A100", Dialect: "vllm", Slots: 16, Current: 6, Desired: 6, Hot: 2, Starting: 3, Failed: 1, Draining: 2, Warm: 3,
			ColdStart: 90 * time.Second},
		{Variant: "l4", Cost: enginemetrics.Of(5), Dialect: "ollama", Unplaceable: true, Why: "no node has an L4"},
	}, m.Variants)
	copies := map[string]observe.Phase{}
	for _, c := range m.Copies {
		copies[c.Replica] = c.Phase
		require.Equal(t, 16, c.Slots)
		want := enginemetrics.Of(0) // gateways report, and have nothing at it
		if c.Replica == "llama:a100:1" {
			want = enginemetrics.Of(7)
		}
		require.Equal(t, want, c.InFlight)
	}
	require.Equal(t, map[string]observe.Phase{
		"llama:a100:1": observe.Hot, "llama:a100:2": observe.Hot, "llama:a100:3": observe.Starting, "llama:a100:4": observe.Starting,
		"llama:a100:5": observe.Starting, "llama:a100:6": observe.Draining, "llama:a100:7": observe.Draining}, copies)
	require.WithinDuration(t, time.Now(), m.Queue.At, time.Minute)
	m.Queue.At = time.Time{}
	require.Equal(t, observe.Queue{Known: true, Source: observe.FromGateways, State: "BUSY", Waiting: 4, WaitingTokens: 4000, InFlight: 7,
		Oldest: time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC), Served: enginemetrics.Of(2.5), Gateways: 2,
		Arrived: enginemetrics.Of(900), Finished: enginemetrics.Of(880), ServedSeconds: enginemetrics.Of(1234.5), Refused: enginemetrics.Of(12), Late: enginemetrics.Of(15)}, m.Queue)
	require.Equal(t, observe.Goals{FirstToken: observe.Goal{Within: 2 * time.Second}, InterToken: observe.Goal{Within: 50 * time.Millisecond}}, m.Goals)
	require.Equal(t, []string{"variant a100: 1 of 6 replicas failed and wait for a retry: out of memory",
		"variant l4 cannot grow now: no node has an L4"}, m.Notes)
}

func TestOddModels(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.ModelStatus)
		check  func(*testing.T, observe.Managed)
	}{
		"no gateway reports": {func(s *api.ModelStatus) { s.Queue, s.Replicas[0].Load = nil, nil }, func(t *testing.T, m observe.Managed) {
			require.False(t, m.Queue.Known)
			require.True(t, m.Copies[0].InFlight.IsZero())
		}},
		"a leader that not every gateway has reported": {func(s *api.ModelStatus) { s.Queue.Incomplete = true }, func(t *testing.T, m observe.Managed) {
			require.False(t, m.Queue.Known)
			require.True(t, m.Queue.Partial)
			require.Equal(t, []int{4, 7}, []int{m.Queue.Waiting, m.Queue.InFlight}, "as many or more")
			require.True(t, m.Queue.Arrived.IsZero() && m.Queue.Refused.IsZero())
			require.True(t, m.Copies[0].InFlight.IsZero(), "neither 7 nor 0 is all")
			require.True(t, m.Copies[1].InFlight.IsZero())
			require.Contains(t, m.Notes[0], "not every gateway has reported")
		}},
		"a rollout": {func(s *api.ModelStatus) {
			s.Model.Rollouts = map[string]api.Rollout{"l4": {Status: "rolled_back", Version: 2}, "a100": {Status: "canary", Version: 3}}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, "version 3 of variant a100 (canary)", m.Rollout)
		}},
		"a rollout that is over": {func(s *api.ModelStatus) {
			s.Model.Rollouts = map[string]api.Rollout{"a100": {Status: "rolled_back", Version: 3}}
		}, func(t *testing.T, m observe.Managed) { require.Empty(t, m.Rollout) }},
		"pairs without a standby": {func(s *api.ModelStatus) {
			s.Replicas[0].Pair, s.Replicas[1].Pair = &api.Pair{Degraded: "it starts"}, &api.Pair{Degraded: "it failed"}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, "all 2 replicas that serve are failover pairs without a standby, as llama:a100:1: it starts", m.Degraded)
		}},
		"one pair has a standby": {func(s *api.ModelStatus) {
			s.Replicas[0].Pair, s.Replicas[1].Pair = &api.Pair{Degraded: "it starts"}, &api.Pair{}
		}, func(t *testing.T, m observe.Managed) { require.Empty(t, m.Degraded) }},
		"one is not a pair": {func(s *api.ModelStatus) { s.Replicas[0].Pair = &api.Pair{Degraded: "it starts"} },
			func(t *testing.T, m observe.Managed) { require.Empty(t, m.Degraded) }},
		"no goal for the first token: nothing is late": {func(s *api.ModelStatus) { s.Model.TTFTP95 = 0 }, func(t *testing.T, m observe.Managed) {
			require.True(t, m.Queue.Late.IsZero() && !m.Queue.Refused.IsZero())
		}},
		"gateways that do not count": {func(s *api.ModelStatus) { s.Queue.Counters = nil }, func(t *testing.T, m observe.Managed) {
			require.True(t, m.Queue.Known)
			require.True(t, m.Queue.Arrived.IsZero() && m.Queue.Finished.IsZero() && m.Queue.ServedSeconds.IsZero() && m.Queue.Refused.IsZero())
		}},
		"ordered and not placed yet": {func(s *api.ModelStatus) {
			s.Model.Target, s.Model.Desired = 9, []api.Share{{Replicas: 1}, {Variant: "a100", Replicas: 8}}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{8, 2, 5, 1}, []int{m.Variants[0].Current, m.Variants[0].Hot, m.Variants[0].Starting, m.Variants[0].Failed})
			require.Zero(t, m.Variants[1].Current, "l4 has no place")
		}},
		"ordered to go and not drained yet": {func(s *api.ModelStatus) {
			s.Model.Target, s.Model.Desired = 1, []api.Share{{Variant: "a100", Replicas: 1}}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{1, 1, 0, 0, 7}, []int{m.Variants[0].Current, m.Variants[0].Hot, m.Variants[0].Starting, m.Variants[0].Failed, m.Variants[0].Draining})
		}},
		"stopped": {func(s *api.ModelStatus) { s.Model.Stopped, s.Model.Target = true, 0 }, func(t *testing.T, m observe.Managed) {
			require.True(t, m.Stopped)
			require.Zero(t, m.Variants[0].Desired)
		}},
		"one variant": {func(s *api.ModelStatus) {
			s.Model.Variants, s.Model.Desired = s.Model.Variants[:1], []api.Share{{Replicas: 6}}
		}, func(t *testing.T, m observe.Managed) {
			require.Len(t, m.Variants, 1)
			require.Equal(t, 6, m.Variants[0].Desired)
		}},
		"switches and the dedicated set": {func(s *api.ModelStatus) {
			most := 4
			s.Limits = api.Limits{Dedicated: 2, CapMaxReplicas: &most}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{2, 4}, []int{m.Min, m.Max})
		}},
		"a cap below the minimum": {func(s *api.ModelStatus) {
			most := 0
			s.Limits = api.Limits{CapMaxReplicas: &most, KeepLastReplica: true}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{0, 0}, []int{m.Min, m.Max})
		}},
		"replicas in an external pool stay": {func(s *api.ModelStatus) {
			s.Model.Min, s.Model.Desired = 0, []api.Share{{Variant: "a100", Replicas: 4}, {Pool: "oke", Variant: "a100", Replicas: 2}}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{2, 2, 0}, []int{m.Min, m.Variants[0].Min, m.Variants[1].Min})
		}},
		"those that were displaced do not": {func(s *api.ModelStatus) {
			s.Model.Min, s.Model.Target, s.Model.Desired = 0, 1, []api.Share{{Variant: "a100"}, {Pool: "oke", Variant: "a100", Replicas: 2}}
			s.Model.Displaced.UntilAsked = []api.Share{{Pool: "oke", Variant: "a100", Replicas: 1}}
		}, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{1, 1}, []int{m.Min, m.Variants[0].Min})
		}},
		"switches that hold the autoscaler": {func(s *api.ModelStatus) {
			s.Limits.ScalingDisabled, s.Limits.ScaleToZeroDelay = true, api.Duration(time.Hour)
		}, func(t *testing.T, m observe.Managed) {
			require.True(t, m.ScalingDisabled)
			require.Equal(t, time.Hour, m.ScaleToZeroDelay)
		}},
		"the last replica stays": {func(s *api.ModelStatus) { s.Model.Min, s.Limits.KeepLastReplica = 0, true }, func(t *testing.T, m observe.Managed) {
			require.Equal(t, []int{1, 9}, []int{m.Min, m.Max})
		}},
		"a variant that is no more": {func(s *api.ModelStatus) {
			s.VariantCounts["old"] = api.Counts{Hot: 1}
			s.VariantCounts["older"] = api.Counts{Leaving: 1}
			s.Model.Target = 7
		}, func(t *testing.T, m observe.Managed) {
			require.Len(t, m.Variants, 3)
			require.Equal(t, "old", m.Variants[2].Variant)
			require.True(t, m.Variants[2].Unplaceable)
			require.Equal(t, []bool{false, false, true}, []bool{m.Variants[0].Removed, m.Variants[1].Removed, m.Variants[2].Removed})
			require.Equal(t, 1, m.Variants[2].Current)
		}},
		"all of a variant failed": {func(s *api.ModelStatus) { s.VariantCounts["a100"] = api.Counts{Failed: 2} }, func(t *testing.T, m observe.Managed) {
			require.True(t, m.Variants[0].Unplaceable)
			require.Contains(t, m.Variants[0].Why, "out of memory")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			status := everything()
			c.change(&status)
			_, source := start(t, status)
			m, err := source.Model(t.Context(), "llama")
			require.NoError(t, err)
			c.check(t, m)
		})
	}
}

func TestAModelThatIsNotThere(t *testing.T) {
	_, source := start(t, everything())
	_, err := source.Model(t.Context(), "mistral")
	require.ErrorIs(t, err, observe.ErrUnknownModel)
	require.ErrorContains(t, err, `"mistral"`)
}

func TestAControllerThatIsAwayAndComesBack(t *testing.T) {
	c, source := start(t, everything())
	c.refuse.Store(http.StatusServiceUnavailable)
	_, err := source.Model(t.Context(), "llama")
	require.ErrorContains(t, err, "no leader")
	require.NotErrorIs(t, err, observe.ErrUnknownModel)
	c.refuse.Store(0)
	_, err = source.Model(t.Context(), "llama")
	require.NoError(t, err)
}
