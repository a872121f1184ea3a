package plugin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/autoscaler-plugin/utilization"
)

// backlogCall is remuda-hpa in Replicate's form, one request for each replica.
func backlogCall(s observe.Snapshot, change func(*hpa.Backlog)) plugin.Call {
	b := hpa.DefaultBacklog()
	b.Target, b.Max = 1000, hpa.MaxCount
	if change != nil {
		change(&b)
	}
	c := hpaCall(s)
	c.Options.HPA.Backlog = &b
	return c
}

// TestThePolicysOwnBoundsAndSwitches hold on every way to a count: by the rules, by being
// idle and by being woken.
func TestThePolicysOwnBoundsAndSwitches(t *testing.T) {
	capped := func(n int) func(*hpa.Backlog) { return func(b *hpa.Backlog) { b.Cap = &n } }
	atLeast := func(n int) func(*hpa.Backlog) { return func(b *hpa.Backlog) { b.MinOverride = &n } }
	uses := func(s observe.Snapshot, change func(*utilization.Config)) plugin.Call {
		c := utilizationCall(s)
		change(&c.Options.Utilization.Config)
		return c
	}
	disabled := hpaCall(model(0, 3, 0.5))
	disabled.Options.HPA.Behavior.ScaleDown.SelectPolicy = hpa.SelectDisabled
	for _, c := range []struct {
		name     string
		call     plugin.Call
		min, max int
		waiting  int
		idle     bool // for twenty minutes
		want     int
	}{
		{name: "emergency cap of 1", call: backlogCall(model(0, 5, 0.5), capped(1)), waiting: 50, want: 1},
		{name: "emergency cap of 0", call: backlogCall(model(0, 5, 0.5), capped(0)), waiting: 50, want: 0},
		{name: "emergency cap of 0, asleep", call: backlogCall(model(0, 0, 0), capped(0)), waiting: 3, want: 0},
		{name: "emergency cap below the model's min", call: backlogCall(model(0, 5, 0.5), capped(1)), min: 3, waiting: 50, want: 3},
		{name: "min override keeps an idle model", call: backlogCall(model(0, 4, 0.5), atLeast(2)), idle: true, want: 2},
		{name: "min override wakes", call: backlogCall(model(0, 0, 0), atLeast(2)), idle: true, want: 2},
		{name: "min override, one too few", call: backlogCall(model(0, 1, 0.5), atLeast(3)), waiting: 1, want: 3},
		{name: "from 0 to the slow start at once", call: backlogCall(model(0, 0, 0), nil), waiting: 40, want: 5},
		{name: "from 0 to what is needed", call: backlogCall(model(0, 0, 0), nil), waiting: 3, want: 3},
		{name: "scale-down disabled", call: disabled, idle: true, want: 3},
		{name: "disable_scaling, idle", call: uses(model(0, 3, 0.5), func(c *utilization.Config) { c.DisableScaling = true }), idle: true, want: 3},
		{name: "disable_scaling, asleep", call: uses(model(0, 0, 0), func(c *utilization.Config) { c.DisableScaling = true }), waiting: 1, want: 0},
		{name: "scaling_config.disabled, above max", call: uses(model(0, 3, 0.5), func(c *utilization.Config) { c.Scaling.Disabled = true }), max: 2, waiting: 1, want: 3},
		{name: "manual, above max", call: uses(model(0, 3, 0.5), func(c *utilization.Config) { c.Management = utilization.Manual }), max: 2, waiting: 1, want: 3},
		{name: "upscaling, idle", call: uses(model(0, 3, 0.5), func(c *utilization.Config) { c.Management = utilization.Upscaling }), idle: true, want: 3},
		{name: "min_count, idle", call: uses(model(0, 9, 0.5), func(c *utilization.Config) { c.MinCount = 4 }), idle: true, want: 4},
		{name: "min_count wakes", call: uses(model(0, 0, 0), func(c *utilization.Config) { c.MinCount = 4 }), idle: true, want: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := c.call
			call.Options.ScaleToZero = true
			if call.Snapshot.Min = c.min; c.max > 0 {
				call.Snapshot.Max = c.max
			}
			call.Snapshot.Queue = observe.Queue{Known: true, Waiting: c.waiting}
			if c.idle {
				call.Snapshot = idle(call.Snapshot)
				call.State.IdleFor = 20 * time.Minute
				call.State.HPA = nil
				call.Usage = call.Snapshot.Utilization().InferenceSecondsPerMinute
			}
			a, _ := call.Decide()
			if c.idle && c.call.Options.HPA != nil && c.call.Options.HPA.Backlog != nil {
				a = day(call, 12) // its window of two minutes
			}
			require.Equal(t, c.want, a.Count, a.Reason)
		})
	}
}
