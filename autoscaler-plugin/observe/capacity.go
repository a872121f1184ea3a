package observe

import (
	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// Capacity is the analyzer's input. The zero cfg stands for the defaults.
//
// An engine is as full as what fills first: its KV memory or its slots. Gateways send it no
// more requests than it has slots and keep the rest in their own queue, so that behind them
// neither an engine's KV usage nor its queue need ever rise. The KV usage here is the larger
// of its own and the share of its slots that are taken (the latter alone where it shows no
// KV usage, as with TGI, llama.cpp and Ollama), and its queue is its own
// and an equal part of what waits in gateways. One whose load is not known now has neither
// value, so that the analyzer counts it as unknown.
// A replica that serves and that no source reports yet counts as pending, so that a load is
// not answered again in the seconds until it is seen. One that waits to be tried again is neither starting nor known: nothing is removed
// meanwhile, and growth goes on. The model's bounds become bounds of each variant with the
// others staying as they are.
//
// Under capacity.WVA the KV usage and the queue are an engine's own alone, as upstream has them.
func (s Snapshot) Capacity(rules capacity.Rules, cfg capacity.Config) capacity.Input {
	in := capacity.Input{Model: s.Model, Config: cfg,
		Replicas: make([]capacity.Replica, 0, len(s.Engines)), Variants: make([]capacity.Variant, 0, len(s.Variants))}
	if cfg == (capacity.Config{}) {
		in.Config = capacity.DefaultConfig()
	}
	sized, part := true, s.queuePart()
	for i := range s.Engines {
		e := &s.Engines[i]
		r := capacity.Replica{Replica: e.Replica, Variant: e.Variant, AgeSeconds: e.AgeSeconds, Draining: e.Draining, KVCapacity: e.KVTokens}
		if v, ok := s.Variant(e.Variant); ok {
			r.Accelerator = v.Accelerator
		}
		if e.usable() {
			r.KVCacheUsage, r.QueueLength = e.KV, e.Waiting
			if rules != capacity.WVA {
				r.KVCacheUsage = e.fullness()
				if own, flaw := e.Waiting.Get(); flaw == enginemetrics.None && !e.Draining {
					r.QueueLength = enginemetrics.Of(own + part)
				}
			}
		}
		if tokens, flaw := e.KVTokens.Get(); flaw != enginemetrics.None || tokens <= 0 || r.KVCacheUsage != e.KV {
			sized = false // sizes are of use where all are known, in the same unit
		}
		in.Replicas = append(in.Replicas, r)
	}
	for i := range in.Replicas {
		if !sized {
			in.Replicas[i].KVCapacity = enginemetrics.Value{}
		}
	}
	current := s.Current()
	fresh := map[string]int{}
	for i := range s.Engines {
		if s.Engines[i].New {
			fresh[s.Engines[i].Variant]++
		}
	}
	for _, v := range s.Variants {
		c := capacity.Variant{Variant: v.Variant, Current: v.Current, Desired: v.Desired, Cost: v.Cost, Slots: v.Slots, Draining: v.Draining, Unplaceable: v.Unplaceable}
		least := v.Min
		if s.Controlled {
			least = max(least, v.Current-max(0, current-s.Min))
			most := max(v.Current+max(0, s.Max-current), least)
			pending := v.Starting + fresh[v.Variant]
			c.Max, c.Pending = &most, &pending
		}
		c.Min = &least
		in.Variants = append(in.Variants, c)
	}
	return in
}

// queuePart is how many of the requests that wait in gateways fall to each replica that
// serves and can be judged.
func (s *Snapshot) queuePart() float64 {
	if !s.Queue.Known || s.Queue.Source != FromGateways {
		return 0
	}
	n := 0
	for i := range s.Engines {
		if e := &s.Engines[i]; e.usable() && !e.Draining {
			n++
		}
	}
	return float64(s.Queue.Waiting) / float64(max(n, 1))
}

// occupied is the share of an engine's slots that are taken, at the peak; absent where
// either is not known.
func (e *Engine) occupied() enginemetrics.Value {
	running, flaw := e.Running.Get()
	if flaw != enginemetrics.None || e.Slots <= 0 {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(min(1, running/float64(e.Slots)))
}

// kv is an engine's KV usage, or where it shows none the share of its slots that are taken.
func (e *Engine) kv() enginemetrics.Value {
	if !e.KV.IsZero() || e.Slots <= 0 {
		return e.KV
	}
	return e.occupied()
}

// fullness is the larger of both. A KV usage that cannot be stays what it is.
func (e *Engine) fullness() enginemetrics.Value {
	kv, flaw := e.kv().Get()
	if flaw != enginemetrics.None {
		return e.kv()
	}
	return enginemetrics.Of(max(kv, e.occupied().Or(0)))
}

// Occupancy is the share of the slots of all engines that serve which are taken, from 0 to
// 1; absent where it is not known of one of them, or where none serves.
func (s Snapshot) Occupancy() enginemetrics.Value {
	var running, slots float64
	for i := range s.Engines {
		e := &s.Engines[i]
		if e.Draining {
			continue
		}
		r, flaw := e.RunningNow.Get()
		if !e.usable() || flaw != enginemetrics.None || e.Slots <= 0 {
			return enginemetrics.Value{}
		}
		running += min(r, float64(e.Slots))
		slots += float64(e.Slots)
	}
	if slots == 0 {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(running / slots)
}
