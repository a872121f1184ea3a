package enginemetrics

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// Latency is a histogram of times with its buckets. The zero value is absent.
type Latency struct {
	// Bounds are the upper ends of the buckets in seconds, rising; the last bucket has none.
	Bounds []float64 `json:"bounds,omitempty"`
	// Counts are how many observations were at most each of Bounds, and then how many there were.
	Counts []float64 `json:"counts,omitempty"`
	// Flaw is why the buckets cannot be used.
	Flaw Flaw `json:"flaw,omitempty"`
	// Over is the time in which the observations were made; 0: since the engine began.
	Over time.Duration `json:"over_ns,omitempty"`
}

// IsZero tells that the histogram is absent; it makes the JSON tag omitzero drop it.
func (l Latency) IsZero() bool { return len(l.Counts) == 0 && l.Flaw == None }

// Count is how many observations there are.
func (l Latency) Count() float64 {
	if len(l.Counts) == 0 {
		return 0
	}
	return l.Counts[len(l.Counts)-1]
}

// within is how many observations were at most x, spread evenly over each bucket.
func (l Latency) within(x float64) float64 {
	from, below := 0.0, 0.0
	for i, to := range l.Bounds {
		if x < to {
			return below + (l.Counts[i]-below)*max(x-from, 0)/(to-from)
		}
		from, below = to, l.Counts[i]
	}
	return below
}

// Quantile is the time that a share q of all observations took at most. It is absent where there are
// none, and flawed where one of the histograms is. What is beyond the highest bound counts as that.
func Quantile(q float64, all []Latency) Value {
	var bad Value
	var bounds []float64
	count := 0.0
	for _, l := range all {
		if l.Flaw != None {
			bad = worse(bad, Flawed(l.Flaw))
		}
		if n := l.Count(); n > 0 {
			bounds, count = append(bounds, l.Bounds...), count+n
		}
	}
	if !bad.IsZero() || count == 0 {
		return bad
	}
	slices.Sort(bounds)
	from, below := 0.0, 0.0
	for _, to := range slices.Compact(bounds) {
		n := 0.0
		for _, l := range all {
			n += l.within(to)
		}
		if n >= q*count && n > below {
			return Of(from + (to-from)*max(q*count-below, 0)/(n-below))
		}
		from, below = to, n
	}
	return Of(from)
}

// latency joins the series of the first of a histogram's names that has any.
func (p *Parser) latency(r *reading, q Quantity) Latency {
	for _, name := range r.d.Metrics[q] {
		if r.unreadable[name] {
			return Latency{Flaw: Unreadable}
		}
		all := map[float64][]series{}
		for _, m := range r.families[name].GetMetric() {
			s, modelName := r.d.classify(pairs(m), false)
			if !p.accepts(modelName) {
				continue
			}
			bound, err := strconv.ParseFloat(labelOf(m, "le"), 64)
			if err != nil || !(bound >= 0) {
				return Latency{Flaw: Unreadable}
			}
			s.value = m.GetUntyped().GetValue()
			all[bound] = append(all[bound], s)
		}
		if len(all) > 0 {
			return joinBuckets(q, all)
		}
	}
	return Latency{}
}

// joinBuckets makes a histogram of the series of each of its buckets.
func joinBuckets(q Quantity, all map[float64][]series) Latency {
	var out Latency
	for bound := range all {
		out.Bounds = append(out.Bounds, bound)
	}
	slices.Sort(out.Bounds)
	for _, bound := range out.Bounds {
		n, flaw := join(q, all[bound], false, false).value.Get()
		if flaw == None && n < out.Count() {
			flaw = Contradictory // a higher bound has fewer
		}
		if flaw != None {
			return Latency{Flaw: flaw}
		}
		out.Counts = append(out.Counts, n)
	}
	last := len(out.Bounds) - 1
	if !math.IsInf(out.Bounds[last], 1) || last == 0 {
		return Latency{Flaw: Contradictory}
	}
	out.Bounds = out.Bounds[:last]
	return out
}

// growing is a histogram as it grows.
type growing struct {
	Bounds []float64 `json:"bounds"`
	// Value is the last reading, Since is from when on it grew without a break (0: it is not there
	// now), Total is its growth, which is never changed in place.
	Value []float64 `json:"value"`
	Since int64     `json:"since"`
	Total []float64 `json:"total"`
}

// count adds the growth since the last reading, as track.count does for a counter.
func (g *growing) count(at int64, l *Latency, broken bool) {
	switch {
	case len(l.Counts) == 0:
		g.Since = 0
		return
	case broken || g.Since == 0 || !slices.Equal(g.Bounds, l.Bounds):
		g.Since, g.Bounds, g.Total = max(at, 1), l.Bounds, make([]float64, len(l.Counts))
	default:
		fell := false
		for i, n := range l.Counts {
			fell = fell || n < g.Value[i]
		}
		g.Total = slices.Clone(g.Total)
		for i, n := range l.Counts {
			if !fell {
				n -= g.Value[i]
			}
			g.Total[i] += n
		}
	}
	g.Value = l.Counts
}

// latency is what a histogram observed in the window.
func (t *track) latency(i int) Latency {
	g := &t.Latencies[i]
	if g.Since == 0 {
		return *t.Last.Counters.latency(i) // absent or flawed
	}
	last := t.Points[len(t.Points)-1]
	for _, p := range t.Points {
		if max(p.At, 1) < g.Since {
			continue
		}
		out := Latency{Bounds: g.Bounds, Counts: make([]float64, len(g.Total)), Over: time.Duration(last.At - p.At)}
		for k, n := range g.Total {
			out.Counts[k] = n - p.Latencies[i][k]
		}
		return out
	}
	return Latency{}
}
