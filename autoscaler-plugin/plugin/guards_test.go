package plugin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
)

// Each guard with a decision that it makes or limits, and one beside it that it leaves alone.
func TestGuards(t *testing.T) {
	type targets = map[string]int
	seen := map[string]bool{}
	for _, c := range []struct {
		guard   string
		call    plugin.Call
		applies func(*plugin.Call)
		want    targets // where it applies
		reason  string
		without targets // where it does not
	}{
		{"forbidden", capacityCall(model(1, 1, 0.79)), func(c *plugin.Call) { c.Snapshot.Stopped = true },
			targets{"h100": 1, "l4": 1}, "the model is stopped", targets{"h100": 1, "l4": 2}},
		{"observed", capacityCall(idle(model(0, 1, 0))), func(c *plugin.Call) {
			c.Options.ScaleToZero, c.State.IdleFor, c.State.Arrived, c.Snapshot.Queue.Arrived = true, time.Hour, enginemetrics.Of(1), enginemetrics.Of(2)
		}, targets{"h100": 0, "l4": 1}, "no change", targets{"h100": 0, "l4": 1}},
		{"contradictory bounds", capacityCall(model(1, 1, 0.79)), func(c *plugin.Call) { c.Snapshot.Min, c.Snapshot.Max = 3, 2 },
			targets{"h100": 1, "l4": 1}, "min must be at most max", targets{"h100": 1, "l4": 2}},
		{"no replica", capacityCall(waiting(model(0, 0, 0))), func(c *plugin.Call) { c.Snapshot.Max = 0 },
			targets{"h100": 0, "l4": 0}, "the model's max is 0", targets{"h100": 0, "l4": 1}},
		{"wake", capacityCall(idle(model(0, 0, 0))), func(c *plugin.Call) { c.Snapshot = waiting(c.Snapshot) },
			targets{"h100": 0, "l4": 1}, "starting the first replica", targets{"h100": 0, "l4": 0}},
		{"sleep", capacityCall(idle(model(0, 1, 0))), func(c *plugin.Call) { c.Options.ScaleToZero, c.State.IdleFor = true, time.Hour },
			targets{"h100": 0, "l4": 0}, "scaling to zero", targets{"h100": 0, "l4": 1}},
		{"bounds", capacityCall(model(1, 1, 0.3)), func(c *plugin.Call) { c.Snapshot.Min = 5 },
			targets{"h100": 1, "l4": 4}, "outside the model's bounds 5 to 10", targets{"h100": 1, "l4": 0}},
		{"goals", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) {
			c.Snapshot.Goals = observe.Goals{Settled: 4, FirstToken: observe.Goal{Within: time.Second, P95: enginemetrics.Of(1.25)}}
			c.Snapshot.Queue.InFlight = 8
		}, targets{"h100": 2, "l4": 3}, "5 replicas for the model's goals: 95 of 100 first tokens took up to 1.25s: the goal is 1s; otherwise: h100 from 2 to 1", targets{"h100": 1, "l4": 2}},
		{"hold", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.Options.Capacity.Hold = time.Minute },
			targets{"h100": 2, "l4": 2}, "fewer replicas were enough for only 0s", targets{"h100": 1, "l4": 2}},
		{"window", hpaCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.State.WatchedFor = 0 },
			targets{"h100": 2, "l4": 2}, "", targets{"h100": 0, "l4": 1}},
		{"partial data", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.Snapshot.Queue.Known, c.Snapshot.Queue.Partial = false, true },
			targets{"h100": 2, "l4": 2}, "until every gateway has reported", targets{"h100": 1, "l4": 2}},
		{"rollout", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.Snapshot.Rollout = "version 7 of variant h100 (rolling)" },
			targets{"h100": 2, "l4": 2}, "no scale-down until the rollout of version 7 of variant h100 (rolling) is over; otherwise: h100 from 2 to 1", targets{"h100": 1, "l4": 2}},
		{"degraded pairs", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.Snapshot.Degraded = "all 4 replicas that serve are …" },
			targets{"h100": 2, "l4": 2}, "no scale-down because all 4 replicas that serve are …; otherwise: h100 from 2 to 1", targets{"h100": 1, "l4": 2}},
		{"upscaling only", capacityCall(model(2, 2, 0.1)), func(c *plugin.Call) { c.Snapshot.Management = "upscaling" },
			targets{"h100": 2, "l4": 2}, "so h100 is not reduced", targets{"h100": 1, "l4": 2}},
		{"exchange", capacityCall(model(1, 1, 0.05)), func(c *plugin.Call) { c.Snapshot.Variants[1].Desired = 2 },
			targets{"h100": 1, "l4": 2}, "", targets{"h100": 1, "l4": 0}},
	} {
		t.Run(c.guard, func(t *testing.T) {
			seen[c.guard] = true
			if c.guard == "window" {
				c.call.State.WatchedFor, c.call.State.WatchedAt = time.Hour, c.call.Now
				d := c.call
				_, c.call.State = d.Decide() // its windows begin with what there is
				c.call.State.HPA.Recommendations = nil
				c.call.Snapshot.Queue = observe.Queue{Known: true, Source: observe.FromGateways, InFlight: 1}
			}
			a, _ := c.call.Decide()
			require.Equal(t, c.without, a.Targets, "without it: %s", a.Reason)
			c.applies(&c.call)
			a, _ = c.call.Decide()
			require.Equal(t, c.want, a.Targets, a.Reason)
			require.Contains(t, a.Reason, c.reason)
		})
	}
	for _, name := range plugin.Guards() {
		require.True(t, seen[name], "the guard %q has no case", name)
	}
	require.Len(t, seen, len(plugin.Guards()))
}

// waiting is a model that has a request.
func waiting(s observe.Snapshot) observe.Snapshot {
	s.Queue = observe.Queue{Known: true, Source: observe.FromGateways, Waiting: 1}
	return s
}
