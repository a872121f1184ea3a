package utilization_test

import (
	"encoding/json"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	u "remuda/autoscaler-plugin/utilization"
)

var anyValue = rapid.Custom(func(t *rapid.T) enginemetrics.Value {
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		return enginemetrics.Value{}
	case 1:
		return enginemetrics.Of(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64, 5e-324}).Draw(t, "odd"))
	}
	return enginemetrics.Of(rapid.Float64Range(0, 50_000).Draw(t, "value"))
})

var anyRule = rapid.SampledFrom([]u.Rule{u.RequestCount, u.EZUtilization, u.OldUtilization})

var anyInput = rapid.Custom(func(t *rapid.T) u.Input {
	in := u.Input{
		Model: "m", Requested: rapid.IntRange(0, 120).Draw(t, "requested"),
		Starting:                  rapid.IntRange(0, 5).Draw(t, "starting"),
		RequestsPerMinute:         anyValue.Draw(t, "requests"),
		InferenceSecondsPerMinute: anyValue.Draw(t, "seconds"),
		ForecastSecondsPerMinute:  anyValue.Draw(t, "forecast"),
		Utilization:               anyValue.Draw(t, "utilization"),
		SuccessfulPerMinute:       anyValue.Draw(t, "ok"),
		OutOfCapacityPerMinute:    anyValue.Draw(t, "ooc"),
	}
	if rapid.Bool().Draw(t, "health known") {
		in.Healthy = ptr(rapid.IntRange(0, 120).Draw(t, "healthy"))
	}
	return in
})

func anyConfig(t *rapid.T) u.Config {
	c := config(anyRule.Draw(t, "rule"))
	c.MinCount = rapid.IntRange(0, 10).Draw(t, "min")
	c.MaxCount = c.MinCount + rapid.IntRange(0, 100).Draw(t, "max")
	c.DownscaleBatch = rapid.IntRange(1, 20).Draw(t, "batch")
	c.Management = rapid.SampledFrom([]u.Management{u.Full, u.Upscaling, u.Manual}).Draw(t, "management")
	c.Scaling.EZ.Prometheus = rapid.Bool().Draw(t, "prometheus")
	c.Scaling.EZ.UseForecast = rapid.Bool().Draw(t, "use forecast")
	c.Scaling.EZ.UseOutOfCap = rapid.Bool().Draw(t, "use ooc")
	return c
}

func TestPropertyLimitsHoldAndReplayIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, in := anyConfig(t), anyInput.Draw(t, "input")
		d := u.Decide(c, in)
		if c.Management == u.Manual {
			require.Equal(t, in.Requested, d.Target)
		} else {
			require.GreaterOrEqual(t, d.Target, min(c.MinCount, in.Requested))
			require.GreaterOrEqual(t, d.Target, in.Requested-c.DownscaleBatch, "at most a batch is taken away")
			require.LessOrEqual(t, d.Target, max(c.MaxCount, in.Requested))
			require.True(t, c.Management == u.Full || d.Target >= in.Requested)
		}
		require.Equal(t, d.Target > in.Requested, d.Action == u.ScaleUp)
		require.Equal(t, d.Target < in.Requested, d.Action == u.ScaleDown)

		recorded, err := json.Marshal(in)
		require.NoError(t, err)
		var again u.Input
		require.NoError(t, json.Unmarshal(recorded, &again))
		config, err := json.Marshal(c)
		require.NoError(t, err)
		var parsed u.Config
		require.NoError(t, json.Unmarshal(config, &parsed))
		want, err := json.Marshal(d)
		require.NoError(t, err)
		got, err := json.Marshal(u.Decide(parsed, again))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
		var back u.Decision
		require.NoError(t, json.Unmarshal(want, &back))
		require.Equal(t, d, back)
	})
}

func TestPropertyNothingIsTakenOnUnknownLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, in := anyConfig(t), anyInput.Draw(t, "input")
		c.MaxCount = 1000 // only a bound may lower what a rule holds
		absurd := rapid.SampledFrom([]enginemetrics.Value{{}, enginemetrics.Of(math.NaN()), enginemetrics.Of(-3), enginemetrics.Of(math.Inf(1))}).Draw(t, "absurd")
		in.RequestsPerMinute, in.InferenceSecondsPerMinute, in.Utilization = absurd, absurd, absurd
		require.GreaterOrEqual(t, u.Decide(c, in).Target, in.Requested)
	})
}

// More load never asks for fewer instances, whatever the health.
func TestPropertyMonotoneInLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, in := anyConfig(t), anyInput.Draw(t, "input")
		less := rapid.Float64Range(0, 50_000).Draw(t, "less")
		more := less + rapid.Float64Range(0, 50_000).Draw(t, "more")
		c.Scaling.EZ.Prometheus = false
		at := func(load float64) int {
			in := in
			in.RequestsPerMinute, in.InferenceSecondsPerMinute = enginemetrics.Of(load), enginemetrics.Of(load)
			return u.Decide(c, in).Target
		}
		require.LessOrEqual(t, at(less), at(more))
	})
}

// The reference works on whole seconds, per cent and integers only, for the healthy
// case of EZ without its limits.
func TestPropertyEZAgainstIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.IntRange(0, 200_000).Draw(t, "seconds")
		slots := rapid.IntRange(1, 256).Draw(t, "slots")
		low := rapid.IntRange(0, 98).Draw(t, "min %")
		high := rapid.IntRange(low+1, 100).Draw(t, "max %")
		n := rapid.IntRange(0, 300).Draw(t, "instances")
		want := n
		need := (seconds*100 + 60*slots*high - 1) / (60 * slots * high)
		if seconds*100 > high*n*60*slots || seconds*100 < low*n*60*slots {
			want = need
		}
		c := config(u.EZUtilization)
		c.MaxCount, c.DownscaleBatch, c.MaxConcurrency = 1<<30, 1<<30, slots
		c.Scaling.EZ.MinUtilization, c.Scaling.EZ.MaxUtilization = float64(low)/100, float64(high)/100
		d := u.Decide(c, u.Input{Requested: n, Healthy: &n, InferenceSecondsPerMinute: enginemetrics.Of(float64(seconds))})
		require.Equal(t, want, d.Target, d.Reason)
	})
}

// The old rule's ends are 1/1.2 = 5/6 and 1/1.35 = 20/27.
func TestPropertyOldRuleAgainstIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.IntRange(0, 200_000).Draw(t, "seconds")
		slots := rapid.IntRange(1, 256).Draw(t, "slots")
		n := rapid.IntRange(0, 300).Draw(t, "instances")
		full := 60 * slots
		want := n
		if 6*seconds > 5*n*full || 27*seconds < 20*n*full {
			want = (6*seconds + 5*full - 1) / (5 * full)
		}
		c := config(u.OldUtilization)
		c.MaxCount, c.DownscaleBatch, c.MaxConcurrency = 1<<30, 1<<30, slots
		d := u.Decide(c, u.Input{Requested: n, InferenceSecondsPerMinute: enginemetrics.Of(float64(seconds))})
		require.Equal(t, want, d.Target, d.Reason)
	})
}

// The request-count rule against rationals of the decimals as they are written, up to the
// ends of the numbers: a float's product is one too many now and then.
func TestPropertyRequestCountAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hundredths := rapid.OneOf(rapid.Int64Range(0, 5_000), rapid.Int64Range(0, 1<<50)).Draw(t, "requests, hundredths")
		factor := rapid.Int64Range(1, 400).Draw(t, "factor, hundredths")
		if rapid.Bool().Draw(t, "a whole number of instances") { // as 100 * 0.07, of which floats make 7.000000000000001
			hundredths = 10_000 * (hundredths % 1000)
		}
		n := rapid.IntRange(0, 300).Draw(t, "instances")
		required := new(big.Rat).Mul(big.NewRat(hundredths, 100), big.NewRat(factor, 100))
		want, rest := new(big.Int).QuoRem(required.Num(), required.Denom(), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		c := config(u.RequestCount)
		c.ScalingFactor, c.MaxCount, c.DownscaleBatch = float64(factor)/100, 1<<30, 1<<30
		d := u.Decide(c, u.Input{Requested: n, RequestsPerMinute: enginemetrics.Of(float64(hundredths) / 100)})
		require.Equal(t, min(want.Int64(), 1<<30), int64(d.Target), d.Reason)
	})
}

// With a constant load every rule settles, also while some instances stay unhealthy.
func TestPropertyConstantLoadSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(anyRule.Draw(t, "rule"))
		c.MaxCount = 1000
		c.Scaling.EZ.MaxUtilization = float64(rapid.IntRange(2, 100).Draw(t, "max %")) / 100
		c.Scaling.EZ.MinUtilization = c.Scaling.EZ.MaxUtilization * rapid.Float64Range(0, 0.99).Draw(t, "min")
		load := rapid.Float64Range(0, 5).Draw(t, "load")
		sick := rapid.IntRange(0, 1).Draw(t, "sick")
		n, settled := rapid.IntRange(0, 300).Draw(t, "start"), 0
		for range 60 {
			in := u.Input{Requested: n, Healthy: ptr(max(n-sick, 0)), InferenceSecondsPerMinute: full(load), RequestsPerMinute: enginemetrics.Of(10 * load)}
			next := u.Decide(c, in).Target
			if settled++; next != n {
				settled = 0
			}
			n = next
		}
		require.Greater(t, settled, 10, "still moving at %d", n)
	})
}

func BenchmarkDecide(b *testing.B) {
	c := config(u.EZUtilization)
	in := u.Input{
		Requested: 10, Healthy: ptr(9), InferenceSecondsPerMinute: enginemetrics.Of(4321.987), ForecastSecondsPerMinute: enginemetrics.Of(5123.123),
		SuccessfulPerMinute: enginemetrics.Of(321.7), OutOfCapacityPerMinute: enginemetrics.Of(1.3), RequestsPerMinute: enginemetrics.Of(322.9),
	}
	b.ReportAllocs()
	for b.Loop() {
		u.Decide(c, in)
	}
}
