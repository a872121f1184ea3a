package hpa_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
)

// ready makes replicas that have these values.
func ready(values ...hpa.Milli) []hpa.Replica {
	var all []hpa.Replica
	for _, v := range values {
		all = append(all, hpa.Replica{Value: v})
	}
	return all
}

func with(all []hpa.Replica, missing, unready int) []hpa.Replica {
	for range missing {
		all = append(all, hpa.Replica{Condition: hpa.Missing})
	}
	for range unready {
		all = append(all, hpa.Replica{Value: 123456, Condition: hpa.Unready})
	}
	return all
}

func TestMeasured(t *testing.T) {
	for name, tc := range map[string]struct {
		current  int
		target   hpa.Milli
		replicas []hpa.Replica
		want     int
		why      hpa.Why
	}{
		"on target":                            {2, 500, ready(500, 500), 2, hpa.WhyTolerance},
		"double":                               {2, 500, ready(1000, 1000), 4, hpa.WhyRatio},
		"half":                                 {4, 500, ready(250, 250, 250, 250), 2, hpa.WhyRatio},
		"the upper end of the tolerance holds": {2, 1000, ready(1100, 1100), 2, hpa.WhyTolerance},
		"just above it":                        {2, 1000, ready(1100, 1101), 3, hpa.WhyRatio},
		"the lower end of the tolerance holds": {2, 1000, ready(900, 900), 2, hpa.WhyTolerance},
		"just below it":                        {20, 1000, ready(many(20, 899)...), 18, hpa.WhyRatio},
		"nothing to do":                        {3, 500, ready(0, 0, 0), 0, hpa.WhyRatio},

		"missing on the way down count as the target":                     {4, 1000, with(ready(100, 100), 2, 0), 3, hpa.WhyRatio},
		"missing on the way down bring it within tolerance":               {10, 1000, with(ready(500), 9, 0), 10, hpa.WhyTolerance},
		"missing on the way up count as 0":                                {4, 1000, with(ready(4000, 4000), 2, 0), 8, hpa.WhyRatio},
		"missing on the way up bring it within tolerance":                 {4, 1000, with(ready(2000, 2000), 2, 0), 4, hpa.WhyTolerance},
		"missing turn the direction":                                      {4, 1000, with(ready(1500, 1500), 2, 0), 4, hpa.WhyDirection},
		"unready on the way up count as 0":                                {4, 1000, with(ready(4000, 4000), 0, 2), 8, hpa.WhyRatio},
		"unready turn the direction":                                      {5, 1000, with(ready(1500, 1500), 0, 3), 5, hpa.WhyDirection},
		"unready on the way down are not counted":                         {4, 1000, with(ready(500, 500), 0, 2), 1, hpa.WhyRatio},
		"on target with missing":                                          {4, 1000, with(ready(1000, 1000), 2, 0), 4, hpa.WhyTolerance},
		"a value that cannot be is missing":                               {4, 1000, append(ready(100, 100), hpa.Replica{Value: -1}, hpa.Replica{Value: math.MaxInt64}), 3, hpa.WhyRatio},
		"an unknown condition is missing":                                 {3, 1000, append(ready(100, 100), hpa.Replica{Value: 9000, Condition: "gone"}), 2, hpa.WhyRatio},
		"all missing":                                                     {4, 1000, with(nil, 4, 0), 4, hpa.WhyNoMetric},
		"all unready":                                                     {4, 1000, with(nil, 0, 4), 4, hpa.WhyNoMetric},
		"none at all":                                                     {4, 1000, nil, 4, hpa.WhyNoMetric},
		"some were ordered and are not listed: no scale-up may stop them": {10, 1000, ready(1500, 1500, 1500), 10, hpa.WhyDirection},
		"more listed than wanted: no scale-down may add":                  {1, 1000, ready(500, 500, 500, 500), 1, hpa.WhyDirection},
		"no target":         {4, 0, ready(1), 4, hpa.WhyTarget},
		"a negative target": {4, -500, ready(1), 4, hpa.WhyTarget},
	} {
		t.Run(name, func(t *testing.T) {
			m := hpa.Measured{Current: tc.current, Target: tc.target, Tolerance: hpa.DefaultTolerance(), Replicas: tc.replicas}
			got := m.Desired()
			require.Equal(t, tc.want, got.Replicas, "%+v", got)
			require.Equal(t, tc.why, got.Why, "%+v", got)
			require.Equal(t, tc.why == hpa.WhyNoMetric || tc.why == hpa.WhyTarget, got.Unknown)
			require.NotEmpty(t, got.Reason)
			// No answer depends on the order of the input.
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(m.Replicas), func(i, j int) { m.Replicas[i], m.Replicas[j] = m.Replicas[j], m.Replicas[i] })
			require.Equal(t, got, m.Desired())
		})
	}
}

func many(n int, v hpa.Milli) []hpa.Milli {
	all := make([]hpa.Milli, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// TestFloatsAreWrong: ratios for which a float's ceiling is one too many.
func TestFloatsAreWrong(t *testing.T) {
	seven := hpa.Measured{Current: 27, Target: 3000, Replicas: ready(many(27, 7000)...)}
	require.Equal(t, 63, seven.Desired().Replicas)
	value, target := 7.0, 3.0
	require.Equal(t, 64.0, math.Ceil(value/target*27), "what Kubernetes answers")
	// 0.9 and 1.1 have no float of their own, and are within 0.1 all the same.
	for _, v := range []hpa.Milli{900, 1100} {
		m := hpa.Average{Current: 1, Value: v, Target: 1000, Tolerance: hpa.DefaultTolerance()}
		require.Equal(t, hpa.WhyTolerance, m.Desired().Why)
	}
}

func TestAverage(t *testing.T) {
	tolerance := hpa.DefaultTolerance()
	for name, tc := range map[string]struct {
		in   hpa.Average
		want int
		why  hpa.Why
	}{
		"a queue":           {hpa.Average{Current: 2, Value: 31_000, Target: 10_000, Tolerance: tolerance}, 4, hpa.WhyRatio},
		"within tolerance":  {hpa.Average{Current: 3, Value: 33_000, Target: 10_000, Tolerance: tolerance}, 3, hpa.WhyTolerance},
		"beyond tolerance":  {hpa.Average{Current: 3, Value: 33_001, Target: 10_000, Tolerance: tolerance}, 4, hpa.WhyRatio},
		"empty":             {hpa.Average{Current: 3, Target: 10_000, Tolerance: tolerance}, 0, hpa.WhyRatio},
		"from 0":            {hpa.Average{Value: 1, Target: 10_000, Tolerance: tolerance}, 1, hpa.WhyFromZero},
		"from 0, and empty": {hpa.Average{Target: 10_000, Tolerance: tolerance}, 0, hpa.WhyFromZero},
		"negative":          {hpa.Average{Current: 3, Value: -1, Target: 10_000}, 3, hpa.WhyImpossible},
		"no target":         {hpa.Average{Current: 3, Value: 1}, 3, hpa.WhyTarget},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.in.Desired()
			require.Equal(t, tc.want, got.Replicas, "%+v", got)
			require.Equal(t, tc.why, got.Why, "%+v", got)
		})
	}
}

func TestFromFloat(t *testing.T) {
	for v, want := range map[float64]hpa.Milli{0: 0, 0.7: 700, 1: 1000, 0.0004: 0, 0.0005: 1, 12.3456: 12346, math.Copysign(0, -1): 0} {
		got, flaw := hpa.FromFloat(v)
		require.Equal(t, enginemetrics.None, flaw)
		require.Equal(t, want, got, "%v", v)
	}
	for name, tc := range map[string]struct {
		v    float64
		want enginemetrics.Flaw
	}{
		"NaN": {math.NaN(), enginemetrics.NotANumber}, "+Inf": {math.Inf(1), enginemetrics.Infinite}, "-Inf": {math.Inf(-1), enginemetrics.Infinite},
		"negative": {-5, enginemetrics.Negative}, "barely negative": {-math.SmallestNonzeroFloat64, enginemetrics.Negative}, "huge": {1e300, enginemetrics.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			got, flaw := hpa.FromFloat(tc.v)
			require.Equal(t, tc.want, flaw)
			require.Zero(t, got)
		})
	}
	require.Equal(t, "0.700", hpa.Milli(700).String())
	require.Equal(t, "12", hpa.Milli(12000).String())
	require.Equal(t, "-0.005", hpa.Milli(-5).String())
	require.Equal(t, "-9223372036854775.808", hpa.Milli(math.MinInt64).String())
}

var milli = rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64Range(0, int64(hpa.MaxMilli)), rapid.SampledFrom([]int64{0, 1, 900, 1000, 1100, int64(hpa.MaxMilli)}))

func within(r *big.Rat, t hpa.Tolerance) bool {
	low := big.NewRat(1000-int64(t.Down), 1000)
	high := big.NewRat(1000+int64(t.Up), 1000)
	return low.Cmp(r) <= 0 && r.Cmp(high) <= 0
}

// TestMeasuredIsTheRules compares with rules 1 to 3 in rationals, ratio by ratio as they
// are written, and as Kubernetes computes them but for its floats.
func TestMeasuredIsTheRules(t *testing.T) {
	one := big.NewRat(1, 1)
	rapid.Check(t, func(t *rapid.T) {
		m := hpa.Measured{
			Current:   rapid.IntRange(0, 30).Draw(t, "current"),
			Target:    hpa.Milli(max(milli.Draw(t, "target"), 1)),
			Tolerance: hpa.Tolerance{Up: hpa.Milli(rapid.IntRange(0, 300).Draw(t, "up")), Down: hpa.Milli(rapid.IntRange(0, 1200).Draw(t, "down"))},
		}
		n := rapid.IntRange(1, 20).Draw(t, "ready")
		for range n {
			m.Replicas = append(m.Replicas, hpa.Replica{Value: hpa.Milli(milli.Draw(t, "value"))})
		}
		missing, unready := rapid.IntRange(0, 5).Draw(t, "missing"), rapid.IntRange(0, 5).Draw(t, "unready")
		m.Replicas = with(m.Replicas, missing, unready)

		sum := new(big.Int)
		for _, r := range m.Replicas[:n] {
			sum.Add(sum, big.NewInt(int64(r.Value)))
		}
		ratio := func(n int) *big.Rat {
			return new(big.Rat).SetFrac(sum, new(big.Int).Mul(big.NewInt(int64(m.Target)), big.NewInt(int64(n))))
		}
		before := ratio(n)
		switch before.Cmp(one) {
		case -1:
			sum.Add(sum, new(big.Int).Mul(big.NewInt(int64(m.Target)), big.NewInt(int64(missing))))
			n += missing
		case 1:
			n += missing + unready
		}
		after := ratio(n)
		want := ratCeil(new(big.Rat).Mul(after, big.NewRat(int64(n), 1)))
		wrongWay := after.Cmp(one) > 0 && want < m.Current || after.Cmp(one) < 0 && want > m.Current
		if within(after, m.Tolerance) || before.Cmp(one)*after.Cmp(one) < 0 || wrongWay {
			want = m.Current
		}
		got := m.Desired()
		require.Equal(t, want, got.Replicas, "%+v", got)
		require.False(t, got.Unknown)
	})
}

// TestAverageIsTheRules compares the exact ceilings with rationals up to the ends of the
// numbers.
func TestAverageIsTheRules(t *testing.T) {
	counts := rapid.OneOf(rapid.IntRange(0, 60), rapid.IntRange(0, hpa.MaxCount))
	rapid.Check(t, func(t *rapid.T) {
		value, target := milli.Draw(t, "value"), max(milli.Draw(t, "target"), 1)
		current := counts.Draw(t, "current")
		tolerance := hpa.Tolerance{Up: hpa.Milli(rapid.IntRange(0, 300).Draw(t, "up")), Down: hpa.Milli(rapid.IntRange(0, 300).Draw(t, "down"))}
		r := big.NewRat(value, target)
		want := ratCeil(r)
		if current > 0 && within(new(big.Rat).Mul(r, big.NewRat(1, int64(current))), tolerance) {
			want = current
		}
		average := hpa.Average{Current: current, Value: hpa.Milli(value), Target: hpa.Milli(target), Tolerance: tolerance}
		require.Equal(t, want, average.Desired().Replicas)
	})
}
