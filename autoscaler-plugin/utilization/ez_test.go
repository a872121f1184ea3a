package utilization_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	u "remuda/autoscaler-plugin/utilization"
)

func TestEZ(t *testing.T) {
	for name, c := range map[string]struct {
		in   u.Input
		want int
		code u.Code
	}{
		"within the band":           {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(5)}, 10, u.InBand},
		"upper end belongs to it":   {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(8)}, 10, u.InBand},
		"just above it":             {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(8.0001)}, 11, u.WantsMore},
		"lower end belongs to it":   {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(3)}, 10, u.InBand},
		"just below it":             {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(2.9999)}, 4, u.WantsLess},
		"exact goal":                {u.Input{Requested: 1, Healthy: ptr(1), InferenceSecondsPerMinute: full(2.4)}, 3, u.WantsMore},
		"from zero":                 {u.Input{Requested: 0, Healthy: ptr(0), InferenceSecondsPerMinute: full(0.1)}, 1, u.WantsMore},
		"idle from zero":            {u.Input{Requested: 0, Healthy: ptr(0), InferenceSecondsPerMinute: full(0)}, 0, u.InBand},
		"idle":                      {u.Input{Requested: 3, Healthy: ptr(3), InferenceSecondsPerMinute: full(0)}, 0, u.WantsLess},
		"healthy beyond requested":  {u.Input{Requested: 4, Healthy: ptr(9), InferenceSecondsPerMinute: full(4)}, 5, u.WantsMore},
		"health unknown, more work": {u.Input{Requested: 4, InferenceSecondsPerMinute: full(4)}, 5, u.WantsMore},
		"health unknown, less work": {u.Input{Requested: 4, InferenceSecondsPerMinute: full(0)}, 4, u.MetricUnknown},

		// Upscaling looks at the healthy ones, downscaling at the requested ones.
		"up from healthy":              {u.Input{Requested: 10, Healthy: ptr(9), InferenceSecondsPerMinute: full(7.9)}, 11, u.WantsMore},
		"down from requested":          {u.Input{Requested: 11, Healthy: ptr(10), InferenceSecondsPerMinute: full(3.2)}, 5, u.WantsLess},
		"up never lowers":              {u.Input{Requested: 10, Healthy: ptr(5), InferenceSecondsPerMinute: full(4.5)}, 10, u.InBand},
		"what starts is counted once":  {u.Input{Requested: 10, Healthy: ptr(5), Starting: 5, InferenceSecondsPerMinute: full(7)}, 10, u.InBand},
		"what starts is not unhealthy": {u.Input{Requested: 10, Healthy: ptr(5), Starting: 5, InferenceSecondsPerMinute: full(8.1)}, 11, u.WantsMore},

		// Unhealthy ones.
		"one more with one unhealthy":  {u.Input{Requested: 5, Healthy: ptr(4), InferenceSecondsPerMinute: full(4)}, 6, u.WantsMore},
		"one more with many unhealthy": {u.Input{Requested: 5, Healthy: ptr(1), InferenceSecondsPerMinute: full(4)}, 6, u.WantsMore},
		"one unhealthy is kept":        {u.Input{Requested: 10, Healthy: ptr(9), InferenceSecondsPerMinute: full(5)}, 10, u.InBand},
		"two unhealthy, one given up":  {u.Input{Requested: 10, Healthy: ptr(8), InferenceSecondsPerMinute: full(5)}, 9, u.ShedsUnhealthy},
		"one by one below the band":    {u.Input{Requested: 10, Healthy: ptr(8), InferenceSecondsPerMinute: full(1)}, 9, u.ShedsUnhealthy},
		"never below the goal":         {u.Input{Requested: 8, Healthy: ptr(6), InferenceSecondsPerMinute: full(4.8)}, 7, u.ShedsUnhealthy},
		"all unhealthy, one given up":  {u.Input{Requested: 3, Healthy: ptr(0), InferenceSecondsPerMinute: full(0)}, 2, u.ShedsUnhealthy},
		"all start, nothing is known":  {u.Input{Requested: 3, Healthy: ptr(0), Starting: 3, InferenceSecondsPerMinute: full(0)}, 3, u.NoneHealthy},
		"unhealthy, load unknown":      {u.Input{Requested: 10, Healthy: ptr(5)}, 10, u.MetricUnknown},

		// The forecast.
		"last week was busier":          {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(5), ForecastSecondsPerMinute: full(16)}, 20, u.WantsMore},
		"last week was idler":           {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(5), ForecastSecondsPerMinute: full(0)}, 10, u.InBand},
		"last week forbids less":        {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(0), ForecastSecondsPerMinute: full(5)}, 10, u.InBand},
		"an absurd last week":           {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(0), ForecastSecondsPerMinute: enginemetrics.Of(-1)}, 10, u.MetricUnknown},
		"the forecast alone may add":    {u.Input{Requested: 10, Healthy: ptr(10), ForecastSecondsPerMinute: full(16)}, 20, u.WantsMore},
		"the forecast alone takes none": {u.Input{Requested: 10, Healthy: ptr(10), ForecastSecondsPerMinute: full(0)}, 10, u.MetricUnknown},

		// Absurd measurements.
		"absent":            {u.Input{Requested: 10, Healthy: ptr(10)}, 10, u.MetricUnknown},
		"NaN":               {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: enginemetrics.Of(math.NaN())}, 10, u.MetricUnknown},
		"negative":          {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: enginemetrics.Of(-1)}, 10, u.MetricUnknown},
		"infinite":          {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: enginemetrics.Of(math.Inf(1))}, 10, u.MetricUnknown},
		"minus infinite":    {u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: enginemetrics.Of(math.Inf(-1))}, 10, u.MetricUnknown},
		"absent, none runs": {u.Input{Requested: 0, Healthy: ptr(0)}, 0, u.InBand},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Decide(config(u.EZUtilization), c.in)
			require.Equal(t, c.want, d.Target, d.Reason)
			require.Equal(t, c.code, d.Code, d.Reason)
			require.Equal(t, u.EZUtilization, d.Rule)
		})
	}
}

func TestEZOutOfCapacity(t *testing.T) {
	in := func(load, ok, ooc enginemetrics.Value) u.Input {
		return u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: load, SuccessfulPerMinute: ok, OutOfCapacityPerMinute: ooc}
	}
	for name, c := range map[string]struct {
		in       u.Input
		required float64
		want     int
		code     u.Code
	}{
		"half of them refused doubles":     {in(full(6), enginemetrics.Of(50), enginemetrics.Of(50)), 12, 15, u.WantsMore},
		"a tenth refused":                  {in(full(8), enginemetrics.Of(100), enginemetrics.Of(10)), 8.8, 11, u.WantsMore},
		"capped at twice":                  {in(full(6), enginemetrics.Of(1), enginemetrics.Of(1000)), 12, 15, u.WantsMore},
		"none served, floor of 0.1":        {in(full(6), enginemetrics.Of(0), enginemetrics.Of(0.15)), 9, 12, u.WantsMore},
		"few served never deflate":         {in(full(6), enginemetrics.Of(0), enginemetrics.Of(0.05)), 6, 10, u.InBand},
		"none served, none refused":        {in(full(6), enginemetrics.Of(0), enginemetrics.Of(0)), 6, 10, u.InBand},
		"none refused, served unknown":     {in(full(1), enginemetrics.Value{}, enginemetrics.Of(0)), 1, 2, u.WantsLess},
		"no such counter":                  {in(full(1), enginemetrics.Of(5), enginemetrics.Value{}), 1, 2, u.WantsLess},
		"refused is NaN, nothing is taken": {in(full(1), enginemetrics.Of(5), enginemetrics.Of(math.NaN())), 1, 10, u.MetricUnknown},
		"served unknown, nothing is taken": {in(full(1), enginemetrics.Value{}, enginemetrics.Of(3)), 1, 10, u.MetricUnknown},
		"served negative, more work":       {in(full(9), enginemetrics.Of(-1), enginemetrics.Of(3)), 9, 12, u.WantsMore},
		"refused while idle keeps one":     {in(full(0), enginemetrics.Of(0), enginemetrics.Of(3)), 0, 1, u.WantsLess},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Decide(config(u.EZUtilization), c.in)
			require.Equal(t, c.want, d.Target, d.Reason)
			require.Equal(t, c.code, d.Code, d.Reason)
			require.Equal(t, enginemetrics.Of(c.required), d.Proposals[1].Required)
		})
	}
	t.Run("off", func(t *testing.T) {
		conf := config(u.EZUtilization)
		conf.Scaling.EZ.UseOutOfCap = false
		require.Equal(t, 10, u.Decide(conf, in(full(6), enginemetrics.Of(50), enginemetrics.Of(50))).Target)
	})
	t.Run("refused with no instance wakes one", func(t *testing.T) {
		none := u.Input{Requested: 0, Healthy: ptr(0), OutOfCapacityPerMinute: enginemetrics.Of(1)}
		require.Equal(t, 1, u.Decide(config(u.EZUtilization), none).Target)
	})
	t.Run("the forecast is not inflated", func(t *testing.T) {
		i := in(full(1), enginemetrics.Of(1), enginemetrics.Of(1))
		i.ForecastSecondsPerMinute = full(7)
		d := u.Decide(config(u.EZUtilization), i)
		require.Equal(t, enginemetrics.Of(7), d.Proposals[1].Required)
	})
}

func TestEZPrometheusSource(t *testing.T) {
	conf := config(u.EZUtilization)
	conf.Scaling.EZ.Prometheus = true
	for name, c := range map[string]struct {
		utilization enginemetrics.Value
		healthy     int
		want        int
		flaw        enginemetrics.Flaw
	}{
		"share of the healthy":       {enginemetrics.Of(0.9), 8, 10, enginemetrics.None},
		"share of one more":          {enginemetrics.Of(0.9), 10, 12, enginemetrics.None},
		"percent is not a share":     {enginemetrics.Of(90), 10, 10, enginemetrics.AboveOne},
		"NaN":                        {enginemetrics.Of(math.NaN()), 10, 10, enginemetrics.NotANumber},
		"negative":                   {enginemetrics.Of(-0.5), 10, 10, enginemetrics.Negative},
		"infinite":                   {enginemetrics.Of(math.Inf(1)), 10, 10, enginemetrics.Infinite},
		"absent":                     {enginemetrics.Value{}, 10, 10, enginemetrics.Absent},
		"inference seconds not used": {enginemetrics.Of(0.5), 10, 10, enginemetrics.None},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Decide(conf, u.Input{Requested: 10, Healthy: ptr(c.healthy), Starting: 10 - c.healthy, Utilization: c.utilization, InferenceSecondsPerMinute: full(50)})
			require.Equal(t, c.want, d.Target, d.Reason)
			if c.flaw != enginemetrics.None {
				require.Contains(t, d.Proposals[1].Findings, u.Finding{Field: "utilization", Flaw: c.flaw})
				require.True(t, d.Inert())
			}
		})
	}
}

func TestEZScale(t *testing.T) {
	conf := config(u.EZUtilization)
	conf.Scaling.EZ.UtilizationScale = 2
	in := u.Input{Requested: 10, Healthy: ptr(10), InferenceSecondsPerMinute: full(5), ForecastSecondsPerMinute: full(3)}
	require.Equal(t, 13, u.Decide(conf, in).Target)
	in.InferenceSecondsPerMinute, in.ForecastSecondsPerMinute = full(3), full(5)
	require.Equal(t, 13, u.Decide(conf, in).Target)
}
