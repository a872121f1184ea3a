package planner

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// world is what plans are made from: the rows of the state, what is observed of them, and
// what is computed from both. It is kept from plan to plan.
//
// A model is kept as a whole, or made anew from its rows. It is kept while it is at rest: its
// rules had nothing to change when they last ran, they used nothing but the model's own rows
// and observations, all of these are the same, and no time has come that a rule waits for.
// Then its rules would have nothing to change now either, and they do not run.
//
// The fleet has all replicas as their rows are. What a plan changes in it is taken back
// before the next one, because a plan may be refused.
type world struct {
	conf  Config
	pools map[string]Pool

	view *state.View // nil before the first plan
	obs  Observation
	// schedule is the calendar of the last plan, nil before the first.
	schedule *parsedCalendar

	nodes    []*state.Node
	byID     map[string]*state.Node
	byName   map[string]*model
	byMember map[string]*member
	fleet    *placement.Fleet // nil until it is used; see planBuilder.ledger
}

// model is a model with its replicas as they will be.
type model struct {
	// Model is as the plan leaves it, row as it is in the state.
	*state.Model
	row      *state.Model
	versions state.Versions
	// unplaceable is why no place was found for a replica in this plan.
	unplaceable string
	// active is the part of its scale that is not displaced.
	active state.Shares
	// scaled: the plan changes its scale. rolledBack: the plan returns it to its stable
	// version, and does no more for it.
	scaled, rolledBack bool
	// members are the replicas that stay and those that are on their way out.
	members []*member
	// listed is how many of them have a job. makesRoomFor are the models for which members are
	// on their way out.
	listed       int
	makesRoomFor []string
	// dedicated, by its file or by the set. frozen: its management or a switch keeps the
	// planner from changing its scale by itself.
	dedicated, frozen bool
	// limits bound its scale, and target is what comes of that.
	limits state.Limits
	target state.Target
	// kept are the members that are expected in each pool by the share that they count
	// against, computed by expected. serving is computed by servingCount. Both are reset to nil
	// when a member comes, goes or moves.
	kept    map[[2]string]map[*member]bool
	serving *servingCounts

	// evaluated: all rules ran for it. dirty: a rule changed something for it, or used data of
	// other models. until is when the rules of a phase may have something to change, zero
	// for never, if nothing else changes before.
	evaluated, dirty bool
	until            [phases]time.Time
}

// phase is a part of a plan in which rules run for one model after the other.
type phase int

// The phases.
const (
	following phase = iota // the statuses of replicas follow what is observed
	pruning                // idle ones are looked for
	scaling                // the model comes nearer to its number and its definitions
	returning              // its displaced replicas come back
	reserving              // what it keeps WARM is started
	phases
)

// atRest reports whether rules for the model have nothing to change.
func (m *model) atRest() bool { return m.evaluated && !m.dirty && m.Model == m.row }

// member is a replica with what is seen of it.
type member struct {
	*state.Replica // as it is in the state
	name           string
	node           *state.Node    // nil where the state has none
	next           *state.Replica // as the plan leaves it
	// changed: the plan does something with it already. removed: it forgets it. fresh: the
	// plan has placed it.
	changed, removed, fresh bool
	// passes: an engine of it serves.
	passes bool
	// job is its job. jobKnown reports whether it can be believed: then nil means that
	// there is none.
	job      *Job
	jobKnown bool
	// The rest is what was observed of it when it was made: its job, nil for none, whether
	// a write to it was in flight, and the pulse of its load.
	listed      *Job
	jobInFlight bool
	pulse       pulse
}

// pulse is what rules for a model at rest look at of a member's load.
type pulse struct {
	failing, inFlight bool
	last              time.Time // its last request; left out where it serves one
}

func (w *world) pulseOf(r *member) pulse {
	l := w.obs.Loads[r.name]
	p := pulse{failing: max(l.Row.Failed, l.Recent.Failed) >= FailuresLeast, inFlight: l.InFlight > 0}
	if !p.inFlight || r.Status == state.StatusWarm {
		p.last = l.LastRequest
	}
	return p
}

func newWorld(c Config) *world {
	w := &world{conf: c, pools: map[string]Pool{}, byID: map[string]*state.Node{}, byName: map[string]*model{}, byMember: map[string]*member{}}
	for _, p := range c.Pools {
		w.pools[p.Name] = p
	}
	return w
}

// changes are what may be otherwise than in the plan before.
type changes struct {
	all                            bool // nothing is at rest
	versions, replicas             bool
	jobs, engines, loads, inFlight bool
	nodes                          map[string]bool // by ID
	// members: something that is looked at for each member.
	members bool
}

// beginPlan updates the world from a view and an observation, and returns the builder of a plan.
func (w *world) beginPlan(v *state.View, o Observation) *planBuilder {
	c := w.advance(v, o)
	if w.fleet != nil {
		w.fleet.Rollback()
	}
	if len(c.nodes) > 0 {
		w.fleet = nil
	}
	b := newPlanBuilder(w)
	before := w.byName
	w.byName = make(map[string]*model, len(before))
	for _, row := range v.Models(nil) {
		m := before[row.Name]
		if m == nil || c.all || !b.still(m, row, &c) {
			m = b.model(row, m)
		}
		w.byName[row.Name] = m
		b.models = append(b.models, m)
	}
	for name, m := range before {
		if w.byName[name] == nil {
			w.dropped(m)
		}
	}
	b.order()
	if w.fleet != nil {
		w.fleet.Begin(b.price)
	}
	return b
}

// advance sets the view and the observation, and returns what may have changed.
func (w *world) advance(v *state.View, o Observation) changes {
	last, seen := w.view, w.obs
	w.view, w.obs = v, o
	c := changes{all: true, nodes: map[string]bool{}}
	if last != nil {
		c = changes{
			all: o.Now.Before(seen.Now) || !v.Unchanged(last, state.TableSwitches, state.TableDedicated, state.TablePace) || !maps.Equal(o.Pools, seen.Pools) ||
				o.EnginesKnown != seen.EnginesKnown || o.TrafficKnown != seen.TrafficKnown || !o.GatewaysSince.Equal(seen.GatewaysSince),
			versions: !v.Unchanged(last, state.TableVersions),
			replicas: !v.Unchanged(last, state.TableReplicas),
			jobs:     !sameMap(o.Jobs, seen.Jobs), engines: !sameMap(o.Engines, seen.Engines), loads: !sameMap(o.Loads, seen.Loads),
			inFlight: !sameMap(o.InFlight, seen.InFlight),
			nodes:    map[string]bool{},
		}
	}
	if last == nil || !v.Unchanged(last, state.TableNodes) {
		w.nodes = v.Nodes(nil)
		byID := make(map[string]*state.Node, len(w.nodes))
		for _, n := range w.nodes {
			byID[n.ID] = n
			if w.byID[n.ID] != n {
				c.nodes[n.ID] = true
			}
		}
		for id := range w.byID {
			if byID[id] == nil {
				c.nodes[id] = true
			}
		}
		w.byID = byID
	}
	c.members = c.jobs || c.engines || c.loads || c.inFlight || len(c.nodes) > 0
	return c
}

// sameMap reports whether two maps are one and the same, which nobody changes, or both empty.
func sameMap[M ~map[string]V, V any](a, b M) bool {
	return len(a) == 0 && len(b) == 0 || reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

// still reports whether a model is at rest.
func (b *planBuilder) still(m *model, row *state.Model, c *changes) bool {
	if !m.atRest() || m.row != row {
		return false
	}
	for _, t := range m.until {
		if !t.IsZero() && !t.After(b.obs.Now) {
			return false
		}
	}
	if c.versions && !slices.Equal(b.view.Versions(nil, m.Name), m.versions) {
		return false
	}
	if c.replicas && !slices.EqualFunc(b.view.ReplicasOf(nil, m.Name), m.members, func(r *state.Replica, own *member) bool { return r == own.Replica }) {
		return false
	}
	return !c.members || !slices.ContainsFunc(m.members, func(r *member) bool { return b.differs(r, c) })
}

// differs reports whether something else is observed of a member of a model at rest.
func (b *planBuilder) differs(r *member, c *changes) bool {
	switch o := &b.obs; {
	case c.nodes[r.Placement.Node]:
	case c.inFlight && o.InFlight[r.name] != r.jobInFlight:
	case c.engines && b.passing(r.name) != r.passes:
	case c.loads && (r.pulse.failing || b.pulseOf(r) != r.pulse):
	case c.jobs && !sameJob(r.listed, o.Jobs, r.name):
	default:
		return false
	}
	return true
}

// sameJob reports whether a replica's job is as it was, nil for none. Of the placement, which
// is that of the replica, nothing is compared.
func sameJob(was *Job, jobs map[string]Job, name string) bool {
	is, listed := jobs[name]
	if !listed || was == nil {
		return !listed && was == nil
	}
	return is.Index == was.Index && is.Stopped == was.Stopped && is.Ended == was.Ended && is.Pool == was.Pool && is.Hash == was.Hash &&
		is.Problem == was.Problem && is.Unplaceable == was.Unplaceable && is.Degraded == was.Degraded && is.Takeover == was.Takeover && slices.Equal(is.Drift, was.Drift) &&
		(is.Alloc == was.Alloc || is.Alloc != nil && was.Alloc != nil && *is.Alloc == *was.Alloc)
}

// model makes a model of its rows. It takes the place of an old one, which may be nil.
func (b *planBuilder) model(row *state.Model, old *model) *model {
	v := b.view
	m := &model{Model: row, row: row, versions: v.Versions(nil, row.Name), limits: b.limitsOf(row.Name)}
	m.target, m.active, m.dedicated = m.Target(m.limits), m.Active(), m.Dedicated || m.limits.Dedicated > 0
	m.frozen = m.Management == state.ManagementDisabled || m.limits.ScalingDisabled
	rows := v.ReplicasOf(nil, m.Name)
	m.members = make([]*member, 0, len(rows))
	for _, r := range rows {
		own := b.member(r)
		m.members = append(m.members, own)
		m.listed += btoi(own.listed != nil)
		if r.MakesRoomFor != "" && !r.Counts() && !slices.Contains(m.makesRoomFor, r.MakesRoomFor) {
			m.makesRoomFor = append(m.makesRoomFor, r.MakesRoomFor)
		}
		if was := b.byMember[own.name]; was == nil || was.Replica != r {
			b.put(own)
		}
		b.byMember[own.name] = own
	}
	if old != nil {
		b.dropped(old)
	}
	return m
}

// member makes a member of its row.
func (b *planBuilder) member(r *state.Replica) *member {
	own := &member{Replica: r, next: r, name: r.Name.String(), node: b.byID[r.Placement.Node]}
	own.jobInFlight, own.pulse, own.passes = b.obs.InFlight[own.name], b.pulseOf(own), b.passing(own.name)
	if j, listed := b.obs.Jobs[own.name]; listed {
		own.listed = &j
	}
	own.job, own.jobKnown = b.jobOf(own)
	return own
}

// dropped forgets the members of a model that is made anew, or is gone, but for those that
// were made anew.
func (w *world) dropped(m *model) {
	for _, r := range m.members {
		if w.byMember[r.name] != r {
			continue
		}
		delete(w.byMember, r.name)
		if w.fleet != nil {
			w.fleet.Drop(r.name)
		}
	}
}

// moving yields the models that are not at rest, in a phase, until the plan is full.
func (b *planBuilder) moving(p phase) iter.Seq[*model] {
	return func(yield func(*model) bool) {
		for _, m := range b.models {
			if b.full() {
				return
			}
			if m.atRest() {
				b.replanAt(m.until[p])
				continue
			}
			b.current, b.phase = m, p
			more := yield(m)
			b.current = nil
			if !more {
				return
			}
		}
	}
}

// markDirty notes that the running rule changes something, or uses data of other models. The
// model is then not at rest.
func (b *planBuilder) markDirty() {
	if b.current != nil {
		b.current.dirty = true
	}
}

// jobOf returns a replica's job, and whether what is seen of it is worth anything.
func (b *planBuilder) jobOf(r *member) (*Job, bool) {
	return believedJob(r.listed, b.obs.Pools[b.poolOf(r)].JobsKnown, r.jobInFlight)
}

// believedJob returns a replica's job of those that Nomad lists, nil if there is none, and
// false where that is not known: its Nomad cannot be asked, or has not listed its jobs since
// the last write.
func believedJob(listed *Job, jobsKnown, inFlight bool) (*Job, bool) {
	if !jobsKnown || inFlight {
		return nil, false
	}
	return listed, true
}

// poolOf is the capacity pool that the member is in: its node's, or where that is not known
// its job's.
func (b *planBuilder) poolOf(r *member) string { return poolOf(r.node, r.listed) }

// poolOf returns the capacity pool of a replica on a node, nil where that is not known, with a
// job, nil if there is none.
func poolOf(n *state.Node, listed *Job) string {
	switch {
	case n != nil:
		return n.CapacityPool
	case listed != nil:
		return listed.Pool
	}
	return ""
}
