package hpa

import (
	"fmt"
	"time"
)

// maxQueue is the longest queue that is counted.
const maxQueue = 1 << 40

// Next returns what the count should be now for what was observed. The order is hysteresis,
// stabilization, rate, slow start, min and max, emergency cap. See Behavior.Next about now
// and about what is remembered.
//
// Going to 0 and leaving it are no matter of the windows: a target that has been idle for
// its whole delay goes to 0, as fast as the policies let it, and while it sleeps nothing is
// recommended, so that no window makes the first request wait. One replica comes for it
// even where the policies allow none, unless scaling up is disabled.
//
// While the queue is unknown the count is held within its bounds, and that time is no idle
// time.
func (b *Backlog) Next(s *State, now time.Duration, o Observed) Decision {
	current, low, high := count(o.Current), count(b.min()), count(b.Max)
	s.watch(&o, s.pass(now, b.Behavior.MaxGapSeconds))
	if current == 0 {
		s.Seen = true // a sleeping target recommends nothing
	}
	s.see(current)
	d := Decision{Replicas: current, Current: current, Desired: current, Stabilized: current}
	switch unknown := o.unknown(); {
	case low > high:
		d.LimitedBy, d.Reason = LimitBounds, fmt.Sprintf("min is %d and max is %d: min must be at most max, and the count stays until this is corrected", low, high)
	case unknown != "":
		d.LimitedBy, d.Reason = LimitUnknown, fmt.Sprintf("the count is held: %s", unknown)
		d.bound(low, high)
	default:
		b.decide(s, &d, &o, low)
		d.bound(low, high)
	}
	if b.Cap != nil {
		d.limit(min(d.Replicas, count(*b.Cap)), LimitCap, "%d recommended, but the emergency cap is %d", d.Desired, *b.Cap)
	}
	if d.Reason == "" {
		d.Reason = fmt.Sprintf("%d recommended for %d queued: no limit applies", d.Desired, o.Queue)
	}
	s.act(&d, b.Behavior.longestPeriod())
	return d
}

// decide goes from the backlog to the slow start.
func (b *Backlog) decide(s *State, d *Decision, o *Observed, low int) {
	asleep := s.Idle && d.Current == 0
	expired := s.Idle && low == 0 && b.ScaleToZero && s.IdleFor >= seconds(b.IdleSeconds)
	if asleep || expired {
		// Not a recommendation that a window remembers: the first request need not wait it out.
		d.Desired, d.Stabilized, d.Replicas = 0, 0, 0
		d.Reason = fmt.Sprintf("no request for %s: scaling to zero", s.IdleFor)
		if asleep {
			d.Reason = "no replica and no request"
		}
		b.Behavior.limitRate(s, d)
		return
	}
	d.Desired = b.desired(o)
	if b.negligible(d.Current, o) {
		raw := d.Desired
		d.Replicas = raw
		d.limit(d.Current, LimitHeld, "%d recommended for %d queued, but that is within the hysteresis of %s", raw, o.Queue, b.Hysteresis)
		d.Desired = d.Current
	}
	b.Behavior.stabilize(s, d)
	b.Behavior.limitRate(s, d)
	switch {
	case s.Idle && b.ScaleToZero && low == 0:
		d.limit(max(d.Replicas, 1), LimitAwake, "the last replica stays: idle for %s of the required %s", s.IdleFor, seconds(b.IdleSeconds))
	case s.Idle:
		d.limit(max(d.Replicas, 1), LimitAwake, "the last replica stays: scaling to zero is switched off")
	case d.Current > 0:
		d.limit(max(d.Replicas, 1), LimitAwake, "the last replica stays: %d queued and %d running", o.Queue, o.Running)
	case b.Behavior.ScaleUp.SelectPolicy != SelectDisabled:
		d.limit(max(d.Replicas, 1), LimitAwake, "starting the first replica at once: %d queued", o.Queue)
	}
	if b.SlowStart > 0 && !s.Started {
		most := max(b.SlowStart, d.Current)
		d.limit(min(d.Replicas, most), LimitSlowStart, "%d recommended, but at most %d until the first replica is ready", d.Desired, most)
	}
}

// work is the queue with its headroom, in thousandths.
func (b *Backlog) work(o *Observed) wide {
	return wideOf(uint64(min(o.Queue, maxQueue)) + uint64(count(b.Headroom))).mul(1000)
}

// desired is ceil((queue+headroom)/target).
func (b *Backlog) desired(o *Observed) int {
	_, ceil := b.work(o).quotients(uint64(max(b.Target, 1)))
	return countOf(ceil)
}

// negligible tells that the backlog of a replica differs from the target by less than the
// hysteresis. At 0 replicas nothing is negligible.
func (b *Backlog) negligible(current int, o *Observed) bool {
	wanted := wideOf(uint64(max(b.Target, 1))).mul(uint64(current))
	return b.work(o).diff(wanted).mul(1000).cmp(wanted.mul(uint64(max(b.Hysteresis, 0)))) < 0
}

// watch follows whether the target is idle and whether a replica has been ready.
func (s *State) watch(o *Observed, elapsed time.Duration) {
	switch {
	case o.Current <= 0:
		s.Started = false
	case o.Ready > 0:
		s.Started = true
	}
	if o.unknown() != "" {
		return
	}
	idle := o.Queue == 0 && o.Running == 0 && (!s.Seen || o.Requests == s.Requests)
	s.Requests = o.Requests
	switch {
	case !idle:
		s.Idle, s.IdleFor = false, 0
	case o.Current <= 0:
		s.Idle, s.IdleFor = true, 0 // there is nothing that could be idle
	case s.Idle:
		s.IdleFor = older(s.IdleFor, elapsed)
	default:
		s.Idle = true
	}
}
