package capacity_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// TestConfigValidation: Validate names each bad field. Safe rejects an input with one, and
// WVA notes it.
func TestConfigValidation(t *testing.T) {
	require.NoError(t, capacity.DefaultConfig().Validate())
	nan, inf := math.NaN(), math.Inf(1)
	for name, change := range map[string]func(*capacity.Config){
		"kv_cache_threshold":     func(c *capacity.Config) { c.KVCacheThreshold = nan },
		"kv_cache_threshold ":    func(c *capacity.Config) { c.KVCacheThreshold, c.KVSpareTrigger = 0, 0 },
		"queue_length_threshold": func(c *capacity.Config) { c.QueueLengthThreshold = inf },
		"kv_spare_trigger":       func(c *capacity.Config) { c.KVSpareTrigger = nan },
		"queue_spare_trigger":    func(c *capacity.Config) { c.QueueSpareTrigger = 5.1 },
		"stale_after_seconds":    func(c *capacity.Config) { c.StaleAfterSeconds = inf },
	} {
		t.Run(name, func(t *testing.T) {
			c := capacity.DefaultConfig()
			change(&c)
			require.ErrorContains(t, c.Validate(), strings.TrimSpace(name))
			in := capacity.Input{Config: c}
			_, err := capacity.Explain(capacity.Safe, in)
			require.ErrorContains(t, err, "config.")
			var a capacity.Analyzer
			require.Equal(t, err, a.Analyze(capacity.Safe, &in, &capacity.Result{}))
			if strings.TrimSpace(name) != "stale_after_seconds" {
				require.Len(t, explain(t, capacity.WVA, in).Notes, 1)
			}
		})
	}
}

// TestInputValidation: Validate names each bad field. Safe rejects an input with one. WVA
// notes it, but rejects what the autoscaler's analyzer has no field for.
func TestInputValidation(t *testing.T) {
	for field, tc := range map[string]struct {
		change func(*capacity.Input)
		ours   bool
	}{
		"replicas[1].replica":          {func(in *capacity.Input) { in.Replicas[1].Replica = "" }, false},
		"replicas[1].variant":          {func(in *capacity.Input) { in.Replicas[1].Variant = "" }, false},
		"replicas[0].cost":             {func(in *capacity.Input) { in.Replicas[0].Cost = enginemetrics.Of(math.NaN()) }, false},
		"replicas[0].kv_capacity":      {func(in *capacity.Input) { in.Replicas[0].KVCapacity = enginemetrics.Of(-1) }, true},
		"variants[1].variant is \"v\"": {func(in *capacity.Input) { in.Variants[1].Variant = "v" }, false},
		"variants[1].variant is miss":  {func(in *capacity.Input) { in.Variants[1].Variant = "" }, false},
		"variants[0].current":          {func(in *capacity.Input) { in.Variants[0].Current = capacity.MaxCount + 1 }, false},
		"variants[0].desired":          {func(in *capacity.Input) { in.Variants[0].Desired = -1 }, false},
		"variants[0].draining":         {func(in *capacity.Input) { in.Variants[0].Draining = -1 }, true},
		"variants[0].pending":          {func(in *capacity.Input) { in.Variants[0].Pending = new(-1) }, true},
		"variants[0].min is -1":        {func(in *capacity.Input) { in.Variants[0].Min = new(-1) }, true},
		"variants[0].max is -1":        {func(in *capacity.Input) { in.Variants[0].Max = new(-1) }, true},
		"variants[0].min is 2 and max": {func(in *capacity.Input) { in.Variants[0].Min, in.Variants[0].Max = new(2), new(1) }, true},
		"variants[0].cost":             {func(in *capacity.Input) { in.Variants[0].Cost = enginemetrics.Of(math.Inf(1)) }, false},
		"model_based_targets[\"v\"]":   {func(in *capacity.Input) { in.ModelBasedTargets = map[string]int{"v": -1} }, false},
		"config.stale_after_seconds":   {func(in *capacity.Input) { in.Config.StaleAfterSeconds = -1 }, true},
	} {
		t.Run(field, func(t *testing.T) {
			in := capacity.Input{Config: capacity.DefaultConfig(), Replicas: reps("v", 2, 10, 0.5, 0), Variants: variants{{Variant: "v", Current: 2}, {Variant: "w"}}}
			for _, rules := range both {
				require.NoError(t, in.Validate(rules))
			}
			require.Nil(t, explain(t, capacity.WVA, in).Notes)
			tc.change(&in)
			err := in.Validate(capacity.Safe)
			require.ErrorContains(t, err, field)
			var a capacity.Analyzer
			require.Equal(t, err, a.Analyze(capacity.Safe, &in, &capacity.Result{}))
			got, wvaErr := capacity.Explain(capacity.WVA, in)
			if tc.ours {
				require.Equal(t, err, wvaErr)
				require.Equal(t, err, a.Analyze(capacity.WVA, &in, &capacity.Result{}))
				return
			}
			require.NoError(t, wvaErr)
			require.NoError(t, a.Analyze(capacity.WVA, &in, &capacity.Result{}))
			require.Len(t, got.Notes, 1)
			require.Equal(t, err.Error(), got.Notes[0].Field+" "+got.Notes[0].Problem)
			require.NotEmpty(t, got.Notes[0].Effect)
		})
	}
}

// TestAnalyzeDoesNotAllocate once its buffers are large enough, whatever the models decide.
func TestAnalyzeDoesNotAllocate(t *testing.T) {
	models := append(fleet(200), byName(fleet(200))...)
	models[7].Replicas[5] = models[7].Replicas[4] // a duplicate
	models[8].ModelBasedTargets = map[string]int{"a100": 3, "h100": 1}
	var a capacity.Analyzer
	var r capacity.Result
	for _, rules := range both {
		require.Zero(t, testing.AllocsPerRun(5, func() {
			for i := range models {
				if err := a.Analyze(rules, &models[i], &r); err != nil {
					panic(err)
				}
			}
		}), rules)
	}
}
