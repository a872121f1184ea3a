package synthetic_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/scalesim"
)

const s = time.Second

func TestPoisson(t *testing.T) {
	// Twice the rate in the second half.
	rate := func(at time.Duration) float64 {
		if at < time.Hour {
			return 5
		}
		return 10
	}
	trace, err := synthetic.Poisson(1, 2*time.Hour, rate, 10, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	require.NoError(t, trace.Validate())
	first, second := trace.Halves()
	require.InEpsilon(t, 5*3600, len(first.Arrivals), 0.03)
	require.InEpsilon(t, 10*3600, len(second.Arrivals), 0.03)

	a, err := synthetic.PoissonExponential(1, time.Hour, 10, 3*s)
	require.NoError(t, err)
	require.InEpsilon(t, 3, a.MeanService().Seconds(), 0.03)
	for name, f := range map[string]func() error{
		"span": func() error {
			_, err := synthetic.PoissonExponential(1, 0, 10, s)
			return err
		},
		"rate": func() error {
			_, err := synthetic.PoissonExponential(1, s, math.NaN(), s)
			return err
		},
		"mean": func() error {
			_, err := synthetic.PoissonExponential(1, s, 1, 0)
			return err
		},
		"too many": func() error {
			_, err := synthetic.PoissonExponential(1, time.Hour, 1e9, s)
			return err
		},
	} {
		require.Error(t, f(), name)
	}
}

func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	l := synthetic.LogNormal{ContextMedian: 1000, ContextSigma: 3, GeneratedMedian: 0.1, Limit: 4000}
	above := 0
	for range 10_000 {
		c, g := l.Draw(rng)
		require.GreaterOrEqual(t, c, int32(1))
		require.LessOrEqual(t, c, int32(4000))
		require.EqualValues(t, 1, g)
		if c > 1000 {
			above++
		}
	}
	require.InDelta(t, 5000, above, 200)
}
