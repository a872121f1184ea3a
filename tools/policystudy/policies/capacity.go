package policies

import (
	"math"
	"strconv"
	"time"

	"remuda/autoscaler-plugin/capacity"
	measure "remuda/autoscaler-plugin/enginemetrics"
	"remuda/tools/policystudy/scalesim"
)

// capacityPolicy asks the capacity analyzer, every 15 s, with peaks of a minute.
type capacityPolicy struct {
	name     string
	rules    capacity.Rules
	cfg      capacity.Config
	analyzer capacity.Analyzer
	in       capacity.Input
	out      capacity.Result
	names    []string
	zero     int
}

// newCapacity: growth begins where the mean use is above threshold - trigger, which is Aim.
// The trigger is the seed's 0.1.
func newCapacity(s Spec) (scalesim.Policy, error) {
	p := &capacityPolicy{name: s.Policy, cfg: capacity.DefaultConfig()}
	if s.Policy == CapacityWVA {
		p.rules = capacity.WVA
	}
	p.cfg.KVCacheThreshold = math.Min(s.Aim+p.cfg.KVSpareTrigger, 1)
	p.cfg.KVSpareTrigger = p.cfg.KVCacheThreshold - s.Aim
	if err := p.cfg.Validate(); err != nil {
		return nil, err
	}
	return &held{Policy: p, hold: s.Hold, pace: 15 * time.Second}, nil
}

// Name implements scalesim.Policy.
func (p *capacityPolicy) Name() string { return p.name }

// Decide implements scalesim.Policy.
func (p *capacityPolicy) Decide(o *scalesim.Observation) int {
	current := o.Ready + o.Starting
	if current == 0 {
		// The analyzer knows no replica and holds. As at the gateway, a request wakes one.
		return min(o.Waiting+o.Running, 1)
	}
	in := &p.in
	in.Model, in.Config = "m", p.cfg
	in.Replicas = in.Replicas[:0]
	for _, r := range o.PerReplica {
		for len(p.names) <= r.ID {
			p.names = append(p.names, strconv.Itoa(len(p.names)))
		}
		in.Replicas = append(in.Replicas, capacity.Replica{Replica: p.names[r.ID], Variant: "v",
			KVCacheUsage: measure.Of(r.PeakKV), QueueLength: measure.Of(float64(r.PeakWaiting))})
	}
	in.Variants = append(in.Variants[:0], capacity.Variant{Variant: "v", Current: current})
	if p.rules == capacity.Safe {
		v := &in.Variants[0]
		starting := o.Starting
		v.Pending, v.Draining, v.Min = &starting, o.Draining, &p.zero
	}
	if err := p.analyzer.Analyze(p.rules, in, &p.out); err != nil {
		return current
	}
	return p.out.Decisions[0].Target
}
