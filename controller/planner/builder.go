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

// planBuilder builds a plan rule by rule. Its replicas and its ledger are as they will be
// once the plan is applied, so that each rule sees the changes of the rules before it.
// Each replica changes at most once in a plan.
type planBuilder struct {
	*world
	models []*model    // in the order in which they may place
	pace   *state.Pace // as the plan leaves it
	// placing has the models for which this plan finds places: they are not evicted for each
	// other.
	placing map[string]bool
	// reserved counts the places that were kept for models, waiting those of each.
	reserved int
	waiting  map[string]int
	// awaited are the members that go to sleep and will be woken as soon as they are WARM.
	awaited map[string]bool
	// evictedFrom has the models from which this plan has evicted replicas for another model.
	evictedFrom map[string]bool
	// poolDepartures counts the replicas that leave each external pool in this plan.
	poolDepartures map[string]int

	// tally is what was found for missing replicas, joint what is searched for them together,
	// nil in the first plan; see placeTogether.
	tally tally
	joint *joint

	plan *state.Plan
	next time.Time
	text int // bytes of the decisions
	// repeatChecks counts the decisions that were checked for repetition.
	repeatChecks int
	// places are the ledger's names of the places that keepPlaces keeps for each model.
	places map[string][]string
	// keptWakes are the successors of each model whose memory keepPlaces keeps.
	keptWakes map[string][]*member
	// recentDecisions caches the decisions in the state of each model, newest first.
	recentDecisions map[string][]*state.Decision

	// limitsOf returns what bounds a model's scale beside its file.
	limitsOf func(model string) state.Limits

	// current is the model that a rule is about, in a phase; see moving.
	current *model
	phase   phase
}

// newPlanBuilder returns a builder with an empty plan for the world as it is.
func newPlanBuilder(w *world) *planBuilder {
	b := &planBuilder{
		world: w, limitsOf: w.view.Limits(nil), pace: w.view.Pace(nil),
		placing: map[string]bool{}, evictedFrom: map[string]bool{}, poolDepartures: map[string]int{}, waiting: map[string]int{}, awaited: map[string]bool{},
		plan: &state.Plan{Index: w.view.Index(), Time: w.obs.Now}, recentDecisions: map[string][]*state.Decision{}, places: map[string][]string{}, keptWakes: map[string][]*member{},
	}
	b.plan.ID = fmt.Sprintf("%d-%s", w.view.Index(), hash("plan", w.obs.Now)[:8])
	return b
}

// order puts the models in the order in which they may place.
func (b *planBuilder) order() {
	waitingForRoom := map[string]bool{} // room is being made for it
	for _, m := range b.models {
		for _, name := range m.makesRoomFor {
			waitingForRoom[name] = true
		}
	}
	// What had made room is WARM or COLD by now, and may not take its place back before
	// the other one has had it.
	for _, m := range b.models {
		for name, at := range m.EvictedFor {
			if !b.due(at.Add(b.conf.ThrashWindow)) {
				waitingForRoom[name] = true
			}
		}
	}
	slices.SortStableFunc(b.models, func(a, b *model) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(btoi(!a.dedicated), btoi(!b.dedicated)), cmp.Compare(btoi(!waitingForRoom[a.Name]), btoi(!waitingForRoom[b.Name])))
	})
}

// replanAt requests another plan at t, if t is in the future.
func (b *planBuilder) replanAt(t time.Time) {
	if !t.After(b.obs.Now) {
		return
	}
	b.next = earlier(b.next, t)
	if b.current != nil {
		b.current.until[b.phase] = earlier(b.current.until[b.phase], t)
	}
}

// earlier returns the earlier of two times, of which the first may be zero: there is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// due reports whether t has come. If it has not, another plan is requested for t.
func (b *planBuilder) due(t time.Time) bool {
	b.replanAt(t)
	return !t.After(b.obs.Now)
}

// serving reports whether the member's status is serving.
func (r *member) serving() bool { return r.next.Status == state.StatusServing }

// gone reports whether the member's node is written off.
func (r *member) gone() bool { return r.node == nil || r.node.WrittenOff }

// jobOver reports whether the member's job has certainly ended. If no stop of it was observed,
// there may be a registration of unknown index, because its response was lost or an earlier leader
// sent it. SettleTime after the member got its status, any such registration has arrived.
func (b *planBuilder) jobOver(r *member) bool {
	switch {
	case !r.jobKnown || r.job != nil && !r.job.Ended:
		return false
	case r.job != nil && r.job.Index > r.JobIndex:
		return true
	}
	return b.due(r.Since.Add(b.conf.SettleTime))
}

// allocRuns reports whether an allocation of the member runs, or may run because its job is
// unknown.
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
// details may be nil. An impossible event is added as well: the state rejects it with the
// reason.
func (b *planBuilder) happens(r *member, e state.Event, goal state.Goal, details func(*state.Move)) {
	c := state.Move{Replica: r.name, ModifyIndex: r.ModifyIndex, Event: e, Goal: goal}
	if details != nil {
		details(&c)
	}
	b.plan.Move = append(b.plan.Move, c)
	r.changed = true
	m := b.byName[r.Name.Model]
	m.moved()
	next, err := r.next.Advance(e, goal, b.obs.Now)
	if err != nil {
		return
	}
	if c.MakesRoomFor != nil {
		next.MakesRoomFor = *c.MakesRoomFor
	}
	next.Spilled = next.Spilled || c.Spilled
	if c.Kept {
		next.KeptAt = b.obs.Now
	}
	if c.Memory != nil {
		next.SleepingGPUs = state.LeftBehind(next.Placement.Memory, c.Memory)
		next.Placement.Memory = c.Memory
	}
	r.next = next
	b.put(r)
}

// leaving, resting and counts are as those of state.Replica, once the plan is applied.
func (r *member) leaving() bool { return r.removed || r.next.Leaving() }
func (r *member) resting() bool { return !r.removed && r.next.Resting() }
func (r *member) counts() bool  { return !r.removed && r.next.Counts() }

// moved notes that a member comes, goes or moves.
func (m *model) moved() { m.kept, m.serving, m.dirty = nil, nil, true }

// remove removes a member from the state.
func (b *planBuilder) remove(r *member) {
	b.plan.Remove = append(b.plan.Remove, state.Remove{Replica: r.name, ModifyIndex: r.ModifyIndex})
	r.changed, r.removed = true, true
	m := b.byName[r.Name.Model]
	m.moved()
	b.put(r)
}

// end stops a member and removes it. A member that serves is drained first.
func (b *planBuilder) end(r *member) {
	b.endAs(r, state.GoalGone, nil)
}

// endAs stops a member with GoalCold or GoalGone. A member that serves is drained first. The
// details may be nil.
func (b *planBuilder) endAs(r *member, to state.Goal, details func(*state.Move)) {
	if r.serving() || r.next.Status == state.StatusDraining {
		b.happens(r, state.EventDrain, to, details)
		return
	}
	b.happens(r, state.EventStop, to, details)
}

// place adds a new replica of a definition to the plan. The details may be nil.
func (b *planBuilder) place(m *model, v *state.Variant, at placement.Choice, details func(*state.Place)) *member {
	name := b.freshName(m.Name, v.Name)
	p := state.Place{Name: name, Version: m.versionOf(v), Placement: at.Placement}
	if details != nil {
		details(&p)
	}
	return b.admit(m, p)
}

// admit adds a placement to the plan and to the ledger.
func (b *planBuilder) admit(m *model, p state.Place) *member {
	b.plan.Place = append(b.plan.Place, p)
	own := &state.Replica{
		Name: p.Name, Version: p.Version, Goal: state.GoalRun, Status: cmp.Or(p.Status, state.StatusPlaced), Placement: p.Placement,
		Canary: p.Canary, Failures: p.Failures, LastError: p.LastError, NotPlaced: p.NotPlaced, Spilled: p.Spilled, Since: b.obs.Now, CreatedAt: b.obs.Now,
	}
	if own.Loads() {
		own.Goal = state.GoalWarm
	}
	r := &member{Replica: own, next: own, name: p.Name.String(), node: b.byID[p.Placement.Node], changed: true, fresh: true}
	r.passes = b.passing(r.name)
	m.members = append(m.members, r)
	m.moved()
	b.byMember[r.name] = r
	b.put(r)
	return r
}

// freshName makes a replica's name. It is the same for every leader that plans from
// this view at this time, and has never been used.
func (b *planBuilder) freshName(model, variant string) replica.Name {
	for i := len(b.plan.Place); ; i++ {
		h := hash(model, variant, b.view.Index(), b.obs.Now, i)
		// A UUID of version 8, whose bits are the maker's own (RFC 9562).
		id := fmt.Sprintf("%s-%s-8%s-a%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:32])
		name := replica.Name{Model: model, Variant: variant, ID: id}
		if _, used := b.obs.Jobs[name.String()]; !used && b.view.Replica(nil, name.String()) == nil {
			return name
		}
	}
}

// hash returns a hash of the parts and of their boundaries.
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

// record adds a decision to the plan.
func (b *planBuilder) record(kind, model, replica, reason string, in inputs) {
	b.markDirty()
	b.text += len(reason)
	for k, v := range in {
		b.text += len(k) + len(v)
	}
	b.plan.Decisions = append(b.plan.Decisions, state.Decision{Time: b.obs.Now, Model: model, Replica: replica, Kind: kind, Reason: reason, Details: in})
}

// repeatAfter is how long a decision is not recorded again if its summary is unchanged and only
// the numbers after it differ: on a busy fleet they differ in every plan.
const repeatAfter = time.Minute

// maxRepeatChecks bounds how many decisions of one plan are checked for repetition. If there were
// more than the state keeps, they would be recorded again in every plan.
const maxRepeatChecks = state.DecisionLimit / 2

// recordOnce records a decision unless the last one of its kind about the same subject was
// equal. A placement of the same variant since then makes the decision new again.
func (b *planBuilder) recordOnce(kind, model, replica, reason string, in inputs) {
	b.recordIfNew(kind, model, replica, reason, "", in)
}

// recordIfNew records a decision unless an equal one was recorded last; see recordOnce. If summary
// is set, the reason begins with it, and a change in the text after it counts only once repeatAfter
// has passed. It reports whether the decision was recorded.
func (b *planBuilder) recordIfNew(kind, model, replica, reason, summary string, in inputs) bool {
	b.markDirty()
	if b.repeatChecks++; b.repeatChecks > maxRepeatChecks {
		return false
	}
	if strings.ContainsRune(model+replica, 0) || !utf8.ValidString(model+replica) {
		return false // not a valid name: the state would reject or alter it
	}
	same := func(k, r, why string, at time.Time, had map[string]string) (about, said bool) {
		if r == replica && k == kind && had["variant"] == in["variant"] && had["about"] == in["about"] {
			is := why == reason || summary != "" && strings.HasPrefix(why, summary+"; ") && !b.due(at.Add(repeatAfter))
			return true, is && had["index"] == in["index"]
		}
		return kind != k && in["variant"] != "" && k == KindPlace && had["variant"] == in["variant"], false
	}
	for i := len(b.plan.Decisions) - 1; i >= 0; i-- {
		p := &b.plan.Decisions[i]
		if p.Model != model {
			continue
		}
		if about, said := same(p.Kind, p.Replica, p.Reason, p.Time, p.Details); said {
			return false
		} else if about {
			b.record(kind, model, replica, reason, in)
			return true
		}
	}
	for _, p := range b.decisionsOf(model) {
		if about, said := same(p.Kind, p.Replica, p.Reason, p.Time, p.Details); said {
			return false
		} else if about {
			break
		}
	}
	b.record(kind, model, replica, reason, in)
	return true
}

func (b *planBuilder) decisionsOf(model string) []*state.Decision {
	ds, asked := b.recentDecisions[model]
	if !asked {
		ds = b.view.Decisions(nil, model, 0)
		b.recentDecisions[model] = ds
	}
	return ds
}

// setRollout moves a rollout on; with an empty status it is over.
func (b *planBuilder) setRollout(m *model, variant string, status state.RolloutStatus, reason string) {
	m.dirty = true
	r := m.Rollouts[variant]
	b.plan.Rollouts = append(b.plan.Rollouts, state.SetRollout{Model: m.Name, Variant: variant, Version: r.Version, Status: status, Reason: reason})
	r.Status, r.Reason, r.Since = status, reason, b.obs.Now
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

// hashOf returns the hash of the definition that the member was made from, empty if it is
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

// full reports whether the plan has reached its maximum size. The next plan, which is made at
// once, has the rest.
func (b *planBuilder) full() bool {
	if b.size() < maxChanges && b.text < maxText {
		return false
	}
	b.replanAt(b.obs.Now.Add(1))
	b.markDirty()
	return true
}

// size is how much the plan changes.
func (b *planBuilder) size() int {
	n := btoi(b.plan.Pace != nil) + len(b.plan.Remove) + len(b.plan.Move) + len(b.plan.Place) + len(b.plan.Rollouts) + len(b.plan.Scales) + len(b.plan.Replacements) + len(b.plan.Cordons) + len(b.plan.Evictions) + len(b.plan.Sleeps) + len(b.plan.Unplaceable) + len(b.plan.Decisions)
	if b.plan.Dedicated != nil {
		n++
	}
	return n
}
