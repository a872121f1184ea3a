package plugin_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/plugin"
	"remuda/autoscaler-plugin/utilization"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// model has two variants, l4 the cheaper one, with so many replicas of each that serve and
// report that much KV usage.
func model(h100, l4 int, kv float64) observe.Snapshot {
	s := observe.Snapshot{
		Model: "m", At: noon, Controlled: true, ModifyIndex: 7, Min: 0, Max: 10, Management: "full",
		Variants: []observe.Variant{
			{Variant: "h100", Cost: enginemetrics.Of(8), Slots: 4, Current: h100, Hot: h100},
			{Variant: "l4", Cost: enginemetrics.Of(1), Slots: 4, Current: l4, Hot: l4},
		},
		Queue: observe.Queue{Known: true, Source: observe.FromGateways, InFlight: 1},
	}
	add := func(variant string, n int) {
		for i := range n {
			s.Engines = append(s.Engines, observe.Engine{Replica: "m:" + variant + ":" + string(rune('a'+i)), Variant: variant, Slots: 4, Class: enginemetrics.ClassOK,
				KV: enginemetrics.Of(kv), Waiting: enginemetrics.Of(0), Running: enginemetrics.Of(1), WaitingNow: enginemetrics.Of(0), RunningNow: enginemetrics.Of(1)})
		}
	}
	add("h100", h100)
	add("l4", l4)
	s.Census.OK = h100 + l4
	return s
}

// idle is a model without requests.
func idle(s observe.Snapshot) observe.Snapshot {
	s.Queue = observe.Queue{Known: true, Source: observe.FromGateways}
	for i := range s.Engines {
		s.Engines[i].Running, s.Engines[i].RunningNow = enginemetrics.Of(0), enginemetrics.Of(0)
	}
	return s
}

func capacityCall(s observe.Snapshot) plugin.Call {
	return plugin.Call{Strategy: plugin.Capacity, Now: noon.UnixNano(), Snapshot: s, Options: plugin.Options{Model: "m", IdleAfter: time.Minute,
		Capacity: &plugin.CapacityOptions{Rules: "safe", Config: capacity.DefaultConfig()}}}
}

func hpaCall(s observe.Snapshot) plugin.Call {
	b := hpa.DefaultBehavior()
	b.FromZero = true
	return plugin.Call{Strategy: plugin.HPA, Now: noon.UnixNano(), Snapshot: s, Options: plugin.Options{Model: "m", IdleAfter: time.Minute,
		HPA: &plugin.HPAOptions{Metric: observe.MetricQueue, Target: 2000, Tolerance: hpa.DefaultTolerance(), Behavior: b}}}
}

func utilizationCall(s observe.Snapshot) plugin.Call {
	c := utilization.DefaultConfig()
	c.MinCount, c.MaxCount, c.Scaling.EZ.Active = 0, hpa.MaxCount, true
	return plugin.Call{Strategy: plugin.Utilization, Now: noon.UnixNano(), Snapshot: s, Usage: enginemetrics.Of(60),
		State: plugin.State{WatchedFor: time.Minute, WatchedAt: noon.UnixNano()}, Options: plugin.Options{Model: "m", IdleAfter: time.Minute,
			Utilization: &plugin.UtilizationOptions{Config: c, Window: time.Minute}}}
}

func TestCapacity(t *testing.T) {
	for _, c := range []struct {
		name      string
		snapshot  observe.Snapshot
		edit      func(*plugin.Call)
		direction string
		targets   map[string]int
		inert     bool
	}{
		{name: "short: the cheapest variant grows", snapshot: model(1, 1, 0.75), direction: "up", targets: map[string]int{"h100": 1, "l4": 2}},
		{name: "no place for the cheapest: the next one grows", snapshot: model(1, 1, 0.75), edit: func(c *plugin.Call) {
			c.Snapshot.Variants[1].Unplaceable, c.Snapshot.Variants[1].Why = true, "no L4 is free"
		}, direction: "up", targets: map[string]int{"h100": 2, "l4": 1}},
		{name: "too many: the most expensive shrinks", snapshot: model(2, 2, 0.1), direction: "down", targets: map[string]int{"h100": 1, "l4": 2}},
		{name: "at the model's max nothing grows", snapshot: model(5, 5, 0.75), direction: "none", targets: map[string]int{"h100": 5, "l4": 5}},
		{name: "the last replica stays while it has requests", snapshot: model(0, 1, 0.01), direction: "none", targets: map[string]int{"h100": 0, "l4": 1}},
		{name: "below the model's min", snapshot: model(0, 1, 0.3), edit: func(c *plugin.Call) { c.Snapshot.Min = 3 }, direction: "up", targets: map[string]int{"h100": 0, "l4": 3}},
		{name: "above the model's max", snapshot: model(1, 4, 0.6), edit: func(c *plugin.Call) { c.Snapshot.Max = 3 }, direction: "down", targets: map[string]int{"h100": 0, "l4": 3}},
		{name: "min above max", snapshot: model(1, 1, 0.75), edit: func(c *plugin.Call) { c.Snapshot.Min, c.Snapshot.Max = 5, 2 }, direction: "none", targets: map[string]int{"h100": 1, "l4": 1}},
		{name: "unknown replicas: nothing is removed", snapshot: model(2, 2, 0.1), edit: func(c *plugin.Call) { c.Snapshot.Engines[0].Class = enginemetrics.ClassStale },
			direction: "none", targets: map[string]int{"h100": 2, "l4": 2}},
		{name: "all unknown: inert", snapshot: model(1, 1, 0.99), edit: func(c *plugin.Call) {
			for i := range c.Snapshot.Engines {
				c.Snapshot.Engines[i].Class = enginemetrics.ClassUnknown
			}
			c.Snapshot.Census = enginemetrics.Census{Unknown: 2, Inert: true, Why: "no matching series of any of 2 replicas"}
		}, direction: "none", targets: map[string]int{"h100": 1, "l4": 1}, inert: true},
		{name: "the controller is away", snapshot: model(1, 1, 0.99), edit: func(c *plugin.Call) { c.Snapshot.Away = []string{observe.AwayController} },
			direction: "none", targets: map[string]int{"h100": 1, "l4": 1}},
		{name: "the first request wakes it on the cheapest", snapshot: model(0, 0, 0), edit: func(c *plugin.Call) {
			c.Snapshot.Queue = observe.Queue{Known: true, Waiting: 3}
		}, direction: "up", targets: map[string]int{"h100": 0, "l4": 1}},
		{name: "a model that may have no replica sleeps on", snapshot: model(0, 0, 0), edit: func(c *plugin.Call) {
			c.Snapshot.Max, c.Snapshot.Queue = 0, observe.Queue{Known: true, Waiting: 3}
		}, direction: "none", targets: map[string]int{"h100": 0, "l4": 0}},
		{name: "it sleeps on", snapshot: model(0, 0, 0), edit: func(c *plugin.Call) { c.Snapshot.Queue = observe.Queue{Known: true} },
			direction: "none", targets: map[string]int{"h100": 0, "l4": 0}},
		{name: "woken, and there is no place", snapshot: model(0, 0, 0), edit: func(c *plugin.Call) {
			c.Snapshot.Queue = observe.Queue{Known: true, Waiting: 3}
			c.Snapshot.Variants[0].Unplaceable, c.Snapshot.Variants[1].Unplaceable = true, true
		}, direction: "none", targets: map[string]int{"h100": 0, "l4": 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := capacityCall(c.snapshot)
			if c.edit != nil {
				c.edit(&call)
			}
			a, _ := call.Decide()
			require.Equal(t, c.direction, a.Direction, a.Reason)
			require.Equal(t, c.targets, a.Targets, a.Reason)
			require.Equal(t, c.inert, a.Inert != "")
			require.NotEmpty(t, a.Reason)
		})
	}
}

// day lets a model without requests go on in steps of 30 s and returns the last answer.
func day(call plugin.Call, steps int) plugin.Answer {
	var a plugin.Answer
	for range steps {
		a, call.State = call.Decide()
		call.Now += int64(30 * time.Second)
	}
	return a
}

func TestIdleModelsSleepAfterTheirDelay(t *testing.T) {
	for name, of := range map[string]func(observe.Snapshot) plugin.Call{"capacity": capacityCall, "hpa": hpaCall, "utilization": utilizationCall, "predictive": predictiveCall} {
		t.Run(name, func(t *testing.T) {
			call := of(idle(model(0, 1, 0)))
			call.Options.ScaleToZero = true
			a := day(call, 2) // 30 s
			require.Equal(t, 1, a.Count, a.Reason)
			a = day(call, 3) // 60 s
			require.Equal(t, plugin.Down, a.Direction, a.Reason)
			require.Equal(t, map[string]int{"h100": 0, "l4": 0}, a.Targets)

			call.Options.ScaleToZero = false
			require.Equal(t, 1, day(call, 9).Count, "not where that is switched off")
			call.Options.ScaleToZero = true
			call.Snapshot.Min = 1
			require.Equal(t, 1, day(call, 9).Count, "nor below the model's min")
			call.Snapshot.Min = 0
			engine := &call.Snapshot.Engines[0]
			engine.RunningNow = enginemetrics.Of(1)
			require.Equal(t, 1, day(call, 9).Count, "nor while an engine works for somebody whom no gateway knows")
			engine.Class = enginemetrics.ClassStale
			require.Zero(t, day(call, 9).Count, "what it did before it was lost says nothing of now")
			call.Snapshot.Queue.Known = false
			require.Equal(t, 1, day(call, 9).Count, "nor where nobody knows")
		})
	}
}

// TestASleepingModelIsNotIdle: an operator who starts a model that has slept for long has it
// for the whole delay.
func TestASleepingModelIsNotIdle(t *testing.T) {
	backlog := func(s observe.Snapshot) plugin.Call {
		return backlogCall(s, func(b *hpa.Backlog) { b.ScaleToZero, b.IdleSeconds = true, 60 })
	}
	for name, of := range map[string]func(observe.Snapshot) plugin.Call{
		"capacity": capacityCall, "hpa": hpaCall, "utilization": utilizationCall, "predictive": predictiveCall, "backlog": backlog,
	} {
		t.Run(name, func(t *testing.T) {
			call := of(idle(model(0, 0, 0)))
			call.Options.ScaleToZero = true
			for range 20 {
				call.Now += int64(30 * time.Second)
				var a plugin.Answer
				a, call.State = call.Decide()
				require.Zero(t, a.Count, a.Reason)
			}
			call.Snapshot = idle(model(0, 1, 0))
			a := day(call, 2) // 30 s
			require.Equal(t, 1, a.Count, a.Reason)
			require.Zero(t, day(call, 9).Count)
		})
	}
}

// TestRequestsThatEndedLately: the rate of requests that ended stays above 0 for a while. It makes no
// difference where gateways count the requests that arrive.
func TestRequestsThatEndedLately(t *testing.T) {
	for _, counted := range []bool{true, false} {
		call := capacityCall(idle(model(0, 1, 0)))
		call.Options.ScaleToZero = true
		call.Snapshot.Queue.Served = enginemetrics.Of(0.5)
		if counted {
			call.Snapshot.Queue.Arrived = enginemetrics.Of(7)
		}
		require.Equal(t, counted, day(call, 4).Count == 0, "after two minutes of an idle delay of one")
	}
}

func TestAClockThatJumpsMakesNoIdleTime(t *testing.T) {
	call := capacityCall(idle(model(0, 1, 0)))
	call.Options.ScaleToZero, call.Options.IdleAfter = true, 5*time.Minute
	for _, jump := range []time.Duration{0, 24 * time.Hour, -48 * time.Hour, time.Hour} {
		call.Now += int64(jump)
		var a plugin.Answer
		a, call.State = call.Decide()
		require.Equal(t, 1, a.Count, a.Reason)
	}
	require.LessOrEqual(t, call.State.IdleFor, 2*time.Minute)
}

// Time in which nobody looks at the load is no idle time: the model must not be scaled, or
// requests came and went between two decisions.
func TestIdleTimeThatNobodyWatched(t *testing.T) {
	for name, c := range map[string]struct {
		hold func(*observe.Snapshot) // for ten minutes
		then func(*observe.Snapshot) // at the first quiet look
	}{
		"the controller is away":            {hold: func(s *observe.Snapshot) { s.Away = []string{observe.AwayController} }},
		"the model is managed by people":    {hold: func(s *observe.Snapshot) { s.Management = "manual" }},
		"the model is stopped":              {hold: func(s *observe.Snapshot) { s.Stopped = true }},
		"a request between two decisions":   {then: func(s *observe.Snapshot) { s.Queue.Arrived = enginemetrics.Of(8) }},
		"gateways whose counter began anew": {then: func(s *observe.Snapshot) { s.Queue.Arrived = enginemetrics.Of(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			call := capacityCall(idle(model(0, 1, 0)))
			call.Options.ScaleToZero, call.Options.IdleAfter = true, 5*time.Minute
			call.Snapshot.Queue.Arrived = enginemetrics.Of(7)
			require.Equal(t, plugin.None, day(call, 10).Direction)
			decide := func(after time.Duration, edit func(*observe.Snapshot)) plugin.Answer {
				d := call
				d.Snapshot.Variants = slices.Clone(call.Snapshot.Variants)
				if edit != nil {
					edit(&d.Snapshot)
				}
				var a plugin.Answer
				a, call.State = d.Decide()
				call.Now += int64(after)
				return a
			}
			for range 10 { // 4 m 30 s of idle time
				decide(30*time.Second, nil)
			}
			if c.hold != nil {
				for range 20 {
					require.Equal(t, plugin.None, decide(30*time.Second, c.hold).Direction)
				}
			}
			a := decide(30*time.Second, c.then)
			require.Equal(t, plugin.None, a.Direction, a.Reason)
			for range 9 {
				a = decide(30*time.Second, c.then)
				require.Equal(t, plugin.None, a.Direction, a.Reason)
			}
			a = decide(30*time.Second, c.then)
			require.Equal(t, plugin.Down, a.Direction, "five minutes of its own: %s", a.Reason)
		})
	}
}

// All strategies choose one variant: that of the cheapest slot.
func TestTheCheapestSlotGrows(t *testing.T) {
	for name, call := range map[string]plugin.Call{
		plugin.Capacity: capacityCall(model(1, 1, 0.79)), plugin.HPA: hpaCall(model(1, 1, 0.5)), plugin.Utilization: utilizationCall(model(1, 1, 0.5)),
		plugin.Predictive: predictiveCall(model(1, 1, 0.5)),
	} {
		t.Run(name, func(t *testing.T) {
			s := &call.Snapshot
			s.Variants[0].Cost, s.Variants[0].Slots = enginemetrics.Of(2), 16 // 0.125 for a slot
			s.Variants[1].Cost, s.Variants[1].Slots = enginemetrics.Of(1), 4  // 0.25
			s.Queue.Waiting, s.Queue.InFlight = 40, 20
			call.Usage = enginemetrics.Of(60 * 60)
			a, _ := call.Decide()
			require.Equal(t, plugin.Up, a.Direction, a.Reason)
			require.Equal(t, 1, a.Targets["l4"], "%v: %s", a.Targets, a.Reason)
		})
	}
}

// What the policy's max kept from being done uses up no budget of the HPA's policies.
func TestThePartThatWasDoneUsesUpTheBudget(t *testing.T) {
	call := hpaCall(model(0, 4, 0.5))
	call.Options.HPA.Behavior.ScaleUp.Policies = []hpa.Policy{{Type: hpa.Pods, Value: 4, PeriodSeconds: 600}}
	call.Snapshot.Queue.Waiting = 100
	a, state := call.Decide()
	require.Equal(t, 8, a.Count, a.Reason)
	for _, c := range []struct{ current, want int }{
		{4, 8},   // nothing of it was done
		{5, 8},   // one of four
		{8, 8},   // all
		{10, 10}, // and two more by others
		{2, 6},   // others removed two
	} {
		next := hpaCall(model(0, c.current, 0.5))
		next.Options, next.State, next.Now = call.Options, state, call.Now+int64(10*time.Second)
		next.Snapshot.Queue.Waiting = 100
		a, _ := next.Decide()
		require.Equal(t, c.want, a.Count, "%d: %s", c.current, a.Reason)
	}
}

func TestHPA(t *testing.T) {
	call := hpaCall(model(0, 2, 0.5))
	call.Snapshot.Queue.Waiting = 8
	a, state := call.Decide()
	require.Equal(t, map[string]int{"h100": 0, "l4": 4}, a.Targets, a.Reason)
	require.Equal(t, 2, state.HPA.Change)

	t.Run("an answer that was not carried out uses up no budget", func(t *testing.T) {
		again := call
		again.State, again.Now = state, call.Now+int64(10*time.Second)
		a, s := again.Decide()
		require.Equal(t, 4, a.Count)
		require.Equal(t, []hpa.Event{{Change: 2}}, s.HPA.Events, "the first one is taken back")
	})
	t.Run("it falls after its window", func(t *testing.T) {
		c := hpaCall(model(0, 4, 0.5))
		c.Snapshot.Queue.Waiting = 2
		require.Equal(t, 4, day(c, 9).Count, "4 min: the first count is a recommendation")
		require.Equal(t, 1, day(c, 12).Count)
	})
	t.Run("an unknown queue holds", func(t *testing.T) {
		c := hpaCall(model(0, 4, 0.5))
		c.Snapshot.Queue = observe.Queue{}
		a, _ := c.Decide()
		require.Equal(t, plugin.None, a.Direction)
		require.NotEmpty(t, a.Inert)
	})
	t.Run("KV usage of each replica", func(t *testing.T) {
		c := hpaCall(model(0, 2, 0.9))
		c.Options.HPA.Metric, c.Options.HPA.Target = observe.MetricKV, 600
		a, _ := c.Decide()
		require.Equal(t, 3, a.Count, a.Reason)
	})
	t.Run("Replicate's form", func(t *testing.T) {
		b := hpa.DefaultBacklog()
		b.Target, b.Max = 2000, hpa.MaxCount
		b.Behavior.ScaleUp.StabilizationWindowSeconds = 0
		c := hpaCall(model(0, 2, 0.5))
		c.Options.HPA.Backlog = &b
		c.Snapshot.Queue.Waiting = 30
		a, _ := c.Decide()
		require.Equal(t, 7, a.Count, "5 more a minute: "+a.Reason)
	})
	t.Run("the model's max", func(t *testing.T) {
		c := hpaCall(model(0, 8, 0.5))
		c.Snapshot.Queue.Waiting = 100
		a, _ := c.Decide()
		require.Equal(t, 10, a.Count, a.Reason)
	})
}

func TestUtilization(t *testing.T) {
	for _, c := range []struct {
		name  string
		usage enginemetrics.Value // inference seconds per minute
		week  enginemetrics.Value
		count int
		inert bool
	}{
		{name: "within its band", usage: enginemetrics.Of(60 * 4 * 2 * 0.5), count: 2},
		{name: "above: up to where it is within", usage: enginemetrics.Of(60 * 4 * 3.1), count: 4},
		{name: "below: down", usage: enginemetrics.Of(60 * 0.5), count: 1},
		{name: "as it was last week", usage: enginemetrics.Of(60), week: enginemetrics.Of(60 * 4 * 3.1), count: 4},
		{name: "not known", count: 2, inert: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := utilizationCall(model(0, 2, 0.5))
			call.Usage, call.Forecast = c.usage, c.week
			a, _ := call.Decide()
			require.Equal(t, c.count, a.Count, a.Reason)
			require.Equal(t, c.inert, a.Inert != "")
		})
	}
}

func TestAnExchangeComesInTwoSteps(t *testing.T) {
	call := capacityCall(model(1, 1, 0.05))
	call.Snapshot.Variants[1].Desired = 2 // and the load fits without the h100
	a, _ := call.Decide()
	require.Equal(t, plugin.Up, a.Direction, "nomad-autoscaler goes by the sum: %s", a.Reason)
	require.Equal(t, map[string]int{"h100": 1, "l4": 2}, a.Targets)
}

// Whatever is observed: an answer is within the bounds or what there is, never moves on
// nothing, and is the same again from its JSON.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := model(rapid.IntRange(0, 4).Draw(t, "h100"), rapid.IntRange(0, 4).Draw(t, "l4"), rapid.Float64Range(0, 1).Draw(t, "kv"))
		s.Min, s.Max = rapid.IntRange(0, 3).Draw(t, "min"), rapid.IntRange(0, 9).Draw(t, "max")
		s.Queue.Waiting = rapid.IntRange(0, 40).Draw(t, "waiting")
		s.Queue.Known = rapid.Bool().Draw(t, "known")
		for i := range s.Variants {
			s.Variants[i].Unplaceable = rapid.Bool().Draw(t, "unplaceable")
		}
		for i := range s.Engines {
			s.Engines[i].Class = rapid.SampledFrom([]enginemetrics.Class{enginemetrics.ClassOK, enginemetrics.ClassOK, enginemetrics.ClassStale, enginemetrics.ClassUnknown}).Draw(t, "class")
		}
		call := rapid.SampledFrom([]func(observe.Snapshot) plugin.Call{capacityCall, hpaCall, utilizationCall, predictiveCall}).Draw(t, "strategy")(s)
		call.Options.ScaleToZero = rapid.Bool().Draw(t, "scale to zero")
		call.Options.UnplaceableHold = time.Duration(rapid.IntRange(0, 2).Draw(t, "hold")) * time.Minute
		call.Snapshot.Queue.Partial = !call.Snapshot.Queue.Known && rapid.Bool().Draw(t, "partial")
		call.State.IdleFor = time.Duration(rapid.IntRange(0, 600).Draw(t, "idle")) * time.Second
		raw, err := json.Marshal(call)
		require.NoError(t, err)
		a, state := call.Decide()
		after, err := json.Marshal(call)
		require.NoError(t, err)
		require.Equal(t, raw, after, "the call is not changed")
		var again plugin.Call
		require.NoError(t, json.Unmarshal(raw, &again))
		b, stateB := again.Decide()
		wantA, _ := json.Marshal(a)
		gotB, _ := json.Marshal(b)
		require.JSONEq(t, string(wantA), string(gotB))
		wantS, _ := json.Marshal(state)
		gotS, _ := json.Marshal(stateB)
		require.JSONEq(t, string(wantS), string(gotS))

		require.NotEmpty(t, a.Reason)
		sum := 0
		for v, n := range a.Targets {
			sum += n
			was, ok := s.Variant(v)
			require.True(t, ok)
			if was.Unplaceable {
				require.LessOrEqual(t, n, was.Current, "a variant without a place does not grow: %s", a.Reason)
			}
		}
		require.Equal(t, sum, a.Count)
		switch {
		case a.Count > a.Current:
			require.Equal(t, plugin.Up, a.Direction)
			require.LessOrEqual(t, a.Count, max(s.Max, a.Current))
		case a.Count < a.Current:
			require.Equal(t, plugin.Down, a.Direction)
			require.GreaterOrEqual(t, a.Count, s.Min)
			require.False(t, call.Snapshot.Queue.Partial, "nothing is removed while gateways are unheard")
		default:
			require.Equal(t, plugin.None, a.Direction)
		}
	})
}
