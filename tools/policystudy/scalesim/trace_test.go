package scalesim_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
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
}

func TestSample(t *testing.T) {
	trace, err := synthetic.PoissonExponential(1, time.Hour, 10, s)
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

func TestEmpirical(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
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
