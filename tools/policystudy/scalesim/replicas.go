package scalesim

import (
	"slices"
	"time"
)

// newReplica makes a replica that is ready at a time.
func (s *run) newReplica(readyAt int64) int32 {
	if len(s.free) == 0 {
		s.free = append(s.free, int32(len(s.reps)))
		s.reps = append(s.reps, replica{})
	}
	r := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	rep := &s.reps[r]
	rep.peakLoad.reset()
	*rep = replica{id: s.nextID, readyAt: readyAt, next: -1, prev: -1, peakLoad: rep.peakLoad}
	s.nextID++
	return r
}

// coldStart is how long the next replica takes.
func (s *run) coldStart() int64 {
	d := float64(s.cfg.ColdStart)
	if s.cfg.ColdStartSpread > 0 {
		d *= 1 + s.cfg.ColdStartSpread*(2*s.rng.Float64()-1)
	}
	return int64(d)
}

// becomeReady makes the replicas ready whose time has come, and gives them the queue.
func (s *run) becomeReady() {
	for len(s.start) > 0 && s.reps[s.start[0]].readyAt <= s.now {
		r := s.start[0]
		s.start = slices.Delete(s.start, 0, 1)
		s.admit(r)
	}
}

// admit adds a replica to the ready ones.
func (s *run) admit(r int32) {
	s.ready = append(s.ready, r)
	s.loads.add(s.reps, r)
	for s.head < s.next && int(s.reps[r].running) < s.cfg.Slots {
		s.assign(r)
		s.begin(r, false)
	}
}

// gone ends the charge of a replica that has drained.
func (s *run) gone(r int32) {
	if i := slices.Index(s.drain, r); i >= 0 {
		s.drain = slices.Delete(s.drain, i, i+1)
	}
	s.free = append(s.free, r)
	if s.scored {
		s.res.Stopped++
	}
}

// sample keeps the metrics of now for a decision.
func (s *run) sample() {
	s.observe()
	if len(s.spare) == 0 {
		s.spare = append(s.spare, &Observation{})
	}
	o := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	views := append(o.PerReplica[:0], s.obs.PerReplica...)
	*o = s.obs
	o.PerReplica = views
	s.samples = append(s.samples, o)
}

// decide asks the policy for the oldest sample and does what it wants.
func (s *run) decide(policy Policy) {
	o := s.samples[0]
	s.samples = slices.Delete(s.samples, 0, 1)
	s.spare = append(s.spare, o)
	o.Desired, o.Ready, o.Starting, o.Draining = s.desired, len(s.ready), len(s.start), len(s.drain)
	want := min(max(policy.Decide(o), s.cfg.Min), s.cfg.Max)
	if s.scored {
		s.res.Decisions++
		if want != s.desired {
			s.res.Actions++
			s.res.Hours[len(s.res.Hours)-1].Actions++
		}
	}
	s.desired = want
	have := len(s.ready) + len(s.start)
	for ; have < want; have++ {
		s.add()
	}
	for ; have > want && len(s.start) > 0; have-- {
		// The one that is ready last has the least to lose.
		r := s.start[len(s.start)-1]
		s.start = s.start[:len(s.start)-1]
		s.free = append(s.free, r)
		if s.scored {
			s.res.Cancelled++
		}
	}
	for ; have > want; have-- {
		s.drainOne()
	}
	if n := len(s.ready) + len(s.start) + len(s.drain); s.scored && n > s.res.PeakReplicas {
		s.res.PeakReplicas = n
	}
}

// add starts a replica, or takes a draining one back.
func (s *run) add() {
	if s.cfg.Undrain && len(s.drain) > 0 {
		best := 0 // the fullest has the longest to drain
		for i, r := range s.drain {
			if s.reps[r].running > s.reps[s.drain[best]].running {
				best = i
			}
		}
		r := s.drain[best]
		s.drain = slices.Delete(s.drain, best, best+1)
		s.reps[r].draining = false
		s.admit(r)
		return
	}
	if s.scored {
		s.res.Started++
	}
	wait := s.coldStart()
	r := s.newReplica(s.now + wait)
	if wait == 0 {
		s.admit(r)
		return
	}
	at := len(s.start)
	for at > 0 && s.reps[s.start[at-1]].readyAt > s.now+wait {
		at--
	}
	s.start = slices.Insert(s.start, at, r)
}

// drainOne drains the ready replica that runs the fewest requests, the newest of equals.
func (s *run) drainOne() {
	best := len(s.ready) - 1
	for i := best - 1; i >= 0; i-- {
		if s.reps[s.ready[i]].running < s.reps[s.ready[best]].running {
			best = i
		}
	}
	r := s.ready[best]
	s.ready = slices.Delete(s.ready, best, best+1)
	s.loads.remove(s.reps, r)
	s.reps[r].draining = true
	s.drain = append(s.drain, r)
	if s.reps[r].running == 0 {
		s.gone(r)
	}
}

// observe fills the observation of a decision.
func (s *run) observe() {
	s.tick++
	o := &s.obs
	o.Now, o.Interval = time.Duration(s.now), time.Duration(s.interval)
	o.Desired, o.Min, o.Max = s.desired, s.cfg.Min, s.cfg.Max
	o.Ready, o.Starting, o.Draining = len(s.ready), len(s.start), len(s.drain)
	o.Slots, o.ColdStart, o.TargetWait = s.cfg.Slots, s.cfg.ColdStart, s.cfg.TargetWait
	o.Running, o.Waiting = int(s.running), s.next-s.head
	o.PeakRunning = int(s.peakRunning.close(s.tick, s.window, s.running))
	o.PeakWaiting = int(s.peakWaiting.close(s.tick, s.window, int64(o.Waiting)))
	o.OldestWait = 0
	if o.Waiting > 0 {
		o.OldestWait = time.Duration(s.now) - s.arrivals[s.head].At
	}
	o.Arrived, o.Begun, o.Finished, o.Late = int64(s.next), int64(s.head), s.finished, s.tardy
	o.PerReplica = o.PerReplica[:0]
	n := len(s.ready)
	if n == 0 {
		return
	}
	each, more := o.Waiting/n, o.Waiting%n
	eachPeak, morePeak := o.PeakWaiting/n, o.PeakWaiting%n
	full := float64(s.cfg.Slots)
	if s.cfg.KVTokens > 0 {
		full = float64(s.cfg.KVTokens)
	}
	for i, r := range s.ready {
		rep := &s.reps[r]
		load := int64(rep.running)
		if s.cfg.KVTokens > 0 {
			load = rep.tokens
		}
		top := rep.peakLoad.close(s.tick, s.window, load)
		v := ReplicaView{ID: rep.id, Age: time.Duration(s.now - rep.readyAt), Running: int(rep.running),
			KV: min(float64(load)/full, 1), PeakKV: min(float64(top)/full, 1), Waiting: each, PeakWaiting: eachPeak}
		if i < more {
			v.Waiting++
		}
		if i < morePeak {
			v.PeakWaiting++
		}
		o.PerReplica = append(o.PerReplica, v)
	}
}
