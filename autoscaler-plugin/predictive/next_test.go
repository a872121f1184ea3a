package predictive_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	measure "remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/predictive"
)

// model is a model whose load is what a test says; what is decided comes to be at once.
type model struct {
	cfg      predictive.Config
	state    predictive.State
	in       predictive.Input
	arrived  float64
	served   float64
	service  float64
	current  int
	decision predictive.Decision
}

func newModel(current int) *model {
	return &model{cfg: predictive.DefaultConfig(), service: 10, current: current, in: predictive.Input{Now: time.Hour * 24 * 365 * 50,
		ColdStartSeconds: 110, TargetWaitSeconds: 5, Max: 1000, Variants: []predictive.Variant{{Variant: "v", Slots: 10}}}}
}

// step passes 15 seconds with a rate of arrivals (1/s).
func (m *model) step(rate float64) predictive.Decision {
	m.in.Now += 15 * time.Second
	m.arrived += 15 * rate
	m.served += 15 * rate * m.service
	m.in.Arrived, m.in.Finished, m.in.ServedSeconds = measure.Of(m.arrived), measure.Of(m.arrived), measure.Of(m.served)
	m.in.Running, m.in.Waiting = measure.Of(rate*m.service), measure.Of(0)
	return m.ask()
}

func (m *model) ask() predictive.Decision {
	m.in.Ready = m.current
	m.in.Variants[0].Current = m.current
	m.decision = predictive.Next(&m.cfg, &m.state, &m.in)
	m.current = m.decision.Replicas
	return m.decision
}

func (m *model) run(rate float64, d time.Duration) {
	for range int(d / (15 * time.Second)) {
		m.step(rate)
	}
}

func TestFollowsTheLoad(t *testing.T) {
	m := newModel(1)
	m.run(10, 2*time.Hour) // 100 slots
	require.InDelta(t, 100, m.decision.Load, 1e-6)
	require.LessOrEqual(t, m.decision.Level, 1, "a calm load runs lean")
	require.GreaterOrEqual(t, m.current, 10)
	require.LessOrEqual(t, m.current, 14)
	calm := m.current

	m.run(20, time.Minute)
	require.Greater(t, m.current, 2*calm-6, "growth is at once")

	m.run(10, 10*time.Minute)
	require.Greater(t, m.current, calm+5, "a peak is held")
	m.run(10, 3*time.Hour)
	require.LessOrEqual(t, m.current, calm+10, "and forgotten, but for the caution that it taught")

	m.run(0, 3*time.Hour)
	require.Zero(t, m.current, "an idle model goes to zero")
	require.Equal(t, predictive.ByIdle, m.decision.Rule)
	m.in.Waiting = measure.Of(1)
	m.in.Now += 15 * time.Second
	require.Positive(t, m.ask().Replicas, "a request that waits brings it back")
	require.Equal(t, predictive.ByQueue, m.decision.Rule)
}

// TestLengthsChange: a busy model knows within minutes that its requests became longer, one
// with few requests still takes the mean of many.
func TestLengthsChange(t *testing.T) {
	m := newModel(1)
	m.run(10, 2*time.Hour)
	m.service = 20
	m.run(10, 10*time.Minute)
	require.InDelta(t, 200, m.decision.Load, 12)
	require.Greater(t, m.current, 20)

	m = newModel(1)
	m.run(0.1, 6*time.Hour)
	m.service = 20
	m.run(0.1, time.Minute)
	require.InDelta(t, 1, m.decision.Load, 0.05, "six requests say little beside 360")
}

// TestLearnsCaution: a load that jumps runs at a higher level than one that does not, and a
// long cold start asks for no less than a short one.
func TestLearnsCaution(t *testing.T) {
	level := func(jump, cold float64) int {
		m := newModel(20)
		m.in.ColdStartSeconds = cold
		for range 24 {
			m.run(10, 50*time.Minute)
			m.run(10*jump, 10*time.Minute)
		}
		return m.decision.Level
	}
	require.LessOrEqual(t, level(1, 110), 1)
	restless := level(1.4, 110)
	require.Greater(t, restless, 3)
	require.GreaterOrEqual(t, level(1.4, 300), restless)
}

// TestSeason: what came yesterday at this time is prepared for before it comes.
func TestSeason(t *testing.T) {
	m := newModel(12)
	day := func(seen func()) {
		m.run(10, 12*time.Hour)
		seen()
		m.run(30, time.Hour)
		m.run(10, 11*time.Hour)
	}
	m.in.Now = m.in.Now.Truncate(24 * time.Hour)
	day(func() { require.Less(t, m.current, 20) })
	day(func() {
		require.GreaterOrEqual(t, m.current, 30)
		require.Equal(t, predictive.BySeason, m.decision.Rule)
	})
}

func TestUnknown(t *testing.T) {
	none := measure.Value{}
	for _, c := range []struct {
		name string
		set  func(*predictive.Input)
		rule predictive.Rule
		find int
	}{
		{"nothing is known", func(in *predictive.Input) {}, predictive.ByUnknown, 0},
		{"not a number", func(in *predictive.Input) { in.Running = measure.Of(math.NaN()) }, predictive.ByUnknown, 1},
		{"negative and infinite", func(in *predictive.Input) {
			in.Running, in.Waiting, in.Arrived = measure.Of(-1), measure.Of(math.Inf(1)), measure.Of(-5)
		}, predictive.ByUnknown, 3},
		{"only what runs", func(in *predictive.Input) { in.Running = measure.Of(50) }, predictive.ByHold, 0},
		{"no variant", func(in *predictive.Input) { in.Variants = nil }, predictive.ByInvalid, 0},
		{"min above max", func(in *predictive.Input) { in.Min = 2000 }, predictive.ByInvalid, 0},
		{"cold start that is none", func(in *predictive.Input) { in.ColdStartSeconds = math.NaN() }, predictive.ByInvalid, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel(8)
			m.in.Variants[0].Current = 8
			m.in.Arrived, m.in.Finished, m.in.ServedSeconds, m.in.Running, m.in.Waiting = none, none, none, none, none
			c.set(&m.in)
			d := predictive.Next(&m.cfg, &m.state, &m.in)
			require.Equal(t, c.rule, d.Rule)
			require.Len(t, d.Findings, c.find)
			require.Equal(t, c.rule == predictive.ByUnknown || c.rule == predictive.ByInvalid, d.Inert())
			if len(m.in.Variants) > 0 {
				require.Equal(t, 8, d.Replicas)
			}
			require.NotEmpty(t, d.Reason)
		})
	}
}

// TestClock: no jump of the clock and no suspended host scales anything.
func TestClock(t *testing.T) {
	for _, jump := range []time.Duration{-time.Hour, -30 * 24 * time.Hour, 6 * time.Hour, 400 * 24 * time.Hour} {
		m := newModel(12)
		m.run(10, 6*time.Hour)
		before := m.current
		m.in.Now += jump
		d := m.step(10)
		require.Equal(t, before, d.Replicas, "at the jump of %v", jump)
		m.run(10, time.Hour)
		require.InDelta(t, before, m.current, 2, "an hour after the jump of %v", jump)
		m.run(20, 2*time.Minute)
		require.Greater(t, m.current, before+6, "it scales after the jump of %v", jump)
	}
}

// TestRestart: counters that begin anew are no load, and nothing is removed for it.
func TestRestart(t *testing.T) {
	m := newModel(12)
	m.run(10, 6*time.Hour)
	before := m.current
	m.arrived = 0
	require.Equal(t, before, m.step(10).Replicas)
	m.run(10, 10*time.Minute)
	require.InDelta(t, before, m.current, 1)
}

// TestFirstLook: what runs when the policy first looks is left alone for a hold.
func TestFirstLook(t *testing.T) {
	m := newModel(40)
	require.Equal(t, 40, m.step(0).Replicas)
	m.run(5, 14*time.Minute)
	require.Equal(t, 40, m.current)
	m.run(5, 2*time.Hour)
	require.Less(t, m.current, 15)
}

func TestVariants(t *testing.T) {
	variants := func() []predictive.Variant {
		return []predictive.Variant{{Variant: "dear", Slots: 10, Cost: 40, Current: 3}, {Variant: "cheap", Slots: 10, Cost: 10, Current: 2, Max: 6}, {Variant: "big", Slots: 40, Cost: 60, Current: 0}}
	}
	for _, c := range []struct {
		name    string
		change  func([]predictive.Variant)
		running float64
		want    map[string]int
	}{
		{"enough", nil, 25, map[string]int{"dear": 3, "cheap": 2, "big": 0}},
		{"the cheapest grows first, then the next", nil, 100, map[string]int{"dear": 3, "cheap": 6, "big": 2}},
		{"one that cannot be placed is not chosen", func(v []predictive.Variant) { v[2].Unplaceable = true }, 100, map[string]int{"dear": 10, "cheap": 6, "big": 0}},
		{"a min is kept", func(v []predictive.Variant) { v[2].Min = 1 }, 25, map[string]int{"dear": 3, "cheap": 2, "big": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel(0)
			m.cfg.Ladder, m.cfg.Start = []predictive.Caution{{Near: 1.3, Far: 1}}, 0
			m.in.Variants = variants()
			if c.change != nil {
				c.change(m.in.Variants)
			}
			m.in.Running, m.in.Ready = measure.Of(c.running), 50
			d := predictive.Next(&m.cfg, &m.state, &m.in)
			require.Equal(t, c.want, d.Targets, d.Reason)

			turned := m.in
			turned.Variants = []predictive.Variant{m.in.Variants[2], m.in.Variants[0], m.in.Variants[1]}
			var s predictive.State
			again := predictive.Next(&m.cfg, &s, &turned)
			require.Equal(t, d, again, "the order of variants does not matter")
		})
	}
}

// TestReplay: a state that went through JSON goes on as if nothing had happened, targets
// keep within bounds, and whatever is measured, nothing becomes NaN.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := predictive.DefaultConfig()
		var a, b predictive.State
		value := rapid.Custom(func(t *rapid.T) measure.Value {
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				return measure.Value{}
			case 1:
				return measure.Of(rapid.Float64().Draw(t, "any"))
			}
			return measure.Of(float64(rapid.IntRange(0, 100_000).Draw(t, "count")))
		})
		in := predictive.Input{Min: rapid.IntRange(0, 3).Draw(t, "min"), Max: 50, TargetWaitSeconds: 5}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			in.Now += time.Duration(rapid.Int64Range(-int64(time.Hour), int64(3*time.Hour)).Draw(t, "dt"))
			in.ColdStartSeconds = rapid.Float64Range(0, 600).Draw(t, "cold")
			in.Arrived, in.Finished, in.ServedSeconds = value.Draw(t, "arrived"), value.Draw(t, "finished"), value.Draw(t, "served")
			in.Running, in.Waiting, in.KVUsage = value.Draw(t, "running"), value.Draw(t, "waiting"), value.Draw(t, "kv")
			in.Ready = rapid.IntRange(0, 40).Draw(t, "ready")
			in.Variants = []predictive.Variant{{Variant: "a", Slots: 8, Current: rapid.IntRange(0, 40).Draw(t, "a")},
				{Variant: "b", Slots: 3, Cost: 1, Current: rapid.IntRange(0, 10).Draw(t, "b"), Max: 10}}
			raw, err := json.Marshal(a)
			require.NoError(t, err)
			b = predictive.State{}
			require.NoError(t, json.Unmarshal(raw, &b))
			require.NoError(t, b.Validate())
			want := predictive.Next(&cfg, &a, &in)
			got := predictive.Next(&cfg, &b, &in)
			require.Equal(t, want, got)
			after, err := json.Marshal(a)
			require.NoError(t, err)
			other, err := json.Marshal(b)
			require.NoError(t, err)
			require.Equal(t, string(after), string(other))
			if want.Inert() {
				continue
			}
			require.GreaterOrEqual(t, want.Replicas, in.Min)
			require.LessOrEqual(t, want.Replicas, in.Max)
			require.LessOrEqual(t, want.Targets["b"], 10)
			require.Equal(t, want.Replicas, want.Targets["a"]+want.Targets["b"])
		}
	})
}

// TestRequestsThatTakeNoTime: with a mean service time close to 0 the state stays finite, so
// that it can be written as JSON.
func TestRequestsThatTakeNoTime(t *testing.T) {
	cfg := predictive.DefaultConfig()
	var s predictive.State
	in := predictive.Input{Max: 50, TargetWaitSeconds: 5, Variants: []predictive.Variant{{Variant: "a", Slots: 8}}}
	for i := range 3 {
		in.Now += time.Minute
		in.Arrived, in.Finished, in.ServedSeconds = measure.Of(float64(i)), measure.Of(float64(i)), measure.Of(float64(i)*5e-324)
		predictive.Next(&cfg, &s, &in)
	}
	in.Now += time.Minute
	in.Arrived, in.Running = measure.Value{}, measure.Of(10)
	predictive.Next(&cfg, &s, &in)
	raw, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &s))
	require.NoError(t, s.Validate())
}

func TestStateStaysSmall(t *testing.T) {
	m := newModel(20)
	for i := range 8 * 24 * 60 {
		m.in.Now += 45 * time.Second
		m.step(10 + 5*math.Sin(float64(i)/500) + float64(i*7919%13)/5)
	}
	raw, err := json.Marshal(m.state)
	require.NoError(t, err)
	require.Less(t, len(raw), 56<<10, "it is written to disk every half minute")
	c := m.state.Clone()
	require.Equal(t, m.state, c)
	m.step(10)
	require.NotEqual(t, m.state, c)
}

func TestConfig(t *testing.T) {
	good := predictive.DefaultConfig()
	require.NoError(t, good.Validate())
	bad := predictive.Config{Goal: 2, Ladder: []predictive.Caution{{2, 1}, {1, 1}}, Start: 5, Noise: math.NaN()}
	err := bad.Validate()
	for _, field := range []string{"goal", "ladder[1]", "start", "load_seconds", "far_seconds", "memory_seconds", "noise", "clear_seconds"} {
		require.ErrorContains(t, err, field)
	}
	s := predictive.State{Time: -1, Total: math.Inf(1), Recent: []predictive.Sample{{Rate: math.NaN()}}, Season: predictive.Season{Means: []int32{1}}}
	err = s.Validate()
	for _, field := range []string{"time", "total", "recent.rate", "season"} {
		require.ErrorContains(t, err, field)
	}
}

// BenchmarkNext says what a decision costs: a plugin call has a millisecond.
func BenchmarkNext(b *testing.B) {
	m := newModel(20)
	m.run(10, 8*24*time.Hour)
	for b.Loop() {
		m.step(10)
	}
}
