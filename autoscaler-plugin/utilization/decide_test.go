package utilization_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	u "remuda/autoscaler-plugin/utilization"
)

// config is a model with ten slots per instance and no lower bound, so that the rules
// can be seen.
func config(rule u.Rule) u.Config {
	c := u.DefaultConfig()
	c.MinCount, c.MaxConcurrency = 0, 10
	c.Scaling.EZ.Active = rule == u.EZUtilization
	c.ModelUtilization = rule == u.OldUtilization
	return c
}

// full is the inference seconds per minute that fill n instances of config's.
func full(n float64) enginemetrics.Value { return enginemetrics.Of(n * 60 * 10) }

func ptr(n int) *int { return &n }

func TestRequestCount(t *testing.T) {
	for name, c := range map[string]struct {
		perMinute enginemetrics.Value
		current   int
		want      int
		code      u.Code
	}{
		"requests times factor":         {enginemetrics.Of(10), 3, 8, u.WantsMore},
		"a part needs a whole instance": {enginemetrics.Of(10.5), 3, 9, u.WantsMore},
		"exact in decimals":             {enginemetrics.Of(3.75), 1, 3, u.WantsMore},
		"fewer":                         {enginemetrics.Of(5), 9, 4, u.WantsLess},
		"the same":                      {enginemetrics.Of(5), 4, 4, u.InBand},
		"idle":                          {enginemetrics.Of(0), 2, 0, u.WantsLess},
		"absent holds":                  {enginemetrics.Value{}, 4, 4, u.MetricUnknown},
		"NaN holds":                     {enginemetrics.Of(math.NaN()), 4, 4, u.MetricUnknown},
		"infinite holds":                {enginemetrics.Of(math.Inf(1)), 4, 4, u.MetricUnknown},
		"negative holds":                {enginemetrics.Of(-5), 4, 4, u.MetricUnknown},
		"absent with no instance":       {enginemetrics.Value{}, 0, 0, u.InBand},
		"NaN with no instance":          {enginemetrics.Of(math.NaN()), 0, 0, u.MetricUnknown},
		"more than any fleet":           {enginemetrics.Of(1e300), 4, 100, u.WantsMore},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Decide(config(u.RequestCount), u.Input{Requested: c.current, RequestsPerMinute: c.perMinute})
			require.Equal(t, c.want, d.Target)
			require.Equal(t, c.code, d.Code)
			require.Equal(t, u.RequestCount, d.Rule)
			require.Equal(t, c.code == u.MetricUnknown, d.Inert())
		})
	}
}

func TestOldUtilization(t *testing.T) {
	forecast := func(now, lastWeek enginemetrics.Value) u.Input {
		return u.Input{Requested: 10, InferenceSecondsPerMinute: now, ForecastSecondsPerMinute: lastWeek}
	}
	now := func(n int, v enginemetrics.Value) u.Input { return u.Input{Requested: n, InferenceSecondsPerMinute: v} }
	for name, c := range map[string]struct {
		in   u.Input
		want int
		code u.Code
	}{
		// The factor is 1.2: the band is 1/1.35 to 1/1.2.
		"above the band":                 {now(10, full(9)), 11, u.WantsMore},
		"below the band":                 {now(10, full(5)), 6, u.WantsLess},
		"within the band":                {now(10, full(8)), 10, u.InBand},
		"the upper end belongs to it":    {now(12, full(10)), 12, u.InBand},
		"just above the upper end":       {now(12, full(10.001)), 13, u.WantsMore},
		"the lower end belongs to it":    {now(27, full(20)), 27, u.InBand},
		"just below the lower end":       {now(27, full(19.99)), 24, u.WantsLess},
		"from zero":                      {now(0, full(2)), 3, u.WantsMore},
		"idle from zero":                 {now(0, full(0)), 0, u.InBand},
		"idle":                           {now(3, full(0)), 0, u.WantsLess},
		"last week was busier":           {forecast(full(5), full(9)), 11, u.WantsMore},
		"last week was idler":            {forecast(full(9), full(1)), 11, u.WantsMore},
		"a gap last week":                {forecast(full(5), enginemetrics.Value{}), 6, u.WantsLess},
		"an absurd last week":            {forecast(full(5), enginemetrics.Of(math.NaN())), 10, u.MetricUnknown},
		"an absurd last week, more work": {forecast(full(9), enginemetrics.Of(-1)), 11, u.WantsMore},
		"the forecast alone may add":     {forecast(enginemetrics.Value{}, full(9)), 11, u.WantsMore},
		"the forecast alone takes none":  {forecast(enginemetrics.Value{}, full(1)), 10, u.MetricUnknown},
		"nothing known":                  {forecast(enginemetrics.Of(math.NaN()), enginemetrics.Value{}), 10, u.MetricUnknown},
		"infinite":                       {now(10, enginemetrics.Of(math.Inf(1))), 10, u.MetricUnknown},
		"minus infinite":                 {now(10, enginemetrics.Of(math.Inf(-1))), 10, u.MetricUnknown},
		"negative":                       {now(10, enginemetrics.Of(-600)), 10, u.MetricUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Decide(config(u.OldUtilization), c.in)
			require.Equal(t, c.want, d.Target, d.Reason)
			require.Equal(t, c.code, d.Code, d.Reason)
			require.Equal(t, u.OldUtilization, d.Rule)
		})
	}
}

func TestOldUtilizationFactorIsClamped(t *testing.T) {
	c := config(u.OldUtilization)
	in := u.Input{Requested: 10, InferenceSecondsPerMinute: full(9)}
	for factor, want := range map[float64]int{0.1: 11, 0.8: 11, 1.2: 11, 1.5: 14, 2: 18} {
		c.ScalingFactor = factor
		require.Equal(t, want, u.Decide(c, in).Target, "factor %v", factor)
	}
}

func TestPriority(t *testing.T) {
	// The three rules ask for 32, 5 and 6 instances.
	in := u.Input{Requested: 20, Healthy: ptr(20), RequestsPerMinute: enginemetrics.Of(40), InferenceSecondsPerMinute: full(4)}
	for name, c := range map[string]struct {
		ez, old bool
		rule    u.Rule
		want    int
	}{
		"request count is the fallback": {false, false, u.RequestCount, 32},
		"EZ overrides it":               {true, false, u.EZUtilization, 5},
		"old overrides it":              {false, true, u.OldUtilization, 5},
		"old overrides EZ":              {true, true, u.OldUtilization, 5},
	} {
		t.Run(name, func(t *testing.T) {
			conf := config(u.RequestCount)
			conf.Scaling.EZ.Active, conf.ModelUtilization, conf.DownscaleBatch = c.ez, c.old, 100
			d := u.Decide(conf, in)
			require.Equal(t, c.rule, d.Rule)
			require.Equal(t, c.want, d.Target)
			require.Equal(t, c.rule, d.Proposals[len(d.Proposals)-1].Rule)
		})
	}
	t.Run("a rule without metrics does not fall back", func(t *testing.T) {
		d := u.Decide(config(u.OldUtilization), u.Input{Requested: 20, RequestsPerMinute: enginemetrics.Of(40)})
		require.Equal(t, 20, d.Target)
		require.True(t, d.Inert())
	})
}

func TestSwitchesAndModes(t *testing.T) {
	base := func() (u.Config, u.Input) {
		return config(u.OldUtilization), u.Input{Requested: 10, InferenceSecondsPerMinute: full(20), Tier: "Tier-1"}
	}
	for name, c := range map[string]struct {
		change func(*u.Config, *u.Input)
		want   int
		code   u.Code
	}{
		"nothing set":         {func(*u.Config, *u.Input) {}, 24, u.WantsMore},
		"global switch":       {func(c *u.Config, _ *u.Input) { c.DisableScaling = true }, 10, u.DisabledGlobally},
		"model switch":        {func(c *u.Config, _ *u.Input) { c.Scaling.Disabled = true }, 10, u.DisabledForModel},
		"management disabled": {func(c *u.Config, _ *u.Input) { c.Management = u.Disabled }, 10, u.ManagementDisabled},
		"management manual":   {func(c *u.Config, _ *u.Input) { c.Management = u.Manual }, 10, u.ManagementManual},
		"upscaling goes up":   {func(c *u.Config, _ *u.Input) { c.Management = u.Upscaling }, 24, u.WantsMore},
		"upscaling not down": {func(c *u.Config, in *u.Input) {
			c.Management, in.InferenceSecondsPerMinute = u.Upscaling, full(1)
		}, 10, u.WantsLess},
		"upscaling not down to max": {func(c *u.Config, _ *u.Input) { c.Management, c.MaxCount = u.Upscaling, 3 }, 10, u.WantsMore},
		"a switch holds out of bounds": {func(c *u.Config, _ *u.Input) {
			c.Scaling.Disabled, c.MinCount = true, 50
		}, 10, u.DisabledForModel},
		"tier of another scaler": {func(c *u.Config, _ *u.Input) { c.Tiers = []string{"Tier-0", "Tier-2"} }, 10, u.TierNotSelected},
		"tier that nobody tells": {func(c *u.Config, in *u.Input) { c.Tiers, in.Tier = []string{"Tier-1"}, "" }, 10, u.TierUnknown},
		"tier of this scaler":    {func(c *u.Config, _ *u.Input) { c.Tiers = []string{"Tier-0", "Tier-1"} }, 24, u.WantsMore},
		"min above max":          {func(c *u.Config, _ *u.Input) { c.MinCount, c.MaxCount = 9, 3 }, 10, u.InvalidConfig},
		"negative count":         {func(_ *u.Config, in *u.Input) { in.Requested = -4 }, 0, u.InvalidInput},
		"negative healthy":       {func(_ *u.Config, in *u.Input) { in.Healthy = ptr(-1) }, 10, u.InvalidInput},
		"negative starting":      {func(_ *u.Config, in *u.Input) { in.Starting = -1 }, 10, u.InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			conf, in := base()
			c.change(&conf, &in)
			d := u.Decide(conf, in)
			require.Equal(t, c.want, d.Target, d.Reason)
			require.Equal(t, c.code, d.Code, d.Reason)
			require.Equal(t, c.code == u.InvalidConfig || c.code == u.InvalidInput || c.code == u.TierUnknown, d.Inert(), "a switch is meant, a mistake is told")
			require.NotEmpty(t, d.Reason)
		})
	}
}

// TestSwitchedOff: what never scales says so by itself, in the words of its decisions.
func TestSwitchedOff(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*u.Config)
		want   u.Code
	}{
		"nothing set":         {func(*u.Config) {}, ""},
		"upscaling":           {func(c *u.Config) { c.Management = u.Upscaling }, ""},
		"tiers of another":    {func(c *u.Config) { c.Tiers = []string{"Tier-9"} }, ""},
		"global switch":       {func(c *u.Config) { c.DisableScaling = true }, u.DisabledGlobally},
		"model switch":        {func(c *u.Config) { c.Scaling.Disabled = true }, u.DisabledForModel},
		"management disabled": {func(c *u.Config) { c.Management = u.Disabled }, u.ManagementDisabled},
		"management manual":   {func(c *u.Config) { c.Management = u.Manual }, u.ManagementManual},
	} {
		t.Run(name, func(t *testing.T) {
			conf := config(u.OldUtilization)
			c.change(&conf)
			code, why := conf.SwitchedOff()
			require.Equal(t, c.want, code)
			require.Equal(t, code == "", why == "")
			if d := u.Decide(conf, u.Input{Requested: 3, InferenceSecondsPerMinute: full(9), Tier: "Tier-1"}); code != "" {
				require.Equal(t, [2]string{string(code), why}, [2]string{string(d.Code), d.Reason})
				require.Equal(t, 3, d.Target)
			}
		})
	}
}

func TestTierGrace(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	conf := config(u.OldUtilization)
	conf.TierGraceByTier = map[string]int{"Tier-0": 60, "Tier-2": 0}
	for name, c := range map[string]struct {
		tier string
		ago  time.Duration
		held bool
	}{
		"just changed":                  {"Tier-1", 0, true},
		"a moment before the end":       {"Tier-1", 900*time.Second - 1, true},
		"the end is over":               {"Tier-1", 900 * time.Second, false},
		"own grace of the tier":         {"Tier-0", 60 * time.Second, false},
		"within its own grace":          {"Tier-0", 59 * time.Second, true},
		"no grace at all":               {"Tier-2", 0, false},
		"clock a little back":           {"Tier-1", -899 * time.Second, true},
		"clock far back does not stick": {"Tier-1", -900 * time.Second, false},
		"clock a year forward":          {"Tier-1", 365 * 24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := u.Input{Requested: 10, InferenceSecondsPerMinute: full(20), Tier: c.tier, Now: now, TierChanged: now.Add(-c.ago)}
			d := u.Decide(conf, in)
			require.Equal(t, c.held, d.Code == u.TierGrace, d.Reason)
			require.Equal(t, c.held, d.Target == 10)
		})
	}
	d := u.Decide(conf, u.Input{Requested: 10, InferenceSecondsPerMinute: full(20), Now: now, Tier: "Tier-1"})
	require.Equal(t, 24, d.Target, "a tier that never changed has no grace")
}

func TestBoundsAndBatch(t *testing.T) {
	for name, c := range map[string]struct {
		min, max, batch int
		current         int
		load            enginemetrics.Value
		want            int
		limits          []u.Limit
	}{
		"raised to min":                {5, 100, 10, 8, full(1), 5, []u.Limit{u.ByMin}},
		"capped at max":                {0, 12, 10, 10, full(20), 12, []u.Limit{u.ByMax}},
		"batch":                        {0, 100, 10, 50, full(1), 40, []u.Limit{u.ByBatch}},
		"exactly the batch":            {0, 100, 10, 12, full(1), 2, nil},
		"min and batch":                {30, 100, 10, 50, full(1), 40, []u.Limit{u.ByMin, u.ByBatch}},
		"count below min":              {5, 100, 10, 2, full(1), 5, []u.Limit{u.ByMin}},
		"count below min, unknown":     {5, 100, 10, 2, enginemetrics.Value{}, 5, []u.Limit{u.ByMin}},
		"count above max, batch":       {0, 20, 10, 50, full(50), 40, []u.Limit{u.ByMax, u.ByBatch}},
		"count above max, unknown":     {0, 20, 10, 25, enginemetrics.Value{}, 20, []u.Limit{u.ByMax}},
		"upscale is not limited":       {0, 100, 1, 1, full(50), 60, nil},
		"none allowed":                 {0, 0, 10, 3, full(50), 0, []u.Limit{u.ByMax}},
		"a batch that never overflows": {0, 100, math.MaxInt, 50, full(1), 2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			conf := config(u.OldUtilization)
			conf.MinCount, conf.MaxCount, conf.DownscaleBatch = c.min, c.max, c.batch
			d := u.Decide(conf, u.Input{Requested: c.current, InferenceSecondsPerMinute: c.load})
			require.Equal(t, c.want, d.Target, d.Reason)
			require.Equal(t, c.limits, d.Limits)
		})
	}
}
