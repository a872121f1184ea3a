package policies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/tools/policystudy/internal/synthetic"
	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// TestPolicies: each policy lives through two swings of eight hours and a burst, deterministic,
// bounded, and starts nearly all requests in time where its aim is low.
func TestPolicies(t *testing.T) {
	rate := func(at time.Duration) float64 {
		r := 2 + math.Sin(2*math.Pi*at.Hours()/8)
		if at%(6*time.Hour) < 10*time.Minute {
			r *= 1.5
		}
		return r
	}
	trace, err := synthetic.Poisson(3, 16*time.Hour, rate, 6, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots, cfg.Initial, cfg.Max, cfg.ScoreFrom = 4, 8, 40, 8*time.Hour
	grid := policies.Grid{Aims: []float64{0.5, 0.8}, Holds: []time.Duration{10 * time.Minute}, Statics: []float64{2, 0.5}, Goals: []float64{0.999, 0.9}}
	for _, name := range policies.Names() {
		t.Run(name, func(t *testing.T) {
			specs, err := grid.Specs(name, trace.Offered(), cfg.Slots)
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(specs), 2)
			run := func(s policies.Spec) scalesim.Result {
				p, err := s.New()
				require.NoError(t, err)
				r, err := scalesim.Run(cfg, trace, p)
				require.NoError(t, err)
				return r
			}
			rich, lean := run(specs[0]), run(specs[len(specs)-1])
			require.Greater(t, rich.InTime, 0.98, specs[0].Setting())
			require.GreaterOrEqual(t, rich.GPUHours, lean.GPUHours)
			require.Equal(t, rich, run(specs[0]))
			if name != policies.Static {
				require.Positive(t, rich.Actions)
			}
		})
	}
}

// TestHold: with a longer hold no policy that scales down does so more often.
func TestHold(t *testing.T) {
	rate := func(at time.Duration) float64 { return 2 + 1.5*math.Sin(2*math.Pi*at.Hours()) }
	trace, err := synthetic.Poisson(4, 12*time.Hour, rate, 4, synthetic.DefaultLengths(), scalesim.DefaultSpeed())
	require.NoError(t, err)
	cfg := scalesim.DefaultConfig()
	cfg.Slots, cfg.Initial, cfg.Max = 4, 8, 40
	for _, name := range []string{policies.CapacityWVA, policies.Capacity, policies.HPA, policies.Replicate, policies.Utilization, policies.KPA} {
		run := func(hold time.Duration) scalesim.Result {
			p, err := policies.Spec{Policy: name, Aim: 0.6, Hold: hold}.New()
			require.NoError(t, err)
			r, err := scalesim.Run(cfg, trace, p)
			require.NoError(t, err)
			return r
		}
		short, long := run(time.Minute), run(2*time.Hour)
		require.Greater(t, long.GPUHours, short.GPUHours, name)
		require.Less(t, long.Actions, short.Actions, name)
	}
}

func TestBadSpec(t *testing.T) {
	for _, c := range []struct {
		spec policies.Spec
		want string
	}{
		{policies.Spec{Policy: "none", Aim: 0.5}, `policy is "none"`},
		{policies.Spec{Policy: policies.HPA}, "aim is 0"},
		{policies.Spec{Policy: policies.KPA, Aim: math.NaN(), Hold: -1}, "hold is -1ns"},
		{policies.Spec{Policy: policies.Predictive, Goal: 2}, "goal is 2"},
	} {
		_, err := c.spec.New()
		require.ErrorContains(t, err, c.want)
	}
	_, err := policies.DefaultGrid().Specs("none", 1, 1)
	require.ErrorContains(t, err, `policy is "none"`)
}
