package scalesim_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/scalesim"
)

// follow scales to the load, with a margin.
type follow struct{ margin float64 }

func (follow) Name() string { return "follow" }

func (f follow) Decide(o *scalesim.Observation) int {
	return int(math.Ceil(float64(o.Running+o.Waiting) * f.margin / float64(o.Slots)))
}

// BenchmarkRun says how many requests a second one core simulates, with some 30 replicas
// of 64 slots and a load that swings by the hour.
func BenchmarkRun(b *testing.B) {
	rate := func(t time.Duration) float64 { return 100 + 50*math.Sin(2*math.Pi*t.Hours()) }
	trace, err := synthetic.Poisson(1, 6*time.Hour, rate, 150, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(b, err)
	cfg := scalesim.DefaultConfig()
	b.ReportAllocs()
	for b.Loop() {
		_, err := scalesim.Run(cfg, trace, follow{margin: 1.3})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(len(trace.Arrivals))*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}
