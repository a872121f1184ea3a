package capacity_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// upstreamAnswer is what the upstream algorithm answers.
type upstreamAnswer struct {
	total, nonSaturated int
	up, downSafe        bool
	capacity, targets   map[string]int
	overridden          map[string]bool
}

// upstream is a direct implementation of the upstream algorithm. Sums are exact, as their
// order must not matter.
func upstream(in capacity.Input) upstreamAnswer {
	cfg := in.Config
	if cfg == (capacity.Config{}) {
		cfg = capacity.DefaultConfig()
	}
	a := upstreamAnswer{capacity: map[string]int{}, targets: map[string]int{}, overridden: map[string]bool{}}
	ready, cost := map[string]int{}, map[string]float64{}
	var kv, queue, spareKV, spareQueue []float64
	for _, r := range in.Replicas {
		if r.KVCacheUsage.IsZero() && r.QueueLength.IsZero() {
			continue
		}
		a.total++
		ready[r.Variant]++
		if c, known := cost[r.Variant]; !r.Cost.IsZero() && (!known || r.Cost.Raw() > c) {
			cost[r.Variant] = r.Cost.Raw()
		}
		k, q := r.KVCacheUsage.Raw(), r.QueueLength.Raw()
		if !(k >= cfg.KVCacheThreshold || q >= cfg.QueueLengthThreshold) { // step 1; a NaN is not saturated upstream
			kv, queue = append(kv, k), append(queue, q)
			spareKV, spareQueue = append(spareKV, cfg.KVCacheThreshold-k), append(spareQueue, cfg.QueueLengthThreshold-q)
		}
	}
	a.nonSaturated = len(kv)
	n := float64(a.nonSaturated)
	if a.total > 0 { // steps 3 and 4
		avgKV, avgQueue := 0.0, 0.0
		if n > 0 {
			avgKV, avgQueue = sumOf(spareKV)/n, sumOf(spareQueue)/n
		}
		a.up = avgKV < cfg.KVSpareTrigger || avgQueue < cfg.QueueSpareTrigger
	}
	if n >= 2 { // step 5
		a.downSafe = cfg.KVCacheThreshold-sumOf(kv)/(n-1) >= cfg.KVSpareTrigger &&
			cfg.QueueLengthThreshold-sumOf(queue)/(n-1) >= cfg.QueueSpareTrigger
	}
	a.stepOne(in, ready, cost)
	a.stepTwo(in)
	return a
}

// sumOf is exact for finite numbers; others make the sum what they are in any order.
func sumOf(xs []float64) float64 {
	plain := 0.0
	for _, x := range xs {
		plain += x
	}
	if slices.ContainsFunc(xs, func(x float64) bool { return x-x != 0 }) {
		return plain
	}
	return exact(xs)
}

func (a *upstreamAnswer) stepOne(in capacity.Input, ready map[string]int, cost map[string]float64) {
	state := map[string]capacity.Variant{}
	for _, v := range in.Variants {
		state[v.Variant] = v
		if a.total == 0 {
			a.capacity[v.Variant] = v.Current
		}
	}
	var free []string
	for name, n := range ready {
		a.capacity[name] = n
		if s := state[name]; s.Desired != 0 && s.Desired != s.Current {
			a.capacity[name] = s.Desired
		} else {
			free = append(free, name)
		}
	}
	price := func(name string) float64 {
		if c := state[name].Cost; !c.IsZero() {
			return c.Raw()
		}
		if c, known := cost[name]; known {
			return c
		}
		return 10
	}
	slices.SortFunc(free, func(x, y string) int {
		if price(x) != price(y) {
			return int(math.Copysign(1, price(x)-price(y)))
		}
		return strings.Compare(x, y)
	})
	switch {
	case a.up && len(free) > 0:
		a.capacity[free[0]]++
	case !a.up && a.downSafe:
		for _, name := range slices.Backward(free) {
			if ready[name] > 1 {
				a.capacity[name]--
				return
			}
		}
	}
}

// stepTwo is the decision matrix; an absent number is Go's 0, as upstream's maps give it.
func (a *upstreamAnswer) stepTwo(in capacity.Input) {
	if in.ModelBasedTargets == nil {
		a.targets = a.capacity
		return
	}
	for _, v := range in.Variants { // of two with one name the last has its way
		a.overridden[v.Variant] = false
		byCapacity, byModel := a.capacity[v.Variant], in.ModelBasedTargets[v.Variant]
		switch {
		case byCapacity > v.Current && byModel < v.Current, byModel < v.Current && !a.downSafe:
			a.targets[v.Variant], a.overridden[v.Variant] = v.Current, true
		case byCapacity > v.Current && byModel == v.Current:
			a.targets[v.Variant] = byCapacity
		case byModel != v.Current:
			a.targets[v.Variant] = byModel
		default:
			a.targets[v.Variant] = v.Current
		}
	}
}

// drawOdd changes an input in ways that Safe rejects and the autoscaler's analyzer does not.
func drawOdd(t *rapid.T, in *capacity.Input) {
	if rapid.Bool().Draw(t, "odd config") {
		x := rapid.OneOf(rapid.Float64Range(-2, 9), rapid.SampledFrom([]float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1)}))
		in.Config = capacity.Config{KVCacheThreshold: x.Draw(t, "kv"), QueueLengthThreshold: x.Draw(t, "queue"),
			KVSpareTrigger: x.Draw(t, "kv trigger"), QueueSpareTrigger: x.Draw(t, "queue trigger")}
	}
	odd := func(what string) bool { return rapid.IntRange(0, 4).Draw(t, "odd "+what) == 0 }
	count := rapid.IntRange(-3, 2*capacity.MaxCount)
	cost := rapid.SampledFrom([]float64{-1, math.Inf(-1), math.Inf(1)})
	for i := range in.Variants {
		v := &in.Variants[i]
		if odd("counts") {
			v.Current, v.Desired = count.Draw(t, "current"), count.Draw(t, "desired")
		}
		if odd("cost") {
			v.Cost = enginemetrics.Of(cost.Draw(t, "cost"))
		}
		if odd("name") {
			v.Variant = ""
		}
		if odd("target") {
			in.ModelBasedTargets = map[string]int{v.Variant: count.Draw(t, "target")}
		}
	}
	if len(in.Variants) > 0 && odd("twice") {
		in.Variants = append(in.Variants, in.Variants[0])
		in.Variants[0].Current++
	}
	for i := range in.Replicas {
		r := &in.Replicas[i]
		if odd("names") {
			r.Replica, r.Variant = "", rapid.SampledFrom([]string{"", r.Variant}).Draw(t, "variant")
		}
		if odd("cost") {
			r.Cost = enginemetrics.Of(cost.Draw(t, "cost"))
		}
	}
}

// TestWVAIsUpstream compares WVA with the reference, on valid inputs and on odd ones.
func TestWVAIsUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "clean"))
		if rapid.Bool().Draw(t, "odd") {
			drawOdd(t, &in)
		}
		want, got := upstream(in), answer(t, capacity.WVA, in)
		require.Equal(t, want.total, got.TotalReplicas)
		require.Equal(t, want.nonSaturated, got.NonSaturated)
		require.Equal(t, want.up, got.ScaleUp)
		require.Equal(t, want.downSafe, got.ScaleDownSafe)
		require.Equal(t, want.capacity, got.CapacityTargets)
		require.Equal(t, want.targets, targets(got))
		for name, d := range got.Decisions {
			require.Equal(t, want.overridden[name], d.SafetyOverride, name)
		}
	})
}
