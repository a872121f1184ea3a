package observe

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Goals are how fast the answers of a model should be and how fast they are. The zero value has no
// goal.
type Goals struct {
	// FirstToken is about the time from a request until its first token, InterToken about that between
	// two tokens.
	FirstToken Goal `json:"first_token,omitzero"`
	InterToken Goal `json:"inter_token,omitzero"`
	// Settled is how many replicas have served for as long as P95 was measured.
	Settled int `json:"settled,omitempty"`
	// PromptTokens is how many tokens of prompts all engines read per second, and Started how many
	// requests had their first token; absent where one of them does not report it.
	PromptTokens enginemetrics.Value `json:"prompt_tokens,omitzero"`
	Started      enginemetrics.Value `json:"started,omitzero"`
}

// Goal is one goal of a model, and what its engines report.
type Goal struct {
	// Within is the highest 95th percentile that meets the goal; 0 means that the model has no goal.
	Within time.Duration `json:"within_ns,omitempty"`
	// P95 is the 95th percentile of the last minute in seconds, over the engines that report it. It is
	// absent if nothing was observed.
	P95 enginemetrics.Value `json:"p95,omitzero"`
	// Unmeasured is why some engines never report it, and Unknown why it is not known of one that
	// should.
	Unmeasured string `json:"unmeasured,omitempty"`
	Unknown    string `json:"unknown,omitempty"`
}

// measure fills in what the engines of the views report.
func (g *Goals) measure(views []enginemetrics.View, copies map[string]Copy, at time.Time) {
	if *g == (Goals{}) {
		return
	}
	for _, c := range copies {
		if since := at.Sub(c.Since); c.Phase == Hot && (c.Since.IsZero() || since >= enginemetrics.DefaultWindow) {
			g.Settled++
		}
	}
	var first, inter []enginemetrics.Latency
	prompts, started, rated := 0.0, 0.0, false
	for i := range views {
		v := &views[i]
		if v.Class == enginemetrics.ClassGone || v.Class == enginemetrics.ClassAsleep {
			continue
		}
		isNew := at.Sub(copies[v.Replica].Since) < NewFor
		first = g.FirstToken.add(first, v, enginemetrics.FirstTokens, v.Rates.FirstTokens, isNew)
		inter = g.InterToken.add(inter, v, enginemetrics.InterTokens, v.Rates.InterTokens, isNew)
		n, flaw := v.Rates.PromptTokens.Get()
		if flaw == enginemetrics.None {
			prompts, rated = prompts+n, true
		}
		if l := v.Rates.FirstTokens; l.Over > 0 {
			started += l.Count() / l.Over.Seconds()
		}
	}
	if rated {
		g.PromptTokens, g.Started = enginemetrics.Of(prompts), enginemetrics.Of(started)
	}
	g.FirstToken.P95 = enginemetrics.Quantile(0.95, first)
	g.InterToken.P95 = enginemetrics.Quantile(0.95, inter)
}

// add takes what one engine reports.
func (g *Goal) add(all []enginemetrics.Latency, v *enginemetrics.View, q enginemetrics.Quantity, l enginemetrics.Latency, isNew bool) []enginemetrics.Latency {
	usable := v.Class == enginemetrics.ClassOK || v.Class == enginemetrics.ClassDuplicate
	d, err := enginemetrics.Lookup(v.Last.Dialect)
	switch {
	case g.Within == 0:
	case err == nil && len(d.Metrics[q]) == 0:
		g.Unmeasured = cmp.Or(g.Unmeasured, fmt.Sprintf("engines of dialect %s do not report it", d.Name))
	case !usable && !isNew:
		g.Unknown = cmp.Or(g.Unknown, fmt.Sprintf("replica %s is %s", v.Replica, v.Class))
	case usable && l.IsZero():
		g.Unmeasured = cmp.Or(g.Unmeasured, "the metrics of replica "+v.Replica+" do not have it")
	case usable:
		all = append(all, l)
	}
	return all
}

// Required is what the goals of a model call for.
type Required struct {
	// Grow is how many replicas there should be at least, 0: no more than there are. Keep is how many
	// must not be removed.
	Grow, Keep int
	// Reasons say which goal is missed or unknown, in a fixed order.
	Reasons []string
}

const (
	// mostGrowth is how much the goals let a model grow beyond the replicas that they were measured on.
	mostGrowth = 2
	// mostBusy is beyond the requests that a model can have.
	mostBusy = 1e6
)

// Required compares the goals with what was measured, and with what the requests that wait will take.
//
// A model whose goal is missed grows in proportion, at most to the double of the replicas that served
// while it was measured, as those that start count already. It never has more replicas than requests:
// beyond that they would not be faster. Nothing is removed that would have the goal missed if times
// grew with the load of each replica, nor while a goal is missed or unknown.
func (s *Snapshot) Required() Required {
	var r Required
	busy, serving, current := s.busy(), s.HotCount(), s.Current()
	alone := int(math.Ceil(busy)) // so many replicas have one request each
	hold := func(format string, args ...any) {
		r.Keep = current
		r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
	}
	// judge takes the share of a goal that is used up.
	judge := func(share float64, why string) {
		n := s.Goals.Settled
		switch {
		case share <= 1:
			r.Keep = max(r.Keep, min(int(math.Ceil(share*float64(serving)-1e-9)), alone, current))
		case alone <= n:
			hold("%s, which more replicas would not change: there are %d for %d requests", why, n, alone)
		default:
			hold("%s", why)
			r.Grow = max(r.Grow, min(int(math.Ceil(min(share, mostGrowth)*float64(n))), alone))
		}
	}
	for _, g := range []struct {
		Goal
		name, what string
	}{{s.Goals.FirstToken, "ttft_p95", "first tokens"}, {s.Goals.InterToken, "itl_p95", "times between tokens"}} {
		if g.Within == 0 {
			continue
		}
		p95, flaw := g.P95.Get()
		measured := flaw == enginemetrics.None
		if !measured && flaw != enginemetrics.Absent {
			g.Unknown = cmp.Or(g.Unknown, fmt.Sprintf("its histogram is invalid: %s", flaw))
		}
		if g.Unknown != "" {
			hold("%s is unknown: %s", g.name, g.Unknown)
		}
		if g.Unmeasured != "" {
			r.Reasons = append(r.Reasons, fmt.Sprintf("%s is not measured everywhere: %s", g.name, g.Unmeasured))
		}
		if measured {
			judge(p95/g.Within.Seconds(), fmt.Sprintf("95 of 100 %s took up to %s: the goal is %s", g.what, seconds(p95), g.Within))
		}
	}
	within := s.Goals.FirstToken.Within.Seconds()
	if within == 0 {
		return r
	}
	if q := &s.Queue; !q.Oldest.IsZero() {
		wait := s.At.Sub(q.Oldest).Seconds()
		judge(max(wait, 0)/within, fmt.Sprintf("a request has waited for %s: its first token is due within %s", seconds(wait), s.Goals.FirstToken.Within))
	}
	if tokens, requests := s.backlog(); requests > 0 {
		prompts, flaw := s.Goals.PromptTokens.Get()
		if flaw != enginemetrics.None || prompts == 0 {
			if s.Goals.FirstToken.Unmeasured == "" {
				hold("%.0f requests wait, and no prompt was read in the last minute", requests)
			}
			return r
		}
		judge(tokens/prompts/within, fmt.Sprintf("%.0f requests wait with about %.0f tokens, which take %s at %.0f tokens per second: the goal is %s",
			requests, tokens, seconds(tokens/prompts), prompts, s.Goals.FirstToken.Within))
	}
	return r
}

// busy is how many requests the model has, the most of what engines and gateways report.
func (s *Snapshot) busy() float64 {
	inEngines := 0.0
	for i := range s.Engines {
		if e := &s.Engines[i]; e.usable() && !e.Draining {
			inEngines += amount(e.Running) + amount(e.Waiting)
		}
	}
	return min(max(inEngines, float64(s.Queue.Waiting+s.Queue.InFlight)), mostBusy)
}

// backlog is how many requests wait for their first token, and how many tokens their prompts have: as
// the gateways estimate it, and in engines as many as the prompts of the last minute had on average.
func (s *Snapshot) backlog() (tokens, requests float64) {
	for i := range s.Engines {
		if e := &s.Engines[i]; e.usable() && !e.Draining {
			requests += amount(e.WaitingNow)
		}
	}
	length := 0.0
	if started := amount(s.Goals.Started); started > 0 {
		length = amount(s.Goals.PromptTokens) / started
	}
	tokens = requests * length
	if q := &s.Queue; q.Known && q.Source == FromGateways {
		tokens += float64(q.WaitingTokens)
		requests += float64(q.Waiting)
	}
	return tokens, requests
}

// amount is a number of requests or tokens, 0 where it cannot be one.
func amount(v enginemetrics.Value) float64 {
	n, flaw := v.Get()
	if flaw != enginemetrics.None {
		return 0
	}
	return min(n, 1e12)
}

// seconds is a duration for people.
func seconds(s float64) string {
	if s >= 100 {
		return fmt.Sprintf("%.0fs", s)
	}
	return fmt.Sprintf("%.3gs", s)
}
