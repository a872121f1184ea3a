package frontier

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"remuda/tools/policystudy/scalesim"
)

// Point is one setting of one policy: what it costs and how well it does.
type Point struct {
	// Policy is the series that the point belongs to, Setting what tells it from others.
	Policy  string `json:"policy"`
	Setting string `json:"setting,omitempty"`
	// GPUHours and InTime are means over seeds, with their intervals. Actions are counted
	// by run.
	GPUHours Interval `json:"gpu_hours"`
	InTime   Interval `json:"in_time"`
	Actions  float64  `json:"actions"`
}

// Summarize makes a point of the results of one setting under several seeds: GPU-hours by
// Student's t, the share by bootstrap, both with the confidence. One result gives a point
// without intervals.
func Summarize(policy, setting string, results []scalesim.Result, confidence float64) (Point, error) {
	p := Point{Policy: policy, Setting: setting}
	if len(results) == 0 {
		return p, fmt.Errorf("summarize %s %s: %w, it has no results", policy, setting, ErrFew)
	}
	var hours, shares, actions []float64
	for _, r := range results {
		hours, shares, actions = append(hours, r.GPUHours), append(shares, r.InTime), append(actions, float64(r.Actions))
	}
	p.Actions = stat.Mean(sorted(actions), nil)
	if len(results) == 1 {
		p.GPUHours, p.InTime = exact(hours[0]), exact(shares[0])
		return p, nil
	}
	var err error
	if p.GPUHours, err = Mean(hours, confidence); err != nil {
		return p, fmt.Errorf("summarize %s %s: GPU-hours: %w", policy, setting, err)
	}
	if p.InTime, err = Bootstrap(shares, confidence, 2000, 1); err != nil {
		return p, fmt.Errorf("summarize %s %s: share: %w", policy, setting, err)
	}
	return p, nil
}

func exact(v float64) Interval { return Interval{Mean: v, Low: v, High: v, N: 1} }

// Pareto gives the points that no other beats: none is in time as often for fewer
// GPU-hours, nor more often for as many. They come by rising GPU-hours and share. Of equal
// points the first by policy and setting stays.
func Pareto(points []Point) []Point {
	s := slices.Clone(points)
	s = slices.DeleteFunc(s, func(p Point) bool { return math.IsNaN(p.GPUHours.Mean) || math.IsNaN(p.InTime.Mean) })
	slices.SortFunc(s, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.GPUHours.Mean, b.GPUHours.Mean), cmp.Compare(b.InTime.Mean, a.InTime.Mean),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Setting, b.Setting))
	})
	var out []Point
	for _, p := range s {
		if len(out) == 0 || p.InTime.Mean > out[len(out)-1].InTime.Mean {
			out = append(out, p)
		}
	}
	return out
}

// AtShare gives the cheapest point that reaches the share. False if none does.
func AtShare(points []Point, share float64) (Point, bool) {
	for _, p := range Pareto(points) {
		if p.InTime.Mean >= share {
			return p, true
		}
	}
	return Point{}, false
}

// HoursAt is the cost of a share on the frontier of the points: between two of them it
// goes straight from one to the other over the logarithm of the share that is late, as in
// the picture. False if no point reaches the share. Below the lowest point it is that
// point's cost.
func HoursAt(points []Point, share float64) (float64, bool) {
	front := Pareto(points)
	for i, p := range front {
		if p.InTime.Mean < share {
			continue
		}
		if i == 0 || p.InTime.Mean == share {
			return p.GPUHours.Mean, true
		}
		a, b, x := nines(front[i-1].InTime.Mean), nines(p.InTime.Mean), nines(share)
		f := (x - a) / (b - a)
		if a == b {
			f = 1
		}
		return front[i-1].GPUHours.Mean + f*(p.GPUHours.Mean-front[i-1].GPUHours.Mean), true
	}
	return 0, false
}

// mostNines is where the scale ends: a share of 1 is drawn there.
const mostNines = 6

// nines is -log10 of the late share: 0.99 gives 2. It is 0 to mostNines.
func nines(share float64) float64 {
	late := 1 - share
	if !(late > math.Pow(10, -mostNines)) {
		return mostNines
	}
	return math.Max(-math.Log10(late), 0)
}
