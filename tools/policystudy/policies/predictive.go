package policies

import (
	"time"

	measure "remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/predictive"
	"remuda/tools/policystudy/scalesim"
)

// PredictivePolicy is remuda-predictive, asked every ten seconds.
type PredictivePolicy struct {
	cfg   predictive.Config
	state predictive.State
	in    predictive.Input
	last  predictive.Decision
}

var _ scalesim.Paced = (*PredictivePolicy)(nil)

// NewPredictive makes one with the defaults and a goal.
func NewPredictive(goal float64) (*PredictivePolicy, error) {
	c := predictive.DefaultConfig()
	c.Goal = goal
	return NewPredictiveWith(c)
}

// NewPredictiveWith makes one with a configuration.
func NewPredictiveWith(c predictive.Config) (*PredictivePolicy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &PredictivePolicy{cfg: c}, nil
}

// Name implements scalesim.Policy.
func (p *PredictivePolicy) Name() string { return Predictive }

// Interval implements scalesim.Paced.
func (p *PredictivePolicy) Interval() time.Duration { return 10 * time.Second }

// Last is the last decision.
func (p *PredictivePolicy) Last() predictive.Decision { return p.last }

// Decide implements scalesim.Policy.
func (p *PredictivePolicy) Decide(o *scalesim.Observation) int {
	kv := 0.0
	for _, r := range o.PerReplica {
		kv += r.KV / float64(len(o.PerReplica))
	}
	p.in = predictive.Input{Now: o.Now, Arrived: measure.Of(float64(o.Arrived)), Finished: measure.Of(float64(o.Finished)),
		ServedSeconds: measure.Of(o.ServedSeconds), Running: measure.Of(float64(o.Running)), Waiting: measure.Of(float64(o.Waiting)),
		KVUsage: measure.Of(kv), Ready: o.Ready, ColdStartSeconds: o.ColdStart.Seconds(), TargetWaitSeconds: o.TargetWait.Seconds(),
		Min: o.Min, Max: o.Max, Variants: append(p.in.Variants[:0], predictive.Variant{Variant: "v", Slots: o.Slots, Current: o.Ready + o.Starting})}
	p.last = predictive.Next(&p.cfg, &p.state, &p.in)
	return p.last.Replicas
}
