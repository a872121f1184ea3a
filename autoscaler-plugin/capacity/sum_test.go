package capacity_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/capacity"
)

// exact is the sum of finite floats by math/big, rounded once.
func exact(xs []float64) float64 {
	total := new(big.Float).SetPrec(4096)
	for _, x := range xs {
		total.Add(total, new(big.Float).SetPrec(4096).SetFloat64(x))
	}
	f, _ := total.Float64()
	return f
}

func TestSum(t *testing.T) {
	tiny, huge := math.SmallestNonzeroFloat64, math.MaxFloat64
	for name, xs := range map[string][]float64{
		"nothing":            nil,
		"tenths":             {0.1, 0.2, 0.3, 0.1, 0.1, 0.1},
		"cancelled":          {1e300, 1, -1e300},
		"lost without care":  {1, 0x1p-53, 0x1p-106},
		"ties to even, down": {1, 0x1p-53},
		"ties to even, up":   {1 + 0x1p-52, 0x1p-53},
		"above a tie":        {1, 0x1p-53, tiny},
		"below a tie":        {1, 0x1p-53, -tiny},
		"subnormal":          {tiny, tiny, tiny},
		"subnormal, below":   {-tiny, 2 * tiny},
		"smallest normal":    {0x1p-1022, -tiny},
		"overflow":           {huge, huge},
		"back from overflow": {huge, huge, -huge},
		"almost overflow":    {huge, 0x1p969},
		"overflow by a tie":  {huge, 0x1p970},
		"negative":           {-0.7, 0.1, -0x1p-70},
		"narrow and wide":    {0x1p31, 0x1p-62, -0x1p-63, 0x1p40, 3},
		"zeros":              {0, math.Copysign(0, -1)},
		"whole":              {3, -7, 5, 0x1p31 - 1, 1 - 0x1p31, -2, 0x1p31, 0x1p31, 0x1p31, -0x1p31, -0x1p31, -0x1p31},
		"results, all sizes": {0x1p-900, 0x1p-900, 0x1p-900},
		"a small result":     {0x1p-1022, 0x1p-1022, 0x1p-1022},
		"a large result":     {0x1p960, 0x1p959, 0x1p958},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, exact(xs), capacity.Sum(xs...))
		})
	}
	inf := math.Inf(1)
	require.Equal(t, inf, capacity.Sum(1, inf, -huge))
	require.Equal(t, -inf, capacity.Sum(1, -inf, huge))
	require.True(t, math.IsNaN(capacity.Sum(inf, -inf)))
	require.True(t, math.IsNaN(capacity.Sum(math.NaN(), 1)))
}

// TestOrderOfSums has replicas whose average is at the trigger: added one by one, in float64,
// it is below in one order and not in the other. Both rules sum exactly and answer alike.
func TestOrderOfSums(t *testing.T) {
	const threshold, trigger = 0.8, 0.5
	short := func(kvs []float64) bool {
		total := 0.0
		for _, kv := range kvs {
			total += threshold - kv
		}
		return total/float64(len(kvs)) < trigger
	}
	enough, tooFew := []float64{0.52, 0.28, 0.36, 0.17, 0.17}, []float64{0.28, 0.17, 0.17, 0.52, 0.36}
	require.False(t, short(enough))
	require.True(t, short(tooFew))
	for _, rules := range both {
		for _, kvs := range [][]float64{enough, tooFew} {
			in := capacity.Input{
				Config:   capacity.Config{KVCacheThreshold: threshold, QueueLengthThreshold: 5, KVSpareTrigger: trigger, QueueSpareTrigger: 3},
				Variants: variants{{Variant: "v", Current: len(kvs)}},
			}
			for i, kv := range kvs {
				in.Replicas = append(in.Replicas, rep("v", i, 10, kv, 0))
			}
			// Analyze sums in the order in which they come, where Explain sorts before.
			var a capacity.Analyzer
			var r capacity.Result
			require.NoError(t, a.Analyze(rules, &in, &r))
			require.False(t, r.ScaleUp, "%s: %v", rules, kvs)
			require.Equal(t, len(kvs), r.Decisions[0].Target)
		}
	}
}

func TestSumIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		anyFloat := rapid.Custom(func(t *rapid.T) float64 {
			if rapid.Bool().Draw(t, "usual") {
				return rapid.Float64Range(-1, 100).Draw(t, "x")
			}
			x := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
			if x-x != 0 {
				return 0
			}
			return x
		})
		xs := rapid.SliceOfN(anyFloat, 0, 40).Draw(t, "xs")
		want := exact(xs)
		require.Equal(t, want, capacity.Sum(xs...))
		require.Equal(t, want, capacity.Sum(rapid.Permutation(xs).Draw(t, "order")...))
	})
}
