package policies

import (
	"fmt"
	"math"
	"time"

	"remuda/autoscaler-plugin/hpa"
	"remuda/tools/policystudy/scalesim"
)

// hpaPolicy is Kubernetes' HPA on the requests in the system, running and waiting, with an
// AverageValue: the best signal that it can be given here.
type hpaPolicy struct {
	aim       float64
	tolerance hpa.Tolerance
	behavior  hpa.Behavior
	state     hpa.State
}

func newHPA(s Spec) (scalesim.Policy, error) {
	p := &hpaPolicy{aim: s.Aim, tolerance: hpa.DefaultTolerance(), behavior: hpa.DefaultBehavior()}
	p.behavior.FromZero = true
	if s.Other {
		p.tolerance = hpa.Tolerance{Up: 20, Down: 20}
	}
	p.behavior.ScaleDown.StabilizationWindowSeconds = int(s.Hold / time.Second)
	if err := p.behavior.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

var _ scalesim.Paced = (*hpaPolicy)(nil)

// Name implements scalesim.Policy.
func (p *hpaPolicy) Name() string { return HPA }

// Interval implements scalesim.Paced: that of Kubernetes.
func (p *hpaPolicy) Interval() time.Duration { return 15 * time.Second }

// Decide implements scalesim.Policy.
func (p *hpaPolicy) Decide(o *scalesim.Observation) int {
	current := o.Ready + o.Starting
	value, flaw := hpa.FromFloat(float64(o.Running + o.Waiting))
	if flaw != "" {
		return current
	}
	want := hpa.Average{Current: current, Value: value, Target: target(p.aim, o.Slots), Tolerance: p.tolerance}.Desired()
	return p.behavior.Next(&p.state, o.Now, current, want.Replicas, max(o.Min, 1), o.Max).Replicas
}

func target(aim float64, slots int) hpa.Milli {
	return hpa.Milli(math.Max(1, math.Round(1000*aim*float64(slots))))
}

// replicatePolicy is Replicate's backlog scaler, which counts what runs as well.
type replicatePolicy struct {
	aim     float64
	backlog hpa.Backlog
	state   hpa.State
}

func newReplicate(s Spec) (scalesim.Policy, error) {
	p := &replicatePolicy{aim: s.Aim, backlog: hpa.DefaultBacklog()}
	p.backlog.Behavior.ScaleDown.StabilizationWindowSeconds = int(s.Hold / time.Second)
	if s.Other {
		p.backlog.Behavior.ScaleUp.Policies = []hpa.Policy{{Type: hpa.Pods, Value: 1000, PeriodSeconds: 15}}
	}
	p.backlog.ScaleToZero, p.backlog.IdleSeconds = true, 300
	if err := p.backlog.Validate(); err != nil {
		return nil, fmt.Errorf("replicate: %w", err)
	}
	return p, nil
}

var _ scalesim.Paced = (*replicatePolicy)(nil)

// Name implements scalesim.Policy.
func (p *replicatePolicy) Name() string { return Replicate }

// Interval implements scalesim.Paced. The seed has one second. Two halve the calls; on
// synthetic loads (flat, swinging, stepping, on and off) that moved GPU-hours by some 1 % to
// either side and saved up to a third of the actions.
func (p *replicatePolicy) Interval() time.Duration { return 2 * time.Second }

// Decide implements scalesim.Policy.
func (p *replicatePolicy) Decide(o *scalesim.Observation) int {
	p.backlog.Target = target(p.aim, o.Slots)
	p.backlog.Min, p.backlog.Max = o.Min, o.Max
	return p.backlog.Next(&p.state, o.Now, hpa.Observed{Current: o.Ready + o.Starting, Ready: o.Ready,
		Queue: int64(o.Running + o.Waiting), Running: int64(o.Running), Requests: o.Arrived}).Replicas
}
