package observe

import (
	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/optimizer"
)

// Samples has one sample of the queueing model for each engine that worked in the window,
// by variant. A fit needs those of many snapshots, which the caller keeps.
//
// How many requests ran on average is how many finished per second times how long each was
// worked on (Little's law): the gauge itself is only its last reading and its peak.
func (s Snapshot) Samples() map[string][]optimizer.Sample {
	out := map[string][]optimizer.Sample{}
	for i := range s.Engines {
		e := &s.Engines[i]
		finished, flaw := e.Rates.Finished.Get()
		if !e.usable() || e.Draining || flaw != measure.None || finished == 0 {
			continue
		}
		sample := optimizer.Sample{ServiceSeconds: e.service()}
		if seconds, flaw := sample.ServiceSeconds.Get(); flaw == measure.None {
			sample.Running = measure.Of(finished * seconds)
		} else if tokens, flaw := e.Rates.GenerationTokens.Get(); flaw == measure.None {
			sample.Running = e.RunningNow
			sample.TokensPerSecond = measure.Of(tokens)
			sample.TokensPerRequest = measure.Of(tokens / finished)
		} else {
			continue
		}
		out[e.Variant] = append(out[e.Variant], sample)
	}
	return out
}

// Optimizer is the queueing model's input with samples that the caller kept, by variant.
// The arrivals are what is served at present: while a queue grows there are more, which
// the caller may add.
func (s Snapshot) Optimizer(kept map[string][]optimizer.Sample) optimizer.Input {
	in := optimizer.Input{Model: s.Model, ArrivalsPerSecond: s.served(), Variants: []optimizer.Variant{}}
	current := s.Current()
	for _, v := range s.Variants {
		o := optimizer.Variant{Variant: v.Variant, Cost: v.Cost, Slots: v.Slots, Current: v.Current, Min: v.Min, Max: v.Max,
			Unplaceable: v.Unplaceable, Samples: kept[v.Variant]}
		if s.Controlled {
			// The model's max binds all together; each alone may have what is left of it.
			o.Max = v.Current + max(0, s.Max-current)
		}
		in.Variants = append(in.Variants, o)
	}
	return in
}
