package utilization

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/enginemetrics"
)

// proposals asks every rule that is on, in the order of priority. The request-count
// rule is the fallback and is always on. A rule that lacks its metrics
// holds; it does not fall back to a weaker one, because a change of algorithm in the
// middle of an outage is a jump that nobody asked for.
func proposals(c Config, in Input) []Proposal {
	out := []Proposal{requestCount(c, in)}
	if c.Scaling.EZ.Active {
		out = append(out, ez(c, in))
	}
	if c.ModelUtilization {
		out = append(out, oldUtilization(c, in))
	}
	return out
}

// requestCount is the first rule: requests per minute times the factor, which takes a
// request to last about a minute, rounded up to whole instances.
func requestCount(c Config, in Input) Proposal {
	p := Proposal{Rule: RequestCount, Target: in.Requested}
	avg, flaw := in.RequestsPerMinute.Get()
	if flaw != enginemetrics.None {
		p.finds("requests_per_minute", flaw)
		return p.unknown(in)
	}
	required := times(exact(avg), exact(c.ScalingFactor))
	p.Required = shown(required)
	return p.to(ceil(required), in.Requested, fmt.Sprintf("%v requests per minute times %v need %v instances", avg, c.ScalingFactor, p.Required))
}

// oldUtilization is the second rule: up if u > 1/f, down if u < 1/(f+0.15), f at least
// 1.2, u over the requested instances. The published rule has no target: ceil(required*f)
// is the smallest count that is not above 1/f, and it is also what f, the
// overprovisioning, means.
func oldUtilization(c Config, in Input) Proposal {
	p := Proposal{Rule: OldUtilization, Target: in.Requested}
	now := p.required("inference_seconds_per_minute", in.InferenceSecondsPerMinute, c)
	required, mayReduce := p.withForecast(now, in, c, nil)
	if required == nil {
		return p.unknown(in)
	}
	p.Required = shown(required)
	factor := larger(exact(c.ScalingFactor), exact(MinUtilizationFactor))
	goal := ceil(times(required, factor))
	instances := whole(in.Requested)
	if in.Requested > 0 {
		u := shown(over(required, instances))
		p.UpUtilization, p.DownUtilization = u, u
	}
	upper := over(whole(1), factor)
	lower := over(whole(1), new(big.Rat).Add(factor, exact(UtilizationDeadband)))
	band := fmt.Sprintf("band %.4g to %.4g", asFloat(lower), asFloat(upper))
	load := fmt.Sprintf("the load fills %.6g of %d instances", asFloat(required), in.Requested)
	switch {
	case required.Cmp(times(upper, instances)) > 0:
		return p.to(goal, in.Requested, load+", above the "+band)
	case required.Cmp(times(lower, instances)) < 0 && goal < in.Requested:
		if !mayReduce {
			return p.mayNotReduce()
		}
		return p.to(goal, in.Requested, load+", below the "+band)
	}
	return p.to(in.Requested, in.Requested, load+", within the "+band)
}

// required is the number of instances that the inference seconds fill: seconds per
// minute / 60 / concurrency. nil, and a finding, where they cannot be used.
func (p *Proposal) required(field string, v enginemetrics.Value, c Config) *big.Rat {
	seconds, flaw := v.Get()
	if flaw != enginemetrics.None {
		p.finds(field, flaw)
		return nil
	}
	return over(exact(seconds), times(whole(60), whole(c.MaxConcurrency)))
}

// withForecast returns the larger of now and the same time last week, times scale
// where that is given, and whether the numbers are good enough to take instances away.
// now is nil where the present is unknown: then the forecast may still add instances.
// A gap in the forecast is only noted; an absurd forecast forbids taking away, because
// the load to come is then unknown.
func (p *Proposal) withForecast(now *big.Rat, in Input, c Config, scale *big.Rat) (required *big.Rat, mayReduce bool) {
	mayReduce = now != nil
	forecast := p.required("forecast_inference_seconds_per_minute", in.ForecastSecondsPerMinute, c)
	if forecast == nil {
		_, flaw := in.ForecastSecondsPerMinute.Get()
		return now, mayReduce && flaw == enginemetrics.Absent
	}
	if scale != nil {
		forecast = times(forecast, scale)
	}
	if now == nil {
		p.Blind = in.Requested > 0
		return forecast, false
	}
	return larger(now, forecast), mayReduce
}

func (p *Proposal) finds(field string, flaw enginemetrics.Flaw) {
	p.Findings = append(p.Findings, Finding{Field: field, Flaw: flaw})
}

// to completes the proposal with a target and the code that it means.
func (p Proposal) to(target, current int, reason string) Proposal {
	p.Target, p.Reason, p.Code = target, reason, InBand
	switch {
	case target > current:
		p.Code = WantsMore
	case target < current:
		p.Code = WantsLess
	}
	return p
}

// unknown holds because nothing usable was measured. Where no instance is requested,
// none can report, and nothing measured means nothing to do.
func (p Proposal) unknown(in Input) Proposal {
	p.Code, p.Reason, p.Blind = MetricUnknown, "no change: "+p.flaws(), true
	absurd := func(f Finding) bool { return f.Flaw != enginemetrics.Absent }
	if in.Requested == 0 && !slices.ContainsFunc(p.Findings, absurd) {
		p.Code, p.Blind = InBand, false
		p.Reason = "no instance is requested and no metric is available: " + p.flaws()
	}
	return p
}

// mayNotReduce holds although the usable numbers ask for less.
func (p Proposal) mayNotReduce() Proposal {
	p.Code, p.Reason = MetricUnknown, "no scale-down while metrics are missing or invalid: "+p.flaws()
	return p
}

func (p Proposal) flaws() string {
	var s []string
	for _, f := range p.Findings {
		s = append(s, f.Field+" is "+string(f.Flaw))
	}
	return strings.Join(s, ", ")
}

func asFloat(r *big.Rat) float64 {
	f, _ := r.Float64()
	return f
}
