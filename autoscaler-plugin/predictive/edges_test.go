package predictive_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	measure "remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/predictive"
)

// TestKVUsage: a KV memory that fills before the slots do makes a slot count for less. One
// that cannot be is named, and changes nothing.
func TestKVUsage(t *testing.T) {
	with := func(kv measure.Value) predictive.Decision {
		m := newModel(12)
		m.run(10, 2*time.Hour)
		m.in.KVUsage = kv
		m.current = 20 // half full by its slots
		return m.step(10)
	}
	plain := with(measure.Value{})
	for name, c := range map[string]struct {
		kv   measure.Value
		flaw measure.Flaw
		more bool
	}{
		"low":                  {measure.Of(0.2), measure.None, false},
		"as full as the slots": {measure.Of(0.5), measure.None, false},
		"fuller":               {measure.Of(0.9), measure.None, true},
		"NaN":                  {measure.Of(math.NaN()), measure.NotANumber, false},
		"infinite":             {measure.Of(math.Inf(1)), measure.Infinite, false},
		"minus infinite":       {measure.Of(math.Inf(-1)), measure.Infinite, false},
		"negative":             {measure.Of(-5), measure.Negative, false},
		"a percentage":         {measure.Of(90), measure.AboveOne, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := with(c.kv)
			require.Equal(t, c.more, d.Need > plain.Need, "%v, and %v without it", d.Need, plain.Need)
			if c.flaw == measure.None {
				require.Empty(t, d.Findings)
				return
			}
			require.Equal(t, []predictive.Finding{{Field: "kv_usage", Flaw: c.flaw}}, d.Findings)
			require.Equal(t, plain.Targets, d.Targets)
		})
	}
}

// TestManualScaling: what people set in the middle of a hold is where the policy goes on from:
// too few are too few at once, too many are one too much like any other.
func TestManualScaling(t *testing.T) {
	m := newModel(12)
	m.run(10, 2*time.Hour)
	before := m.current
	m.current = 3
	require.GreaterOrEqual(t, m.step(10).Replicas, 10, "100 slots are in use")
	m.run(10, time.Minute)
	m.current = 40
	d := m.step(10)
	require.LessOrEqual(t, d.Replicas, before+2, "what nobody needed within the hold goes: %s", d.Reason)
	require.GreaterOrEqual(t, d.Replicas, 10)
}

// TestCeilingsAgainstRationals: growth has as many replicas as the need takes, and none more,
// counted with rationals of the very float that the decision tells.
func TestCeilingsAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(0)
		slots := rapid.IntRange(1, 64).Draw(t, "slots")
		m.in.Variants[0].Slots, m.in.Max = slots, 1_000_000
		m.in.Running, m.in.Ready = measure.Of(float64(rapid.IntRange(0, 100_000).Draw(t, "running"))), 1_000_000
		d := predictive.Next(&m.cfg, &m.state, &m.in)
		need := new(big.Rat).SetFloat64(d.Need)
		room := func(replicas int) *big.Rat { return big.NewRat(int64(replicas)*int64(slots), 1) }
		require.GreaterOrEqual(t, room(d.Replicas).Cmp(need), 0, d.Reason)
		if d.Replicas > 0 {
			require.Negative(t, room(d.Replicas-1).Cmp(need), d.Reason)
		}
	})
}
