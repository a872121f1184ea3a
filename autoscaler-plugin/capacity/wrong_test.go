package capacity_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// TestEightWrongAnswers are those of the autoscaler facts: WVA gives them, Safe mends them.
func TestEightWrongAnswers(t *testing.T) {
	nan := rep("v", 0, 10, math.NaN(), 0)
	for name, tc := range map[string]struct {
		in         capacity.Input
		wva        map[string]int
		safe       map[string]int
		wvaUp      bool
		safeUp     bool
		safeReason string // of v
	}{
		"3 saturated with long queues, 2 idle": {
			in: capacity.Input{Replicas: []capacity.Replica{
				rep("v", 0, 10, 0.99, 50), rep("v", 1, 10, 0.99, 50), rep("v", 2, 10, 0.99, 50), rep("v", 3, 10, 0, 0), rep("v", 4, 10, 0, 0),
			}, Variants: variants{{Variant: "v", Current: 5}}},
			wva: map[string]int{"v": 4}, safe: map[string]int{"v": 6}, safeUp: true,
			safeReason: "spare queue is 2.0, below 3: adding a replica of the cheapest variant that can grow (cost 10)",
		},
		"4 current, 1 reports, saturated": {
			in:  capacity.Input{Replicas: reps("v", 1, 10, 0.95, 9), Variants: variants{{Variant: "v", Current: 4}}},
			wva: map[string]int{"v": 2}, safe: map[string]int{"v": 4}, wvaUp: true, safeUp: true,
			safeReason: "spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3: waiting for 3 replicas of the cheapest variant to start",
		},
		"1 of 4 reports, idle": {
			in:  capacity.Input{Replicas: reps("v", 1, 10, 0, 0), Variants: variants{{Variant: "v", Current: 4}}},
			wva: map[string]int{"v": 1}, safe: map[string]int{"v": 4}, safeReason: "no action is needed",
		},
		"a variant is missing from the model-based targets": {
			in: capacity.Input{
				Replicas: join(reps("v", 2, 10, 0.1, 0), reps("w", 2, 10, 0.1, 0)), Variants: variants{{Variant: "v", Current: 2}, {Variant: "w", Current: 2}},
				ModelBasedTargets: map[string]int{"w": 2},
			},
			wva: map[string]int{"v": 0, "w": 2}, safe: map[string]int{"v": 2, "w": 2}, safeReason: "no model-based target: no action is needed",
		},
		"KV usage is NaN": {
			in:  capacity.Input{Replicas: []capacity.Replica{nan, rep("v", 1, 10, 0.79, 4), rep("v", 2, 10, 0.79, 1)}, Variants: variants{{Variant: "v", Current: 3}}},
			wva: map[string]int{"v": 3}, safe: map[string]int{"v": 4}, safeUp: true,
			safeReason: "spare KV cache is 0.010, below 0.1 and spare queue is 2.5, below 3: adding a replica of the cheapest variant that can grow (cost 10)",
		},
		"KV usage is -5": {
			in:  capacity.Input{Replicas: []capacity.Replica{rep("v", 0, 10, -5, 0), rep("v", 1, 10, 0.6, 0), rep("v", 2, 10, 0.6, 0)}, Variants: variants{{Variant: "v", Current: 3}}},
			wva: map[string]int{"v": 2}, safe: map[string]int{"v": 3}, safeReason: "no action is needed",
		},
		"a variant without any metrics": {
			in:  capacity.Input{Replicas: reps("w", 2, 10, 0.75, 4), Variants: variants{{Variant: "v", Current: 2}, {Variant: "w", Current: 2}}},
			wva: map[string]int{"w": 3}, safe: map[string]int{"v": 2, "w": 3}, wvaUp: true, safeUp: true,
			safeReason: "none of its 2 replicas reports usable metrics: no change",
		},
		"a large replica is removed": {
			// In sizes as the costs: (2*40*0.2 + 2*5*0.2) / (40 + 10) = 0.36, and with equal
			// ones 0.27; at 0.5 of the large ones it is 0.84 of what remains.
			in:  capacity.Input{Replicas: join(reps("v", 2, 40, 0.5, 0), reps("w", 2, 5, 0.1, 0)), Variants: variants{{Variant: "v", Current: 2}, {Variant: "w", Current: 2}}},
			wva: map[string]int{"v": 1, "w": 2}, safe: map[string]int{"v": 2, "w": 1}, safeReason: "no action is needed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			wva, safe := explain(t, capacity.WVA, tc.in), explain(t, capacity.Safe, tc.in)
			require.Equal(t, tc.wva, targets(wva))
			require.Equal(t, tc.safe, targets(safe))
			require.Equal(t, tc.wvaUp, wva.ScaleUp)
			require.Equal(t, tc.safeUp, safe.ScaleUp)
			require.Equal(t, tc.safeReason, safe.Decisions["v"].Reason)
		})
	}
	t.Run("WVA grows to fewer than there are", func(t *testing.T) {
		a := explain(t, capacity.WVA, capacity.Input{Replicas: reps("v", 1, 10, 0.95, 9), Variants: variants{{Variant: "v", Current: 4}}})
		require.Equal(t, "spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3: 2 replicas of the cheapest variant, one more than report (cost 10)", a.Decisions["v"].Reason)
	})
	t.Run("NaN of WVA: nothing ever scales", func(t *testing.T) {
		a := explain(t, capacity.WVA, capacity.Input{Replicas: []capacity.Replica{nan, rep("v", 1, 10, 0.01, 0), rep("v", 2, 10, 0.01, 0)}, Variants: variants{{Variant: "v", Current: 3}}})
		require.Equal(t, 3, a.NonSaturated, "the NaN counts as healthy")
		require.False(t, a.ScaleUp || a.ScaleDownSafe)
	})
}

// TestClassification names what a replica's metrics are taken for, under Safe.
func TestClassification(t *testing.T) {
	aged := func(seconds float64) capacity.Replica {
		r := rep("v", 0, 10, 0.1, 0)
		r.AgeSeconds = seconds
		return r
	}
	noKV, noQueue, neither := rep("v", 0, 10, 0, 0), rep("v", 0, 10, 0, 0), capacity.Replica{Replica: "v-0", Variant: "v"}
	noKV.KVCacheUsage, noQueue.QueueLength = enginemetrics.Value{}, enginemetrics.Value{}
	badWithout := rep("v", 0, 10, 0, -1)
	badWithout.KVCacheUsage = enginemetrics.Value{}
	drains := rep("v", 0, 10, 0.99, 9)
	drains.Draining = true
	for name, tc := range map[string]struct {
		replica       capacity.Replica
		class, reason string
		unknown       int
	}{
		"ok":                  {rep("v", 0, 10, 0.5, 1), "ok", "", 0},
		"full":                {rep("v", 0, 10, 1, 1), "saturated", "KV usage 1 of 0.8, queue 1 of 5", 0},
		"at the KV threshold": {rep("v", 0, 10, 0.8, 1), "saturated", "KV usage 0.8 of 0.8, queue 1 of 5", 0},
		"at the queue's":      {rep("v", 0, 10, 0.5, 5), "saturated", "KV usage 0.5 of 0.8, queue 5 of 5", 0},
		"percent":             {rep("v", 0, 10, 75, 0), "impossible", "KV usage is 75: must be 0 to 1 (divide a percentage by 100)", 1},
		"more than a percent": {rep("v", 0, 10, 101, 0), "impossible", "KV usage is 101: must be 0 to 1", 1},
		"NaN":                 {rep("v", 0, 10, math.NaN(), 0), "impossible", "KV usage is NaN: must be 0 to 1", 1},
		"a whole percent":     {rep("v", 0, 10, 100, 0), "impossible", "KV usage is 100: must be 0 to 1 (divide a percentage by 100)", 1},
		"minus infinite":      {rep("v", 0, 10, math.Inf(-1), 0), "impossible", "KV usage is -Inf: must be 0 to 1", 1},
		"minus 0":             {rep("v", 0, 10, math.Copysign(0, -1), math.Copysign(0, -1)), "ok", "", 0},
		"a queue, minus inf.": {rep("v", 0, 10, 0.1, math.Inf(-1)), "impossible", "queue length is -Inf: must be 0 or more", 1},
		"an age of NaN":       {aged(math.NaN()), "stale", "its metrics are NaN s old: must be at most 60 s", 1},
		"an infinite age":     {aged(math.Inf(1)), "stale", "its metrics are +Inf s old: must be at most 60 s", 1},
		"infinite":            {rep("v", 0, 10, math.Inf(1), 0), "impossible", "KV usage is +Inf: must be 0 to 1", 1},
		"negative":            {rep("v", 0, 10, -0.1, 0), "impossible", "KV usage is -0.1: must be 0 to 1", 1},
		"a NaN of a queue":    {rep("v", 0, 10, 0.1, math.NaN()), "impossible", "queue length is NaN: must be 0 or more", 1},
		"an infinite queue":   {rep("v", 0, 10, 0.1, math.Inf(1)), "impossible", "queue length is +Inf: must be 0 or more", 1},
		"a negative queue":    {rep("v", 0, 10, 0.1, -1), "impossible", "queue length is -1: must be 0 or more", 1},
		"bad and absent":      {badWithout, "impossible", "queue length is -1: must be 0 or more", 1},
		"no KV":               {noKV, "unknown", "it reports no KV usage", 1},
		"no queue":            {noQueue, "unknown", "it reports no queue length", 1},
		"neither":             {neither, "unknown", "it reports no KV usage and no queue length", 1},
		"old":                 {aged(61), "stale", "its metrics are 61 s old: must be at most 60 s", 1},
		"ahead of the clock":  {aged(-61), "stale", "its metrics are -61 s old: must be at most 60 s", 1},
		"old enough":          {aged(60), "ok", "", 0},
		"drains":              {drains, "draining", "draining: its load counts, its spare capacity does not", 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := capacity.Input{
				Replicas: append(reps("w", 3, 5, 0.1, 0), tc.replica),
				Variants: variants{{Variant: "v", Current: 1}, {Variant: "w", Current: 3}},
			}
			if tc.replica.Draining {
				in.Variants[0] = capacity.Variant{Variant: "v", Draining: 1}
			}
			a := explain(t, capacity.Safe, in)
			require.Equal(t, capacity.Finding{Replica: "v-0", Variant: "v", Class: tc.class, Reason: tc.reason}, a.Replicas[0])
			require.Equal(t, tc.unknown, a.UnknownReplicas)
			if tc.unknown > 0 {
				require.False(t, a.ScaleDownSafe)
				require.Equal(t, "the load of 1 replica is unknown", a.ScaleDownHold)
				require.Equal(t, map[string]int{"v": 1, "w": 3}, targets(a))
				known := explain(t, capacity.Safe, capacity.Input{Replicas: reps("w", 3, 5, 0.1, 0)})
				require.Equal(t, known.AvgSpareKV, a.AvgSpareKV, "it is in no average")
				require.Equal(t, known.AvgSpareQueue, a.AvgSpareQueue)
			}
		})
	}
}

// TestWVATakesValuesAsTheyCome: the upstream algorithm has no classes. What its comparisons and
// sums make of odd values, next to two idle replicas, is what it answers.
func TestWVATakesValuesAsTheyCome(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for name, tc := range map[string]struct {
		kv, queue    float64
		nonSaturated int
		up, downSafe bool
		target       int
	}{
		"KV +Inf is saturated":            {inf, 0, 2, false, true, 2},
		"KV -Inf is healthy":              {-inf, 0, 3, false, true, 2},
		"KV NaN stops everything":         {nan, 0, 3, false, false, 3},
		"KV -5 is healthy":                {-5, 0, 3, false, true, 2},
		"KV in percent is saturated":      {75, 0, 2, false, true, 2},
		"KV of 1 in percent is, too":      {1, 0, 2, false, true, 2},
		"a queue of +Inf is saturated":    {0.1, inf, 2, false, true, 2},
		"a queue of -Inf is healthy":      {0.1, -inf, 3, false, true, 2},
		"a queue of NaN stops everything": {0.1, nan, 3, false, false, 3},
		"a queue of -1 is healthy":        {0.1, -1, 3, false, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := explain(t, capacity.WVA, capacity.Input{
				Replicas: append(reps("v", 2, 10, 0.1, 0), rep("v", 9, 10, tc.kv, tc.queue)), Variants: variants{{Variant: "v", Current: 3}},
			})
			require.Equal(t, tc.nonSaturated, a.NonSaturated)
			require.Equal(t, tc.up, a.ScaleUp)
			require.Equal(t, tc.downSafe, a.ScaleDownSafe)
			require.Equal(t, map[string]int{"v": tc.target}, targets(a))
		})
	}
}
