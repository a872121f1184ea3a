package study

import (
	"fmt"
	"io"
	"slices"
	"time"

	"remuda/tools/policystudy/policies"
	"remuda/tools/policystudy/scalesim"
)

// Profile shows what remuda-predictive spends its GPU-hours on in the second half of each trace, and when
// requests are late, by the first of the target waits.
func Profile(c Config, out io.Writer) error {
	c.Phase = Test
	if err := c.Validate(); err != nil {
		return err
	}
	for _, s := range c.Sources {
		trace, err := s.Load(false)
		if err != nil {
			return fmt.Errorf("trace %s: %w", s.Name, err)
		}
		for _, cold := range c.Colds {
			policy, err := policies.NewPredictive(c.Goal)
			if err != nil {
				return err
			}
			w := c.world(s, cold, trace)
			p := &profiled{PredictivePolicy: policy, from: w.ScoreFrom}
			r, err := scalesim.Run(w, trace, p)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s, cold start %v, target wait %v, goal %g: %s GPU-hours, %.3f %% in time, %d actions\n", s.Name, cold, w.TargetWait, c.Goal, number(r.GPUHours), 100*r.InTime, r.Actions)
			p.report(out)
		}
	}
	return nil
}

// profiled is remuda-predictive with its account.
type profiled struct {
	*policies.PredictivePolicy
	from, at time.Duration
	// Replica-hours that demand takes, its decayed peak, what is needed by the errors, and what there is.
	demand, peak, need, replicas float64
	starting, ready              int64 // late requests while ordered replicas started, and while none did
	late                         int64
	started                      bool
	lastLate                     time.Duration
	episodes                     []int64
}

// Decide implements scalesim.Policy.
func (p *profiled) Decide(o *scalesim.Observation) int {
	n := p.PredictivePolicy.Decide(o)
	if o.Now > p.from {
		d, hours, slots := p.Last(), (o.Now - max(p.at, p.from)).Hours(), float64(o.Slots)
		p.demand += d.Load / slots * hours
		p.peak += d.Base / slots * hours
		p.need += d.Need / slots * hours
		p.replicas += float64(o.Ready+o.Starting) * hours
		if late := o.Late - p.late; late > 0 {
			if o.Starting > 0 || p.started {
				p.starting += late
			} else {
				p.ready += late
			}
			if len(p.episodes) == 0 || o.Now-p.lastLate >= scalesim.EpisodeGap {
				p.episodes = append(p.episodes, 0)
			}
			p.episodes[len(p.episodes)-1] += late
			p.lastLate = o.Now
		}
	}
	p.at, p.late, p.started = o.Now, o.Late, o.Starting > 0
	return n
}

func (p *profiled) report(out io.Writer) {
	part := func(what string, hours float64) {
		fmt.Fprintf(out, "  %-58s %8s replica-hours, %3.0f %%\n", what, number(hours), 100*hours/p.replicas)
	}
	part("demand", p.demand)
	part("the decayed peak of demand, above it", p.peak-p.demand)
	part("headroom for errors of the forecast, above that", p.need-p.peak)
	part("whole replicas, and what a removal waits for", p.replicas-p.need)
	slices.Sort(p.episodes)
	slices.Reverse(p.episodes)
	fmt.Fprintf(out, "  late: %d while ordered replicas started, %d while none did; %d episodes, the largest %v\n", p.starting, p.ready, len(p.episodes), p.episodes[:min(5, len(p.episodes))])
}
