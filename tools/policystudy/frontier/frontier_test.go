package frontier_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/tools/policystudy/frontier"
	"remuda/tools/policystudy/scalesim"
)

// TestMean has the quantiles of Student's t from printed tables.
func TestMean(t *testing.T) {
	got, err := frontier.Mean([]float64{3, 1, 2}, 0.95)
	require.NoError(t, err)
	half := 4.302653 / math.Sqrt(3)
	require.InDelta(t, 2, got.Mean, 1e-12)
	require.InDelta(t, 2-half, got.Low, 1e-5)
	require.InDelta(t, 2+half, got.High, 1e-5)
	require.Equal(t, 3, got.N)

	for _, c := range []struct {
		confidence float64
		n          int
		quantile   float64
	}{{0.95, 2, 12.706}, {0.95, 3, 4.303}, {0.95, 20, 2.093}, {0.9, 6, 2.015}, {0.99, 11, 3.169}, {0.95, 1001, 1.962}, {0.999, 5, 8.610}} {
		values := make([]float64, c.n) // a deviation of 1
		for i := range values {
			values[i] = math.Sqrt(float64(c.n-1)/float64(c.n-c.n%2)) * float64(2*(i%2)-1)
		}
		if c.n%2 == 1 {
			values[c.n-1] = 0
		}
		i, err := frontier.Mean(values, c.confidence)
		require.NoError(t, err)
		require.InDelta(t, c.quantile, i.High*math.Sqrt(float64(c.n)), 5.1e-4, "%v", c)
	}

	diff, err := frontier.Paired([]float64{11, 22, 33}, []float64{10, 20, 30}, 0.95)
	require.NoError(t, err)
	require.Equal(t, got, diff)

	for name, f := range map[string]func() error{
		"few":        func() error { _, err := frontier.Mean([]float64{1}, 0.95); return err },
		"confidence": func() error { _, err := frontier.Mean([]float64{1, 2}, 95); return err },
		"NaN":        func() error { _, err := frontier.Mean([]float64{1, math.NaN()}, 0.95); return err },
		"infinite":   func() error { _, err := frontier.Bootstrap([]float64{1, math.Inf(1)}, 0.95, 1000, 1); return err },
		"draws":      func() error { _, err := frontier.Bootstrap([]float64{1, 2}, 0.95, 1, 1); return err },
		"pairs":      func() error { _, err := frontier.Paired([]float64{1, 2}, []float64{1}, 0.95); return err },
	} {
		require.Error(t, f(), name)
	}
	_, err = frontier.Mean(nil, 0.95)
	require.ErrorIs(t, err, frontier.ErrFew)
}

// TestCoverage: a 90 % interval has the true mean in about 90 % of cases.
func TestCoverage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	inMean, inBoot := 0, 0
	for range 1000 {
		v := make([]float64, 20)
		for i := range v {
			v[i] = 5 + rng.NormFloat64()
		}
		m, err := frontier.Mean(v, 0.9)
		require.NoError(t, err)
		b, err := frontier.Bootstrap(v, 0.9, 200, 3)
		require.NoError(t, err)
		if m.Low <= 5 && 5 <= m.High {
			inMean++
		}
		if b.Low <= 5 && 5 <= b.High {
			inBoot++
		}
		slices.Reverse(v)
		again, err := frontier.Bootstrap(v, 0.9, 200, 3)
		require.NoError(t, err)
		require.Equal(t, b, again) // the order does not matter
	}
	require.InDelta(t, 900, inMean, 35)
	require.InDelta(t, 880, inBoot, 45) // percentiles are a little narrow for 20 values
}

func point(policy, setting string, hours, share float64) frontier.Point {
	return frontier.Point{Policy: policy, Setting: setting, GPUHours: frontier.Interval{Mean: hours, Low: hours - 1, High: hours + 1, N: 3},
		InTime: frontier.Interval{Mean: share, Low: share - 0.001, High: share, N: 3}}
}

func genPoints(t *rapid.T) []frontier.Point {
	var points []frontier.Point
	for i := range rapid.IntRange(1, 12).Draw(t, "n") {
		points = append(points, point(rapid.SampledFrom([]string{"a", "b", "<c> & \"d\""}).Draw(t, "policy"), fmt.Sprint(i),
			float64(rapid.IntRange(1, 8).Draw(t, "hours")), 1-math.Pow(10, -float64(rapid.IntRange(0, 8).Draw(t, "nines")))))
	}
	return points
}

// TestPareto compares with the definition.
func TestPareto(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := genPoints(t)
		front := frontier.Pareto(points)
		onFront := func(p frontier.Point) bool { return slices.Contains(front, p) }
		for _, p := range points {
			beaten, equal := false, false
			for _, q := range points {
				h, s := q.GPUHours.Mean-p.GPUHours.Mean, q.InTime.Mean-p.InTime.Mean
				beaten = beaten || h <= 0 && s >= 0 && (h < 0 || s > 0)
				equal = equal || q != p && h == 0 && s == 0
			}
			if beaten {
				require.False(t, onFront(p))
			} else if !equal {
				require.True(t, onFront(p))
			}
		}
		for i := 1; i < len(front); i++ {
			require.Greater(t, front[i].GPUHours.Mean, front[i-1].GPUHours.Mean)
			require.Greater(t, front[i].InTime.Mean, front[i-1].InTime.Mean)
		}
		require.Equal(t, front, frontier.Pareto(rapid.Permutation(points).Draw(t, "order")))
		share := rapid.Float64Range(0, 1).Draw(t, "share")
		best, ok := frontier.AtShare(points, share)
		hours, ok2 := frontier.HoursAt(points, share)
		require.Equal(t, ok, ok2)
		if ok {
			require.GreaterOrEqual(t, best.InTime.Mean, share)
			require.LessOrEqual(t, hours, best.GPUHours.Mean)
		}
	})
}

func TestHoursAt(t *testing.T) {
	points := []frontier.Point{point("a", "1", 100, 0.99), point("a", "2", 200, 0.9999), point("a", "3", 150, 0.9)}
	for _, c := range []struct{ share, want float64 }{{0.5, 100}, {0.99, 100}, {0.999, 150}, {0.9999, 200}} {
		got, ok := frontier.HoursAt(points, c.share)
		require.True(t, ok)
		require.InDelta(t, c.want, got, 1e-6, "%v", c.share)
	}
	_, ok := frontier.HoursAt(points, 1)
	require.False(t, ok)
	_, ok = frontier.AtShare(nil, 0.5)
	require.False(t, ok)
	best, ok := frontier.AtShare(points, 0.999)
	require.True(t, ok)
	require.Equal(t, "2", best.Setting)
}

func TestSummarize(t *testing.T) {
	p, err := frontier.Summarize("hpa", "0.7", []scalesim.Result{{GPUHours: 10, InTime: 0.99, Actions: 4}, {GPUHours: 12, InTime: 1, Actions: 8}}, 0.95)
	require.NoError(t, err)
	require.Equal(t, []float64{11, 0.995, 6}, []float64{p.GPUHours.Mean, p.InTime.Mean, p.Actions})
	require.Less(t, p.GPUHours.Low, 10.0)
	require.Equal(t, []float64{0.99, 1}, []float64{p.InTime.Low, p.InTime.High})
	p, err = frontier.Summarize("hpa", "0.7", []scalesim.Result{{GPUHours: 10, InTime: 0.99}}, 0.95)
	require.NoError(t, err)
	require.Equal(t, frontier.Interval{Mean: 10, Low: 10, High: 10, N: 1}, p.GPUHours)
	_, err = frontier.Summarize("hpa", "0.7", nil, 0.95)
	require.ErrorIs(t, err, frontier.ErrFew)
	_, err = frontier.Summarize("hpa", "0.7", []scalesim.Result{{GPUHours: math.NaN()}, {}}, 0.95)
	require.ErrorContains(t, err, "summarize hpa 0.7: GPU-hours: value 0 is NaN")
}

// texts are all texts of an SVG, which must have no coordinate that is not a number.
func texts(t require.TestingT, svg []byte) []string {
	var all []string
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		case xml.CharData:
			all = append(all, strings.TrimSpace(string(token)))
		}
	}
}

func TestSVG(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := genPoints(t)
		chart := frontier.Chart{Title: "cold start 110 s & <more>", Points: points, Goal: 0.999}
		svg, err := chart.SVG()
		require.NoError(t, err)
		words := texts(t, svg)
		for _, p := range points {
			require.Contains(t, words, p.Policy)
		}
		require.Subset(t, words, []string{chart.Title, "GPU-hours", "requests started in time", "99.9 %"})
		chart.Points = rapid.Permutation(points).Draw(t, "order")
		again, err := chart.SVG()
		require.NoError(t, err)
		require.Equal(t, string(svg), string(again))
	})
	_, err := (&frontier.Chart{Title: "none"}).SVG()
	require.EqualError(t, err, `draw "none": the picture has no points`)
	_, err = (&frontier.Chart{Points: []frontier.Point{point("a", "b", math.NaN(), 1)}}).SVG()
	require.ErrorContains(t, err, "point 0 of a (b) has a value NaN")
}

func TestEachSeriesHasAMarkOfItsOwn(t *testing.T) {
	marks := map[string]bool{}
	for i := range 32 {
		colour, shape := frontier.Look(i)
		marks[fmt.Sprintf("%v %T", colour, shape)] = true
	}
	require.Len(t, marks, 32)
}
