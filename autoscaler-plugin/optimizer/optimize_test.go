package optimizer_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/optimizer"
)

func variant(name string, cost float64, slots int, c optimizer.Curve) optimizer.Variant {
	return optimizer.Variant{Variant: name, Cost: measure.Of(cost), Slots: slots, Samples: onLine(max(slots, 8), c, 0)}
}

func oneSlot(name string, cost, seconds float64) optimizer.Variant {
	return variant(name, cost, 1, optimizer.Curve{BaseSeconds: seconds})
}

func arriving(perSecond float64, v ...optimizer.Variant) optimizer.Input {
	return optimizer.Input{Model: "m", ArrivalsPerSecond: measure.Of(perSecond), Variants: v}
}

func TestOptimizeSmallCasesByHand(t *testing.T) {
	c := optimizer.DefaultConfig()
	c.TargetWaitSeconds, c.TargetProbability = 0, 0.5
	// Erlang C of one request per second and second of service: 2 servers 1/3, 1 full.
	a := optimizer.Optimize(c, arriving(1, oneSlot("a", 1, 1)))
	require.Equal(t, map[string]int{"a": 2}, a.Targets)
	require.True(t, a.Holds && a.Proven)
	require.InDelta(t, 2.0/3, a.Probability, 1e-9)
	require.Equal(t, 2.0, a.CostPerHour)
	require.Equal(t, 2, a.Variants[0].Alone)
	c.TargetProbability = 0.7 // 3 servers wait 1/11
	require.Equal(t, 3, optimizer.Optimize(c, arriving(1, oneSlot("a", 1, 1))).Targets["a"])
	c.TargetWaitSeconds = 1 // 2 servers: 1-exp(-1)/3 = 0.877
	require.Equal(t, 2, optimizer.Optimize(c, arriving(1, oneSlot("a", 1, 1))).Targets["a"])
}

func TestOptimizePicksTheCheapest(t *testing.T) {
	c := optimizer.DefaultConfig()
	slow, fast := optimizer.Curve{BaseSeconds: 4, SecondsPerRunning: 0.2}, optimizer.Curve{BaseSeconds: 1, SecondsPerRunning: 0.05}
	cheap, dear := variant("l4", 5, 8, slow), variant("h100", 100, 32, fast)
	a := optimizer.Optimize(c, arriving(3, cheap, dear))
	require.Zero(t, a.Targets["h100"])
	require.Equal(t, a.Targets["l4"], a.Variants[1].Alone)

	dear.Cost = measure.Of(6)
	a = optimizer.Optimize(c, arriving(3, cheap, dear))
	require.Zero(t, a.Targets["l4"])
	require.Positive(t, a.Targets["h100"])

	t.Run("what cannot be placed does not grow", func(t *testing.T) {
		dear.Unplaceable, dear.Current = true, 1
		b := optimizer.Optimize(c, arriving(60, cheap, dear))
		require.True(t, b.Holds)
		require.LessOrEqual(t, b.Targets["h100"], 1)
		require.Positive(t, b.Targets["l4"])
	})
	t.Run("least counts are kept", func(t *testing.T) {
		cheap.Min = 2
		require.Equal(t, 2, optimizer.Optimize(c, arriving(3, cheap, dear)).Targets["l4"])
		require.Equal(t, map[string]int{"h100": 0, "l4": 2}, optimizer.Optimize(c, arriving(0, cheap, dear)).Targets)
	})
}

// Every mix up to the bounds is tried in the test.
func TestPropertyOptimumAgainstAllMixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := optimizer.DefaultConfig()
		c.TargetWaitSeconds = rapid.Float64Range(0, 3).Draw(t, "wait")
		c.TargetProbability = rapid.SampledFrom([]float64{0.5, 0.9, 0.99, 0.999}).Draw(t, "probability")
		c.Caution, c.MaxEvaluations = 0, 1_000_000
		const most = 6
		var vs []optimizer.Variant
		var groups []optimizer.Group
		for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "variants")] {
			slots := rapid.SampledFrom([]int{1, 4, 8}).Draw(t, "slots")
			curve := optimizer.Curve{BaseSeconds: rapid.Float64Range(0.5, 4).Draw(t, "base")}
			if slots > 1 {
				curve.SecondsPerRunning = rapid.Float64Range(0.01, 0.5).Draw(t, "slope")
			}
			v := variant(name, float64(rapid.IntRange(1, 20).Draw(t, "cost")), slots, curve)
			v.Max, v.Min = most, rapid.IntRange(0, 1).Draw(t, "min")
			vs = append(vs, v)
			fitted, _, refusal := optimizer.Fit(v.Samples, slots)
			require.Nil(t, refusal)
			groups = append(groups, optimizer.Group{Slots: slots, Curve: fitted})
		}
		rate := rapid.Float64Range(0.1, 8).Draw(t, "arrivals")
		best := math.Inf(1)
		var try func(i int, cost float64)
		try = func(i int, cost float64) {
			if i == len(vs) {
				w := optimizer.Queue(poisson(rate), groups)
				if w.Utilization <= c.MaxUtilization && w.Within(c.TargetWaitSeconds) >= c.TargetProbability {
					best = min(best, cost)
				}
				return
			}
			price, _ := vs[i].Cost.Get()
			for n := vs[i].Min; n <= most; n++ {
				groups[i].Replicas = n
				try(i+1, cost+price*float64(n))
			}
		}
		try(0, 0)
		a := optimizer.Optimize(c, arriving(rate, vs...))
		require.Nil(t, a.Refusal)
		require.Equal(t, !math.IsInf(best, 1), a.Holds)
		if a.Holds {
			require.True(t, a.Proven)
			require.InDelta(t, best, a.CostPerHour, 1e-9)
			require.GreaterOrEqual(t, a.Probability, c.TargetProbability)
		} else {
			for _, n := range a.Targets {
				require.Equal(t, most, n, "all that the bounds allow")
			}
		}
	})
}

func TestPropertyMoreArrivalsNeverCostLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := optimizer.DefaultConfig()
		c.MaxEvaluations = 1_000_000
		vs := []optimizer.Variant{variant("a", 7, 8, optimizer.Curve{BaseSeconds: 2, SecondsPerRunning: 0.1}), oneSlot("b", 2, 1)}
		rate := rapid.Float64Range(0, 20).Draw(t, "arrivals")
		less := optimizer.Optimize(c, arriving(rate, vs...))
		more := optimizer.Optimize(c, arriving(rate+rapid.Float64Range(0, 5).Draw(t, "more"), vs...))
		require.LessOrEqual(t, less.CostPerHour, more.CostPerHour)

		swapped := optimizer.Optimize(c, arriving(rate, vs[1], vs[0]))
		require.Equal(t, less, swapped, "the order of the variants does not matter")
		b, err := json.Marshal(less)
		require.NoError(t, err)
		var back optimizer.Answer
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, less, back)
	})
}

func TestOptimizeRefuses(t *testing.T) {
	good := oneSlot("a", 1, 1)
	change := func(f func(*optimizer.Variant)) optimizer.Variant { v := good; f(&v); return v }
	unknown := optimizer.Variant{Variant: "b", Slots: 4}
	running := optimizer.Variant{Variant: "b", Slots: 4, Current: 3}
	for name, c := range map[string]struct {
		in   optimizer.Input
		want optimizer.RefusalCode
		say  string
	}{
		"arrivals absent":     {optimizer.Input{Variants: []optimizer.Variant{good}}, optimizer.TrafficUnknown, "arrivals_per_second is absent"},
		"arrivals NaN":        {arriving(math.NaN(), good), optimizer.TrafficUnknown, "not_a_number"},
		"arrivals negative":   {arriving(-1, good), optimizer.TrafficUnknown, "negative"},
		"arrivals absurd":     {arriving(1e12, good), optimizer.TrafficUnknown, "must be at most"},
		"beyond every fleet":  {arriving(1e5, good), optimizer.AbsurdDemand, "max_replicas 256"},
		"no variant":          {arriving(1), optimizer.NoVariant, "no variant"},
		"no fit":              {arriving(1, unknown), optimizer.NoVariant, "no variant"},
		"a running one unfit": {arriving(1, good, running), optimizer.TooFewSamples, "variant b has 3 replicas"},
		"given twice":         {arriving(1, good, good), optimizer.BadInput, `duplicate variant "a"`},
		"no name":             {arriving(1, optimizer.Variant{Slots: 1}), optimizer.BadInput, "no name"},
		"no slots":            {arriving(1, change(func(v *optimizer.Variant) { v.Slots = 0 })), optimizer.BadInput, "slots is 0"},
		"min above max":       {arriving(1, change(func(v *optimizer.Variant) { v.Min, v.Max = 3, 2 })), optimizer.BadInput, "min is 3"},
		"negative count":      {arriving(1, change(func(v *optimizer.Variant) { v.Current = -2 })), optimizer.BadInput, "-2"},
		"NaN cost":            {arriving(1, change(func(v *optimizer.Variant) { v.Cost = measure.Of(math.NaN()) })), optimizer.BadInput, "cost is not_a_number"},
	} {
		t.Run(name, func(t *testing.T) {
			a := optimizer.Optimize(optimizer.DefaultConfig(), c.in)
			require.NotNil(t, a.Refusal)
			require.Equal(t, c.want, a.Refusal.Code, a.Refusal.Reason)
			require.ErrorContains(t, a.Refusal, c.say)
			require.Nil(t, a.Targets)
		})
	}
	t.Run("an unfit one without replicas stays at its least", func(t *testing.T) {
		unknown.Min = 1
		a := optimizer.Optimize(optimizer.DefaultConfig(), arriving(1, good, unknown))
		require.Nil(t, a.Refusal)
		require.Equal(t, 1, a.Targets["b"])
		require.Equal(t, optimizer.TooFewSamples, a.Variants[1].Refusal.Code)
	})
	t.Run("wrong config", func(t *testing.T) {
		a := optimizer.Optimize(optimizer.Config{TargetProbability: 2, MaxUtilization: math.NaN(), Caution: -1}, arriving(1, good))
		for _, field := range []string{"target_probability", "max_utilization", "caution", "max_replicas", "max_evaluations"} {
			require.ErrorContains(t, a.Refusal, field)
		}
	})
}

func BenchmarkOptimize(b *testing.B) {
	in := arriving(150,
		variant("l4", 5, 16, optimizer.Curve{BaseSeconds: 4, SecondsPerRunning: 0.2}),
		variant("a100", 20, 64, optimizer.Curve{BaseSeconds: 2, SecondsPerRunning: 0.05}),
		variant("h100", 33, 64, optimizer.Curve{BaseSeconds: 1, SecondsPerRunning: 0.03}))
	c := optimizer.DefaultConfig()
	b.ReportAllocs()
	for b.Loop() {
		if a := optimizer.Optimize(c, in); !a.Holds {
			b.Fatal(a.Reason)
		}
	}
}
