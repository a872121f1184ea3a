package optimizer

import (
	"cmp"
	"math"
	"slices"

	"remuda/autoscaler-plugin/measure"
)

// Sample is what one replica's metrics say of one interval (a minute, say). Give
// either ServiceSeconds or both token rates.
type Sample struct {
	// Running is the mean number of requests that the engine ran at once.
	Running measure.Value `json:"running"`
	// ServiceSeconds is the mean time from the start of a request's service to its end,
	// without its wait in a queue.
	ServiceSeconds measure.Value `json:"service_seconds,omitzero"`
	// TokensPerSecond is the replica's output, TokensPerRequest the mean output of one
	// request. By Little's law the service takes running*per request/per second.
	TokensPerSecond  measure.Value `json:"tokens_per_second,omitzero"`
	TokensPerRequest measure.Value `json:"tokens_per_request,omitzero"`
}

// Curve is how long a request is served where so many run at once in a replica.
type Curve struct {
	BaseSeconds       float64 `json:"base_seconds"`
	SecondsPerRunning float64 `json:"seconds_per_running"`
}

// Seconds is the service time at a concurrency. A request never shares with less than
// itself, so that below one the curve is that of one.
func (c Curve) Seconds(running float64) float64 {
	return c.BaseSeconds + c.SecondsPerRunning*max(running, 1)
}

// slower is the curve with every time multiplied.
func (c Curve) slower(by float64) Curve {
	return Curve{BaseSeconds: c.BaseSeconds * by, SecondsPerRunning: c.SecondsPerRunning * by}
}

// Belief says how far a fit can be believed.
type Belief struct {
	Samples  int `json:"samples"`            // given
	Idle     int `json:"idle,omitempty"`     // nothing ran: left out
	Absurd   int `json:"absurd,omitempty"`   // absent, NaN, infinite, negative or beyond belief: left out
	Outliers int `json:"outliers,omitempty"` // too far from the line: left out
	Levels   int `json:"levels"`             // different concurrencies, rounded to whole requests
	// MinRunning and MaxRunning are the concurrencies seen.
	MinRunning float64 `json:"min_running"`
	MaxRunning float64 `json:"max_running"`
	// Scatter is the typical distance of a sample from the line, as a share of it.
	Scatter float64 `json:"scatter"`
	// ErrorAtFull is the standard error of the service time with every slot taken, as
	// a share of it. It grows with the distance from what was seen.
	ErrorAtFull float64 `json:"error_at_full"`
	// Extrapolated tells that full concurrency was never seen.
	Extrapolated bool `json:"extrapolated,omitempty"`
}

// The numbers that decide whether a fit is believed.
const (
	minSamples = 8
	minLevels  = 3
	// maxAbsurd is the share of absurd samples from which the source is not believed.
	maxAbsurd = 0.25
	// maxReach is how far beyond the concurrency seen the line is followed.
	maxReach = 4
	// maxError is the largest ErrorAtFull.
	maxError = 0.25
	// maxNumber bounds a concurrency and a service time in seconds.
	maxNumber = 1e6
	// maxPairs is of how many points the median of slopes takes all pairs.
	maxPairs = 128
	// tukey is the distance, in robust standard deviations, from which a sample
	// has no weight: the usual constant for 95 % efficiency.
	tukey = 4.685
)

type point struct{ k, t, w float64 }

// Fit fits the curve of a replica with so many slots. The median of all slopes
// (Theil and Sen) gives a line that up to a quarter of wrong samples cannot bend;
// least squares with Tukey's weights around it then give the line and its errors.
func Fit(samples []Sample, slots int) (Curve, Belief, *Refusal) {
	b := Belief{Samples: len(samples)}
	var pts []point
	for _, s := range samples {
		switch p, ok, idle := s.point(); {
		case idle:
			b.Idle++
		case !ok:
			b.Absurd++
		default:
			pts = append(pts, p)
		}
	}
	slices.SortFunc(pts, func(x, y point) int { return cmp.Or(cmp.Compare(x.k, y.k), cmp.Compare(x.t, y.t)) })
	if r := b.enough(pts, slots); r != nil {
		return Curve{}, b, r
	}
	c, l := fitLine(pts, slots == 1)
	for _, p := range pts {
		if p.w == 0 {
			b.Outliers++
		}
	}
	c, r := l.check(c, b)
	if r != nil {
		return Curve{}, b, r
	}
	full := c.Seconds(float64(slots))
	b.Scatter = math.Sqrt(l.variance) / c.Seconds(l.meanK)
	b.ErrorAtFull = l.errorAt(float64(slots)) / full
	b.Extrapolated = b.MaxRunning < float64(slots)
	if !(b.ErrorAtFull <= maxError) {
		return Curve{}, b, refuse(TooUncertain, "the service time with %d busy slots has an error of %.0f %%: must be at most %.0f %%, which needs more samples, or samples under more load", slots, 100*b.ErrorAtFull, 100*maxError)
	}
	return c, b, nil
}

// point is the sample as concurrency and service time. idle tells that nothing ran.
func (s Sample) point() (p point, ok, idle bool) {
	k, flaw := s.Running.Get()
	if flaw != measure.None || k > maxNumber {
		return p, false, false
	}
	if k == 0 {
		return p, false, true
	}
	t, flaw := s.ServiceSeconds.Get()
	if flaw == measure.Absent {
		per, flaw1 := s.TokensPerRequest.Get()
		rate, flaw2 := s.TokensPerSecond.Get()
		if flaw1 != measure.None || flaw2 != measure.None || rate == 0 {
			return p, false, false
		}
		t, flaw = k*per/rate, measure.None
	}
	if flaw != measure.None || !(t > 0 && t <= maxNumber) {
		return p, false, false
	}
	return point{k: max(k, 1), t: t, w: 1}, true, false
}

// enough refuses before anything is computed. It completes the belief's ranges.
func (b *Belief) enough(pts []point, slots int) *Refusal {
	if slots < 1 {
		return refuse(BadInput, "slots is %d: must be 1 or more", slots)
	}
	if b.Absurd > 0 && float64(b.Absurd) > maxAbsurd*float64(b.Samples) {
		return refuse(AbsurdSamples, "%d of %d samples are missing or invalid: their source is unreliable", b.Absurd, b.Samples)
	}
	if len(pts) < minSamples {
		return refuse(TooFewSamples, "%d usable samples: must be at least %d", len(pts), minSamples)
	}
	b.MinRunning, b.MaxRunning = pts[0].k, pts[len(pts)-1].k
	levels := map[float64]bool{}
	for _, p := range pts {
		levels[math.Round(p.k)] = true
	}
	b.Levels = len(levels)
	if slots == 1 {
		return nil
	}
	if b.Levels < minLevels {
		return refuse(TooNarrow, "%d different concurrencies observed: must be at least %d", b.Levels, minLevels)
	}
	if float64(slots) > maxReach*b.MaxRunning {
		return refuse(TooNarrow, "at most %.3g requests ran at once in %d slots: must be at least %.3g", b.MaxRunning, slots, float64(slots)/maxReach)
	}
	return nil
}

// line is what least squares know of their line.
type line struct {
	slope, meanK, meanT, weight, sxx, variance float64
}

// errorAt is the standard error of the fitted time at a concurrency.
func (l line) errorAt(k float64) float64 {
	v := l.variance / l.weight
	if l.sxx > 0 {
		v += l.variance * (k - l.meanK) * (k - l.meanK) / l.sxx
	}
	return math.Sqrt(v)
}

// fitLine fits; flat leaves the slope at zero. It sets the weights of the points.
func fitLine(pts []point, flat bool) (Curve, line) {
	slope := 0.0
	if !flat {
		slope = medianSlope(pts)
	}
	rest := make([]float64, len(pts))
	for i, p := range pts {
		rest[i] = p.t - slope*p.k
	}
	base := median(rest)
	for i, r := range rest {
		rest[i] = math.Abs(r - base)
	}
	// The floor keeps samples on a perfect line from having no scale at all.
	spread := max(1.4826*median(rest), 1e-9*pts[len(pts)/2].t)
	var l line
	for range 20 {
		for i, p := range pts {
			u := (p.t - base - slope*p.k) / (tukey * spread)
			pts[i].w = 0
			if u > -1 && u < 1 {
				pts[i].w = (1 - u*u) * (1 - u*u)
			}
		}
		l = leastSquares(pts, flat)
		was := base
		if slope, base = l.slope, l.meanT-l.slope*l.meanK; base == was {
			break
		}
	}
	return Curve{BaseSeconds: base, SecondsPerRunning: slope}, l
}

func leastSquares(pts []point, flat bool) line {
	var l line
	var n int
	for _, p := range pts {
		l.weight += p.w
		l.meanK += p.w * p.k
		l.meanT += p.w * p.t
		if p.w > 0 {
			n++
		}
	}
	l.meanK /= l.weight
	l.meanT /= l.weight
	var sxy float64
	for _, p := range pts {
		l.sxx += p.w * (p.k - l.meanK) * (p.k - l.meanK)
		sxy += p.w * (p.k - l.meanK) * (p.t - l.meanT)
	}
	if flat {
		l.sxx = 0
	}
	if l.sxx > 0 {
		l.slope = sxy / l.sxx
	}
	for _, p := range pts {
		r := p.t - l.meanT - l.slope*(p.k-l.meanK)
		l.variance += p.w * r * r
	}
	l.variance /= l.weight * max(float64(n-2), 1) / float64(max(n, 1))
	return l
}

// check refuses a line that no engine can have. One that noise has bent a little too
// far, within two standard errors, is made level, or led through zero.
func (l line) check(c Curve, b Belief) (Curve, *Refusal) {
	if used := b.Samples - b.Idle - b.Absurd - b.Outliers; used < minSamples {
		return c, refuse(TooFewSamples, "%d samples lie near one line: must be at least %d", used, minSamples)
	}
	if l.slope < 0 {
		if -l.slope > 2*math.Sqrt(l.variance/l.sxx) {
			return c, refuse(FallingLatency, "the service time falls with concurrency (%.3g s less for each running request): the samples mix different loads", -l.slope)
		}
		c = Curve{BaseSeconds: l.meanT}
	}
	if c.BaseSeconds < 0 {
		if -c.BaseSeconds > 2*l.errorAt(0) {
			return c, refuse(NotALine, "the fitted service time at zero concurrency is %.3g s: the engine slows down more than linearly, and the fit is too optimistic for more load", c.BaseSeconds)
		}
		c = Curve{SecondsPerRunning: l.meanT / l.meanK}
	}
	return c, nil
}

// medianSlope is the median slope of all pairs, of at most maxPairs points spread
// evenly over the sorted ones.
func medianSlope(pts []point) float64 {
	if n := len(pts); n > maxPairs {
		few := make([]point, maxPairs)
		for i := range few {
			few[i] = pts[i*n/maxPairs]
		}
		pts = few
	}
	var slopes []float64
	for i, p := range pts {
		for _, q := range pts[i+1:] {
			if q.k > p.k {
				slopes = append(slopes, (q.t-p.t)/(q.k-p.k))
			}
		}
	}
	return median(slopes)
}

// median returns 0 for nothing and sorts a copy.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
