package planner

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// draft is a plan that grows. The replicas and the ledger in it are as they will be
// once the plan is applied, so that each rule sees what those before it have done.
// Each replica changes at most once in a plan.
type draft struct {
	*world
	models []*model    // in the order in which they may place
	pace   *state.Pace // as the plan leaves it
	// batch has the models for which this plan finds places: they make no room for each
	// other.
	batch map[string]bool
	// reserved counts the places that were kept for models, waiting those of each.
	reserved int
	waiting  map[string]int
	// awaited are the members that go to sleep and will be woken at once.
	awaited map[string]bool
	// losers are the models from which this plan has evicted replicas for another one.
	losers map[string]bool
	// left is how many replicas leave an external pool in this plan.
	left map[string]int

	// tally is what was found for missing replicas, joint what is searched for them together,
	// nil in the first plan; see placeTogether.
	tally tally
	joint *joint

	plan *state.Plan
	next time.Time
	text int // bytes of the decisions
	once int // how much was to be said that may have been said before
	// places are the ledger's names of the places that keepPlaces keeps for each model.
	places map[string][]string
	// told has the decisions of a model, newest first, once they were asked for.
	told map[string][]*state.Decision

	// limitsOf returns what bounds a model's scale beside its file.
	limitsOf func(model string) state.Limits

	// current is the model that a rule is about, in a phase; see moving.
	current *model
	phase   phase
}

// newDraft begins a plan from the world as it is.
func newDraft(w *world) *draft {
	d := &draft{
		world: w, limitsOf: w.view.Limits(nil), pace: w.view.Pace(nil),
		batch: map[string]bool{}, losers: map[string]bool{}, left: map[string]int{}, waiting: map[string]int{}, awaited: map[string]bool{},
		plan: &state.Plan{Index: w.view.Index(), Time: w.obs.Now}, told: map[string][]*state.Decision{}, places: map[string][]string{},
	}
	d.plan.ID = fmt.Sprintf("%d-%s", w.view.Index(), hash("plan", w.obs.Now)[:8])
	return d
}

// order puts the models in the order in which they may place.
func (d *draft) order() {
	waits := map[string]bool{} // room is being made for it
	for _, m := range d.models {
		for _, name := range m.makesRoomFor {
			waits[name] = true
		}
	}
	// What had made room is WARM or COLD by now, and may not take its place back before
	// the other one has had it.
	for _, m := range d.models {
		for name, at := range m.EvictedFor {
			if !d.due(at.Add(d.conf.ThrashWindow)) {
				waits[name] = true
			}
		}
	}
	slices.SortStableFunc(d.models, func(a, b *model) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(btoi(!a.dedicated), btoi(!b.dedicated)), cmp.Compare(btoi(!waits[a.Name]), btoi(!waits[b.Name])))
	})
}

// look asks for another plan at t, if that is to come.
func (d *draft) look(t time.Time) {
	if !t.After(d.obs.Now) {
		return
	}
	d.next = earlier(d.next, t)
	if d.current != nil {
		d.current.until[d.phase] = earlier(d.current.until[d.phase], t)
	}
}

// earlier returns the earlier of two times, of which the first may be zero: there is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// due tells whether t has come, and asks for another plan then where it has not.
func (d *draft) due(t time.Time) bool {
	d.look(t)
	return !t.After(d.obs.Now)
}

// serving reports whether the member's status is serving.
func (r *member) serving() bool { return r.next.Status == state.StatusServing }

// gone tells whether the member's node is written off.
func (r *member) gone() bool { return r.node == nil || r.node.WrittenOff }

// jobOver tells whether the member's job surely runs no more. Where no stop of it is seen, there
// may be a registration that nobody knows the index of, because its answer was lost or an
// earlier leader gave it: that had time to arrive since the member got its status.
func (d *draft) jobOver(r *member) bool {
	switch {
	case !r.jobKnown || r.job != nil && !r.job.Ended:
		return false
	case r.job != nil && r.job.Index > r.JobIndex:
		return true
	}
	return d.due(r.Since.Add(d.conf.SettleTime))
}

// allocRuns tells whether an allocation of it runs, or may run for all that is known.
func (r *member) allocRuns() bool {
	if !r.jobKnown {
		return true
	}
	if r.job == nil || r.job.Alloc == nil {
		return false
	}
	switch r.job.Alloc.Client {
	case clientPending, clientComplete, clientFailed:
		return false
	}
	return true
}

// happens adds an event in a member's life to the plan; see state.Replica.Advance. The
// details may be nil. An impossible event is in the plan as well: the state refuses it,
// with the reason.
func (d *draft) happens(r *member, e state.Event, goal state.Goal, details func(*state.Move)) {
	c := state.Move{Replica: r.name, ModifyIndex: r.ModifyIndex, Event: e, Goal: goal}
	if details != nil {
		details(&c)
	}
	d.plan.Move = append(d.plan.Move, c)
	r.changed = true
	m := d.byName[r.Name.Model]
	m.moved()
	next, err := r.next.Advance(e, goal, d.obs.Now)
	if err != nil {
		return
	}
	if c.MakesRoomFor != nil {
		next.MakesRoomFor = *c.MakesRoomFor
	}
	next.Spilled = next.Spilled || c.Spilled
	if c.Kept {
		next.KeptAt = d.obs.Now
	}
	if c.Memory != nil {
		next.SleepingGPUs = state.LeftBehind(next.Placement.Memory, c.Memory)
		next.Placement.Memory = c.Memory
	}
	r.next = next
	d.put(r)
}

// leaving, resting and counts are as those of state.Replica, once the plan is applied.
func (r *member) leaving() bool { return r.removed || r.next.Leaving() }
func (r *member) resting() bool { return !r.removed && r.next.Resting() }
func (r *member) counts() bool  { return !r.removed && r.next.Counts() }

// moved notes that a member comes, goes or moves.
func (m *model) moved() { m.kept, m.standing, m.stirred = nil, nil, true }

// remove forgets a member.
func (d *draft) remove(r *member) {
	d.plan.Remove = append(d.plan.Remove, state.Remove{Replica: r.name, ModifyIndex: r.ModifyIndex})
	r.changed, r.removed = true, true
	m := d.byName[r.Name.Model]
	m.moved()
	d.put(r)
}

// dismiss sends a member away: one that serves is drained first.
func (d *draft) dismiss(r *member) {
	d.sendTo(r, state.GoalGone, nil)
}

// sendTo ends a member, with GoalCold or GoalGone: one that serves is drained first. The details may be nil.
func (d *draft) sendTo(r *member, to state.Goal, details func(*state.Move)) {
	if r.serving() || r.next.Status == state.StatusDraining {
		d.happens(r, state.EventDrain, to, details)
		return
	}
	d.happens(r, state.EventStop, to, details)
}

// place puts a new replica of a definition somewhere. The details may be nil.
func (d *draft) place(m *model, v *state.Variant, at placement.Choice, details func(*state.Place)) *member {
	name := d.freshName(m.Name, v.Name)
	p := state.Place{Name: name, Version: m.versionOf(v), Placement: at.Placement}
	if details != nil {
		details(&p)
	}
	return d.admit(m, p)
}

// admit adds a placement to the plan and to the ledger.
func (d *draft) admit(m *model, p state.Place) *member {
	d.plan.Place = append(d.plan.Place, p)
	own := &state.Replica{
		Name: p.Name, Version: p.Version, Goal: state.GoalRun, Status: cmp.Or(p.Status, state.StatusPlaced), Placement: p.Placement,
		Canary: p.Canary, Failures: p.Failures, LastError: p.LastError, NotPlaced: p.NotPlaced, Spilled: p.Spilled, Since: d.obs.Now, CreatedAt: d.obs.Now,
	}
	r := &member{Replica: own, next: own, name: p.Name.String(), node: d.byID[p.Placement.Node], changed: true, fresh: true}
	r.passes = d.passing(r.name)
	m.members = append(m.members, r)
	m.moved()
	d.byMember[r.name] = r
	d.put(r)
	return r
}

// freshName makes a replica's name. It is the same for every leader that plans from
// this view at this time, and has never been used.
func (d *draft) freshName(model, variant string) replica.Name {
	for i := len(d.plan.Place); ; i++ {
		h := hash(model, variant, d.view.Index(), d.obs.Now, i)
		// A UUID of version 8, whose bits are the maker's own (RFC 9562).
		id := fmt.Sprintf("%s-%s-8%s-a%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:32])
		name := replica.Name{Model: model, Variant: variant, ID: id}
		if _, used := d.obs.Jobs[name.String()]; !used && d.view.Replica(nil, name.String()) == nil {
			return name
		}
	}
}

// hash is of its parts and their boundaries.
func hash(parts ...any) string {
	h := sha256.New()
	for _, p := range parts {
		s := fmt.Sprint(p)
		if t, ok := p.(time.Time); ok {
			s = strconv.FormatInt(t.UnixNano(), 10)
		}
		fmt.Fprintf(h, "%d:%s\n", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// inputs are the numbers of a decision.
type inputs map[string]string

// decide records a decision.
func (d *draft) decide(kind, model, replica, reason string, in inputs) {
	d.stir()
	d.text += len(reason)
	for k, v := range in {
		d.text += len(k) + len(v)
	}
	d.plan.Decisions = append(d.plan.Decisions, state.Decision{Time: d.obs.Now, Model: model, Replica: replica, Kind: kind, Reason: reason, Details: in})
}

// retell is how long a decision holds whose numbers have changed, but not what it says:
// on a busy fleet they change at every look.
const retell = time.Minute

// maxOnce is about how many things one plan says that it may have said before. Where there
// are more than decisions are kept, they would be said again and again.
const maxOnce = state.DecisionLimit / 2

// decideOnce records a decision unless the last one of its kind about the same thing
// said the same. One that led to a placement of that variant
// makes it news again.
func (d *draft) decideOnce(kind, model, replica, reason string, in inputs) {
	d.tell(kind, model, replica, reason, "", in)
}

// tell is decideOnce. Where the reason is what and then details, other details are told
// after a while only; an empty what is all of it.
// It reports whether the decision was recorded.
func (d *draft) tell(kind, model, replica, reason, what string, in inputs) bool {
	d.stir()
	if d.once++; d.once > maxOnce {
		return false
	}
	if strings.ContainsRune(model+replica, 0) || !utf8.ValidString(model+replica) {
		return false // no name of ours, and the state would refuse it or write another
	}
	same := func(k, r, why string, at time.Time, had map[string]string) (about, said bool) {
		if r == replica && k == kind && had["variant"] == in["variant"] && had["about"] == in["about"] {
			is := why == reason || what != "" && strings.HasPrefix(why, what+"; ") && !d.due(at.Add(retell))
			return true, is && had["index"] == in["index"]
		}
		return kind != k && in["variant"] != "" && k == KindPlace && had["variant"] == in["variant"], false
	}
	for i := len(d.plan.Decisions) - 1; i >= 0; i-- {
		p := &d.plan.Decisions[i]
		if p.Model != model {
			continue
		}
		if about, said := same(p.Kind, p.Replica, p.Reason, p.Time, p.Details); said {
			return false
		} else if about {
			d.decide(kind, model, replica, reason, in)
			return true
		}
	}
	for _, p := range d.decisionsOf(model) {
		if about, said := same(p.Kind, p.Replica, p.Reason, p.Time, p.Details); said {
			return false
		} else if about {
			break
		}
	}
	d.decide(kind, model, replica, reason, in)
	return true
}

func (d *draft) decisionsOf(model string) []*state.Decision {
	ds, asked := d.told[model]
	if !asked {
		ds = d.view.Decisions(nil, model, 0)
		d.told[model] = ds
	}
	return ds
}

// setRollout moves a rollout on; with an empty status it is over.
func (d *draft) setRollout(m *model, variant string, status state.RolloutStatus, reason string) {
	m.stirred = true
	r := m.Rollouts[variant]
	d.plan.Rollouts = append(d.plan.Rollouts, state.SetRollout{Model: m.Name, Variant: variant, Version: r.Version, Status: status, Reason: reason})
	r.Status, r.Reason, r.Since = status, reason, d.obs.Now
	if next, err := m.WithRollout(variant, r, m.versions); err == nil {
		m.Model = next // else the state refuses the plan, with the reason
	}
	m.rolledBack = m.rolledBack || status == state.RolloutRolledBack
}

// versionOf returns the number of the version that has the definition v: the model's or its
// stable one.
func (m *model) versionOf(v *state.Variant) int {
	for _, n := range []int{m.Version, m.StableVersion} {
		if d := m.versions.Get(n).Variant(v.Name); d != nil && d.Hash == v.Hash {
			return n
		}
	}
	return m.Version
}

// pairs reports whether replicas of a definition of the model are pairs.
func (m *model) pairs(v *state.Variant) bool {
	if of := m.versions.Get(m.versionOf(v)); of != nil {
		return of.Model.Failover
	}
	return m.Failover
}

// hashOf returns the hash of the definition that the member was made from, empty where it is
// unknown.
func (m *model) hashOf(r *member) string { return m.versions.HashOf(r.Replica) }

// variantOf returns the definition that the member was made from, nil where it is unknown.
func (m *model) variantOf(r *member) *state.Variant { return m.versions.VariantOf(r.Replica) }

// wants reports whether the member is of a definition that the model uses, or falls back on.
func (m *model) wants(r *member) bool {
	return slices.ContainsFunc([]int{m.Version, m.StableVersion}, func(n int) bool {
		v := m.versions.Get(n).Variant(r.Name.Variant)
		return v != nil && v.Hash == m.hashOf(r)
	})
}

// onTrial reports whether the member is the canary of a rollout that is on trial.
func (m *model) onTrial(r *member) bool {
	return r.Canary && m.Rollouts[r.Name.Variant].Status == state.RolloutCanary && m.isNew(r)
}

// isNew reports whether the member is of the definition that its variant is rolled out to.
func (m *model) isNew(r *member) bool {
	v := m.Variant(r.Name.Variant)
	return v != nil && v.Hash == m.hashOf(r)
}

// full tells whether the plan has grown enough. The rest is for the next one, at once.
func (d *draft) full() bool {
	if d.size() < maxChanges && d.text < maxText {
		return false
	}
	d.look(d.obs.Now.Add(1))
	d.stir()
	return true
}

// size is how much the plan changes.
func (d *draft) size() int {
	n := btoi(d.plan.Pace != nil) + len(d.plan.Remove) + len(d.plan.Move) + len(d.plan.Place) + len(d.plan.Rollouts) + len(d.plan.Scales) + len(d.plan.Replacements) + len(d.plan.Cordons) + len(d.plan.Evictions) + len(d.plan.NoSleep) + len(d.plan.Unplaceable) + len(d.plan.Decisions)
	if d.plan.Dedicated != nil {
		n++
	}
	return n
}
