package utilization

import (
	"fmt"
	"math/big"

	"remuda/autoscaler-plugin/enginemetrics"
)

// ez is the newest of the three rules. With required' the instances that the load fills,
// after scale, inflation and forecast:
//
//   - up if required' > max_utilization * healthy,
//   - down if required' < min_utilization * requested,
//   - the goal of both is ceil(required'/max_utilization), plus one while an instance
//     is unhealthy, so that what the buffer added is not taken away while it is needed;
//   - an upscale never answers less than is requested: what starts is counted once;
//   - while more than one instance is unhealthy, whatever is taken away is taken one by
//     one, and one a cycle is taken away even within the band, never below the goal;
//   - while no instance is healthy, usage says nothing about demand, and nothing but
//     the unhealthy is taken away.
func ez(c Config, in Input) Proposal {
	e, h := c.Scaling.EZ, healthOf(in)
	p := Proposal{Rule: EZUtilization, Target: in.Requested}
	required, mayReduce := p.load(c, in, h)
	refused := e.UseOutOfCap && isPositive(in.OutOfCapacityPerMinute)
	if required == nil {
		if !refused {
			return p.unknown(in)
		}
		required, p.Blind = new(big.Rat), in.Requested > 0
	}
	p.Required = shown(required)
	if h.healthy > 0 {
		p.UpUtilization = shown(over(required, whole(h.healthy)))
	}
	if in.Requested > 0 {
		p.DownUtilization = shown(over(required, whole(in.Requested)))
	}

	goal, buffer := ceil(over(required, exact(e.MaxUtilization))), ""
	if refused {
		// Requests that were turned away while nothing was served inflate a
		// utilization of zero to zero. Whoever asks gets at least one instance.
		goal = max(goal, 1)
	}
	if h.unhealthy > 0 && goal > 0 {
		goal = min(goal+1, maxCount)
		buffer = fmt.Sprintf(", including 1 for %d unhealthy", h.unhealthy)
	}
	load := fmt.Sprintf("the load fills %.6g of %d healthy and %d requested instances (goal %d%s)", asFloat(required), h.healthy, in.Requested, goal, buffer)
	above := required.Cmp(times(exact(e.MaxUtilization), whole(h.healthy))) > 0 || refused && h.healthy == 0
	below := required.Cmp(times(exact(e.MinUtilization), whole(in.Requested))) < 0
	switch {
	case above:
		load += fmt.Sprintf(", above %v", e.MaxUtilization)
		if goal <= in.Requested {
			load += ", but the requested instances suffice once they serve"
		}
		return p.to(max(goal, in.Requested), in.Requested, load)
	case goal < in.Requested && (below || h.unhealthy > 1) && !mayReduce:
		return p.mayNotReduce()
	case goal < in.Requested && h.unhealthy > 1 && in.ShedInCycle > 0:
		return p.to(in.Requested, in.Requested, load+fmt.Sprintf(", one of %d unhealthy was removed in this cycle", h.unhealthy))
	case goal < in.Requested && h.unhealthy > 1:
		p = p.to(in.Requested-1, in.Requested, load+fmt.Sprintf(", removing one of %d unhealthy", h.unhealthy))
		p.Code = ShedsUnhealthy
		return p
	case goal < in.Requested && below && h.healthy == 0:
		p = p.to(in.Requested, in.Requested, load+": no instance is healthy, so the load is unknown")
		p.Code = NoneHealthy
		return p
	case goal < in.Requested && below:
		return p.to(goal, in.Requested, load+fmt.Sprintf(", below %v", e.MinUtilization))
	}
	return p.to(in.Requested, in.Requested, load+fmt.Sprintf(", within %v to %v", e.MinUtilization, e.MaxUtilization))
}

// load is required' and whether the numbers behind it are good enough to take
// instances away. It is nil where nothing usable was measured or forecast.
func (p *Proposal) load(c Config, in Input, h health) (required *big.Rat, mayReduce bool) {
	e := c.Scaling.EZ
	mayReduce = true
	if !h.known {
		p.finds("healthy", enginemetrics.Absent)
		mayReduce = false
	}
	scale := exact(e.UtilizationScale)
	now := p.measured(c, in, h)
	if now != nil {
		inflated, known := p.inflated(e, in, times(now, scale))
		now, mayReduce = inflated, mayReduce && known
	}
	if !e.UseForecast {
		return now, mayReduce && now != nil
	}
	required, known := p.withForecast(now, in, c, scale)
	return required, mayReduce && known
}

// measured is the load from the source that the configuration names, before scale.
func (p *Proposal) measured(c Config, in Input, h health) *big.Rat {
	if !c.Scaling.EZ.Prometheus {
		return p.required("inference_seconds_per_minute", in.InferenceSecondsPerMinute, c)
	}
	u, flaw := in.Utilization.Share()
	if flaw != enginemetrics.None {
		p.finds("utilization", flaw)
		return nil
	}
	return times(exact(u), whole(h.healthy))
}

// inflated adds the requests that were turned away: min(u*(ok+ooc)/max(ok, 0.1), 2u).
// It never makes the load smaller, as the formula would below 0.1
// successful requests per minute, where long requests run and none has finished. The
// second result is false where the number of refused requests, or the share that they
// are, cannot be known.
func (p *Proposal) inflated(e EZ, in Input, u *big.Rat) (*big.Rat, bool) {
	if !e.UseOutOfCap {
		return u, true
	}
	ooc, flaw := in.OutOfCapacityPerMinute.Get()
	if flaw == enginemetrics.Absent || flaw == enginemetrics.None && ooc == 0 {
		return u, true
	}
	if flaw != enginemetrics.None {
		p.finds("out_of_capacity_per_minute", flaw)
		return u, false
	}
	ok, flaw := in.SuccessfulPerMinute.Get()
	if flaw != enginemetrics.None {
		p.finds("successful_per_minute", flaw)
		return u, false
	}
	served := exact(ok)
	factor := over(new(big.Rat).Add(served, exact(ooc)), larger(served, exact(MinSuccessful)))
	return times(u, larger(whole(1), smaller(factor, whole(MaxInflation)))), true
}

// health is how the requested instances are. healthy never exceeds them: what still
// answers but is no longer asked for is about to go.
type health struct {
	healthy, unhealthy int
	known              bool
}

func healthOf(in Input) health {
	if in.Healthy == nil {
		return health{healthy: in.Requested}
	}
	healthy := min(*in.Healthy, in.Requested)
	return health{healthy: healthy, unhealthy: max(in.Requested-healthy-min(in.Starting, in.Requested), 0), known: true}
}

func isPositive(v enginemetrics.Value) bool {
	f, flaw := v.Get()
	return flaw == enginemetrics.None && f > 0
}
