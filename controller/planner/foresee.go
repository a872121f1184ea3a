package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// Rules are the functions with which Foresee plans: Plan, Actions and After, except in tests.
type Rules struct {
	Plan    func(*state.View, Observation, Config) (*state.Plan, time.Time)
	Actions func(*state.View, Observation, Config) []Action
	After   func(*state.View, Outcome, time.Time, Config) *state.Plan
}

// Bounds end Foresee where the future has no end.
type Bounds struct {
	// Plans is how many plans are made at most.
	Plans int
	// Span is how much time is simulated.
	Span time.Duration
	// Stop reports whether to end now, as when the client is gone. It may be nil.
	Stop func() bool
}

// DefaultBounds returns bounds that a cluster in order does not reach.
func DefaultBounds() Bounds {
	return Bounds{
		Plans: 200,              // a replica that makes room for another one takes seven
		Span:  30 * time.Minute, // several loads one after the other, and the longest backoff
	}
}

// Foresight is what would happen, one step after the other.
type Foresight struct {
	// Store is a copy of the state as it is in the end.
	Store *state.Store
	// Steps are in the order in which they happen.
	Steps []Step
	// Decisions are those of all plans, in their order.
	Decisions []state.Decision
	// Assumptions are what the steps and their times rest on.
	Assumptions []Assumption
	// Unfinished is why the steps end before everything is done, empty where nothing is left
	// to do.
	Unfinished string
	// Standbys are what stands by in the end, and what each costs.
	Standbys []Standby
}

// Step is one change of a replica.
type Step struct {
	// After is the time from now.
	After   time.Duration
	Replica string
	// From and To are the replica before and after it; nil: there was none, or it is gone.
	From, To *state.Replica
	// Why is why it happens: a sentence without its full stop.
	Why string
}

// AssumptionKind is what an assumption is about.
type AssumptionKind string

// The kinds of assumptions.
const (
	AssumeColdStart AssumptionKind = "cold-start" // how long a replica of a variant takes from its start until it serves
	AssumeWake      AssumptionKind = "wake"       // how long its wake takes
	AssumeSleep     AssumptionKind = "sleep"      // how long it takes to go to sleep
	AssumeDrain     AssumptionKind = "drain"      // how long its requests in flight take
	AssumeStop      AssumptionKind = "stop"       // how long its job takes to end
	AssumeTraffic   AssumptionKind = "traffic"    // the traffic stays as it is
	AssumeSuccess   AssumptionKind = "success"    // nothing fails
)

// Assumption is something that the steps rest on.
type Assumption struct {
	Kind AssumptionKind
	// Model and Variant are those of the replicas that it is about, empty if it is about all.
	Model, Variant string
	// OnDisk: of a cold start on a node that has the weights.
	OnDisk bool
	// Measured: Takes is what starts of this variant have taken, and not an estimate by rates.
	Measured bool
	// Takes is how long it takes at most; 0 where that has no meaning.
	Takes time.Duration
}

// What is assumed of things that no rate is configured for.
const (
	drainIdle = time.Second      // until the engine confirms that it has no request
	drainBusy = 10 * time.Second // until the requests in flight have ended, too
	jobStop   = time.Second      // until Nomad has ended an allocation
)

// Foresee makes a plan for a store, applies it to the store, assumes that all actions that follow
// succeed in the time that starts have taken so far, or that the configured rates give them, and plans again, until nothing is left
// to do or a bound is reached. The store is changed: pass a fork. The observation is of the state in
// the store, and is not changed.
//
// It returns an error if the state rejects a plan.
func Foresee(s *state.Store, o Observation, c Config, rules Rules, b Bounds) (Foresight, error) {
	f := &future{
		store: s, conf: c, rules: rules, begin: o.Now,
		pending: map[string]*pending{}, idle: map[string]time.Duration{}, onDisk: map[weights]bool{},
		out: Foresight{Store: s, Assumptions: []Assumption{{Kind: AssumeTraffic}, {Kind: AssumeSuccess}}},
	}
	o.Jobs, o.Engines, o.Loads = maps.Clone(o.Jobs), maps.Clone(o.Engines), maps.Clone(o.Loads)
	o.Demand = maps.Clone(o.Demand)
	o.InFlight = nil // what is being done succeeds
	f.o = o
	f.since = o.GatewaysSince
	for name, l := range o.Loads {
		if !l.LastRequest.IsZero() {
			f.idle[name] = o.Now.Sub(l.LastRequest)
		}
	}
	for _, j := range o.Jobs {
		f.index = max(f.index, j.Index)
	}
	for plans := 0; ; {
		f.observe()
		next, again, err := f.plan()
		if err != nil {
			return Foresight{}, err
		}
		plans++
		if err := f.act(); err != nil {
			return Foresight{}, err
		}
		if again {
			next = f.o.Now
		}
		at, waits := f.next(next)
		switch {
		case !waits:
			return f.end(), nil
		case b.Stop != nil && b.Stop():
			f.out.Unfinished = "there was no time for more steps"
			return f.end(), nil
		case plans >= b.Plans:
			f.out.Unfinished = fmt.Sprintf("%d plans were made, and more would follow", plans)
			return f.end(), nil
		case at.Sub(f.begin) > b.Span:
			if len(f.pending) > 0 {
				f.out.Unfinished = fmt.Sprintf("more would follow after %s", b.Span)
			}
			return f.end(), nil
		}
		if err := f.advance(at); err != nil {
			return Foresight{}, err
		}
	}
}

// end returns what was foreseen.
func (f *future) end() Foresight {
	f.out.Standbys = f.standbys()
	return f.out
}

// future is a simulation of what follows from plans.
type future struct {
	store *state.Store
	conf  Config
	rules Rules
	begin time.Time
	// o is what would be observed. Its time is the simulated one.
	o Observation
	// pending is what has begun and ends later, by replica.
	pending map[string]*pending
	// idle is for how long each replica has had no request, and since when the gateways ran at
	// the beginning: both stay as they are.
	idle   map[string]time.Duration
	since  time.Time
	onDisk map[weights]bool
	index  uint64 // the highest of a job
	out    Foresight
}

// pending is something that has begun. In the end it changes what is observed, or the state.
type pending struct {
	kind AssumptionKind
	at   time.Time
	end  func() error
}

// weights are those of a variant on a node.
type weights struct{ model, variant, node string }

// observe brings the observation up to the simulated time.
func (f *future) observe() {
	now := f.o.Now
	if !f.since.IsZero() {
		f.o.GatewaysSince = f.since.Add(now.Sub(f.begin))
	}
	for name, idle := range f.idle {
		l := f.o.Loads[name]
		l.LastRequest = now.Add(-idle)
		f.o.Loads[name] = l
	}
	v := f.store.View()
	for _, r := range v.Replicas(nil) {
		name := r.Name.String()
		switch r.Status {
		case state.StatusPlaced, state.StatusFailed:
			continue
		case state.StatusStarting:
			f.starting(v, name, r)
		case state.StatusDraining:
			// The others are drained by an action.
			if r.Resting() && f.o.Loads[name].InFlight > 0 && f.pending[name] == nil {
				f.drain(name, r)
			}
		}
		if r.Served || r.Status == state.StatusCold {
			f.onDisk[weights{r.Name.Model, r.Name.Variant, r.Placement.Node}] = true
		}
	}
}

// starting assumes that a replica will serve which was starting before.
func (f *future) starting(v *state.View, name string, r *state.Replica) {
	j, ok := f.o.Jobs[name]
	if f.pending[name] != nil || f.passes(name) || !ok || j.Stopped || j.Unplaceable != "" || j.Problem != "" || j.Alloc != nil && j.Alloc.Failed {
		return
	}
	if j.Alloc == nil || j.Alloc.Client != clientRunning {
		j.Alloc = f.alloc(r)
		f.o.Jobs[name] = j
	}
	f.coldStart(v, r, r.Since)
}

func (f *future) passes(name string) bool {
	return slices.ContainsFunc(f.o.Engines[name], func(e Engine) bool { return e.Passing })
}

func (f *future) setPassing(name string, passing bool) {
	f.o.Engines[name] = []Engine{{Passing: passing}}
}

// alloc is the allocation of a replica that runs from now on.
func (f *future) alloc(r *state.Replica) *Alloc {
	return &Alloc{ID: r.Name.ID, Client: clientRunning, First: true, Started: f.o.Now, Oldest: f.o.Now}
}

// drain assumes that the requests of a replica end.
func (f *future) drain(name string, r *state.Replica) {
	takes := drainIdle
	if f.o.Loads[name].InFlight > 0 {
		takes = drainBusy
	}
	f.begins(AssumeDrain, r, takes, 0, f.o.Now, func() error {
		l := f.o.Loads[name]
		l.InFlight = 0
		f.o.Loads[name] = l
		return f.after(Drain, name)
	})
}

// after commits what follows from an action at a replica's shim that is done.
func (f *future) after(kind Kind, name string) error {
	if p := f.rules.After(f.store.View(), Outcome{Kind: kind, Replica: name, Class: Done}, f.o.Now, f.conf); p != nil {
		return f.commit(p)
	}
	return nil
}

// coldStart assumes that a replica serves some time after its start.
func (f *future) coldStart(v *state.View, r *state.Replica, since time.Time) {
	def := v.VariantOf(nil, r)
	if def == nil {
		return
	}
	name := r.Name.String()
	onDisk := f.onDisk[weights{r.Name.Model, r.Name.Variant, r.Placement.Node}]
	takes := timeOf(f.conf.Rates.ColdSeconds(placement.Weights(def), onDisk))
	f.begins(AssumeColdStart, r, takes, startOf(v, r, def).Cold, since, func() error {
		if r.Loads() { // to become WARM
			return f.after(Sleep, name)
		}
		f.setPassing(name, true)
		f.idle[name] = 0
		delete(f.o.Demand, r.Name.Model)
		return nil
	})
}

// begins notes that something ends a while after a time, but not before now, and that this is
// assumed.
//
// It takes as long as was measured, or else as estimated.
func (f *future) begins(kind AssumptionKind, r *state.Replica, estimated, measured time.Duration, since time.Time, end func() error) {
	takes := cmp.Or(measured, estimated)
	at := since.Add(takes)
	if !at.After(f.o.Now) {
		at = f.o.Now.Add(time.Millisecond)
	}
	f.pending[r.Name.String()] = &pending{kind, at, end}
	a := Assumption{Kind: kind, Takes: takes, Measured: measured > 0}
	if kind != AssumeDrain && kind != AssumeStop { // those are the same for all
		a.Model, a.Variant = r.Name.Model, r.Name.Variant
		a.OnDisk = kind == AssumeColdStart && !a.Measured && f.onDisk[weights{a.Model, a.Variant, r.Placement.Node}]
	}
	if !slices.Contains(f.out.Assumptions, a) {
		f.out.Assumptions = append(f.out.Assumptions, a)
	}
}

func timeOf(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// plan makes one plan and applies it. It returns when to plan again, and whether at once.
func (f *future) plan() (time.Time, bool, error) {
	view := f.store.View()
	p, next := f.rules.Plan(view, f.o, f.conf)
	if p == nil {
		return next, false, nil
	}
	p.Index = view.Index()
	f.out.Decisions = append(f.out.Decisions, p.Decisions...)
	return next, true, f.commit(p)
}

// commit applies a plan, and adds its steps.
func (f *future) commit(p *state.Plan) error {
	p.ID, p.Time = "preview", f.o.Now
	why := map[string][]string{}
	for _, d := range p.Decisions {
		if d.Replica != "" {
			why[d.Replica] = append(why[d.Replica], d.Reason)
		}
	}
	var names []string
	for _, m := range p.Move {
		names = append(names, m.Replica)
	}
	for _, m := range p.Place {
		names = append(names, m.Name.String())
	}
	for _, m := range p.Remove {
		names = append(names, m.Replica)
	}
	before := f.store.View()
	if err := f.apply(p); err != nil {
		return err
	}
	for _, name := range names {
		f.step(name, before.Replica(nil, name), strings.Join(why[name], "; "))
	}
	return nil
}

// apply applies a command.
func (f *future) apply(c state.Command) error {
	data, err := state.Encode(c)
	if err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	if res := f.store.Apply(f.store.View().Index()+1, data); res.Err != nil {
		return fmt.Errorf("preview: the plan would be rejected: %w", res.Err)
	}
	return nil
}

// step notes what became of a replica. Changes at the same time are one step.
func (f *future) step(name string, was *state.Replica, why string) {
	is := f.store.View().Replica(nil, name)
	if was == nil && is == nil || was != nil && is != nil && was.Status == is.Status && was.Goal == is.Goal {
		return
	}
	after := f.o.Now.Sub(f.begin)
	for i := len(f.out.Steps) - 1; i >= 0 && f.out.Steps[i].After == after; i-- {
		if s := &f.out.Steps[i]; s.Replica == name {
			s.To = is
			s.Why = strings.Join(slices.DeleteFunc([]string{s.Why, why}, func(w string) bool { return w == "" }), "; ")
			return
		}
	}
	f.out.Steps = append(f.out.Steps, Step{After: after, Replica: name, From: was, To: is, Why: why})
}

// act assumes that what the state asks for is done.
func (f *future) act() error {
	v := f.store.View()
	for _, a := range f.rules.Actions(v, f.o, f.conf) {
		r, j := v.Replica(nil, a.Replica), f.o.Jobs[a.Replica]
		has := func(kind AssumptionKind) bool {
			return f.pending[a.Replica] != nil && f.pending[a.Replica].kind == kind
		}
		switch {
		case a.Kind == Purge:
			delete(f.o.Jobs, a.Replica)
		case a.Kind == Stop && !has(AssumeStop):
			f.stop(a, j)
		case r == nil:
		case a.Kind == Register && !has(AssumeColdStart):
			if err := f.register(v, r, j); err != nil {
				return err
			}
		case a.Kind == Drain && !has(AssumeDrain):
			f.drain(a.Replica, r)
		case a.Kind == Sleep && r.Loads(): // follows its start
		case a.Kind == Sleep && !has(AssumeSleep), a.Kind == Wake && !has(AssumeWake):
			f.changeTier(v, r, a.Kind)
		}
	}
	return nil
}

// stop assumes that a job ends. The state may not know its replica.
func (f *future) stop(a Action, j Job) {
	f.index++
	j.Stopped, j.Index, j.Drift = true, f.index, nil
	f.o.Jobs[a.Replica] = j
	f.setPassing(a.Replica, false)
	f.begins(AssumeStop, &state.Replica{Name: a.Name}, jobStop, 0, f.o.Now, func() error {
		j := f.o.Jobs[a.Replica]
		j.Ended = true
		if j.Alloc != nil {
			over := *j.Alloc
			over.Client = clientComplete
			j.Alloc = &over
		}
		f.o.Jobs[a.Replica] = j
		return nil
	})
}

// register assumes that a job is written, runs and serves.
func (f *future) register(v *state.View, r *state.Replica, j Job) error {
	def := v.VariantOf(nil, r)
	if def == nil {
		return nil
	}
	f.index++
	name, index := r.Name.String(), f.index
	pool := j.Pool
	if n := v.Node(nil, r.Placement.Node); n != nil {
		pool = n.CapacityPool
	}
	f.o.Jobs[name] = Job{Name: r.Name, Pool: pool, Hash: def.Hash, Placement: r.Placement, Index: index, Alloc: f.alloc(r)}
	f.setPassing(name, false)
	move := &state.Move{Replica: name, ModifyIndex: r.ModifyIndex, Time: f.o.Now, JobIndex: &index}
	if r.Status == state.StatusPlaced || r.Status == state.StatusServing {
		move.Event = state.EventStarted
	}
	if err := f.apply(move); err != nil {
		return err
	}
	f.step(name, r, "")
	f.coldStart(v, r, f.o.Now)
	return nil
}

// startOf is how long starts of a replica's definition have taken.
func startOf(v *state.View, r *state.Replica, def *state.Variant) state.Start {
	m := v.Model(nil, r.Name.Model)
	if m == nil {
		return state.Start{}
	}
	return m.Starts[def.Hash]
}

// changeTier assumes that an engine goes to sleep, or wakes.
func (f *future) changeTier(v *state.View, r *state.Replica, kind Kind) {
	def := v.VariantOf(nil, r)
	if def == nil {
		return
	}
	what := AssumeSleep
	if kind == Wake {
		what = AssumeWake
	}
	name := r.Name.String()
	measured := time.Duration(0)
	if kind == Wake {
		measured = startOf(v, r, def).Warm
	}
	takes := timeOf(f.conf.Rates.WarmSeconds(placement.Weights(def)))
	f.begins(what, r, takes, measured, f.o.Now, func() error {
		f.setPassing(name, kind == Wake)
		if kind == Wake {
			f.idle[name] = 0
			delete(f.o.Demand, r.Name.Model)
		}
		return f.after(kind, name)
	})
}

// next returns when something happens next, and whether anything does.
func (f *future) next(plan time.Time) (time.Time, bool) {
	at := plan
	for _, p := range f.pending {
		if at.IsZero() || p.at.Before(at) {
			at = p.at
		}
	}
	return at, !at.IsZero()
}

// advance lets time pass, and ends what ends by then.
func (f *future) advance(to time.Time) error {
	f.o.Now = to
	var over []string
	for name, p := range f.pending {
		if !p.at.After(to) {
			over = append(over, name)
		}
	}
	slices.SortFunc(over, func(a, b string) int {
		return cmp.Or(f.pending[a].at.Compare(f.pending[b].at), strings.Compare(a, b))
	})
	for _, name := range over {
		p := f.pending[name]
		delete(f.pending, name)
		if err := p.end(); err != nil {
			return err
		}
	}
	return nil
}
