package plugin

import (
	"fmt"
	"strings"
	"time"

	"remuda/autoscaler-plugin/allocate"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/predictive"
	"remuda/autoscaler-plugin/utilization"
)

// decision is an answer while it is made.
type decision struct {
	*Call
	state    *State
	answer   Answer
	elapsed  time.Duration
	variants []allocate.Variant
	// low and high bound the sum of replicas.
	low, high int
}

// guard is a rule around the strategies.
type guard struct {
	name string
	// apply reports whether a guard of before decided.
	apply func(*decision) bool
}

// before are the guards that decide in place of the strategy. The first one that does is the
// last one that is asked.
var before = []guard{
	{"forbidden", (*decision).forbidden},
	{"observed", (*decision).observed}, // decides nothing: what is remembered, whatever is decided
	{"contradictory bounds", (*decision).contradictoryBounds},
	{"no replica", (*decision).noReplica},
	{"wake", (*decision).wakes},
	{"sleep", (*decision).sleeps},
}

// limits are the guards that hold what a strategy answered within limits, in their order.
var limits = []guard{
	{"bounds", (*decision).withinBounds},
	{"goals", (*decision).keepsGoals},
	{"hold", (*decision).enoughForTheHold},
	{"window", (*decision).watchedForTheWindow},
}

// after are the guards that limit every answer but that of a forbidden decision, in their order.
var after = []guard{
	{"partial data", (*decision).partialData},
	{"rollout", (*decision).duringRollout},
	{"degraded pairs", (*decision).whileDegraded},
	{"upscaling only", (*decision).upscalingOnly},
	{"exchange", (*decision).exchange},
}

// run makes the decision.
func (d *decision) run() {
	for i, g := range before {
		if !g.apply(d) {
			continue
		}
		if i > 0 {
			d.limit(after)
		}
		return
	}
	d.ask()
	d.limit(limits)
	d.limit(after)
}

func (d *decision) limit(by []guard) {
	for _, g := range by {
		g.apply(d)
	}
}

// ask asks the strategy.
func (d *decision) ask() {
	a, s := &d.answer, d.state
	switch {
	case d.Options.Capacity != nil:
		d.capacity(a)
	case d.Options.HPA != nil:
		d.hpa(a, s, d.variants, d.low, d.high)
	case d.Options.Utilization != nil:
		d.utilization(a, s, d.variants, d.low, d.high)
	case d.Options.Predictive != nil:
		d.predicted(a)
	default:
		a.Reason = "the strategy has no options"
	}
}

// forbidden changes nothing of a model that must not be scaled.
func (d *decision) forbidden() bool {
	why := d.Snapshot.Hold()
	if u := d.Options.Utilization; why == "" && u != nil {
		_, why = u.Config.SwitchedOff()
	}
	if why == "" {
		return false
	}
	d.answer.Reason = why
	d.unwatched(d.state, d.elapsed)
	return true
}

// observed takes over what the snapshot shows, whatever is decided.
func (d *decision) observed() bool {
	s := d.state
	if s.UnwatchedFor > 0 {
		s.UnwatchedFor, d.elapsed = 0, 0
	}
	// A census of nothing that should serve is none; what starts is not expected to report.
	if snap := &d.Snapshot; snap.Census.Inert {
		d.answer.Inert = snap.Census.Why
		if len(snap.Away) > 0 {
			d.answer.Inert += ": " + strings.Join(snap.Away, " and ") + " did not answer"
		}
	}
	d.watchIdle(s, d.elapsed)
	if d.Options.Predictive != nil && d.low <= d.high {
		d.answer.Predictive = d.predict(s, d.low, d.high)
	}
	return false
}

// contradictoryBounds changes nothing until a person corrects the bounds.
func (d *decision) contradictoryBounds() bool {
	if d.low <= d.high {
		return false
	}
	d.answer.Reason = fmt.Sprintf("the model's min is %d and its max is %d: min must be at most max, and the count stays until this is corrected", d.low, d.high)
	return true
}

// noReplica leaves a model asleep that may not have a replica.
func (d *decision) noReplica() bool {
	if d.answer.Current > 0 || d.high > 0 {
		return false
	}
	d.answer.Reason = "the model's max is 0: it gets no replica"
	return true
}

// wakes brings a sleeping model up for its first request, or to its min, where the strategy does
// not do so by itself.
func (d *decision) wakes() bool {
	if d.answer.Current > 0 || d.wakesItself() || d.prepares() {
		return false
	}
	d.wake(&d.answer, d.variants, d.low)
	d.state.HPA = nil // while it sleeps nothing is recommended, so no window makes the first request wait
	return true
}

// prepares reports whether the model has no request and remuda-predictive expects load soon.
func (d *decision) prepares() bool {
	p := d.answer.Predictive
	return p != nil && p.Rule == predictive.BySeason && d.Options.ScaleToZero && !wants(&d.Snapshot.Queue)
}

// sleeps sends a model to zero that has been idle for its whole delay, unless it prepares.
func (d *decision) sleeps() bool {
	delay := max(d.Options.IdleAfter, d.Snapshot.ScaleToZeroDelay)
	if d.answer.Current == 0 || !d.Options.ScaleToZero || !d.maySleep() || d.state.IdleFor < delay || !d.quiet() || d.prepares() {
		return false
	}
	d.answer.Targets = allocate.Spread(0, d.variants, nil)
	d.answer.Reason = fmt.Sprintf("no request for %s: scaling to zero", d.state.IdleFor)
	d.state.HPA = nil
	return true
}

// withinBounds keeps each variant at its own least number and its place, which the upstream rules do
// not know, and the sum within the model's bounds and the policy's own.
func (d *decision) withinBounds() bool {
	a := &d.answer
	for _, v := range d.variants {
		n := max(a.Targets[v.Name], v.Min)
		if v.Unplaceable {
			n = min(n, v.Current)
		}
		a.Targets[v.Name] = n
	}
	sum := allocate.Sum(a.Targets)
	within := min(max(sum, d.low), d.high)
	if sum == within {
		return false
	}
	a.Targets = allocate.Spread(within, d.variants, a.Targets)
	a.Reason = fmt.Sprintf("%s; %d is outside the model's bounds %d to %d", a.Reason, sum, d.low, d.high)
	return true
}

// keepsGoals lets remuda-capacity and remuda-predictive grow while a goal of the model is missed or
// about to be, and remove nothing that it needs.
func (d *decision) keepsGoals() bool {
	a := &d.answer
	if d.Options.Capacity == nil && d.Options.Predictive == nil {
		return false
	}
	r := d.Snapshot.Required()
	sum := allocate.Sum(a.Targets)
	want := min(max(sum, min(r.Keep, a.Current), r.Grow), d.high)
	if want > sum {
		if sum < a.Current {
			a.Targets = nil // from what there is, so that no variant is exchanged for another one
		}
		a.Targets = allocate.Spread(want, d.variants, a.Targets)
		if len(r.Reasons) == 0 {
			r.Reasons = []string{"fewer replicas could miss a goal"}
		}
		a.Reason = fmt.Sprintf("%d replicas for the model's goals: %s; otherwise: %s", allocate.Sum(a.Targets), strings.Join(r.Reasons, "; "), a.Reason)
		return true
	}
	if len(r.Reasons) > 0 {
		a.Reason += "; goals: " + strings.Join(r.Reasons, "; ")
	}
	return false
}

// enoughForTheHold removes nothing before fewer replicas were enough for remuda-capacity's whole
// hold. Then one after the other may go: what was taken away is no reason to begin anew. What is
// above the model's max does not wait.
func (d *decision) enoughForTheHold() bool {
	a, s := &d.answer, d.state
	if d.Options.Capacity == nil || a.Current > d.high {
		return false
	}
	was := s.Shrinks
	if s.Shrinks = allocate.Sum(a.Targets) < a.Current; !s.Shrinks {
		s.ShrinksFor = 0
		return false
	}
	if was {
		s.ShrinksFor = min(s.ShrinksFor+d.elapsed, mostWatched)
	}
	hold := d.Options.Capacity.Hold
	if s.ShrinksFor >= hold {
		return false
	}
	a.Reason = fmt.Sprintf("scale-down waits, because fewer replicas were enough for only %s of the required %s: %s", s.ShrinksFor.Round(time.Second), hold, a.Reason)
	a.Targets = d.currents()
	return true
}

// watchedForTheWindow removes nothing before the load was observed for one full window of the
// strategy: after a start without a state, after a break, and where another agent led. What is
// above the model's max does not wait.
func (d *decision) watchedForTheWindow() bool {
	a, s := &d.answer, d.state
	if a.Inert == "" {
		d.watch(s)
	}
	window := d.window()
	if s.WatchedFor >= window {
		return false
	}
	held := false
	if a.Current > d.high {
		if held = allocate.Sum(a.Targets) < d.high; held {
			a.Targets = allocate.Spread(d.high, d.variants, nil)
		}
	} else {
		held = len(d.keepCurrent(a, d.high)) > 0
	}
	if held {
		a.Reason = fmt.Sprintf("scale-down waits, because the load was observed for only %s of the required %s: %s", s.WatchedFor.Round(time.Second), window, a.Reason)
	}
	return held
}

// partialData removes nothing on a part of the load: before the controller's new leader has heard
// every gateway, as there may be requests that it does not know of, and while replicas of a plain
// job group are not seen, which may be full. The first lasts for seconds: that the load is unknown
// meanwhile is no reason to call a person.
func (d *decision) partialData() bool {
	a, until := &d.answer, ""
	switch {
	case d.Snapshot.Queue.Partial:
		until = "until every gateway has reported to the controller's new leader"
		if !d.Snapshot.Census.Inert && d.queueAlone() {
			a.Inert = ""
		}
	case d.unseen() > 0:
		until = fmt.Sprintf("while %d of %d replicas are not observed", d.unseen(), d.Snapshot.Current())
	default:
		return false
	}
	less := false
	for _, v := range d.Snapshot.Variants {
		less = less || a.Targets[v.Variant] < v.Current
	}
	if less {
		a.Targets = d.currents()
		a.Reason = fmt.Sprintf("no scale-down %s; otherwise: %s", until, a.Reason)
	}
	return less
}

// queueAlone reports whether all that the strategy does not know is the queue.
func (d *decision) queueAlone() bool {
	a, h := &d.answer, d.Options.HPA
	switch {
	case h != nil:
		return h.Backlog != nil || h.Metric == observe.MetricQueue
	case a.Utilization != nil:
		return len(a.Utilization.Proposals) > 0 // else it was not asked
	}
	return a.Predictive != nil && a.Predictive.Rule == predictive.ByUnknown
}

// duringRollout removes nothing while a rollout is on its way: it has replicas of two definitions, whose
// load says little about the number that is needed, and the rollout itself takes old ones away.
func (d *decision) duringRollout() bool {
	return d.keepsBecause(d.Snapshot.Rollout, "until the rollout of "+d.Snapshot.Rollout+" is over")
}

// whileDegraded removes nothing while all that serves are pairs without a standby: the controller would
// not do it, and what starts is the redundancy that is missing. A model without requests may sleep.
func (d *decision) whileDegraded() bool {
	if allocate.Sum(d.answer.Targets) == 0 {
		return false
	}
	return d.keepsBecause(d.Snapshot.Degraded, "because "+d.Snapshot.Degraded)
}

// keepsBecause removes nothing if there is a reason.
func (d *decision) keepsBecause(reason, because string) bool {
	if reason == "" || len(d.keepCurrent(&d.answer, d.high)) == 0 {
		return false
	}
	d.answer.Reason = fmt.Sprintf("no scale-down %s; otherwise: %s", because, d.answer.Reason)
	return true
}

// upscalingOnly keeps what there is of a model whose management only lets it grow. Where there is
// no room for what should come beside that, nothing comes.
func (d *decision) upscalingOnly() bool {
	if d.Snapshot.Management != string(utilization.Upscaling) {
		return false
	}
	kept := d.keepCurrent(&d.answer, d.high)
	for _, v := range kept {
		d.answer.Reason += "; the model's management is upscaling, so " + v + " is not reduced"
	}
	return len(kept) > 0
}

// exchange makes the direction of the targets. nomad-autoscaler goes by the sum, so that an
// exchange of one variant for another goes in two steps: what is added comes first, where the
// model's max has room for it.
func (d *decision) exchange() bool {
	a := &d.answer
	two := allocate.Sum(a.Targets) == a.Current && len(d.keepCurrent(a, d.high)) > 0
	a.Count = allocate.Sum(a.Targets)
	switch {
	case a.Count > a.Current:
		a.Direction = Up
	case a.Count < a.Current:
		a.Direction = Down
	}
	return two
}
