package capacity_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// TestNotes: WVA takes the values that the analyzer of the workload variant autoscaler takes,
// answers as it does, and notes each of them. Safe rejects them.
func TestNotes(t *testing.T) {
	const skipped = "; the autoscaler skips an entry of its ConfigMap that has this value"
	nan, inf := math.NaN(), math.Inf(1)
	config := func(kv, queue, kvTrigger, queueTrigger float64) capacity.Input {
		return capacity.Input{
			Config:   capacity.Config{KVCacheThreshold: kv, QueueLengthThreshold: queue, KVSpareTrigger: kvTrigger, QueueSpareTrigger: queueTrigger},
			Replicas: reps("v", 4, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 4}},
		}
	}
	// Two variants with one idle replica each, of which v costs what the case says.
	costs := func(cost enginemetrics.Value) capacity.Input {
		in := capacity.Input{
			Config: capacity.DefaultConfig(), Replicas: join(reps("v", 2, 0, 0.75, 4), reps("w", 2, 10, 0.75, 4)),
			Variants: variants{{Variant: "v", Current: 2}, {Variant: "w", Current: 2}},
		}
		in.Replicas[0].Cost, in.Replicas[1].Cost = cost, cost
		return in
	}
	idle := func(change func(*capacity.Input)) capacity.Input {
		in := config(0.8, 5, 0.1, 3)
		change(&in)
		return in
	}
	for name, tc := range map[string]struct {
		in           capacity.Input
		up, downSafe bool
		targets      map[string]int
		notes        []capacity.Note
	}{
		// The example "High-priority production workload" of the autoscaler's own guide.
		"a queue trigger above its threshold": {
			config(0.7, 3, 0.2, 5), true, false, map[string]int{"v": 5},
			[]capacity.Note{{Field: "config.queue_spare_trigger", Problem: "is 5: must be 0 to queue_length_threshold, which is 3",
				Effect: "even an empty queue has less to spare: the model needs more whenever a replica reports, and no removal is safe"}},
		},
		"a KV trigger above its threshold": {
			config(0.05, 5, 0.1, 3), true, false, map[string]int{"v": 5},
			[]capacity.Note{{Field: "config.kv_spare_trigger", Problem: "is 0.1: must be 0 to kv_cache_threshold, which is 0.05",
				Effect: "even an empty KV cache has less to spare: the model needs more whenever a replica reports, and no removal is safe" + skipped}},
		},
		"a negative KV trigger": {
			config(0.2, 5, -1, 3), false, true, map[string]int{"v": 3},
			[]capacity.Note{{Field: "config.kv_spare_trigger", Problem: "is -1: must be 0 to kv_cache_threshold, which is 0.2",
				Effect: "the spare KV cache is never below it, so that the KV cache alone never makes the model grow" + skipped}},
		},
		"a negative queue trigger": {
			config(0.8, 5, 0.1, -2), false, true, map[string]int{"v": 3},
			[]capacity.Note{{Field: "config.queue_spare_trigger", Problem: "is -2: must be 0 to queue_length_threshold, which is 5",
				Effect: "the spare queue is never below it, so that the queue alone never makes the model grow" + skipped}},
		},
		"triggers of NaN": {
			config(0.8, 5, nan, nan), false, false, map[string]int{"v": 4},
			[]capacity.Note{
				{Field: "config.kv_spare_trigger", Problem: "is NaN: must be 0 to kv_cache_threshold, which is 0.8",
					Effect: "no comparison with it is true: the KV cache alone never makes the model grow, and no removal is safe"},
				{Field: "config.queue_spare_trigger", Problem: "is NaN: must be 0 to queue_length_threshold, which is 5",
					Effect: "no comparison with it is true: the queue alone never makes the model grow, and no removal is safe"},
			},
		},
		"thresholds of 0": {
			config(0, 0, 0, 0.5), true, false, map[string]int{"v": 5},
			[]capacity.Note{
				{Field: "config.kv_cache_threshold", Problem: "is 0: must be more than 0 and at most 1, a share of the KV cache", Effect: "an empty KV cache saturates a replica"},
				{Field: "config.queue_length_threshold", Problem: "is 0: must be more than 0 waiting requests", Effect: "an empty queue saturates a replica"},
				{Field: "config.queue_spare_trigger", Problem: "is 0.5: must be 0 to queue_length_threshold, which is 0",
					Effect: "even an empty queue has less to spare: the model needs more whenever a replica reports, and no removal is safe"},
			},
		},
		"negative thresholds with triggers above them": {
			config(-1, -1, 0, 0), false, false, map[string]int{"v": 4},
			[]capacity.Note{
				{Field: "config.kv_cache_threshold", Problem: "is -1: must be more than 0 and at most 1, a share of the KV cache", Effect: "an empty KV cache saturates a replica" + skipped},
				{Field: "config.queue_length_threshold", Problem: "is -1: must be more than 0 waiting requests", Effect: "an empty queue saturates a replica" + skipped},
				{Field: "config.kv_spare_trigger", Problem: "is 0: must be 0 to kv_cache_threshold, which is -1",
					Effect: "the spare KV cache is never below it, so that the KV cache alone never makes the model grow" + skipped},
				{Field: "config.queue_spare_trigger", Problem: "is 0: must be 0 to queue_length_threshold, which is -1",
					Effect: "the spare queue is never below it, so that the queue alone never makes the model grow"},
			},
		},
		"thresholds that nothing reaches": {
			config(1.5, inf, 0.1, 3), false, true, map[string]int{"v": 3},
			[]capacity.Note{
				{Field: "config.kv_cache_threshold", Problem: "is 1.5: must be more than 0 and at most 1, a share of the KV cache", Effect: "a full KV cache does not saturate a replica" + skipped},
				{Field: "config.queue_length_threshold", Problem: "is +Inf: must be more than 0 waiting requests", Effect: "no queue saturates a replica"},
			},
		},
		"a threshold of NaN": {
			config(nan, 5, 0.1, 3), false, false, map[string]int{"v": 4},
			[]capacity.Note{{Field: "config.kv_cache_threshold", Problem: "is NaN: must be more than 0 and at most 1, a share of the KV cache",
				Effect: "no comparison with it is true: it saturates no replica, and no removal is safe"}},
		},
		"replicas without a name": {
			idle(func(in *capacity.Input) { in.Replicas[0].Replica, in.Replicas[3].Replica = "", "" }), false, true, map[string]int{"v": 3},
			[]capacity.Note{
				{Field: "replicas[0].replica", Problem: "is missing or empty: must be a name", Effect: "the analyzer does not read it"},
				{Field: "replicas[3].replica", Problem: "is missing or empty: must be a name", Effect: "the analyzer does not read it"},
			},
		},
		"a variant without a name": {
			idle(func(in *capacity.Input) {
				in.Replicas[0].Variant, in.Replicas[1].Variant = "", ""
				in.Variants = variants{{Variant: "v", Current: 2, Desired: 3}, {Variant: "", Current: 2}}
			}), false, true, map[string]int{"v": 3, "": 1},
			[]capacity.Note{
				{Field: "replicas[0].variant", Problem: "is missing or empty: must be a name", Effect: "the analyzer treats the empty name like any other"},
				{Field: "replicas[1].variant", Problem: "is missing or empty: must be a name", Effect: "the analyzer treats the empty name like any other"},
				{Field: "variants[1].variant", Problem: "is missing or empty: must be a name", Effect: "the analyzer treats the empty name like any other"},
			},
		},
		"a variant that is listed twice": {
			idle(func(in *capacity.Input) {
				in.Variants = variants{{Variant: "v", Current: 4, Desired: 9}, {Variant: "v", Current: 4, Desired: 6}}
			}), false, true, map[string]int{"v": 6},
			[]capacity.Note{{Field: "variants[1].variant", Problem: `is "v": duplicate of variants[0].variant`, Effect: "the last entry of the variant counts"}},
		},
		"a negative cost": {
			costs(enginemetrics.Of(-3)), true, false, map[string]int{"v": 3, "w": 2},
			[]capacity.Note{
				{Field: "replicas[0].cost", Problem: "is -3: must be 0 or more", Effect: "the analyzer uses it unchanged"},
				{Field: "replicas[1].cost", Problem: "is -3: must be 0 or more", Effect: "the analyzer uses it unchanged"},
			},
		},
		"an infinite cost": {
			func() capacity.Input {
				in := costs(enginemetrics.Of(1))
				in.Variants[0].Cost = enginemetrics.Of(inf)
				return in
			}(), true, false, map[string]int{"v": 2, "w": 3},
			[]capacity.Note{{Field: "variants[0].cost", Problem: "is +Inf: must be 0 or more", Effect: "the analyzer uses it unchanged"}},
		},
		"a cost of NaN": {
			func() capacity.Input {
				in := costs(enginemetrics.Value{})
				in.Replicas[1].Cost = enginemetrics.Of(nan)
				return in
			}(), true, false, map[string]int{"v": 3, "w": 2},
			[]capacity.Note{{Field: "replicas[1].cost", Problem: "is NaN: must be 0 or more",
				Effect: "no comparison with it is true: which variant changes depends on the order of a Go map in the autoscaler, and it counts as the lowest cost here"}},
		},
		"counts out of their range": {
			idle(func(in *capacity.Input) {
				in.Variants = variants{{Variant: "v", Current: 3}, {Variant: "w", Current: 1, Desired: capacity.MaxCount + 1}, {Variant: "x", Current: -2}}
				in.Replicas[0].Variant = "w"
				in.ModelBasedTargets = map[string]int{"v": -1, "w": 1, "x": -2}
			}), false, true, map[string]int{"v": -1, "w": capacity.MaxCount + 1, "x": 0},
			[]capacity.Note{
				{Field: "variants[1].desired", Problem: "is 1000001: must be 0 to 1000000 replicas", Effect: "the analyzer uses it unchanged"},
				{Field: "variants[2].current", Problem: "is -2: must be 0 to 1000000 replicas", Effect: "the analyzer uses it unchanged"},
				{Field: `model_based_targets["v"]`, Problem: "is -1: must be 0 to 1000000 replicas", Effect: "the analyzer uses it unchanged"},
				{Field: `model_based_targets["x"]`, Problem: "is -2: must be 0 to 1000000 replicas", Effect: "the analyzer uses it unchanged"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := explain(t, capacity.WVA, tc.in)
			require.Equal(t, tc.up, a.ScaleUp)
			require.Equal(t, tc.downSafe, a.ScaleDownSafe)
			require.Equal(t, tc.targets, targets(a))
			require.Equal(t, tc.notes, a.Notes)

			_, err := capacity.Explain(capacity.Safe, tc.in)
			for _, n := range tc.notes {
				require.ErrorContains(t, err, n.Field+" "+n.Problem)
			}
		})
	}
}
