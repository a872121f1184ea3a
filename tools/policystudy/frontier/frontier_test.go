package frontier_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/frontier"
)

// TestMean has the quantiles of Student's t from printed tables.
func TestMean(t *testing.T) {
	got, err := frontier.Mean([]float64{3, 1, 2}, 0.95)
	require.NoError(t, err)
	half := 4.302653 / math.Sqrt(3)
	require.InDelta(t, 2, got.Mean, 1e-12)
	require.InDelta(t, 2-half, got.Low, 1e-5)
	require.InDelta(t, 2+half, got.High, 1e-5)
	require.Equal(t, 3, got.N)

	for _, c := range []struct {
		confidence float64
		n          int
		quantile   float64
	}{{0.95, 2, 12.706}, {0.95, 3, 4.303}, {0.95, 20, 2.093}, {0.9, 6, 2.015}, {0.99, 11, 3.169}, {0.95, 1001, 1.962}, {0.999, 5, 8.610}} {
		values := make([]float64, c.n) // a deviation of 1
		for i := range values {
			values[i] = math.Sqrt(float64(c.n-1)/float64(c.n-c.n%2)) * float64(2*(i%2)-1)
		}
		if c.n%2 == 1 {
			values[c.n-1] = 0
		}
		i, err := frontier.Mean(values, c.confidence)
		require.NoError(t, err)
		require.InDelta(t, c.quantile, i.High*math.Sqrt(float64(c.n)), 5.1e-4, "%v", c)
	}

	for name, f := range map[string]func() error{
		"few":        func() error { _, err := frontier.Mean([]float64{1}, 0.95); return err },
		"confidence": func() error { _, err := frontier.Mean([]float64{1, 2}, 95); return err },
		"NaN":        func() error { _, err := frontier.Mean([]float64{1, math.NaN()}, 0.95); return err },
		"infinite":   func() error { _, err := frontier.Mean([]float64{1, math.Inf(1)}, 0.95); return err },
	} {
		require.Error(t, f(), name)
	}
	_, err = frontier.Mean(nil, 0.95)
	require.ErrorIs(t, err, frontier.ErrFew)
}

// TestCoverage: a 90 % interval has the true mean in about 90 % of cases.
func TestCoverage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	inMean := 0
	for range 1000 {
		v := make([]float64, 20)
		for i := range v {
			v[i] = 5 + rng.NormFloat64()
		}
		m, err := frontier.Mean(v, 0.9)
		require.NoError(t, err)
		if m.Low <= 5 && 5 <= m.High {
			inMean++
		}
		slices.Reverse(v)
		again, err := frontier.Mean(v, 0.9)
		require.NoError(t, err)
		require.Equal(t, m, again) // the order does not matter
	}
	require.InDelta(t, 900, inMean, 35)
}
