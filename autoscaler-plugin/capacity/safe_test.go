package capacity_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// TestSafe has the cases that only Safe knows.
func TestSafe(t *testing.T) {
	sized := func(r capacity.Replica, size float64) capacity.Replica {
		r.KVCapacity = enginemetrics.Of(size)
		return r
	}
	draining := func(r capacity.Replica) capacity.Replica {
		r.Draining = true
		return r
	}
	const enough = "no action is needed"
	type in = capacity.Input
	for name, tc := range map[string]struct {
		in      capacity.Input
		targets map[string]int
		reason  string // of v
		hold    string // of the model
	}{
		"pending told: the silent one is no starting one": {
			in:      in{Replicas: reps("v", 2, 10, 0.9, 9), Variants: variants{{Variant: "v", Current: 3, Pending: new(0)}}},
			targets: map[string]int{"v": 4},
			reason:  "spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3: adding a replica of the cheapest variant that can grow (cost 10)",
		},
		"pending told: waited for": {
			in:      in{Replicas: reps("v", 2, 10, 0.9, 9), Variants: variants{{Variant: "v", Current: 3, Pending: new(1)}}},
			targets: map[string]int{"v": 3},
			reason:  "spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3: waiting for 1 replica of the cheapest variant to start",
		},
		"pending told: a removal need not wait for it": {
			in:      in{Replicas: reps("v", 3, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 4, Pending: new(1)}}},
			targets: map[string]int{"v": 3},
			reason:  "the load fits on one replica fewer: removing a replica of the most expensive variant that can shrink (cost 10)",
		},
		"growth: as many as the load needs": {
			in:      in{Config: capacity.Config{KVCacheThreshold: 0.8, QueueLengthThreshold: 5, KVSpareTrigger: 0.1, QueueSpareTrigger: 3, GrowthPercent: 100}, Replicas: reps("v", 4, 10, 0.9, 3), Variants: variants{{Variant: "v", Current: 4, Pending: new(0)}}},
			targets: map[string]int{"v": 6}, // 3.6/6 = 0.6 and 12/6 = 2
			reason:  "spare KV cache is 0.000, below 0.1 and spare queue is 2.0, below 3: adding 2 replicas of the cheapest variant that can grow (cost 10)",
		},
		"growth: at most so many, those that start included": {
			in:      in{Config: capacity.Config{KVCacheThreshold: 0.8, QueueLengthThreshold: 5, KVSpareTrigger: 0.1, QueueSpareTrigger: 3, GrowthPercent: 100}, Replicas: reps("v", 4, 10, 0.9, 99), Variants: variants{{Variant: "v", Current: 5, Pending: new(1)}}},
			targets: map[string]int{"v": 8},
		},
		"growth: what starts is enough": {
			in:      in{Config: capacity.Config{KVCacheThreshold: 0.8, QueueLengthThreshold: 5, KVSpareTrigger: 0.1, QueueSpareTrigger: 3, GrowthPercent: 100}, Replicas: reps("v", 4, 10, 0.9, 3), Variants: variants{{Variant: "v", Current: 6, Pending: new(2)}}},
			targets: map[string]int{"v": 6},
			reason:  "spare KV cache is 0.000, below 0.1 and spare queue is 2.0, below 3: waiting for 2 replicas of the cheapest variant to start",
		},
		"growth: the next variant takes what the cheapest cannot": {
			in: in{Config: capacity.Config{KVCacheThreshold: 0.8, QueueLengthThreshold: 5, KVSpareTrigger: 0.1, QueueSpareTrigger: 3, GrowthPercent: 100}, Replicas: join(reps("v", 4, 10, 0.9, 99), reps("w", 1, 20, 0.9, 99)),
				Variants: variants{{Variant: "v", Current: 4, Max: new(5), Pending: new(0)}, {Variant: "w", Current: 1, Pending: new(0)}}},
			targets: map[string]int{"v": 5, "w": 5},
		},
		"the cheapest slot grows": {
			in: in{Replicas: join(reps("v", 1, 2, 0.9, 9), reps("w", 1, 1, 0.9, 9)),
				Variants: variants{{Variant: "v", Current: 1, Slots: 16}, {Variant: "w", Current: 1, Slots: 4}}},
			targets: map[string]int{"v": 2, "w": 1},
		},
		"unplaceable: the next one grows": {
			in:      in{Replicas: join(reps("v", 2, 5, 0.9, 9), reps("w", 1, 20, 0.9, 9)), Variants: variants{{Variant: "v", Current: 2, Unplaceable: true}, {Variant: "w", Current: 1}}},
			targets: map[string]int{"v": 2, "w": 2}, reason: enough,
		},
		"unplaceable: an earlier target is not pursued": {
			in:      in{Replicas: reps("v", 2, 5, 0.6, 0), Variants: variants{{Variant: "v", Current: 2, Desired: 3, Unplaceable: true}}},
			targets: map[string]int{"v": 2}, reason: "another replica cannot be placed",
		},
		"nothing can grow": {
			in:      in{Replicas: reps("v", 2, 5, 0.9, 0), Variants: variants{{Variant: "v", Current: 2, Max: new(2)}}},
			targets: map[string]int{"v": 2},
			reason:  "the model needs more replicas (spare KV cache is 0.000, below 0.1), but no variant can grow now",
		},
		"a variant without replicas grows where its cost is told and lower": {
			in:      in{Replicas: reps("w", 1, 20, 0.9, 9), Variants: variants{{Variant: "v", Cost: enginemetrics.Of(5)}, {Variant: "w", Current: 1}}},
			targets: map[string]int{"v": 1, "w": 1},
			reason:  "spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3: adding a replica of the cheapest variant that can grow (cost 5)",
		},
		"a variant without replicas does not where its cost is a guess": {
			in:      in{Replicas: reps("w", 1, 20, 0.9, 9), Variants: variants{{Variant: "v"}, {Variant: "w", Current: 1}}},
			targets: map[string]int{"v": 0, "w": 2}, reason: enough,
		},
		"below min": {
			in:      in{Replicas: reps("v", 1, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 1, Min: new(2)}}},
			targets: map[string]int{"v": 2}, reason: "at the lower bound (current: 1, bound: 2)",
		},
		"below min, and no place": {
			in:      in{Replicas: reps("v", 1, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 1, Min: new(2), Unplaceable: true}}},
			targets: map[string]int{"v": 1}, reason: "another replica cannot be placed",
		},
		"min = max: from below": {
			in:      in{Replicas: reps("v", 2, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 2, Min: new(4), Max: new(4)}}},
			targets: map[string]int{"v": 4}, reason: "at the lower bound (current: 2, bound: 4)",
		},
		"min = max: from above": {
			in:      in{Replicas: reps("v", 6, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 6, Min: new(4), Max: new(4)}}},
			targets: map[string]int{"v": 4}, reason: "at the upper bound (current: 6)",
		},
		"min = max: held there though more is needed": {
			in:      in{Replicas: reps("v", 4, 10, 0.9, 9), Variants: variants{{Variant: "v", Current: 4, Min: new(4), Max: new(4)}}},
			targets: map[string]int{"v": 4},
			reason:  "the model needs more replicas (spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3), but no variant can grow now",
		},
		"an earlier target above max": {
			in:      in{Replicas: reps("v", 2, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 2, Desired: 9, Max: new(4)}}},
			targets: map[string]int{"v": 4}, reason: "at the upper bound (current: 2)",
		},
		"an earlier target below min": {
			in:      in{Replicas: reps("v", 3, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 3, Desired: 1, Min: new(2)}}},
			targets: map[string]int{"v": 2}, reason: "at the lower bound (current: 3, bound: 2)",
		},
		"a model-based target below min": {
			in:      in{Replicas: reps("v", 3, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 3, Min: new(2)}}, ModelBasedTargets: map[string]int{"v": 0}},
			targets: map[string]int{"v": 2}, reason: "at the lower bound (current: 3, bound: 2)",
		},
		"at min": {
			in:      in{Replicas: reps("v", 3, 10, 0, 0), Variants: variants{{Variant: "v", Current: 3, Min: new(3)}}},
			targets: map[string]int{"v": 3}, reason: enough,
		},
		"min 0: the last one of a variant may go where another carries the load": {
			in:      in{Replicas: join(reps("v", 1, 20, 0.1, 0), reps("w", 3, 5, 0.1, 0)), Variants: variants{{Variant: "v", Current: 1, Min: new(0)}, {Variant: "w", Current: 3}}},
			targets: map[string]int{"v": 0, "w": 3},
			reason:  "the load fits on one replica fewer: removing a replica of the most expensive variant that can shrink (cost 20)",
		},
		"min 0: the last one of the model stays": {
			in:      in{Replicas: reps("v", 1, 20, 0, 0), Variants: variants{{Variant: "v", Current: 1, Min: new(0)}}},
			targets: map[string]int{"v": 1}, reason: enough, hold: "1 of 1 replica not saturated: must be at least 2",
		},
		"above max: as far as the load allows": {
			in:      in{Replicas: reps("v", 4, 10, 0.4, 0), Variants: variants{{Variant: "v", Current: 4, Max: new(1)}}},
			targets: map[string]int{"v": 3},
			reason:  "at the upper bound (current: 4); no further scale-down: the load would not fit on the remaining replicas",
		},
		"an earlier, lower target is not pursued where the load has grown": {
			in:      in{Replicas: reps("v", 3, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 3, Desired: 1}}},
			targets: map[string]int{"v": 3}, hold: "the load would not fit on the remaining replicas",
			reason: "the earlier target of 1 is kept (current: 3); no further scale-down: the load would not fit on the remaining replicas",
		},
		"surplus": {
			in:      in{Replicas: reps("v", 5, 10, 0, 0), Variants: variants{{Variant: "v", Current: 4}}},
			targets: map[string]int{"v": 4}, reason: enough, hold: "the metrics show 1 replica more than the model has, perhaps a stopped or draining one",
		},
		"a draining one's load counts, its room does not": {
			in:      in{Replicas: append(reps("v", 3, 10, 0.4, 0), draining(rep("v", 9, 10, 0.4, 0))), Variants: variants{{Variant: "v", Current: 3, Draining: 1}}},
			targets: map[string]int{"v": 3}, reason: enough, hold: "the load would not fit on the remaining replicas",
		},
		"a silent draining one": {
			in:      in{Replicas: reps("v", 3, 10, 0, 0), Variants: variants{{Variant: "v", Current: 3, Draining: 1}}},
			targets: map[string]int{"v": 3}, reason: enough, hold: "the load of 1 replica is unknown",
		},
		"a variant that is not listed stays": {
			in:      in{Replicas: join(reps("v", 2, 20, 0, 0), reps("w", 2, 5, 0, 0)), Variants: variants{{Variant: "w", Current: 2}}},
			targets: map[string]int{"v": 2, "w": 1}, reason: "it reports metrics and is not in variants: no change",
		},
		"sizes are told: a small one goes though costs differ": {
			in: in{Replicas: []capacity.Replica{
				sized(rep("v", 0, 40, 0.5, 0), 100), sized(rep("v", 1, 40, 0.5, 0), 100), sized(rep("w", 0, 5, 0.5, 0), 300), sized(rep("w", 1, 5, 0.5, 0), 300),
			}, Variants: variants{{Variant: "v", Current: 2}, {Variant: "w", Current: 2}}},
			targets: map[string]int{"v": 1, "w": 2},
			reason:  "the load fits on one replica fewer: removing a replica of the most expensive variant that can shrink (cost 40)",
		},
		"sizes are told: the largest of the variant is simulated": {
			in: in{Replicas: []capacity.Replica{
				sized(rep("v", 0, 10, 0.4, 0), 10), sized(rep("v", 1, 10, 0.4, 0), 10), sized(rep("v", 2, 10, 0.4, 0), 100),
			}, Variants: variants{{Variant: "v", Current: 3}}},
			targets: map[string]int{"v": 3}, reason: enough, hold: "the load would not fit on the remaining replicas",
		},
		"a model-based removal goes as far as it is safe": {
			in:      in{Replicas: reps("v", 6, 10, 0.3, 0), Variants: variants{{Variant: "v", Current: 6}}, ModelBasedTargets: map[string]int{"v": 0}},
			targets: map[string]int{"v": 3},
			reason:  "safety block: the model-based target is 0: the load would not fit on the remaining replicas",
		},
		"model-based removals of several variants together": {
			in: in{Replicas: join(reps("v", 3, 10, 0.36, 0), reps("w", 3, 10, 0.36, 0)), Variants: variants{{Variant: "v", Current: 3}, {Variant: "w", Current: 3}},
				ModelBasedTargets: map[string]int{"v": 1, "w": 1}},
			targets: map[string]int{"v": 3, "w": 1}, // w is the last of the alphabet; 6*0.36/4 = 0.54, and of 3 it is 0.72
			reason:  "safety block: the model-based target is 1: the load would not fit on the remaining replicas",
		},
		"an empty set of model-based targets is no opinion": {
			in:      in{Replicas: reps("v", 3, 10, 0.1, 0), Variants: variants{{Variant: "v", Current: 3}}, ModelBasedTargets: map[string]int{}},
			targets: map[string]int{"v": 2},
			reason:  "no model-based target: the load fits on one replica fewer: removing a replica of the most expensive variant that can shrink (cost 10)",
		},
		"the larger of both targets": {
			in:      in{Replicas: reps("v", 2, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 2, Desired: 5}}, ModelBasedTargets: map[string]int{"v": 3}},
			targets: map[string]int{"v": 5}, reason: "the analyzer's target is 5 and the model-based target is 3: the larger one is used",
		},
		"a model-based target above max": {
			in:      in{Replicas: reps("v", 2, 10, 0.6, 0), Variants: variants{{Variant: "v", Current: 2, Max: new(3)}}, ModelBasedTargets: map[string]int{"v": 9}},
			targets: map[string]int{"v": 3}, reason: "at the upper bound (current: 2)",
		},
		"duplicates count once, with the highest values": {
			in: in{Replicas: []capacity.Replica{rep("v", 0, 10, 0.9, 0), rep("v", 0, 10, 0.1, 6), rep("v", 1, 10, 0.1, 0), rep("v", 1, 10, -1, 0)},
				Variants: variants{{Variant: "v", Current: 2}}},
			targets: map[string]int{"v": 3},
			reason:  "spare queue is 2.5, below 3: adding a replica of the cheapest variant that can grow (cost 10)",
		},
		"nothing is known": {
			in:      in{Replicas: []capacity.Replica{{Replica: "a", Variant: "v"}}, Variants: variants{{Variant: "v", Current: 1}}},
			targets: map[string]int{"v": 1}, reason: "the load of every replica is unknown: no change", hold: "the load of every replica is unknown",
		},
		"triggers of 0: all saturated is not enough": {
			in:      in{Config: capacity.Config{KVCacheThreshold: 0.8, QueueLengthThreshold: 5}, Replicas: reps("v", 2, 10, 0.8, 0), Variants: variants{{Variant: "v", Current: 2}}},
			targets: map[string]int{"v": 3},
			reason:  "every replica is saturated: adding a replica of the cheapest variant that can grow (cost 10)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := explain(t, capacity.Safe, tc.in)
			require.Equal(t, tc.targets, targets(a), "%+v", a)
			if tc.reason != "" {
				require.Equal(t, tc.reason, a.Decisions["v"].Reason)
			}
			if tc.hold != "" {
				require.Equal(t, tc.hold, a.ScaleDownHold)
			}
			for name, d := range a.Decisions {
				require.Equal(t, name, d.Variant)
				require.NotEmpty(t, d.Reason)
			}
		})
	}
}

// TestMinAboveMax is refused by name, by both rules: neither bound can be meant.
func TestMinAboveMax(t *testing.T) {
	in := capacity.Input{Replicas: reps("v", 2, 10, 0.5, 0), Variants: variants{{Variant: "v", Current: 2, Min: new(3), Max: new(2)}}}
	for _, rules := range both {
		_, err := capacity.Explain(rules, in)
		require.EqualError(t, err, "variants[0].min is 3 and max is 2: min must be at most max")
		var field *capacity.FieldError
		require.ErrorAs(t, err, &field)
		require.Equal(t, "variants[0].min", field.Field)
		var a capacity.Analyzer
		result := capacity.Result{TotalReplicas: 7}
		require.EqualError(t, a.Analyze(rules, &in, &result), err.Error())
		require.Equal(t, capacity.Result{TotalReplicas: 7}, result, "it is not touched")
	}
}

// TestWVAAndVariantsThatAreNotListed: they have a capacity target from nothing else than what
// reports, and no decision next to an optimizer.
func TestWVAAndVariantsThatAreNotListed(t *testing.T) {
	in := capacity.Input{Replicas: reps("v", 2, 20, 0.6, 0)}
	a := explain(t, capacity.WVA, in)
	require.Equal(t, map[string]int{"v": 2}, a.CapacityTargets)
	require.Equal(t, capacity.Verdict{Variant: "v", Action: capacity.ScaleUp, Target: 2, Reason: "no action is needed"}, a.Decisions["v"])
	in.ModelBasedTargets = map[string]int{"v": 3}
	a = explain(t, capacity.WVA, in)
	require.Equal(t, map[string]int{"v": 2}, a.CapacityTargets)
	require.Empty(t, a.Decisions)
}

func TestRules(t *testing.T) {
	for _, r := range both {
		got, err := capacity.ParseRules(r.String())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	_, err := capacity.ParseRules("Safe")
	require.EqualError(t, err, `rules is "Safe": must be safe or wva`)
	require.Equal(t, "Rules(7)", capacity.Rules(7).String())
	require.Equal(t, "Class(77)", capacity.Class(77).String())
}
