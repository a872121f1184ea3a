package capacity_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
)

type variants = []capacity.Variant

// TestUpstream is upstream's list of tests, by its names. Both rules answer alike where safe is nil.
func TestUpstream(t *testing.T) {
	type want struct {
		up, downSafe bool
		nonSaturated int
		capacity     map[string]int
		targets      map[string]int
		override     string // a variant
	}
	for name, tc := range map[string]struct {
		replicas []capacity.Replica
		variants variants
		model    map[string]int
		want     want
		safe     *want
	}{
		"scale-up trigger: KV spare capacity low": {
			replicas: reps("v", 2, 10, 0.75, 0), variants: variants{{Variant: "v", Current: 2}},
			want: want{up: true, nonSaturated: 2, capacity: map[string]int{"v": 3}},
		},
		"scale-up trigger: queue spare capacity low": {
			replicas: reps("v", 2, 10, 0.1, 3), variants: variants{{Variant: "v", Current: 2}},
			want: want{up: true, nonSaturated: 2, capacity: map[string]int{"v": 3}},
		},
		"scale-up trigger: the average decides": {
			replicas: join(reps("v", 1, 10, 0.79, 0), reps("w", 1, 20, 0.4, 0)), variants: variants{{Variant: "v", Current: 1}, {Variant: "w", Current: 1}},
			want: want{nonSaturated: 2, capacity: map[string]int{"v": 1, "w": 1}},
		},
		"scale-up trigger: at the trigger is enough": {
			replicas: reps("v", 1, 20, 0.7, 2), variants: variants{{Variant: "v", Current: 1}},
			want: want{nonSaturated: 1, capacity: map[string]int{"v": 1}},
		},
		"scale-down safety simulation: the total load is redistributed": {
			replicas: reps("v", 4, 10, 0.2, 0), variants: variants{{Variant: "v", Current: 4}},
			want: want{downSafe: true, nonSaturated: 4, capacity: map[string]int{"v": 3}},
		},
		"scale-down safety simulation: KV would not fit": {
			replicas: reps("v", 2, 10, 0.4, 0), variants: variants{{Variant: "v", Current: 2}},
			want: want{nonSaturated: 2, capacity: map[string]int{"v": 2}},
		},
		"scale-down safety simulation: the queue would not fit": {
			replicas: reps("v", 2, 10, 0.1, 1.5), variants: variants{{Variant: "v", Current: 2}},
			want: want{nonSaturated: 2, capacity: map[string]int{"v": 2}},
		},
		"scale-down safety simulation: what remains may be at the trigger": {
			// Of 2 queued 1 place remains of 5 - 3.
			replicas: reps("v", 2, 10, 0.1, 1), variants: variants{{Variant: "v", Current: 2}},
			want: want{downSafe: true, nonSaturated: 2, capacity: map[string]int{"v": 1}},
		},
		"multi-variant aggregation": {
			replicas: []capacity.Replica{
				rep("variant-1", 1, 20, 0.70, 2), rep("variant-1", 2, 20, 0.75, 3),
				rep("variant-2", 1, 15, 0.60, 1), rep("variant-2", 2, 15, 0.65, 2), rep("variant-2", 3, 15, 0.55, 1),
			},
			variants: variants{{Variant: "variant-1", Current: 2}, {Variant: "variant-2", Current: 3}},
			want:     want{nonSaturated: 5, capacity: map[string]int{"variant-1": 2, "variant-2": 3}},
		},
		"scale-up cheapest variant": {
			replicas: join(reps("dear", 2, 20, 0.75, 4), reps("cheap", 3, 5, 0.75, 4)), variants: variants{{Variant: "dear", Current: 2}, {Variant: "cheap", Current: 3}},
			want: want{up: true, nonSaturated: 5, capacity: map[string]int{"dear": 2, "cheap": 4}},
		},
		"scale-down most expensive variant": {
			replicas: join(reps("dear", 2, 20, 0.1, 0), reps("cheap", 3, 5, 0.1, 0)), variants: variants{{Variant: "dear", Current: 2}, {Variant: "cheap", Current: 3}},
			want: want{downSafe: true, nonSaturated: 5, capacity: map[string]int{"dear": 1, "cheap": 3}},
		},
		"preserve desired replicas": {
			replicas: join(reps("v1-l4", 2, 5, 0.75, 4), reps("v2-a100", 3, 20, 0.75, 4)), variants: variants{{Variant: "v1-l4", Current: 2}, {Variant: "v2-a100", Current: 3, Desired: 4}},
			want: want{up: true, nonSaturated: 5, capacity: map[string]int{"v1-l4": 3, "v2-a100": 4}},
		},
		"preserve desired replicas: a lower one": {
			replicas: reps("v", 4, 5, 0.1, 0), variants: variants{{Variant: "v", Current: 4, Desired: 2}},
			want: want{downSafe: true, nonSaturated: 4, capacity: map[string]int{"v": 2}},
		},
		"preserve desired replicas: desired = current is none": {
			replicas: reps("v", 2, 5, 0.75, 4), variants: variants{{Variant: "v", Current: 2, Desired: 2}},
			want: want{up: true, nonSaturated: 2, capacity: map[string]int{"v": 3}},
		},
		"all variants preserved scenario": {
			replicas: join(reps("a", 2, 5, 0.75, 4), reps("b", 3, 20, 0.75, 4)), variants: variants{{Variant: "a", Current: 2, Desired: 5}, {Variant: "b", Current: 3, Desired: 4}},
			want: want{up: true, nonSaturated: 5, capacity: map[string]int{"a": 5, "b": 4}},
		},
		"equal costs with deterministic tie-breaking: first up": {
			replicas: join(reps("b", 2, 5, 0.75, 4), reps("a", 2, 5, 0.75, 4), reps("c", 2, 5, 0.75, 4)), variants: variants{{Variant: "b", Current: 2}, {Variant: "c", Current: 2}, {Variant: "a", Current: 2}},
			want: want{up: true, nonSaturated: 6, capacity: map[string]int{"a": 3, "b": 2, "c": 2}},
		},
		"equal costs with deterministic tie-breaking: last down": {
			replicas: join(reps("b", 2, 5, 0.1, 0), reps("c", 2, 5, 0.1, 0), reps("a", 2, 5, 0.1, 0)), variants: variants{{Variant: "b", Current: 2}, {Variant: "c", Current: 2}, {Variant: "a", Current: 2}},
			want: want{downSafe: true, nonSaturated: 6, capacity: map[string]int{"a": 2, "b": 2, "c": 1}},
		},
		"scale-down below minimum (prevents scaling to 0)": {
			replicas: join(reps("dear", 1, 20, 0.1, 0), reps("cheap", 1, 5, 0.1, 0)), variants: variants{{Variant: "dear", Current: 1}, {Variant: "cheap", Current: 1}},
			want: want{downSafe: true, nonSaturated: 2, capacity: map[string]int{"dear": 1, "cheap": 1}},
		},
		"scale-down below minimum: the next one shrinks": {
			replicas: join(reps("dear", 1, 20, 0.01, 0), reps("cheap", 3, 5, 0.01, 0)), variants: variants{{Variant: "dear", Current: 1}, {Variant: "cheap", Current: 3}},
			want: want{downSafe: true, nonSaturated: 4, capacity: map[string]int{"dear": 1, "cheap": 2}},
		},
		"capacity veto (capacity wants up, model-based wants down)": {
			replicas: reps("v", 3, 10, 0.75, 4), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 2},
			want: want{up: true, nonSaturated: 3, capacity: map[string]int{"v": 4}, targets: map[string]int{"v": 3}, override: "v"},
		},
		"safety block (model-based wants down, but unsafe)": {
			replicas: reps("v", 3, 10, 0.5, 1), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 2},
			want: want{nonSaturated: 3, capacity: map[string]int{"v": 3}, targets: map[string]int{"v": 3}, override: "v"},
		},
		"follow model-based up (when capacity allows)": {
			replicas: reps("v", 3, 10, 0.5, 1), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 5},
			want: want{nonSaturated: 3, capacity: map[string]int{"v": 3}, targets: map[string]int{"v": 5}},
		},
		"follow model-based down (when capacity allows)": {
			replicas: reps("v", 3, 10, 0.1, 0), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 2},
			want: want{downSafe: true, nonSaturated: 3, capacity: map[string]int{"v": 2}, targets: map[string]int{"v": 2}},
		},
		"follow model-based down where capacity changes nothing": {
			replicas: join(reps("dear", 2, 20, 0.1, 0), reps("cheap", 3, 5, 0.1, 0)), variants: variants{{Variant: "dear", Current: 2}, {Variant: "cheap", Current: 3}},
			model: map[string]int{"dear": 2, "cheap": 2},
			want:  want{downSafe: true, nonSaturated: 5, capacity: map[string]int{"dear": 1, "cheap": 3}, targets: map[string]int{"dear": 2, "cheap": 2}},
		},
		"follow model-based up where capacity would remove": {
			replicas: reps("v", 3, 10, 0.1, 0), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 5},
			want: want{downSafe: true, nonSaturated: 3, capacity: map[string]int{"v": 2}, targets: map[string]int{"v": 5}},
		},
		"capacity-driven (capacity needs scale-up)": {
			replicas: reps("v", 3, 10, 0.75, 4), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 3},
			want: want{up: true, nonSaturated: 3, capacity: map[string]int{"v": 4}, targets: map[string]int{"v": 4}},
		},
		"both capacity and model-based agree": {
			replicas: reps("v", 3, 10, 0.75, 4), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 5},
			want: want{up: true, nonSaturated: 3, capacity: map[string]int{"v": 4}, targets: map[string]int{"v": 5}},
		},
		"the model-based target keeps what capacity would remove": {
			replicas: reps("v", 3, 10, 0.1, 0), variants: variants{{Variant: "v", Current: 3}}, model: map[string]int{"v": 3},
			want: want{downSafe: true, nonSaturated: 3, capacity: map[string]int{"v": 2}, targets: map[string]int{"v": 3}},
		},
		"saturated replica identification": {
			replicas: []capacity.Replica{rep("v", 0, 10, 0.8, 0), rep("v", 1, 10, 0.1, 5), rep("v", 2, 10, 0.79, 4), rep("v", 3, 10, 0.1, 0), rep("v", 4, 10, 0.1, 0)},
			variants: variants{{Variant: "v", Current: 5}},
			want:     want{downSafe: true, nonSaturated: 3, capacity: map[string]int{"v": 4}}, // the first wrong answer again
			// The saturated one with 5 queued counts against the queue: (1+5+5+0)/4 = 2.75.
			safe: &want{up: true, nonSaturated: 3, capacity: map[string]int{"v": 6}},
		},
		"all saturated": {
			replicas: reps("v", 2, 10, 0.95, 9), variants: variants{{Variant: "v", Current: 2}},
			want: want{up: true, capacity: map[string]int{"v": 3}},
		},
		"edge case: empty metrics": {
			variants: variants{{Variant: "v", Current: 2, Desired: 0}},
			want:     want{capacity: map[string]int{"v": 2}},
		},
		"edge case: single replica": {
			replicas: reps("v", 1, 10, 0.01, 0), variants: variants{{Variant: "v", Current: 1}},
			want: want{nonSaturated: 1, capacity: map[string]int{"v": 1}},
		},
		"nil analysis safety: model-based without metrics": {
			variants: variants{{Variant: "v", Current: 2}}, model: map[string]int{"v": 4},
			want: want{capacity: map[string]int{"v": 2}, targets: map[string]int{"v": 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, rules := range both {
				want := tc.want
				if rules == capacity.Safe && tc.safe != nil {
					want = *tc.safe
				}
				if want.targets == nil {
					want.targets = want.capacity
				}
				a := explain(t, rules, capacity.Input{Replicas: tc.replicas, Variants: tc.variants, ModelBasedTargets: tc.model})
				require.Equal(t, want.up, a.ScaleUp, "%s: scale up", rules)
				require.Equal(t, want.downSafe, a.ScaleDownSafe, "%s: scale down safe: %s", rules, a.ScaleDownHold)
				require.Equal(t, len(tc.replicas), a.TotalReplicas, rules)
				require.Equal(t, want.nonSaturated, a.NonSaturated, rules)
				require.Equal(t, want.capacity, a.CapacityTargets, "%s: %+v", rules, a)
				require.Equal(t, want.targets, targets(a), "%s: %+v", rules, a)
				for name, d := range a.Decisions {
					require.Equal(t, want.override == name, d.SafetyOverride, rules)
					require.NotEmpty(t, d.Reason, rules)
				}
			}
		})
	}
}

// TestUpstreamExample is the example of upstream's description. Its rule says 3 for v2-a100, which
// has desired = current and 3 that report; its text says 4. Each of the rules has one of them.
func TestUpstreamExample(t *testing.T) {
	in := capacity.Input{
		Replicas: join(reps("v1-l4", 2, 5, 0.75, 4), reps("v2-a100", 3, 20, 0.75, 4)),
		Variants: variants{{Variant: "v1-l4", Current: 2}, {Variant: "v2-a100", Current: 4, Desired: 4}},
	}
	require.Equal(t, map[string]int{"v1-l4": 3, "v2-a100": 4}, explain(t, capacity.Safe, in).CapacityTargets)
	require.Equal(t, map[string]int{"v1-l4": 3, "v2-a100": 3}, explain(t, capacity.WVA, in).CapacityTargets)
}
