package optimizer_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/optimizer"
)

func sample(running, seconds float64) optimizer.Sample {
	return optimizer.Sample{Running: measure.Of(running), ServiceSeconds: measure.Of(seconds)}
}

// onLine are samples at concurrencies 1 to n on a line, with relative noise.
func onLine(n int, c optimizer.Curve, noise float64) []optimizer.Sample {
	rng := rand.New(rand.NewPCG(5, 6))
	var out []optimizer.Sample
	for k := 1; k <= n; k++ {
		out = append(out, sample(float64(k), c.Seconds(float64(k))*(1+noise*rng.NormFloat64())))
	}
	return out
}

var truth = optimizer.Curve{BaseSeconds: 2, SecondsPerRunning: 0.05}

func TestFitFindsTheLine(t *testing.T) {
	for name, c := range map[string]struct {
		samples  []optimizer.Sample
		outliers int
		within   float64
	}{
		"without noise":       {onLine(40, truth, 0), 0, 1e-9},
		"with noise":          {onLine(64, truth, 0.05), 3, 0.05},
		"with wrong samples":  {append(onLine(40, truth, 0.01), sample(3, 900), sample(30, 0.001), sample(35, 700), sample(40, 1e5)), 6, 0.03},
		"with absurd samples": {append(onLine(40, truth, 0.01), sample(math.NaN(), 3), sample(3, math.Inf(1)), sample(-1, 3), sample(4, 0), sample(4, -7), sample(1e9, 3), optimizer.Sample{}), 2, 0.03},
		"with idle times":     {append(onLine(40, truth, 0.01), sample(0, 0), sample(0, math.NaN()), sample(0, 5)), 2, 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			got, belief, refusal := optimizer.Fit(c.samples, 40)
			require.Nil(t, refusal)
			for _, k := range []float64{1, 20, 40} {
				require.InEpsilon(t, truth.Seconds(k), got.Seconds(k), c.within)
			}
			require.LessOrEqual(t, belief.Outliers, c.outliers)
			require.Less(t, belief.ErrorAtFull, 0.05)
			require.Equal(t, len(c.samples), belief.Samples)
			require.Equal(t, 40.0, min(belief.MaxRunning, 40))
		})
	}
}

func TestFitFromTokens(t *testing.T) {
	var tokens []optimizer.Sample
	for _, s := range onLine(40, truth, 0) {
		k, _ := s.Running.Get()
		seconds, _ := s.ServiceSeconds.Get()
		tokens = append(tokens, optimizer.Sample{
			Running: s.Running, TokensPerRequest: measure.Of(200), TokensPerSecond: measure.Of(k * 200 / seconds),
		})
	}
	got, _, refusal := optimizer.Fit(tokens, 40)
	require.Nil(t, refusal)
	require.InDelta(t, truth.BaseSeconds, got.BaseSeconds, 1e-9)
	require.InDelta(t, truth.SecondsPerRunning, got.SecondsPerRunning, 1e-9)

	for i := range tokens {
		tokens[i].TokensPerSecond = measure.Of(0)
	}
	_, _, refusal = optimizer.Fit(tokens, 40)
	require.Equal(t, optimizer.AbsurdSamples, refusal.Code)
}

func TestFitRefuses(t *testing.T) {
	repeat := func(n int, s ...optimizer.Sample) (out []optimizer.Sample) {
		for range n {
			out = append(out, s...)
		}
		return out
	}
	square := func() (out []optimizer.Sample) {
		for k := 1.0; k <= 30; k++ {
			out = append(out, sample(k, 0.1*k*k))
		}
		return out
	}
	// Twelve samples at 8 to 11 of 32 slots that scatter by half.
	noisy := func() (out []optimizer.Sample) {
		for i, off := range []float64{0.5, 1.5, 1, 1.4, 0.6, 1.1, 1.5, 0.5, 0.9, 0.6, 1.4, 1} {
			out = append(out, sample(8+float64(i%4), 2*off))
		}
		return out
	}
	for name, c := range map[string]struct {
		samples []optimizer.Sample
		slots   int
		want    optimizer.RefusalCode
	}{
		"nothing":             {nil, 8, optimizer.TooFewSamples},
		"seven samples":       {onLine(7, truth, 0), 8, optimizer.TooFewSamples},
		"only idle ones":      {repeat(50, sample(0, 0)), 8, optimizer.TooFewSamples},
		"no slots":            {onLine(20, truth, 0), 0, optimizer.BadInput},
		"one concurrency":     {repeat(50, sample(4, 2)), 8, optimizer.TooNarrow},
		"two concurrencies":   {repeat(50, sample(4, 2), sample(5, 2.1)), 8, optimizer.TooNarrow},
		"far below the slots": {onLine(12, truth, 0), 49, optimizer.TooNarrow},
		"a third absurd":      {append(onLine(20, truth, 0), repeat(10, sample(3, math.NaN()))...), 20, optimizer.AbsurdSamples},
		"faster under load":   {onLine(20, optimizer.Curve{BaseSeconds: 5, SecondsPerRunning: -0.2}, 0.01), 20, optimizer.FallingLatency},
		"worse than a line":   {square(), 30, optimizer.NotALine},
		"nothing but noise":   {noisy(), 32, optimizer.TooUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, refusal := optimizer.Fit(c.samples, c.slots)
			require.NotNil(t, refusal)
			require.Equal(t, c.want, refusal.Code, refusal.Reason)
			require.ErrorContains(t, refusal, string(c.want))
		})
	}
}

func TestFitAtTheEdges(t *testing.T) {
	t.Run("exactly eight samples", func(t *testing.T) {
		_, _, refusal := optimizer.Fit(onLine(8, truth, 0), 8)
		require.Nil(t, refusal)
	})
	t.Run("a quarter of the slots seen is extrapolated", func(t *testing.T) {
		got, belief, refusal := optimizer.Fit(onLine(12, truth, 0.001), 48)
		require.Nil(t, refusal)
		require.True(t, belief.Extrapolated)
		require.InEpsilon(t, truth.Seconds(48), got.Seconds(48), 0.02)
	})
	t.Run("further away is less certain", func(t *testing.T) {
		_, near, r1 := optimizer.Fit(onLine(12, truth, 0.01), 12)
		_, far, r2 := optimizer.Fit(onLine(12, truth, 0.01), 48)
		require.Nil(t, r1)
		require.Nil(t, r2)
		require.Greater(t, far.ErrorAtFull, near.ErrorAtFull)
	})
	t.Run("one slot needs one concurrency", func(t *testing.T) {
		var same []optimizer.Sample
		for range 20 {
			same = append(same, sample(0.3, 4))
		}
		got, _, refusal := optimizer.Fit(same, 1)
		require.Nil(t, refusal)
		require.Equal(t, optimizer.Curve{BaseSeconds: 4}, got)
	})
	t.Run("a level engine", func(t *testing.T) {
		got, _, refusal := optimizer.Fit(onLine(30, optimizer.Curve{BaseSeconds: 3}, 0.02), 30)
		require.Nil(t, refusal)
		require.InEpsilon(t, 3, got.Seconds(30), 0.05)
		require.GreaterOrEqual(t, got.SecondsPerRunning, 0.0)
	})
}

func TestPropertyFitDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) optimizer.Sample {
			k := rapid.Float64Range(0, 40).Draw(t, "k")
			return sample(k, truth.Seconds(k)*rapid.Float64Range(0.8, 1.2).Draw(t, "noise"))
		}), 0, 60).Draw(t, "samples")
		other := rapid.Permutation(samples).Draw(t, "order")
		c1, b1, r1 := optimizer.Fit(samples, 32)
		c2, b2, r2 := optimizer.Fit(other, 32)
		require.Equal(t, c1, c2)
		require.Equal(t, b1, b2)
		require.Equal(t, r1, r2)
	})
}
