package observe

import (
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/predictive"
)

// Predictive is the input of our own policy, but for the bounds of the sum, which are Min 0
// and Max 0 here: the caller has them.
//
// Its clock is the one by which the counters were read, and the snapshot's where there are
// none: an answer of the controller may be some seconds old, and a rate over the time between
// two answers is right where one over the time between two decisions is not. Without gateways
// of ours the requests in the engines stand for the load, and there are no counters: what
// engines count says how many requests ended, not how many came.
//
// A variant whose slots nobody tells has as many as the smallest one of the others; where
// they are known of none they are 0, which the policy refuses. KVUsage is the mean over all
// replicas that serve, now and not at the peak, as the requests that run are counted now; it
// is absent where one of them does not tell.
func (s Snapshot) Predictive(coldStart, targetWait time.Duration) predictive.Input {
	in := predictive.Input{
		Now: time.Duration(s.At.UnixNano()), Ready: s.HotCount(), KVUsage: s.kvNow(),
		ColdStartSeconds: coldStart.Seconds(), TargetWaitSeconds: targetWait.Seconds(), Variants: make([]predictive.Variant, 0, len(s.Variants)),
	}
	if q := &s.Queue; q.Known {
		in.Waiting, in.Running = enginemetrics.Of(float64(q.Waiting)), enginemetrics.Of(float64(q.InFlight))
		if in.Arrived, in.Finished, in.ServedSeconds = q.Arrived, q.Finished, q.ServedSeconds; !q.At.IsZero() {
			in.Now = time.Duration(q.At.UnixNano())
		}
	}
	fewest := 0
	for _, v := range s.Variants {
		if v.Slots > 0 && (fewest == 0 || v.Slots < fewest) {
			fewest = v.Slots
		}
	}
	for _, v := range s.Variants {
		out := predictive.Variant{Variant: v.Variant, Slots: v.Slots, Current: v.Current, Min: v.Min, Unplaceable: v.Unplaceable}
		if out.Slots <= 0 {
			out.Slots = fewest
		}
		if cost, flaw := v.Cost.Get(); flaw == enginemetrics.None {
			out.Cost = cost
		}
		in.Variants = append(in.Variants, out)
	}
	return in
}

// kvNow is the mean KV usage of the replicas that serve. One that cannot be makes it that, the
// first of them by its flaw; else one that does not tell makes it absent.
func (s *Snapshot) kvNow() enginemetrics.Value {
	sum, n, absent := 0.0, 0, false
	var wrong enginemetrics.Value
	for i := range s.Engines {
		e := &s.Engines[i]
		if e.Draining {
			continue
		}
		kv, flaw := e.KVNow.Get()
		switch {
		case !e.usable() || flaw == enginemetrics.Absent:
			absent = true
		case flaw != enginemetrics.None && (wrong.IsZero() || e.KVNow.String() < wrong.String()):
			wrong = e.KVNow
		}
		sum += kv
		n++
	}
	switch {
	case !wrong.IsZero():
		return wrong
	case absent || n == 0:
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(sum / float64(n))
}
