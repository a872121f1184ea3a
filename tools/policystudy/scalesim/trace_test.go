package scalesim_test

import (
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
}
