package planner_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
)

// leader is a planner that lives as long as its world, or until another one leads.
type leader struct {
	*planner.Planner
	conf planner.Config
	last planner.Observation
	rand *rand.Rand // its own: the world goes on as it would without it
	// plans were made, rested counts the models at rest before each.
	plans, rested int
}

// leads returns the plan of the leader. What it plans in between, as for plans that are
// refused, makes no difference.
func (w *world) leads(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
	l := &w.leader
	if l.rand == nil {
		l.rand = rand.New(rand.NewPCG(uint64(len(w.nodes)), 3))
	}
	if l.Planner == nil || !reflect.DeepEqual(l.conf, w.conf) || l.rand.IntN(40) == 0 {
		l.conf = w.conf
		l.conf.Pools = slices.Clone(w.conf.Pools)
		l.Planner = planner.New(l.conf)
	}
	if l.rand.IntN(2) == 0 {
		o = l.share(o)
	}
	l.last = o
	switch l.rand.IntN(12) {
	case 0, 1, 2: // a plan that is refused
		l.Plan(v, o)
	case 3: // one for another state
		fork := w.store.Fork()
		ms := fork.View().Models(nil)
		for range min(len(ms), 2) {
			n := l.rand.IntN(6)
			raw, err := state.Encode(&state.SetScale{Model: ms[l.rand.IntN(len(ms))].Name, Replicas: &n, Origin: state.OriginOperator})
			w.holds(err == nil, "%v", err)
			fork.Apply(fork.View().Index()+1, raw)
		}
		l.Plan(fork.View(), o)
	case 4: // one at another time
		other := o
		other.Now = o.Now.Add(time.Duration(l.rand.IntN(1200)) * time.Second)
		l.Plan(v, other)
	case 5: // one while nothing is known
		other := o
		other.EnginesKnown, other.TrafficKnown, other.Pools = false, !o.TrafficKnown, nil
		l.Plan(v, other)
	case 6: // one while nothing runs
		other := o
		other.Jobs, other.Engines, other.Loads = nil, nil, nil
		l.Plan(v, other)
	}
	l.plans++
	l.rested += l.AtRest()
	return l.Plan(v, o)
}

// share returns the observation with those maps of the last one that are equal.
func (l *leader) share(o planner.Observation) planner.Observation {
	if reflect.DeepEqual(o.Jobs, l.last.Jobs) {
		o.Jobs = l.last.Jobs
	}
	if reflect.DeepEqual(o.Engines, l.last.Engines) {
		o.Engines = l.last.Engines
	}
	if reflect.DeepEqual(o.Loads, l.last.Loads) {
		o.Loads = l.last.Loads
	}
	return o
}

// TestModelsAtRest: what makes the leader look at a model again, and what does not.
func TestModelsAtRest(t *testing.T) {
	t.Parallel()
	w := fresh(t, "n0", "n1")
	for _, name := range []string{"m", "other"} {
		m := model(name, 2, variant("a", "h1"))
		m.IdleWarm = time.Hour
		w.model(m)
	}
	w.quiet()
	r := w.view().ReplicasOf(nil, "m")[0]
	name := r.Name.String()
	base := w.observe(false)
	base.Loads[name] = planner.Load{InFlight: 1, LastRequest: w.now}
	for _, c := range []struct {
		what  string
		edit  func(*planner.Observation)
		kept  bool
		other bool // for the other model
	}{
		{"nothing", func(*planner.Observation) {}, true, true},
		{"time passes", func(o *planner.Observation) { o.Now = o.Now.Add(time.Minute) }, true, true},
		{"an idle time is over", func(o *planner.Observation) { o.Now = o.Now.Add(2 * time.Hour) }, false, false},
		{"time goes back", func(o *planner.Observation) { o.Now = o.Now.Add(-time.Second) }, false, false},
		{"it has more requests", func(o *planner.Observation) { o.Loads[name] = planner.Load{InFlight: 2, LastRequest: w.now.Add(1)} }, true, true},
		{"it has none", func(o *planner.Observation) { o.Loads[name] = planner.Load{LastRequest: w.now} }, false, true},
		{"it fails some", func(o *planner.Observation) {
			o.Loads[name] = planner.Load{InFlight: 1, Row: planner.Outcomes{Failed: planner.FailuresLeast}}
		}, false, true},
		{"its engine does not pass", func(o *planner.Observation) { o.Engines[name] = nil }, false, true},
		{"its job has changed", func(o *planner.Observation) { j := o.Jobs[name]; j.Index++; o.Jobs[name] = j }, false, true},
		{"its allocation has changed", func(o *planner.Observation) {
			j := o.Jobs[name]
			a := *j.Alloc
			a.Restarts++
			j.Alloc = &a
			o.Jobs[name] = j
		}, false, true},
		{"its job is gone", func(o *planner.Observation) { delete(o.Jobs, name) }, false, true},
		{"its job is in flight", func(o *planner.Observation) { o.InFlight = map[string]bool{name: true} }, false, true},
		{"Consul is lost", func(o *planner.Observation) { o.EnginesKnown = false }, false, false},
		{"Nomad is lost", func(o *planner.Observation) { o.Pools = nil }, false, false},
		{"gateways are lost", func(o *planner.Observation) { o.TrafficKnown = false }, false, false},
		{"a gateway begins", func(o *planner.Observation) { o.GatewaysSince = o.Now }, false, false},
	} {
		l := planner.New(w.conf)
		l.Plan(w.view(), base)
		require.Equal(t, 2, l.AtRest(), c.what)
		m, other := l.Kept("m"), l.Kept("other")
		o := heardAgain(base)
		c.edit(&o)
		l.Plan(w.view(), o)
		require.Equal(t, c.kept, m == l.Kept("m"), c.what)
		require.Equal(t, c.other, other == l.Kept("other"), c.what)
	}
	for _, c := range []struct {
		what        string
		do          func()
		kept, other bool
	}{
		{"a decision is written", func() {
			w.must(&state.Plan{ID: "x", Index: w.view().Index(), Time: w.now, Decisions: []state.Decision{{Time: w.now, Model: "m", Kind: "x"}}})
		}, true, true},
		{"its number changes", func() { w.scale(3) }, false, true},
		{"a node changes", func() { w.setNode(r.Placement.Node, func(n *state.Node) { n.CPU++ }) }, false, false},
		{"a switch is set", func() { w.must(&state.SetSwitch{Name: state.SwitchScaleToZeroDelay, Value: "never"}) }, false, false},
	} {
		l := planner.New(w.conf)
		l.Plan(w.view(), base)
		require.Equal(t, 2, l.AtRest(), c.what)
		m, other := l.Kept("m"), l.Kept("other")
		c.do()
		l.Plan(w.view(), base)
		require.Equal(t, c.kept, m == l.Kept("m"), c.what)
		require.Equal(t, c.other, other == l.Kept("other"), c.what)
		if c.what == "its number changes" {
			w.scale(2)
		}
	}
}
