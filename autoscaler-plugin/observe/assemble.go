package observe

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// seen is what the sources answered.
type seen struct {
	managed       *Managed // nil: no controller has the model
	unmanaged     bool     // there is a controller, and it does not know the model
	controllerErr error
	metricsName   string
	report        Report
	metricsErr    error
}

// question is what to ask about the engines.
func (s *seen) question(t Target) Question {
	q := Question{Model: t.Model, Shown: t.shown(), Dialect: t.Dialect, Group: t.Group}
	if s.managed == nil {
		return q
	}
	q.Group, q.Replicas = nil, []string{}
	if t.Dialect == "" {
		q.Dialects = map[string]string{}
		for _, v := range s.managed.Variants {
			if v.Dialect != "" {
				q.Dialects[v.Variant] = v.Dialect
			}
		}
	}
	for _, c := range s.managed.Copies {
		q.Replicas = append(q.Replicas, c.Replica)
	}
	slices.Sort(q.Replicas)
	return q
}

// snapshot puts everything together.
func (s *seen) snapshot(t Target, now time.Time) Snapshot {
	var out Snapshot
	if s.managed != nil {
		out = s.managed.Snapshot
		out.Controlled, out.Variants = true, slices.Clone(out.Variants)
	}
	out.Model, out.At = t.Model, now.Round(0).UTC()
	var notes []string
	if s.controllerErr != nil {
		out.Away = append(out.Away, AwayController)
		notes = append(notes, fmt.Sprintf("the controller did not answer: %v", s.controllerErr))
	}
	if s.metricsErr != nil {
		out.Away = append(out.Away, s.metricsName)
		notes = append(notes, fmt.Sprintf("%s did not answer: %v", s.metricsName, s.metricsErr))
	}
	if s.unmanaged && t.Group == nil {
		notes = append(notes, fmt.Sprintf("%v, and the policy names no job group: only the observed engines count", ErrUnknownModel))
	}
	switch {
	case s.managed != nil || t.Group == nil:
	case t.Group.Variant == DefaultVariant:
		s.report = s.report.oneVariant()
	default:
		var others []string
		if s.report, others = s.report.only(t.Group.Variant); len(others) > 0 {
			notes = append(notes, fmt.Sprintf("the policy names the job group %q: engines of %s are ignored", t.Group.Variant, strings.Join(others, ", ")))
		}
	}
	sorted := slices.Clone(s.report.Engines)
	slices.SortFunc(sorted, func(a, b Reported) int {
		return cmp.Or(cmp.Compare(a.View.Replica, b.View.Replica), cmp.Compare(a.Variant, b.Variant))
	})
	reported := make(map[string]Reported, len(sorted))
	for _, r := range sorted {
		if _, twice := reported[r.View.Replica]; !twice {
			reported[r.View.Replica] = r
		}
	}
	if m := s.managed; m != nil {
		notes = append(notes, m.Notes...)
		out.engines(m.Copies, reported, s.report)
		for i := range out.Variants {
			out.Variants[i].slots(out.Engines)
		}
	} else {
		if t.Group != nil {
			seen := slices.DeleteFunc(slices.Clone(s.report.Engines), func(r Reported) bool { return r.Gone })
			s.report.Findings = matter(s.report.Findings, len(seen) >= t.Group.Count)
		}
		out.engines(nil, reported, s.report)
		out.plain(t, s.report.NotPassing)
	}
	if !out.Queue.Known && !out.Queue.Partial { // engines do not know what waits in gateways
		out.Queue = out.enginesQueue()
	}
	notes = append(notes, s.report.Notes...)
	for _, f := range out.Census.Findings {
		notes = append(notes, f.String())
	}
	if out.Census.Inert {
		notes = append(notes, "the policy is inert: "+out.Census.Why)
	}
	out.Findings = unique(notes)
	return out
}

// oneVariant takes all engines for those of the one job group that the policy has and does
// not name.
func (r Report) oneVariant() Report {
	r.Engines = slices.Clone(r.Engines)
	for i := range r.Engines {
		r.Engines[i].Variant = DefaultVariant
	}
	return r
}

// only leaves the engines of other job groups out: others scale them, by their own load. It names
// their variants.
func (r Report) only(variant string) (out Report, others []string) {
	out = r
	out.Engines = slices.DeleteFunc(slices.Clone(r.Engines), func(e Reported) bool {
		if e.Variant == variant {
			return false
		}
		others = append(others, strconv.Quote(e.Variant))
		return true
	})
	slices.Sort(others)
	return out, slices.Compact(others)
}

// unique keeps the first of each.
func unique(in []string) []string {
	known := map[string]bool{}
	var out []string
	for _, s := range in {
		if !known[s] {
			known[s] = true
			out = append(out, s)
		}
	}
	return out
}

// engines joins the replicas that should be there with those that are reported. copies is
// nil where no controller has the model: what is reported is what is there.
func (s *Snapshot) engines(copies []Copy, reported map[string]Reported, report Report) {
	known := make(map[string]Copy, len(copies))
	draining := map[string]bool{}
	var live []string
	if s.Controlled {
		for _, c := range copies {
			known[c.Replica] = c
			r, there := reported[c.Replica]
			switch {
			case c.Phase == Draining:
				draining[c.Replica] = true
			case c.Phase == Hot, there && !r.Gone && c.Phase == Starting:
				// One that starts and has engines in use already has just come up.
				live = append(live, c.Replica)
			}
		}
	} else {
		for name, r := range reported {
			if !r.Gone {
				live = append(live, name)
			}
		}
	}
	views := make([]enginemetrics.View, 0, max(len(reported), len(live)))
	bySlots := make(map[string]bool, cap(views))
	for name, r := range reported {
		c := known[name]
		if draining[name] || r.Gone && c.Phase == Starting {
			continue
		}
		v, by := standIn(r, c, s.dialect(c.Variant), false)
		views, bySlots[name] = append(views, v), by
	}
	for _, name := range live {
		if _, there := reported[name]; there {
			continue
		}
		c := known[name]
		v, by := standIn(Reported{View: enginemetrics.View{Replica: name, Class: enginemetrics.ClassUnknown, Why: "no metrics source reports it"}}, c, s.dialect(c.Variant), false)
		views, bySlots[name] = append(views, v), by
	}
	s.Census = enginemetrics.TakeCensus(live, views)
	findings := report.Findings
	if s.Controlled {
		findings = matter(findings, s.Census.OK == len(live))
	}
	if len(findings) > 0 {
		s.Census = enginemetrics.TakeCensus(live, views, findings...)
	}
	s.Goals.measure(s.Census.Replicas, known, s.At)
	s.Engines = slices.Grow(s.Engines, len(s.Census.Replicas)+len(draining))
	for _, v := range s.Census.Replicas {
		if v.Class != enginemetrics.ClassGone {
			s.Engines = append(s.Engines, engine(v, reported[v.Replica], known[v.Replica], bySlots[v.Replica]))
		}
	}
	for name := range draining {
		r, there := reported[name]
		if !there {
			r.View = enginemetrics.View{Replica: name, Class: enginemetrics.ClassUnknown, Why: "draining and no longer reported"}
		}
		v, by := standIn(r, known[name], s.dialect(known[name].Variant), true)
		e := engine(v, r, known[name], by)
		e.Draining = true
		s.Engines = append(s.Engines, e)
	}
	for i := range s.Engines {
		e := &s.Engines[i]
		c := known[e.Replica]
		since := s.At.Sub(c.Since)
		e.New = reported[e.Replica].View.Points == 0 && !e.usable() && c.Phase == Hot && !c.Since.IsZero() && since > -NewFor && since < NewFor
	}
	slices.SortFunc(s.Engines, func(a, b Engine) int { return cmp.Compare(a.Replica, b.Replica) })
	s.Census.Replicas = nil
}

// matter leaves out that series are missing where all that should be there are: the series
// of a model that has no replica are missing, and those of others are no mismatch then.
func matter(in []enginemetrics.Finding, complete bool) []enginemetrics.Finding {
	if !complete {
		return in
	}
	return slices.DeleteFunc(slices.Clone(in), func(f enginemetrics.Finding) bool {
		return f.Kind == enginemetrics.NoSeries || f.Kind == enginemetrics.LabelMismatch
	})
}

// dialect is the one that the controller says a variant speaks.
func (s *Snapshot) dialect(variant string) string {
	v, _ := s.Variant(variant)
	return v.Dialect
}

// standIn makes a view from what gateways have at a replica, where its engine shows no
// metrics at all (Ollama), or drains and is no longer read.
func standIn(r Reported, c Copy, dialect string, draining bool) (enginemetrics.View, bool) {
	v := r.View
	inFlight, flaw := c.InFlight.Get()
	if flaw != enginemetrics.None || v.Class == enginemetrics.ClassOK || v.Class == enginemetrics.ClassDuplicate {
		return v, false
	}
	slots := cmp.Or(r.Slots, c.Slots)
	if !draining && (slots == 0 || !silent(cmp.Or(v.Last.Dialect, dialect))) {
		return v, false
	}
	waiting := 0.0
	if slots > 0 {
		waiting = max(0, inFlight-float64(slots))
	}
	running, queued := enginemetrics.Of(inFlight-waiting), enginemetrics.Of(waiting)
	return enginemetrics.View{Replica: c.Replica, Class: enginemetrics.ClassOK, Running: running, Waiting: queued,
		Last: enginemetrics.Sample{Dialect: cmp.Or(v.Last.Dialect, dialect), Running: running, Waiting: queued, Ranks: 1}}, true
}

// silent tells whether engines of a dialect show no metrics.
func silent(dialect string) bool {
	if dialect == "" {
		return false
	}
	d, err := enginemetrics.Lookup(dialect)
	return err == nil && len(d.Metrics) == 0
}

func engine(v enginemetrics.View, r Reported, c Copy, bySlots bool) Engine {
	return Engine{
		Replica: v.Replica, Variant: cmp.Or(c.Variant, r.Variant, DefaultVariant), Slots: cmp.Or(r.Slots, c.Slots),
		Class: v.Class, Why: v.Why, Dialect: v.Last.Dialect, BySlots: bySlots,
		KV: v.KVUsage, Waiting: v.Waiting, Running: v.Running, KVNow: v.Last.KVUsage,
		WaitingNow: v.Last.Waiting, RunningNow: v.Last.Running,
		InFlight: c.InFlight, KVTokens: v.Last.KVTokens, AgeSeconds: v.Age.Seconds(),
		Rates: Rates{Finished: v.Rates.Finished, Queue: v.Rates.Queue, EndToEnd: v.Rates.EndToEnd},
	}
}

// plain fills in the variants of a model that no controller has.
func (s *Snapshot) plain(t Target, notPassing map[string]int) {
	hot := map[string]int{}
	for _, e := range s.Engines {
		hot[e.Variant]++
	}
	add := func(v Variant) {
		v.Dialect, v.Starting = t.Dialect, v.Current-v.Hot
		v.slots(s.Engines)
		s.Variants = append(s.Variants, v)
	}
	if g := t.Group; g != nil {
		v := Variant{Variant: g.Variant, Slots: g.Slots, Hot: min(hot[g.Variant], g.Count), Current: g.Count}
		if g.Cost > 0 {
			v.Cost = enginemetrics.Of(g.Cost)
		}
		add(v)
		return
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(hot)), maps.Keys(notPassing))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		add(Variant{Variant: name, Hot: hot[name], Current: hot[name] + notPassing[name]})
	}
}

// slots takes over the fewest slots that an engine of the variant has, where it has none of its own.
func (v *Variant) slots(engines []Engine) {
	if v.Slots > 0 {
		return
	}
	for _, e := range engines {
		if e.Variant == v.Variant && e.Slots > 0 && (v.Slots == 0 || e.Slots < v.Slots) {
			v.Slots = e.Slots
		}
	}
}

// enginesQueue adds up what engines have, where no gateway tells. One engine that is not
// known makes the sum unknown; so does there being none, as who waits then is elsewhere.
func (s *Snapshot) enginesQueue() Queue {
	out := Queue{Known: len(s.Engines) > 0, Source: FromEngines}
	var waiting, running, served float64
	rated := true
	for i := range s.Engines {
		e := &s.Engines[i]
		w, flawW := e.WaitingNow.Get()
		r, flawR := e.RunningNow.Get()
		if !e.usable() || flawW != enginemetrics.None || flawR != enginemetrics.None {
			return Queue{}
		}
		waiting += w
		running += r
		f, flaw := e.Rates.Finished.Get()
		rated = rated && flaw == enginemetrics.None
		served += f
	}
	if !out.Known {
		return Queue{}
	}
	out.Waiting, out.InFlight = whole(waiting), whole(running)
	if rated {
		out.Served = enginemetrics.Of(served)
	}
	return out
}

// whole rounds a count up.
func whole(f float64) int { return int(math.Ceil(min(f, math.MaxInt32))) }
