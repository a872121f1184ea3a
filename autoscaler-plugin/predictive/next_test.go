package predictive_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
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
	queue    float64
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
	m.in.Running, m.in.Waiting = measure.Of(rate*m.service), measure.Of(m.queue)
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
	m.run(10, 6*time.Hour) // 100 slots
	require.InDelta(t, 100, m.decision.Load, 1e-6)
	require.GreaterOrEqual(t, m.current, 10)
	require.LessOrEqual(t, m.current, 16)
	calm := m.current

	m.run(20, 2*time.Minute)
	require.GreaterOrEqual(t, m.current, 19, "growth is at once")

	m.run(10, 10*time.Minute)
	require.Greater(t, m.current, calm+3, "a peak is remembered")
	m.run(10, 12*time.Hour)
	require.LessOrEqual(t, m.current, calm+9, "and forgotten, but for what it taught")

	m.run(0, 3*time.Hour)
	require.Zero(t, m.current, "an idle model goes to zero")
	require.Equal(t, predictive.ByIdle, m.decision.Rule)
	m.in.Waiting = measure.Of(1)
	m.in.Now += 15 * time.Second
	require.Positive(t, m.ask().Replicas, "a request that waits brings it back")
}

// A load of eight hours a day that begins in full: no more than twice what it needs runs once the queue of the first
// morning has gone, and on the next days its replicas are there before it. They go when it does not come.
func TestOnAndOff(t *testing.T) {
	m := newModel(0)
	day := func(rate float64) (before, most, evening int) {
		m.run(0, 9*time.Hour)
		before = m.current
		for i := range 8 * 240 {
			if i < 8 && before == 0 {
				// Nobody is served while the first replica starts, and all that wait run at once then.
				m.in.Now += 15 * time.Second
				m.arrived += 15 * rate
				m.in.Arrived, m.in.Running, m.in.Waiting = measure.Of(m.arrived), measure.Of(0), measure.Of(15*rate*float64(i+1))
				m.ask()
			} else {
				m.step(rate)
			}
			most = max(most, m.current)
		}
		evening = m.current
		m.run(0, 7*time.Hour)
		return before, most, evening
	}
	_, _, evening := day(10) // 100 slots
	require.LessOrEqual(t, evening, 20)
	require.Zero(t, m.current, "an idle model goes to zero")
	for range 2 {
		before, most, evening := day(10)
		require.GreaterOrEqual(t, before, 10, "what came yesterday comes today")
		require.LessOrEqual(t, most, 25)
		require.LessOrEqual(t, evening, 20)
		require.Zero(t, m.current)
	}
	m.run(0, 9*time.Hour+10*time.Minute)
	require.GreaterOrEqual(t, m.current, 10, "it may be late")
	m.run(0, 20*time.Minute)
	require.Zero(t, m.current, "a day off")
}

// TestQueueOfTheFirstReplica: the queue before the first requests have ended does not count as a peak of the demand.
func TestQueueOfTheFirstReplica(t *testing.T) {
	m := newModel(1)
	m.in.Arrived, m.in.Finished, m.in.ServedSeconds = measure.Of(0), measure.Of(0), measure.Of(0)
	m.in.Running, m.in.Waiting = measure.Of(10), measure.Of(2000)
	m.ask()
	require.True(t, m.state.Guessed)
	m.queue = 1990
	m.run(10, 30*time.Second)
	require.False(t, m.state.Guessed)
	m.run(10, time.Minute)
	require.LessOrEqual(t, m.decision.Base, 105.0)
}

// TestNothingGoesWhileRequestsWait: no replica is removed while requests wait, even if the queue gets shorter.
func TestNothingGoesWhileRequestsWait(t *testing.T) {
	m := newModel(14)
	m.run(10, 24*time.Hour) // 100 slots
	m.current = 60
	for queue := 6000.0; queue > 0; queue -= 500 {
		m.in.Now += 15 * time.Second
		m.arrived += 150
		m.served += 600 * m.service
		m.in.Arrived, m.in.Finished, m.in.ServedSeconds = measure.Of(m.arrived), measure.Of(m.arrived), measure.Of(m.served)
		m.in.Running, m.in.Waiting = measure.Of(600), measure.Of(queue)
		require.GreaterOrEqual(t, m.ask().Replicas, 60, m.decision.Reason)
	}
}

// TestNoMoreThanTheWeekHadSeen: a crowd that comes out of nothing teaches that load may grow by its factor, and not that
// the crowd itself grows by it.
func TestNoMoreThanTheWeekHadSeen(t *testing.T) {
	m := newModel(2)
	m.run(1, 24*time.Hour)
	m.run(20, 30*time.Minute)
	require.LessOrEqual(t, m.decision.Need, 200*1.8)
}

// TestLengthsMoveAgainstTheRate: half as many requests that take twice as long change nothing.
func TestLengthsMoveAgainstTheRate(t *testing.T) {
	m := newModel(1)
	m.run(10, 6*time.Hour)
	before := m.current
	m.service = 20
	m.run(5, time.Hour)
	require.InDelta(t, 100, m.decision.Load, 1e-6)
	require.InDelta(t, before, m.current, 1)
}

// TestLearnsFromErrors: a load that jumps is given more headroom than one that does not.
func TestLearnsFromErrors(t *testing.T) {
	fleet := func(jump float64) int {
		m := newModel(20)
		m.in.ColdStartSeconds = 300
		for range 48 {
			m.run(10, 50*time.Minute)
			m.run(10*jump, 10*time.Minute)
		}
		m.run(10, 50*time.Minute)
		return m.current
	}
	require.Greater(t, fleet(1.6), fleet(1)+2)
}

// TestTheStartIsNoError: a load that is there soon after the first look is no reason for many
// times as many replicas.
func TestTheStartIsNoError(t *testing.T) {
	m := newModel(8)
	m.run(0, 30*time.Second)
	for i := range 8 {
		m.run(float64(i+1), 30*time.Second)
	}
	m.run(8, 2*time.Hour)
	require.LessOrEqual(t, m.decision.Need, 160.0, m.decision.Reason)
}

// TestFeedback: late requests lower the risk and raise the need, days without any raise it, and
// it keeps within its bounds. Without a counter the queue says what is late.
func TestFeedback(t *testing.T) {
	risk := func(late float64, counted bool) float64 {
		m := newModel(20)
		total := 0.0
		for range 2 * 24 * 240 {
			total += late
			if counted {
				m.in.Late = measure.Of(total)
			} else if late > 0 {
				m.queue = 1e6
			}
			m.step(10)
		}
		return m.decision.Risk
	}
	require.Greater(t, risk(0, true), 0.001)
	require.Less(t, risk(10, true), 0.001)
	require.Equal(t, risk(0, true), risk(0, false))
	require.Less(t, risk(10, false), 0.001)
	require.InDelta(t, 0.001*math.Exp(-3), risk(10, true), 1e-9, "the bound")
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
		require.Greater(t, m.current, 20)
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
		{"only what runs", func(in *predictive.Input) { in.Running = measure.Of(20) }, predictive.ByHold, 0},
		{"only what waits", func(in *predictive.Input) { in.Waiting = measure.Of(0) }, predictive.ByUnknown, 0},
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
	m.run(5, 13*time.Minute)
	require.GreaterOrEqual(t, m.current, 40)
	m.run(5, 6*time.Hour)
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
		{"enough", nil, 15, map[string]int{"dear": 3, "cheap": 2, "big": 0}},
		{"the cheapest grows first, then the next", nil, 100, map[string]int{"dear": 3, "cheap": 6, "big": 2}},
		{"one that cannot be placed is not chosen", func(v []predictive.Variant) { v[2].Unplaceable = true }, 100, map[string]int{"dear": 10, "cheap": 6, "big": 0}},
		{"a min is kept", func(v []predictive.Variant) { v[2].Min = 1 }, 15, map[string]int{"dear": 3, "cheap": 2, "big": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newModel(0)
			m.in.Variants = variants()
			if c.change != nil {
				c.change(m.in.Variants)
			}
			m.in.Running, m.in.Waiting, m.in.Ready = measure.Of(c.running), measure.Of(0), 50
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
			in.Late = value.Draw(t, "late")
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
	bad := predictive.Config{Goal: 2, Slack: math.NaN(), Gain: -1}
	err := bad.Validate()
	for _, field := range []string{"goal", "payback_seconds", "decay_seconds", "memory_seconds", "slack", "caution", "gain"} {
		require.ErrorContains(t, err, field)
	}
	s := predictive.State{Seen: true, Version: 1, Time: -1, Total: math.Inf(1), Risk: math.NaN(), Base: -1,
		Soon: predictive.Errors{Count: []float32{1}}, Season: predictive.Season{Means: []int32{1}}}
	err = s.Validate()
	for _, field := range []string{"version", "time", "total", "risk", "base", "soon", "season"} {
		require.ErrorContains(t, err, field)
	}
}

// TestRandomSnapshots: whatever is measured, decisions keep within the bounds, an unknown load
// shrinks nothing, and wrong numbers are found. Its long form (REMUDA_LONG=1) makes a million.
func TestRandomSnapshots(t *testing.T) {
	n := 5_000
	if os.Getenv("REMUDA_LONG") != "" {
		n = 1_000_000
	}
	rng := rand.New(rand.NewPCG(5, 5))
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300, 1e15, 5e-324}
	cfg := predictive.DefaultConfig()
	var s predictive.State
	var arrived float64
	for i := range n {
		if i%2500 == 0 {
			s, arrived = predictive.State{}, 0
		}
		value := func(usual float64) measure.Value {
			switch rng.IntN(20) {
			case 0:
				return measure.Value{}
			case 1:
				return measure.Of(odd[rng.IntN(len(odd))])
			}
			return measure.Of(usual)
		}
		arrived += float64(rng.IntN(100))
		in := predictive.Input{Now: s.Last + time.Duration(rng.Int64N(int64(20*time.Second))), ColdStartSeconds: float64(rng.IntN(300)), TargetWaitSeconds: 2,
			Arrived: value(arrived), Finished: value(arrived), ServedSeconds: value(8 * arrived), Late: value(arrived / 1000),
			Running: value(float64(rng.IntN(200))), Waiting: value(float64(max(rng.IntN(40)-30, 0))), KVUsage: value(rng.Float64()),
			Ready: rng.IntN(20), Min: rng.IntN(3), Max: 40, Variants: []predictive.Variant{
				{Variant: "a", Slots: 1 + rng.IntN(16), Current: rng.IntN(20)},
				{Variant: "b", Slots: 1 + rng.IntN(16), Current: rng.IntN(20), Cost: 3, Max: 25, Unplaceable: rng.IntN(4) == 0}}}
		turned, again := in, s.Clone()
		turned.Variants = []predictive.Variant{in.Variants[1], in.Variants[0]}
		d := predictive.Next(&cfg, &s, &in)
		require.Equal(t, d, predictive.Next(&cfg, &again, &turned), "the order of variants changes nothing")
		running, flaw := in.Running.Get()
		if flaw != measure.None || running > 1e15 {
			require.Equal(t, predictive.ByUnknown, d.Rule)
			require.Equal(t, d.Current, d.Replicas)
		}
		if flaw != measure.None && flaw != measure.Absent {
			require.Contains(t, d.Findings, predictive.Finding{Field: "running", Flaw: flaw})
		}
		if _, flaw := in.Waiting.Get(); flaw != measure.None {
			require.GreaterOrEqual(t, d.Replicas, min(d.Current, in.Max))
		}
		if !d.Inert() {
			require.LessOrEqual(t, d.Replicas, in.Max)
			require.LessOrEqual(t, d.Targets["b"], 25)
			if !in.Variants[1].Unplaceable {
				require.GreaterOrEqual(t, d.Replicas, in.Min)
			}
		}
		for _, v := range []float64{d.Load, d.Base, d.Need, d.Risk, d.Short} {
			require.False(t, math.IsNaN(v) || math.IsInf(v, 0), "%+v", d)
		}
		if i%500 == 0 {
			require.NoError(t, s.Validate())
		}
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
