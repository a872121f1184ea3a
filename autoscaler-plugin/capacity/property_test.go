package capacity_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// drawMetric is a metric as engines have them, or as they must not.
func drawMetric(t *rapid.T, most float64, clean bool) enginemetrics.Value {
	if !clean && rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
		return rapid.SampledFrom([]enginemetrics.Value{
			{}, enginemetrics.Of(math.NaN()), enginemetrics.Of(math.Inf(1)), enginemetrics.Of(math.Inf(-1)), enginemetrics.Of(-1), enginemetrics.Of(75), enginemetrics.Of(1e300),
		}).Draw(t, "value")
	}
	if rapid.Bool().Draw(t, "round") {
		return enginemetrics.Of(most * float64(rapid.IntRange(0, 10).Draw(t, "tenths")) / 10)
	}
	return enginemetrics.Of(rapid.Float64Range(0, most).Draw(t, "x"))
}

// drawInput is a model of a few variants. A clean one has nothing unknown, and no optimizer.
func drawInput(t *rapid.T, clean bool) capacity.Input {
	in := capacity.Input{Model: "m", Namespace: "n"}
	if rapid.Bool().Draw(t, "own config") {
		in.Config = capacity.Config{
			KVCacheThreshold: rapid.Float64Range(0.1, 1).Draw(t, "kv"), QueueLengthThreshold: rapid.Float64Range(0.5, 20).Draw(t, "queue"),
		}
		in.Config.GrowthPercent = rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "growth")
		in.Config.KVSpareTrigger = in.Config.KVCacheThreshold * rapid.Float64Range(0, 1).Draw(t, "kv trigger")
		in.Config.QueueSpareTrigger = in.Config.QueueLengthThreshold * rapid.Float64Range(0, 1).Draw(t, "queue trigger")
	}
	sized := rapid.Bool().Draw(t, "sized")
	optional := func(name string) *int {
		if n := rapid.IntRange(-8, 8).Draw(t, name); n >= 0 {
			return &n
		}
		return nil
	}
	for k := range rapid.IntRange(1, 4).Draw(t, "variants") {
		name := fmt.Sprintf("v%d", k)
		n := rapid.IntRange(0, 6).Draw(t, "replicas")
		cost := float64(rapid.IntRange(0, 4).Draw(t, "cost"))
		v := capacity.Variant{Variant: name, Current: n}
		for i := range n {
			r := capacity.Replica{
				Replica: fmt.Sprintf("%s-%d", name, i), Variant: name, Cost: enginemetrics.Of(cost),
				KVCacheUsage: drawMetric(t, 1, clean), QueueLength: drawMetric(t, 6, clean),
			}
			if sized {
				r.KVCapacity = enginemetrics.Of(float64(rapid.IntRange(1, 9).Draw(t, "size")))
			}
			in.Replicas = append(in.Replicas, r)
			if clean {
				continue
			}
			p := &in.Replicas[len(in.Replicas)-1]
			p.Draining = rapid.IntRange(0, 9).Draw(t, "drains") == 0
			p.AgeSeconds = rapid.SampledFrom([]float64{0, 0, 0, 0, 15, 100, -100, math.NaN()}).Draw(t, "age")
			if rapid.IntRange(0, 9).Draw(t, "twice") == 0 {
				q := *p
				q.KVCacheUsage, q.QueueLength = drawMetric(t, 1, false), drawMetric(t, 6, false)
				in.Replicas = append(in.Replicas, q)
			}
		}
		v.Min = optional("min")
		if v.Max = optional("max"); v.Min != nil && v.Max != nil && *v.Max < *v.Min {
			v.Max = v.Min
		}
		v.Slots = rapid.SampledFrom([]int{0, 4, 16}).Draw(t, "slots")
		v.Unplaceable = rapid.IntRange(0, 5).Draw(t, "unplaceable") == 0
		if !clean {
			v.Current = max(0, n+rapid.IntRange(-1, 2).Draw(t, "others"))
			v.Pending, v.Desired, v.Draining = optional("pending"), *max2(optional("desired")), *max2(optional("draining"))
			if rapid.IntRange(0, 9).Draw(t, "unlisted") == 0 {
				continue
			}
		}
		in.Variants = append(in.Variants, v)
	}
	if !clean && rapid.Bool().Draw(t, "model-based") {
		in.ModelBasedTargets = map[string]int{}
		for _, v := range in.Variants {
			if n := optional("target"); n != nil {
				in.ModelBasedTargets[v.Variant] = *n
			}
		}
	}
	return in
}

// max2 is 0 for nil.
func max2(n *int) *int {
	if n == nil {
		return new(0)
	}
	return n
}

func answer(t *rapid.T, rules capacity.Rules, in capacity.Input) capacity.Answer {
	a, err := capacity.Explain(rules, in)
	require.NoError(t, err)
	return a
}

// TestOrderDoesNotMatter: a permuted input has the identical answer, and an analyzer that
// was used before gives it too.
func TestOrderDoesNotMatter(t *testing.T) {
	var used capacity.Analyzer
	var result capacity.Result
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, false)
		for _, rules := range both {
			want := answer(t, rules, in)
			other := in
			other.Replicas = rapid.Permutation(in.Replicas).Draw(t, "replicas")
			other.Variants = rapid.Permutation(in.Variants).Draw(t, "variants")
			require.Equal(t, marshal(t, want), marshal(t, answer(t, rules, other)))

			require.NoError(t, used.Analyze(rules, &other, &result))
			got := result.Answer(&other)
			got.Replicas, want.Replicas = nil, nil // which of two entries is the duplicate may differ
			require.Equal(t, marshal(t, want), marshal(t, got))
			for i := range result.Classes {
				require.NotEmpty(t, result.Classes[i].String())
			}
		}
	})
}

// TestNothingIsRemovedInTheDark: Safe removes nothing while a replica's load is unknown, and
// what is not known is left out of every sum.
func TestNothingIsRemovedInTheDark(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, false)
		a := answer(t, capacity.Safe, in)
		for name, d := range a.Decisions {
			if a.UnknownReplicas > 0 {
				require.GreaterOrEqual(t, d.Target, d.Current, name)
				require.GreaterOrEqual(t, a.CapacityTargets[name], d.Current, name)
			}
			require.NotEmpty(t, d.Reason)
			require.GreaterOrEqual(t, d.Target, 0)
		}
		require.Len(t, a.CapacityTargets, len(a.Decisions))
		for _, v := range in.Variants {
			require.Contains(t, a.Decisions, v.Variant)
		}
		if kv, flaw := a.AvgSpareKV.Get(); flaw != enginemetrics.Absent {
			require.False(t, math.IsNaN(kv) || kv < 0 || kv > 1, kv)
		}
	})
}

// TestLoadFitsOnWhatRemains: after Safe's removals, largest first, the load of all replicas
// leaves the triggers' room on those that remain, by arithmetic written anew.
func TestLoadFitsOnWhatRemains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		if rapid.Bool().Draw(t, "model-based") {
			in.ModelBasedTargets = map[string]int{}
			for _, v := range in.Variants {
				in.ModelBasedTargets[v.Variant] = rapid.IntRange(0, 6).Draw(t, "target")
			}
		}
		for i := range in.Variants {
			in.Variants[i].Desired = rapid.IntRange(0, 6).Draw(t, "desired")
		}
		a := answer(t, capacity.Safe, in)
		cfg := in.Config
		if cfg == (capacity.Config{}) {
			cfg = capacity.DefaultConfig()
		}
		sizes, load, queue, left, removed := 0.0, 0.0, 0.0, 0, 0
		even := 0.0
		for _, v := range in.Variants {
			d := a.Decisions[v.Variant]
			var own []float64
			for _, r := range in.Replicas {
				if r.Variant != v.Variant {
					continue
				}
				size := r.KVCapacity.Or(r.Cost.Or(0))
				own = append(own, size)
				load += r.KVCacheUsage.Or(0) * size
				even += r.KVCacheUsage.Or(0)
				queue += r.QueueLength.Or(0)
			}
			slices.Sort(own)
			stay := min(d.Target, len(own))
			removed += len(own) - stay
			left += stay
			for _, size := range own[:stay] {
				sizes += size
			}
		}
		if removed == 0 {
			return
		}
		require.False(t, a.ScaleUp)
		require.Positive(t, left, "something must remain: %+v", a)
		const slack = 1e-9 // these sums round as they come
		require.GreaterOrEqual(t, cfg.QueueLengthThreshold-queue/float64(left), cfg.QueueSpareTrigger-slack)
		if !in.Replicas[0].KVCapacity.IsZero() {
			require.GreaterOrEqual(t, cfg.KVCacheThreshold-load/sizes, cfg.KVSpareTrigger-slack)
			return
		}
		require.GreaterOrEqual(t, cfg.KVCacheThreshold-even/float64(left), cfg.KVSpareTrigger-slack)
		for _, v := range in.Variants {
			for _, r := range in.Replicas {
				if r.Variant == v.Variant && r.Cost.Or(0) == 0 {
					return // sizes cannot be as the costs are
				}
			}
		}
		if slices.ContainsFunc(in.Variants, func(v capacity.Variant) bool { return v.Current == 0 }) {
			return // its cost is a guess
		}
		require.GreaterOrEqual(t, cfg.KVCacheThreshold-load/sizes, cfg.KVSpareTrigger-slack)
	})
}

// TestMoreLoadIsNeverFewerReplicas: where one replica has more to do, Safe wants at least as
// many replicas altogether.
func TestMoreLoadIsNeverFewerReplicas(t *testing.T) {
	total := func(a capacity.Answer) (n int) {
		for _, d := range a.Decisions {
			n += d.Target
		}
		return n
	}
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		if len(in.Replicas) == 0 {
			return
		}
		// Bounds are no matter of load.
		for i := range in.Variants {
			in.Variants[i].Max = nil
		}
		busier := in
		busier.Replicas = slices.Clone(in.Replicas)
		r := &busier.Replicas[rapid.IntRange(0, len(in.Replicas)-1).Draw(t, "which")]
		kv, queue := r.KVCacheUsage.Or(0), r.QueueLength.Or(0)
		r.KVCacheUsage = enginemetrics.Of(rapid.Float64Range(kv, 1).Draw(t, "kv"))
		r.QueueLength = enginemetrics.Of(queue + rapid.Float64Range(0, 50).Draw(t, "queue"))
		calm, busy := answer(t, capacity.Safe, in), answer(t, capacity.Safe, busier)
		require.LessOrEqual(t, total(calm), total(busy), "%+v\n%+v", calm, busy)
		require.False(t, calm.ScaleUp && !busy.ScaleUp)
		require.False(t, !calm.ScaleDownSafe && busy.ScaleDownSafe)
	})
}

// TestSafeGrowsWhereverWVADoes: what Safe mends never makes it the slower one to see that a
// model needs more.
func TestSafeGrowsWhereverWVADoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		if answer(t, capacity.WVA, in).ScaleUp {
			require.True(t, answer(t, capacity.Safe, in).ScaleUp)
		}
	})
}

// TestAnswersSurviveJSON and so do inputs: the same answer, byte for byte.
func TestAnswersSurviveJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, false)
		for i := range in.Replicas {
			if math.IsNaN(in.Replicas[i].AgeSeconds) { // JSON has no such number, and no field for it
				in.Replicas[i].AgeSeconds = 1e9
			}
		}
		again, err := readString(marshal(t, in))
		require.NoError(t, err)
		require.Equal(t, marshal(t, in), marshal(t, again))
		for _, rules := range both {
			require.Equal(t, marshal(t, answer(t, rules, in)), marshal(t, answer(t, rules, again)))
		}
	})
}
