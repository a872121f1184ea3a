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
	// grains is how many entries a window of peaks has at most, but for one.
	grains = 60
	// serviceMemory is the time constant of the mean service time, in seconds, and
	// serviceCount how many requests it is over at most: their mean is then right to some 2 %
	// (where times are about exponential), and follows lengths that change within the hour.
	serviceMemory = 3600
	serviceCount  = 2000
	// firstLook is how long Config.Start holds, in seconds.
	firstLook = 1200
	// warmUp is how long a first load is measured before the shadows play, in seconds: until
	// requests have ended, nobody knows how long they take.
	warmUp = 300
	// mostMeasured is beyond anything that can be counted here.
	mostMeasured = 1e15
	// slowStart is how many replicas there may be, or twice the ready ones, while the service
	// time is not known (Replicate's slow start).
	slowStart = 5
	// kvMatters is the KV use from which it is held against the slots in use.
	kvMatters = 0.5
	// queueMargin multiplies the load while requests wait.
	queueMargin = 1.1
)

// Next decides how many replicas there should be, and remembers in s what it needs for the
// next call. c must be valid. An input that is not, or a state of another ladder, changes
// nothing (see Decision.Rule).
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
	rate, known := s.measure(c, in, step, &d)
	if !known {
		d.Rule, d.Reason = ByUnknown, fmt.Sprintf("arrivals and running requests are unknown: %d replicas stay", d.Current)
		return d
	}
	service := s.service()
	waiting, flaw := in.Waiting.Get()
	if flaw != measure.None || waiting > mostMeasured {
		waiting = 0
	}
	now := rate * service
	if step > 0 {
		s.Season.record(in.Now, now, step)
	}
	cold := in.ColdStartSeconds
	reach := c.reach(cold)
	d.Load = s.load(c, service)
	s.Far = highest(s.Far, s.Time, d.Load, reach, reach/grains)
	d.Peak = s.Far[0].Value
	if c.Season > 0 {
		d.Forecast = s.Season.forecast(cold)
	}
	forget := math.Exp(-step / float64(c.MemorySeconds))
	s.Total = s.Total*forget + now*step
	largest := 1
	for _, v := range in.Variants {
		largest = max(largest, v.Slots)
	}
	for len(s.Shadows) < len(c.Ladder) {
		s.Shadows = append(s.Shadows, Shadow{})
	}
	s.Shadows = s.Shadows[:len(c.Ladder)]
	d.Level = -1
	for i := range s.Shadows {
		need, _ := c.need(i, &d)
		s.Shadows[i].play(c, in, s.Time, now, step, need, forget, float64(largest))
		if d.Level < 0 && s.Shadows[i].Late <= (1-c.Goal)*s.Total {
			d.Level = i
		}
	}
	if d.Level < 0 {
		d.Level = len(c.Ladder) - 1
	}
	if s.Time < firstLook {
		d.Level = max(d.Level, c.Start)
	}
	d.Need, d.Rule = c.need(d.Level, &d)
	if queue := queueMargin*d.Load + waiting*service/float64(c.ClearSeconds); waiting > 0 && queue > d.Need {
		d.Need, d.Rule = queue, ByQueue
	}
	if waiting > 0 {
		d.Need = math.Max(d.Need, 1)
	}
	if f := dearSlots(in, &d); f > 1 {
		d.Need *= f
	}
	want := float64(slots)
	held := math.Max(d.Need, s.Shadows[d.Level].Hold[0].Value)
	switch {
	case d.Need > want:
		want = d.Need * (1 + c.Raise)
		if s.Guessed { // slow start
			want = math.Max(math.Min(want, float64(max(slowStart, 2*in.Ready)*largest)), float64(slots))
		}
	case s.Time < math.Max(float64(c.HoldSeconds), warmUp):
		d.Rule = ByHold // nothing is removed that was there before we looked
	case held == 0:
		want = 0
	case held <= want*(1-c.Lower)-float64(smallest(in))/2:
		want = held
		if held > d.Need {
			d.Rule = ByHold
		}
	}
	d.allot(in, want, slots)
	d.explain(c, want, slots)
	return d
}

// pass moves the policy's clock and returns the seconds that passed.
func (s *State) pass(now time.Duration) float64 {
	step := 0.0
	if s.Seen && now > s.Last {
		step = math.Min((now - s.Last).Seconds(), maxGap)
	}
	s.Time += step
	return step
}

// measure takes the counters and gives the arrival rate (1/s) since the last call.
func (s *State) measure(c *Config, in *Input, step float64, d *Decision) (rate float64, known bool) {
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
	running, okRunning := get("running", in.Running)
	waiting, okWaiting := get("waiting", in.Waiting)
	real := (in.Now - s.Last).Seconds() // a long gap's arrivals came over all of it
	s.Seen, s.Last = true, in.Now
	counted := okArrived && okFinished && okServed
	if counted {
		was := [3]float64{s.Arrived, s.Finished, s.ServedSeconds}
		again := s.Counted && arrived >= was[0] && finished >= was[1] && served >= was[2]
		s.Arrived, s.Finished, s.ServedSeconds, s.Counted = arrived, finished, served, true
		if again {
			if step > 0 {
				ended := finished - was[1]
				f := math.Min(math.Exp(-step/serviceMemory), math.Max(0, 1-ended/serviceCount))
				s.Ended, s.Service = s.Ended*f+ended, s.Service*f+served-was[2]
				rate = (arrived - was[0]) / real
			}
			if s.Ended >= 1 && s.Service > 0 {
				if s.Guessed {
					s.Guessed, s.Recent, s.Far = false, nil, nil
					for i := range s.Shadows {
						s.Shadows[i].Hold = nil
					}
				}
				if step > 0 {
					s.Recent = append(s.Recent, Sample{s.Time, step, rate})
				}
				s.trim(c)
				if len(s.Recent) > 0 {
					return rate, true
				}
			}
		}
	}
	// Without counters, or before they say anything, what is in the system stands for the
	// load, as if each request took a second.
	if !okRunning && !okWaiting {
		return 0, false
	}
	if s.Ended < 1 || s.Service <= 0 {
		if !s.Guessed {
			s.Guessed, s.Recent = true, nil
		}
		rate = running + waiting
	} else {
		// A mean service time close to 0 would make the rate infinite.
		rate = math.Min((running+waiting)/s.service(), mostMeasured)
	}
	s.Recent = append(s.Recent, Sample{s.Time, math.Max(step, 1), rate})
	s.trim(c)
	return rate, true
}

// trim drops the samples that are older than the window of the rate.
func (s *State) trim(c *Config) {
	n := 0
	for n < len(s.Recent)-1 && s.Recent[n].At <= s.Time-float64(c.LoadSeconds) {
		n++
	}
	if n > 0 {
		s.Recent = s.Recent[:copy(s.Recent, s.Recent[n:])]
	}
}

// service is the mean service time in seconds, 1 until it is known.
func (s *State) service() float64 {
	if s.Ended < 1 || s.Service <= 0 {
		return 1
	}
	return s.Service / s.Ended
}

// load is the offered load in slots over the window.
func (s *State) load(c *Config, service float64) float64 {
	sum, seconds := 0.0, 0.0
	for _, r := range s.Recent {
		sum, seconds = sum+r.Rate*r.Seconds, seconds+r.Seconds
	}
	if seconds == 0 {
		return 0
	}
	return sum / seconds * service
}

// need is what a level calls for, in slots.
func (c *Config) need(level int, d *Decision) (float64, Rule) {
	l := c.Ladder[level]
	need, rule := l.Near*d.Load, ByLoad
	if v := l.Far * d.Peak; v > need {
		need, rule = v, ByPeak
	}
	if v := c.Season * d.Forecast; v > need && d.Peak > 0 {
		need, rule = v, BySeason
	}
	if need == 0 {
		return 0, ByIdle
	}
	return need + c.Noise*math.Sqrt(d.Load), rule
}

// play takes a step of a shadow: a fluid queue in front of what the level would have had.
func (x *Shadow) play(c *Config, in *Input, time, now, step, need, forget, slots float64) {
	x.Late *= forget
	if len(x.Wishes) > 0 && time >= warmUp+in.ColdStartSeconds+maxGap {
		serves := x.Wishes[0].Value
		x.Backlog = math.Max(0, x.Backlog+(now-serves)*step)
		if x.Backlog > serves*in.TargetWaitSeconds {
			x.Late += now * step
		}
	}
	need += x.Backlog / float64(c.ClearSeconds)
	need = math.Ceil(need/slots) * slots
	x.Hold = highest(x.Hold, time, need, float64(c.HoldSeconds), math.Max(float64(c.HoldSeconds)/grains, 1))
	if time < warmUp {
		return
	}
	x.Wishes = lowest(x.Wishes, time, x.Hold[0].Value, in.ColdStartSeconds+step)
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

func (d *Decision) explain(c *Config, want float64, slots int) {
	what := "stay"
	switch {
	case d.Replicas > d.Current:
		what = fmt.Sprintf("grow to %d", d.Replicas)
	case d.Replicas < d.Current:
		what = fmt.Sprintf("shrink to %d", d.Replicas)
	}
	d.Reason = fmt.Sprintf("%d replicas (%d slots) %s: load %.1f, peak %.1f, forecast %.1f slots; need at level %d of %d is %.1f slots by %s, target %.1f",
		d.Current, slots, what, d.Load, d.Peak, d.Forecast, d.Level, len(c.Ladder)-1, d.Need, d.Rule, want)
	if d.Short > 0 {
		d.Reason += fmt.Sprintf(", of which %.1f slots are not available", d.Short)
	}
}
