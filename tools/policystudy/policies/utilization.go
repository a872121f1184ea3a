package policies

import (
	"math"
	"time"

	measure "remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/utilization"
	"remuda/tools/policystudy/scalesim"
)

// utilizationPolicy is Workers AI's EZ rule with its forecast, every five minutes over the
// usage of fifteen (seed deployment-management).
type utilizationPolicy struct {
	cfg  utilization.Config
	week *utilization.Week
	ring [4]float64 // busy seconds at the last decisions
	n    int
}

const (
	cycle   = 5 * time.Minute
	usage   = 15 * time.Minute
	ezWidth = 0.2 // of the deadband: the seed's 0.3 to 0.8 is wider than any aim here allows
)

func newUtilization(s Spec) (scalesim.Policy, error) {
	c := utilization.DefaultConfig()
	c.ModelUtilization = false
	c.Scaling.EZ.Active, c.Scaling.EZ.UseForecast = true, true
	c.Scaling.EZ.MaxUtilization = s.Aim
	c.Scaling.EZ.MinUtilization = math.Max(s.Aim-ezWidth, 0.01)
	c.MinCount, c.MaxConcurrency = 1, 1
	if err := c.Validate(); err != nil {
		return nil, err
	}
	week, err := utilization.NewWeek(utilization.DefaultBucket)
	if err != nil {
		return nil, err
	}
	return &held{Policy: &utilizationPolicy{cfg: c, week: week}, hold: s.Hold, pace: cycle}, nil
}

// Name implements scalesim.Policy.
func (p *utilizationPolicy) Name() string { return Utilization }

// Decide implements scalesim.Policy.
func (p *utilizationPolicy) Decide(o *scalesim.Observation) int {
	current := o.Ready + o.Starting
	total := o.BusySeconds + o.WaitingSeconds
	back := min(p.n, int(usage/cycle))
	was := p.ring[(p.n-back+len(p.ring))%len(p.ring)]
	p.ring[p.n%len(p.ring)] = total
	p.n++
	if back == 0 {
		return current
	}
	perMinute := measure.Of((total - was) / (float64(back) * cycle.Minutes()))
	now := time.Unix(0, int64(o.Now)).UTC()
	if flaw := p.week.Record(now, perMinute); flaw != measure.None {
		return current
	}
	p.cfg.MaxConcurrency, p.cfg.MaxCount = o.Slots, o.Max
	healthy := o.Ready
	return utilization.Decide(p.cfg, utilization.Input{Model: "m", Now: now, Requested: current, Healthy: &healthy, Starting: o.Starting,
		InferenceSecondsPerMinute: perMinute, ForecastSecondsPerMinute: p.week.LastWeekPeak(now, cycle)}).Target
}
