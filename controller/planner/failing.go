package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
)

// A replica that passes its health check and fails its requests is replaced. It is drained at
// once, because it serves few or none, and another one is started elsewhere if there is room,
// or else in its place.
const (
	// FailuresLeast is how many requests a replica must have failed before anything follows:
	// after as many in a row a gateway leaves an engine alone. Fewer may be due to the requests.
	FailuresLeast = 5
	// failuresOver is how long it must have failed requests for: all that are in flight when a
	// process dies fail at one moment, and its restart or its shadow is the cure.
	failuresOver = 5 * time.Second
	// failingShare is the share of failures from which on a replica is replaced of which a sibling
	// does better: it fails at least as many requests as it answers.
	failingShare = 0.5
	// betterBy is how many times lower the share of a sibling that does better is, and
	// siblingLeast how many requests it must have had.
	betterBy     = 4
	siblingLeast = 10
	// uselessShare and uselessLeast are the same where no sibling does better. Then the requests
	// may be to blame, or something that all replicas need, and a replica that answers some of
	// them is worth keeping: it soon fails five in a row by chance.
	uselessShare = 0.9
	uselessLeast = 2 * FailuresLeast
	// fleetPart: one in so many replicas that serve, and one more, may be replaced at a time. A
	// fault outside the replicas, as of a gateway's network, must not empty the fleet.
	fleetPart = 10
)

// Outcomes are how the requests at a replica have ended.
type Outcomes struct {
	Answered, Failed int64
	// Over is the time from the first of the failures to the last.
	Over time.Duration
}

func (o Outcomes) requests() int64 { return o.Answered + o.Failed }

// share is the share of failures.
func (o Outcomes) share() float64 { return float64(o.Failed) / float64(max(o.requests(), 1)) }

func (o Outcomes) String() string { return fmt.Sprintf("%d of %d", o.Failed, o.requests()) }

// latest returns the recent outcomes, or the row of failures of a replica without a recent
// answer, which may have had few requests since.
func (l Load) latest() Outcomes {
	if l.Recent.Answered == 0 && l.Row.Failed > l.Recent.Failed {
		return l.Row
	}
	return l.Recent
}

// latest adds up those of the model's replicas that serve and are so. Over is the longest.
func (b *planBuilder) latest(m *model, so func(*member) bool) Outcomes {
	var sum Outcomes
	for _, r := range m.members {
		if b.serves(r) && so(r) {
			of := b.obs.Loads[r.name].latest()
			sum = Outcomes{Answered: sum.Answered + of.Answered, Failed: sum.Failed + of.Failed, Over: max(sum.Over, of.Over)}
		}
	}
	return sum
}

// failure is the evidence that a member fails its requests.
type failure struct {
	r                 *member
	requests, sibling Outcomes
	// row: it has answered none since the first of them.
	row bool
}

func (f failure) String() string {
	text := fmt.Sprintf("%s recent requests failed, over %s", f.requests, f.requests.Over.Round(time.Millisecond))
	if f.row {
		text = fmt.Sprintf("the last %d requests failed, over %s", f.requests.Failed, f.requests.Over.Round(time.Millisecond))
	}
	if f.sibling.requests() == 0 {
		return text + " (no requests at siblings)"
	}
	return fmt.Sprintf("%s (siblings: %s)", text, f.sibling)
}

// failureOf reports whether a member fails its requests.
func (b *planBuilder) failureOf(m *model, r *member) (failure, bool) {
	if r.changed || !r.serving() || !r.passes || r.gone() || r.leavesNode() || !r.node.DownSince.IsZero() {
		return failure{}, false
	}
	// It cannot start again on a GPU that is out of use, and there may be no other place: it
	// leaves without a successor only if it answers next to nothing.
	displaced := b.outOfUse(r) != ""
	load := b.obs.Loads[r.name]
	for i, o := range []Outcomes{load.Row, load.Recent} {
		if displaced && (o.Failed < uselessLeast || o.share() < uselessShare) {
			continue
		}
		if o.Failed >= FailuresLeast && o.Over >= failuresOver && o.share() >= failingShare {
			return failure{r: r, requests: o, row: i == 0, sibling: b.latest(m, func(s *member) bool { return s != r })}, true
		}
	}
	return failure{}, false
}

// replaceFailing replaces the member of a group that fails its requests most. Of several that
// fail alike the one that has served longest goes first, so that each has its turn.
func (b *planBuilder) replaceFailing(g *group) {
	if g.Stopped || b.full() || !b.open("") {
		return
	}
	var failing []failure
	for _, r := range g.members {
		if f, ok := b.failureOf(g.model, r); ok && b.open(b.poolOf(r)) {
			failing = append(failing, f)
		}
	}
	if len(failing) == 0 {
		return
	}
	f := slices.MinFunc(failing, func(a, b failure) int {
		return cmp.Or(cmp.Compare(b.requests.share(), a.requests.share()), a.r.Since.Compare(b.r.Since), cmp.Compare(a.r.name, b.r.name))
	})
	if why := b.keepFailing(g.model, f); why != "" {
		what := "fails its requests and stays: " + why
		b.recordIfNew(KindFailing, g.Name, f.r.name, what+"; "+f.String(), what, nil)
		return
	}
	reason := f.String()
	in := inputs{
		"answered": strconv.FormatInt(f.requests.Answered, 10), "failed": strconv.FormatInt(f.requests.Failed, 10), "over": f.requests.Over.String(),
		"siblings_answered": strconv.FormatInt(f.sibling.Answered, 10), "siblings_failed": strconv.FormatInt(f.sibling.Failed, 10),
		"replaced_in_a_row": strconv.Itoa(b.replacedInARow(g.model)), "node": nodeName(f.r), "version": strconv.Itoa(f.r.Version),
	}
	pools := b.openPools(g.model)
	if b.expected(g.model, f.r) {
		pools = []string{b.poolOf(f.r)}
	}
	b.countReplacement(g.model)
	b.happens(f.r, state.EventDrain, state.GoalGone, func(c *state.Move) { c.LastError = &reason })
	g.staying()
	if fresh := b.placeElsewhere(g, f.r, pools); fresh != nil {
		b.record(KindReplaced, g.Name, f.r.name, fmt.Sprintf("%s: drained and replaced by %s", reason, fresh.name), in)
		return
	}
	b.record(KindReplaced, g.Name, f.r.name, reason+": drained and replaced", in)
}

// placeElsewhere places a member in the place of one that leaves, on another node of the pools,
// nil where it is not needed or fits nowhere. Then scaleUp finds it a place, which may be the
// old one.
func (b *planBuilder) placeElsewhere(g *group, r *member, pools []string) *member {
	v := g.definition(r.Name.Variant)
	if v == nil || len(g.members) >= g.target {
		return nil
	}
	fresh, _ := b.placeFirst(g.model, []*state.Variant{v}, pools, map[string]bool{r.Placement.Node: true}, nil)
	if fresh != nil {
		g.members = append(g.members, fresh)
	}
	return fresh
}

// keepFailing returns why a member that fails its requests is not replaced now, empty if it is.
func (b *planBuilder) keepFailing(m *model, f failure) string {
	// Compared over the same time: when all begin to fail, all have answers of before.
	share := b.obs.Loads[f.r.name].latest().share()
	better := slices.ContainsFunc(m.members, func(s *member) bool {
		o := b.obs.Loads[s.name].latest()
		return s != f.r && b.serves(s) && o.requests() >= siblingLeast && o.share()*betterBy <= share
	})
	if !better && (f.requests.share() < uselessShare || f.requests.Failed < uselessLeast) {
		return "it may answer some, and no sibling does better"
	}
	if n := b.replacedInARow(m); n > 0 {
		if at := m.Replacements.Last.Add(Backoff(b.conf.Backoff, b.conf.BackoffMax, n)); !b.due(at) {
			return fmt.Sprintf("%d replicas of the model were replaced in a row, the next one not before %s", n, at.UTC().Format("15:04:05 MST"))
		}
	}
	if b.replacing(m) {
		return "another replica of the model is being replaced"
	}
	serving, replacing := 0, 0
	for _, other := range b.models {
		replacing += btoi(b.replacing(other))
		for _, r := range other.members {
			serving += btoi(b.serves(r))
		}
	}
	if most := 1 + serving/fleetPart; replacing >= most {
		return fmt.Sprintf("replicas of %d models are being replaced, which is the most for %d replicas that serve", replacing, serving)
	}
	return ""
}

// replacedInARow is how many replicas of a model were replaced, each soon after the one before.
// A model that had none replaced for SteadyTime, although it could have, begins anew.
func (b *planBuilder) replacedInARow(m *model) int {
	n := m.Replacements.InARow
	if n == 0 || b.due(m.Replacements.Last.Add(Backoff(b.conf.Backoff, b.conf.BackoffMax, n)+b.conf.SteadyTime)) {
		return 0
	}
	return n
}

// replacing reports whether the last replacement of a model goes on: what came since does not
// serve yet, or waits for the place of what leaves. After BackoffMax it counts as over.
func (b *planBuilder) replacing(m *model) bool {
	last := m.Replacements.Last
	if m.Replacements.InARow == 0 || b.due(last.Add(b.conf.BackoffMax)) {
		return false
	}
	present, coming, leaving := 0, false, false
	for _, r := range m.members {
		fresh := !r.next.Since.Before(last)
		switch {
		case r.counts():
			present++
			coming = coming || fresh && !b.serves(r)
		case r.leaving() && !r.removed && r.next.Status != state.StatusCold:
			leaving = leaving || fresh
		}
	}
	return coming || leaving && present < m.target.Replicas
}

// countReplacement notes that a replica of a model is replaced now.
func (b *planBuilder) countReplacement(m *model) {
	next := *m.Model
	next.Replacements = state.Replacements{InARow: b.replacedInARow(m) + 1, Last: b.obs.Now}
	m.Model = &next
	b.plan.Replacements = append(b.plan.Replacements, state.SetReplacements{Model: m.Name, Replacements: next.Replacements})
}
