package predictive

import (
	"fmt"
	"math"
	"time"

	measure "remuda/autoscaler-plugin/enginemetrics"
)

const (
	// maxGap is the most time that one call passes, in seconds.
	maxGap = 60
	// window is what the level is a mean over, in seconds.
	window = 60
	// grains is how many entries a window of the past has at most, about.
	grains = 64
	// serviceMemory is the time constant of the mean service time, in seconds, and
	// serviceCount how many requests it is over at most.
	serviceMemory = 3600
	serviceCount  = 2000
	// fewEnded is how many requests must have ended before their mean time is believed.
	fewEnded = 10
	// mostMeasured is beyond anything that can be counted here.
	mostMeasured = 1e15
	// slowStart is how many replicas there may be, or twice the ready ones, while nothing is
	// known but how many requests there are.
	slowStart = 5
	// kvMatters is the KV use from which it is held against the slots in use.
	kvMatters = 0.5
	// soonWindow is how long after its start a replica counts for the forecast of its need, and
	// actSeconds what passes before it is ordered, in seconds.
	soonWindow = 30
	actSeconds = 15
	// warmUp is how long a load is observed before anything is learned from it, in seconds:
	// the first requests after nothing are no error of the forecast.
	warmUp = 300
	// idleSeconds without a request end the last replica.
	idleSeconds = 3600
	// mostRisk bounds State.Risk.
	mostRisk = 3
	// fullest is the share of the slots that may be in use for long.
	fullest = 0.97
)

// Next decides how many replicas there should be, and remembers in s what it needs for the
// next call. c must be valid. An input that is not changes nothing (see Decision.Rule).
func Next(c *Config, s *State, in *Input) Decision {
	d := Decision{Targets: map[string]int{}}
	slots := 0
	for _, v := range in.Variants {
		d.Targets[v.Variant] = v.Current
		d.Current += v.Current
		slots += v.Current * v.Slots
	}
	d.Replicas = d.Current
	if err := in.Validate(); err != nil {
		d.Rule, d.Reason = ByInvalid, err.Error()
		return d
	}
	step := s.pass(in.Now)
	m, known := s.measure(in, step, &d)
	if !known {
		d.Rule, d.Reason = ByUnknown, fmt.Sprintf("the requests in the system are unknown: %d replicas stay", d.Current)
		return d
	}
	largest := 1
	for _, v := range in.Variants {
		largest = max(largest, v.Slots)
	}
	service := s.service()
	tolerance := 1.0 // requests in the system for each slot, so that one that comes still starts in time
	if !s.Guessed {
		tolerance += in.TargetWaitSeconds / service
	}
	start := in.ColdStartSeconds + step
	s.Recent = append(expire(s.Recent, s.Time, window), mark{s.Time, s.Demand})
	sum, top := 0.0, 0.0
	for _, r := range s.Recent {
		sum, top = sum+r.Value, math.Max(top, r.Value)
	}
	d.Load = sum / float64(len(s.Recent))
	need := math.Max(d.Load/fullest, top/tolerance)
	s.Base = math.Max(need, s.Base*math.Exp(-step/float64(c.DecaySeconds)))
	s.Peak = math.Max(need, s.Peak*math.Exp(-step/float64(c.MemorySeconds)))
	if d.Base = s.Base; s.Demand > 0 || m.arrived > 0 {
		s.Active = s.Time
	}
	idle := s.Time-s.Active >= idleSeconds && m.waiting == 0 && !m.partial
	if idle { // the first load after this does not count as a forecast error, as at the start
		s.Woke, s.Past = s.Time, nil
	}
	observed := s.Time - s.Woke
	payback := float64(c.PaybackSeconds)
	season := 0.0
	if c.Season {
		if step > 0 && (s.Demand == 0 || !s.Guessed || !s.Counted) {
			s.Season.record(in.Now, s.Demand, step)
		}
		if d.Forecast = s.Season.forecast(start + payback/2); d.Forecast > 0 {
			season = math.Log((d.Forecast + 1) / (s.Base + 1))
		}
	}
	now, level := condition(season), s.Base
	if idle { // there is no level to grow from: the season gives it
		if now, level = condition(0), d.Forecast; level >= 1 {
			s.Prepared = s.Time
		}
	}
	if observed >= warmUp {
		s.learn(c, start, need, now, step)
	}

	// The risk that demand outgrows capacity: as much as the goal allows, corrected by how
	// many requests were late.
	forget := math.Exp(-step / float64(c.MemorySeconds))
	s.Total, s.Seconds = s.Total*forget+m.arrived, s.Seconds*forget+step
	if allowed := 1 - c.Goal; s.Total > 0 && step > 0 {
		day := allowed * s.Total / s.Seconds * 86400
		s.Risk = math.Min(math.Max(s.Risk+c.Gain*(allowed*m.arrived-m.late)/day, -mostRisk), mostRisk)
	}
	d.Risk = (1 - c.Goal) * math.Exp(s.Risk)
	// The errors say by which factor the level may grow. Beyond the highest need of the last week the prior says it.
	grown := func(e *Errors, risk float64) float64 {
		risk = math.Min(risk, 0.5)
		return math.Min((level+1)*math.Exp(e.exceeded(now, risk)), (math.Max(s.Peak, level)+1)*math.Pow(risk, -priorScale)) - 1
	}
	d.Need = grown(&s.Soon, d.Risk)
	d.Rule = ByForecast
	later := d.Risk * payback / (start + actSeconds) / c.Caution
	kept := grown(&s.Later, later)
	if v := s.Demand / tolerance; m.waiting > 0 && v > d.Need {
		d.Need, d.Rule = v, ByQueue
	}
	switch {
	case idle && level >= 1:
		d.Need, d.Rule = math.Max(d.Need, 1), BySeason
	case idle && s.Prepared > 0 && s.Time-s.Prepared <= payback: // it may be late
		d.Need, kept, d.Rule = 0, float64(slots), BySeason
	case idle:
		d.Need, kept, d.Rule = 0, 0, ByIdle
	case s.Active > 0 || m.waiting > 0:
		d.Need = math.Max(d.Need, 1)
	}
	if x := dearSlots(in, &d); x > 1 {
		d.Need, kept = d.Need*x, kept*x
	}
	kept = math.Max(kept, d.Need)
	want := float64(slots)
	switch {
	case d.Need > want:
		want = d.Need
		if s.Guessed { // slow start
			want = math.Max(math.Min(want, float64(max(slowStart, 2*in.Ready)*largest)), float64(slots))
		}
	case !idle && (observed < payback || m.partial || m.waiting > 0):
		d.Rule = ByHold // nothing is removed on a load that was not observed, nor while requests wait
	case kept == 0:
		want = 0
	case kept <= want*(1-c.Slack)-float64(smallest(in))/2:
		want = kept
		if kept > d.Need && !idle {
			d.Rule = ByPayback
		}
	}
	d.allot(in, want, slots)
	d.explain(want, slots)
	return d
}

// learn keeps the moment, and records what came of those before it.
func (s *State) learn(c *Config, start, need float64, condition int, step float64) {
	payback := float64(c.PaybackSeconds)
	span := math.Max(payback, start+soonWindow)
	grain := span / grains
	if n := len(s.Past); n > 0 && s.Past[n-1].At > s.Time-grain {
		s.Past[n-1].Need = math.Max(s.Past[n-1].Need, need)
		return
	}
	s.Past = append(s.Past, moment{At: s.Time, Base: s.Base, Condition: condition, Need: need})
	if step <= 0 {
		return
	}
	since := grain
	if n := len(s.Past); n > 1 {
		since = s.Time - s.Past[n-2].At
	}
	forget := math.Exp(-since / float64(c.MemorySeconds))
	s.Soon.forget(forget)
	s.Later.forget(forget)
	// The last moment's need is not complete yet.
	last := len(s.Past) - 1
	for i := range s.Past[:last] {
		p := &s.Past[i]
		outcome := func(from, to float64) float64 {
			top := 0.0
			for _, q := range s.Past[i:last] {
				if q.At >= from && q.At <= to {
					top = math.Max(top, q.Need)
				}
			}
			return math.Log((top + 1) / (p.Base + 1))
		}
		if end := p.At + start + soonWindow; !p.Soon && s.Time > end {
			p.Soon = true
			s.Soon.record(p.Condition, outcome(p.At+start, end), since/(start+soonWindow))
		}
		if end := p.At + payback; !p.Later && s.Time > end {
			p.Later = true
			s.Later.record(p.Condition, outcome(p.At, end), since/payback)
		}
	}
	n := 0
	for n < last && s.Past[n].Soon && s.Past[n].Later {
		n++
	}
	s.Past = s.Past[:copy(s.Past, s.Past[n:])]
}

// pass moves the policy's clock and returns the seconds that passed.
func (s *State) pass(now time.Duration) float64 {
	step := 0.0
	if s.Seen && now > s.Last {
		step = math.Min((now - s.Last).Seconds(), maxGap)
	}
	s.Time += step
	s.Version = StateVersion
	return step
}

// measured is what is known of the requests of a step.
type measured struct {
	arrived, waiting, late float64
	// partial: the requests that wait are unknown.
	partial bool
}

// measure takes the counters and the requests in the system.
func (s *State) measure(in *Input, step float64, d *Decision) (measured, bool) {
	get := func(field string, v measure.Value) (float64, bool) {
		f, flaw := v.Get()
		if flaw == measure.None && f > mostMeasured {
			flaw = measure.Infinite
		}
		if flaw != measure.None && flaw != measure.Absent {
			d.Findings = append(d.Findings, Finding{field, flaw})
		}
		if flaw != measure.None {
			return 0, false
		}
		return f, true
	}
	arrived, okArrived := get("arrived", in.Arrived)
	finished, okFinished := get("finished", in.Finished)
	served, okServed := get("served_seconds", in.ServedSeconds)
	late, okLate := get("late", in.Late)
	running, okRunning := get("running", in.Running)
	waiting, okWaiting := get("waiting", in.Waiting)
	real := math.Max((in.Now - s.Last).Seconds(), step) // a long gap's arrivals came over all of it
	s.Seen, s.Last = true, in.Now
	m := measured{waiting: waiting}
	inSystem := math.Min(running+waiting, mostMeasured)
	again := false
	if okArrived && okFinished && okServed {
		was := [3]float64{s.Arrived, s.Finished, s.ServedSeconds}
		again = s.Counted && arrived >= was[0] && finished >= was[1] && served >= was[2]
		s.Arrived, s.Finished, s.ServedSeconds, s.Counted = arrived, finished, served, true
		if again && step > 0 {
			ended := finished - was[1]
			f := math.Exp(-step / serviceMemory)
			if s.Ended*f < fewEnded {
				f = 1 // a night without requests does not change how long they take
			}
			f = math.Min(f, math.Max(0, 1-ended/serviceCount))
			s.Ended, s.Service = s.Ended*f+ended, s.Service*f+served-was[2]
			m.arrived = (arrived - was[0]) * step / real
		}
	}
	if okLate {
		if s.LateCounted && late >= s.Late && step > 0 {
			m.late = math.Min((late-s.Late)*step/real, m.arrived+inSystem)
		}
		s.Late, s.LateCounted = late, true
	} else if room := float64(in.Ready * smallest(in)); waiting > room*in.TargetWaitSeconds/s.service() {
		// A request that comes while so many wait is late.
		m.late = m.arrived
	}
	if !okRunning {
		return m, false
	}
	m.partial = !okWaiting
	if s.Guessed && s.Ended >= fewEnded { // what waited for the first replica was no demand
		s.Demand, s.Base, s.Peak, s.Recent = running, 0, 0, nil
	}
	s.Guessed = s.Ended < fewEnded
	switch {
	case waiting == 0 || !again || s.Guessed || step == 0:
		s.Demand = inSystem
	default:
		// While requests wait, what would be at work is reckoned from what came.
		s.Demand = math.Min(math.Max(s.Demand*math.Exp(-step/s.service())+m.arrived*s.service()/step*(1-math.Exp(-step/s.service())), running), inSystem)
	}
	return m, true
}

// service is the mean service time in seconds, 1 until it is known.
func (s *State) service() float64 {
	if s.Ended < fewEnded || s.Service <= 0 {
		return 1
	}
	return math.Max(s.Service/s.Ended, 1e-3)
}

// dearSlots is by how much a slot counts for less than one, as KV memory fills first.
func dearSlots(in *Input, d *Decision) float64 {
	kv, flaw := in.KVUsage.Get()
	if flaw == measure.None && kv > 1 {
		flaw = measure.AboveOne
	}
	if flaw != measure.None {
		if flaw != measure.Absent {
			d.Findings = append(d.Findings, Finding{"kv_usage", flaw})
		}
		return 1
	}
	running, flaw := in.Running.Get()
	if flaw != measure.None || running < 1 || running > mostMeasured || in.Ready == 0 || kv < kvMatters {
		return 1
	}
	all, n := 0, 0
	for _, v := range in.Variants {
		all, n = all+v.Current*v.Slots, n+v.Current
	}
	if n == 0 {
		return 1
	}
	used := running / (float64(all) / float64(n) * float64(in.Ready))
	return math.Max(kv/math.Max(used, 1e-3), 1)
}

// smallest is the fewest slots that a replica has.
func smallest(in *Input) int {
	least := in.Variants[0].Slots
	for _, v := range in.Variants {
		least = min(least, v.Slots)
	}
	return least
}

func (d *Decision) explain(want float64, slots int) {
	what := "stay"
	switch {
	case d.Replicas > d.Current:
		what = fmt.Sprintf("grow to %d", d.Replicas)
	case d.Replicas < d.Current:
		what = fmt.Sprintf("shrink to %d", d.Replicas)
	}
	d.Reason = fmt.Sprintf("%d replicas (%d slots) %s: load %.1f, decaying peak %.1f, season %.1f slots; need at a risk of %.2g is %.1f slots by %s, target %.1f",
		d.Current, slots, what, d.Load, d.Base, d.Forecast, d.Risk, d.Need, d.Rule, want)
	if d.Short > 0 {
		d.Reason += fmt.Sprintf(", of which %.1f slots are not available", d.Short)
	}
}
