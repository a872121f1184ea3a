package policies

import (
	"math"
	"slices"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// quantilePolicy keeps a high quantile of the requests in the system of the last Hold, divided
// by Aim: what Autopilot does with the usage of a job.
type quantilePolicy struct {
	aim    float64
	window int // samples
	values []int
	next   int
}

const quantileShare = 0.98

// Name implements scalesim.Policy.
func (p *quantilePolicy) Name() string { return Quantile }

// Interval implements scalesim.Paced.
func (p *quantilePolicy) Interval() time.Duration { return 30 * time.Second }

// Decide implements scalesim.Policy.
func (p *quantilePolicy) Decide(o *scalesim.Observation) int {
	if v := o.Running + o.Waiting; len(p.values) < p.window {
		p.values = append(p.values, v)
	} else {
		p.values[p.next%p.window] = v
	}
	p.next++
	sorted := slices.Clone(p.values)
	slices.Sort(sorted)
	top := sorted[int(quantileShare*float64(len(sorted)-1))]
	return int(math.Ceil(math.Max(float64(top), float64(o.Running+o.Waiting)) / (p.aim * float64(o.Slots))))
}

// seasonPolicy has, for each quarter of an hour, the highest demand that yesterday and last
// week had in it and in the one after it, divided by Aim; never less than its basis wants.
// Before it knows a day it follows the load too.
type seasonPolicy struct {
	name  string
	aim   float64
	basis scalesim.Policy // may be nil
	pace  time.Duration
	peaks []int // by quarter of an hour
}

const (
	quarter  = 15 * time.Minute
	quarters = 96
)

// Name implements scalesim.Policy.
func (p *seasonPolicy) Name() string { return p.name }

// Interval implements scalesim.Paced.
func (p *seasonPolicy) Interval() time.Duration { return p.pace }

// Decide implements scalesim.Policy.
func (p *seasonPolicy) Decide(o *scalesim.Observation) int {
	b := int(o.Now / quarter)
	for len(p.peaks) <= b {
		p.peaks = append(p.peaks, 0)
	}
	p.peaks[b] = max(p.peaks[b], o.Running+o.Waiting)
	want := 0
	if p.basis != nil {
		want = p.basis.Decide(o)
	}
	if b < quarters {
		// No day is known: follow the load.
		return max(want, int(math.Ceil(float64(o.Running+o.Waiting)/(p.aim*float64(o.Slots)))))
	}
	top := 0
	for _, lag := range []int{quarters, 7 * quarters} {
		for k := range 2 {
			if at := b + k - lag; at >= 0 && at < b {
				top = max(top, p.peaks[at])
			}
		}
	}
	return max(want, int(math.Ceil(float64(top)/(p.aim*float64(o.Slots)))))
}
