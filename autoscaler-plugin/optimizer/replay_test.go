package optimizer_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/optimizer"
)

// A recorded input replays to the identical answer, also with numbers that JSON lacks.
func TestRecordedInputReplays(t *testing.T) {
	in := arriving(12.5, variant("a", 7, 8, truth), oneSlot("b", 2, 1))
	in.ServiceSCV = measure.Of(2.5)
	in.Variants[0].Samples = append(in.Variants[0].Samples, sample(math.NaN(), 1), sample(3, math.Inf(1)))
	recorded, err := json.Marshal(in)
	require.NoError(t, err)
	var again optimizer.Input
	require.NoError(t, json.Unmarshal(recorded, &again))
	want := optimizer.Optimize(optimizer.DefaultConfig(), in)
	require.Nil(t, want.Refusal)
	require.Equal(t, 2, want.Variants[0].Belief.Absurd)
	require.Equal(t, want, optimizer.Optimize(optimizer.DefaultConfig(), again))
}

func FuzzOptimize(f *testing.F) {
	for _, in := range []optimizer.Input{
		arriving(12.5, variant("a", 7, 8, truth), oneSlot("b", 2, 1)),
		arriving(math.NaN(), oneSlot("b", 2, 1)),
		arriving(1e5, variant("a", 0, 8, truth)),
	} {
		b, err := json.Marshal(in)
		require.NoError(f, err)
		f.Add(b)
	}
	c := optimizer.DefaultConfig()
	c.MaxReplicas, c.MaxEvaluations = 32, 50
	f.Fuzz(func(t *testing.T, b []byte) {
		var in optimizer.Input
		if json.Unmarshal(b, &in) != nil {
			return
		}
		a := optimizer.Optimize(c, in)
		require.NotEmpty(t, a.Reason)
		require.Equal(t, a.Refusal != nil, a.Targets == nil)
		_, err := json.Marshal(a)
		require.NoError(t, err, "an answer never holds a number that JSON lacks")
		for _, v := range in.Variants {
			n, there := a.Targets[v.Variant]
			require.Equal(t, a.Refusal == nil, there, "every variant is in the answer")
			require.GreaterOrEqual(t, n, 0)
			if v.Max > 0 {
				require.LessOrEqual(t, n, v.Max)
			}
		}
	})
}
