package utilization_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/utilization"
)

func TestDefaultConfigIsTheSeeds(t *testing.T) {
	c := utilization.DefaultConfig()
	require.NoError(t, c.Validate())
	require.Equal(t, 0.8, c.ScalingFactor)
	require.Equal(t, []int{5, 100, 10}, []int{c.MinCount, c.MaxCount, c.DownscaleBatch})
	require.Equal(t, utilization.EZ{
		MinUtilization: 0.3, MaxUtilization: 0.8, UtilizationScale: 1, UseForecast: true, UseOutOfCap: true,
	}, c.Scaling.EZ)
}

func TestValidateNamesEveryWrongField(t *testing.T) {
	c := utilization.Config{
		ScalingFactor: math.NaN(), MinCount: 7, MaxCount: -1, MaxConcurrency: -3, ModelUtilization: true,
		Management: "sometimes", TierGraceSeconds: -1, TierGraceByTier: map[string]int{"Tier-0": -2, "Tier-1": 3},
		Scaling: utilization.Scaling{EZ: utilization.EZ{MinUtilization: 0.9, MaxUtilization: 80, UtilizationScale: math.Inf(1)}},
	}
	err := c.Validate()
	for _, field := range []string{
		"scaling_factor is NaN", "max_count is -1", "min_count is 7: must be at most max_count", "downscale_batch is 0",
		"max_concurrent_requests is -3", `management is "sometimes"`, "tier_grace_seconds is -1",
		`tier_grace_seconds_by_tier["Tier-0"] is -2`, "max_utilization is 80", "utilization_scale is +Inf",
	} {
		require.ErrorContains(t, err, field)
	}
	require.NotContains(t, err.Error(), "Tier-1")
}

func TestValidateBounds(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*utilization.Config)
		want   string
	}{
		"min equals max":           {func(c *utilization.Config) { c.MinCount, c.MaxCount = 3, 3 }, ""},
		"min above max":            {func(c *utilization.Config) { c.MinCount, c.MaxCount = 4, 3 }, "min_count is 4"},
		"none at all":              {func(c *utilization.Config) { c.MinCount, c.MaxCount = 0, 0 }, ""},
		"band of no width":         {func(c *utilization.Config) { c.Scaling.EZ.MinUtilization = 0.8 }, "less than max_utilization"},
		"NaN band":                 {func(c *utilization.Config) { c.Scaling.EZ.MinUtilization = math.NaN() }, "min_utilization is NaN"},
		"full use":                 {func(c *utilization.Config) { c.Scaling.EZ.MaxUtilization = 1 }, ""},
		"EZ without concurrency":   {func(c *utilization.Config) { c.Scaling.EZ.Active = true }, "max_concurrent_requests is 0"},
		"old without concurrency":  {func(c *utilization.Config) { c.ModelUtilization = true }, "max_concurrent_requests is 0"},
		"requests need none":       {func(c *utilization.Config) { c.MaxConcurrency = 0 }, ""},
		"management not set":       {func(c *utilization.Config) { c.Management = "" }, "must be disabled, manual, upscaling or full"},
		"negative min":             {func(c *utilization.Config) { c.MinCount = -1 }, "min_count is -1"},
		"infinite factor":          {func(c *utilization.Config) { c.ScalingFactor = math.Inf(1) }, "scaling_factor is +Inf"},
		"count beyond every fleet": {func(c *utilization.Config) { c.MaxCount = math.MaxInt }, "max_count is"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := utilization.DefaultConfig()
			c.change(&conf)
			if c.want == "" {
				require.NoError(t, conf.Validate())
			} else {
				require.ErrorContains(t, conf.Validate(), c.want)
			}
		})
	}
}
