package scalesim_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/scalesim"
)

func sample() *scalesim.Trace {
	return &scalesim.Trace{Name: "x", Span: 100 * s, Arrivals: []scalesim.Arrival{
		{At: 0, Service: s}, {At: 30 * s, Service: 2 * s, Context: 10, Generated: 5}, {At: 50 * s, Service: 3 * s}, {At: 99 * s, Service: 4 * s}}}
}

func TestTraceMethods(t *testing.T) {
	trace := sample()
	require.InDelta(t, 0.04, trace.Rate(), 1e-12)
	require.Equal(t, 2500*time.Millisecond, trace.MeanService())
	require.InDelta(t, 0.1, trace.Offered(), 1e-12)
	require.Zero(t, (&scalesim.Trace{}).Offered())

	first, second := trace.Halves()
	require.Equal(t, 50*s, first.Span)
	require.Equal(t, trace.Arrivals[:2], first.Arrivals)
	require.Equal(t, []scalesim.Arrival{{At: 0, Service: 3 * s}, {At: 49 * s, Service: 4 * s}}, second.Arrivals)
	require.Empty(t, trace.Slice(40*s, 30*s).Arrivals)
	require.Equal(t, trace, trace.Slice(-s, 1000*s))

	slow, err := trace.Stretch(2.5)
	require.NoError(t, err)
	require.NoError(t, slow.Validate())
	require.Equal(t, 250*s, slow.Span)
	require.Equal(t, scalesim.Arrival{At: 75 * s, Service: 2 * s, Context: 10, Generated: 5}, slow.Arrivals[1])
	for _, factor := range []float64{0, -1, math.NaN(), math.Inf(1), 1e12} {
		_, err := trace.Stretch(factor)
		require.ErrorContains(t, err, "the factor must be above 0")
	}

	timed := trace.Timed(scalesim.Speed{Fixed: s, PerContext: time.Millisecond, PerGenerated: 100 * time.Millisecond})
	require.Equal(t, 1510*time.Millisecond, timed.Arrivals[1].Service)
	require.Equal(t, time.Duration(1), trace.Timed(scalesim.Speed{}).Arrivals[0].Service)
}

func TestSample(t *testing.T) {
	trace, err := scalesim.PoissonExponential(1, time.Hour, 10, s)
	require.NoError(t, err)
	half, err := trace.Sample(0.5, 7)
	require.NoError(t, err)
	require.InEpsilon(t, len(trace.Arrivals)/2, len(half.Arrivals), 0.03)
	again, err := trace.Sample(0.5, 7)
	require.NoError(t, err)
	require.Equal(t, half, again)
	other, err := trace.Sample(0.5, 8)
	require.NoError(t, err)
	require.NotEqual(t, half, other)
	all, err := trace.Sample(1, 1)
	require.NoError(t, err)
	require.Equal(t, trace, all)
	for _, share := range []float64{-0.1, 1.1, math.NaN()} {
		_, err := trace.Sample(share, 1)
		require.ErrorContains(t, err, "it must be 0 to 1")
	}
}

func TestPoisson(t *testing.T) {
	// Twice the rate in the second half.
	rate := func(at time.Duration) float64 {
		if at < time.Hour {
			return 5
		}
		return 10
	}
	trace, err := scalesim.Poisson(1, 2*time.Hour, rate, 10, scalesim.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	require.NoError(t, trace.Validate())
	first, second := trace.Halves()
	require.InEpsilon(t, 5*3600, len(first.Arrivals), 0.03)
	require.InEpsilon(t, 10*3600, len(second.Arrivals), 0.03)

	a, err := scalesim.PoissonExponential(1, time.Hour, 10, 3*s)
	require.NoError(t, err)
	require.InEpsilon(t, 3, a.MeanService().Seconds(), 0.03)
	for name, f := range map[string]func() error{
		"span": func() error {
			_, err := scalesim.PoissonExponential(1, 0, 10, s)
			return err
		},
		"rate": func() error {
			_, err := scalesim.PoissonExponential(1, s, math.NaN(), s)
			return err
		},
		"mean": func() error {
			_, err := scalesim.PoissonExponential(1, s, 1, 0)
			return err
		},
		"too many": func() error {
			_, err := scalesim.PoissonExponential(1, time.Hour, 1e9, s)
			return err
		},
	} {
		require.Error(t, f(), name)
	}
}

func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	l := scalesim.LogNormal{ContextMedian: 1000, ContextSigma: 3, GeneratedMedian: 0.1, Limit: 4000}
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

	e, err := scalesim.NewEmpirical(sample())
	require.NoError(t, err)
	seen := 0
	for range 1000 {
		c, g := e.Draw(rng)
		require.Contains(t, [][2]int32{{0, 0}, {10, 5}}, [2]int32{c, g})
		if c == 10 {
			seen++
		}
	}
	require.InDelta(t, 250, seen, 60)
	_, err = scalesim.NewEmpirical(&scalesim.Trace{Name: "none"})
	require.ErrorContains(t, err, `lengths from trace "none": it has no arrivals`)
}
