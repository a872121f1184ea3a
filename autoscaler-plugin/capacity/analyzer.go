package capacity

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Analyzer analyses one model after the other. It keeps its buffers, so that it allocates
// nothing once it has seen the largest input. The zero Analyzer is ready. It is for one
// goroutine at a time; what it answers does not depend on what it answered before.
type Analyzer struct {
	rules   Rules
	entries []entry
	vars    []variant
	order   []int32       // of vars, by cost, the most expensive first
	first   map[named]int // the entry that counts
	weights []float64

	spareKV, spareQueue sum
	loadKV, loadQueue   sum // only where something may be removed
	sizedLoad, sizes    sum

	whole, room room // before and after removals
}

// entry is what is known of an entry of Input.Replicas.
type entry struct {
	kv, queue, size float64 // size is 0 where it is not known
	variant         int32
	class           Class
	draining        bool
	duplicate       bool
}

// variant is one while it is decided on.
type variant struct {
	name     string
	cost     float64
	slots    int
	price    float64 // what makes it cheap
	costTold bool    // by Input.Variants
	costSeen bool    // told, or by a replica
	listed   bool    // in Input.Variants
	sound    bool    // it has a decision
	blocked  bool    // Unplaceable

	current, desired, draining     int
	pending, least, most           int // -1: nobody said
	reporting, bad, drains         int // entries that count, by what they were taken for
	starting                       int
	largest                        float64 // size
	wish, capacity, target, modelT int
	has, hasModel                  bool
	removed                        int
	preserved, override            bool
	why, capacityWhy               Why
	hold, capacityHold             Hold
}

// Analyze fills out with what in calls for. An error is that of in.Validate, and out is then
// unchanged.
func (a *Analyzer) Analyze(rules Rules, in *Input, out *Result) error {
	if err := in.Validate(rules); err != nil {
		return err
	}
	a.rules = rules
	a.load(in)
	cfg := in.Config.orDefault()
	*out = Result{Rules: rules, Config: cfg, Classes: slices.Grow(out.Classes[:0], len(in.Replicas)), Decisions: out.Decisions[:0], hidden: out.hidden[:0]}
	for _, s := range [...]*sum{&a.spareKV, &a.spareQueue, &a.loadKV, &a.loadQueue, &a.sizedLoad, &a.sizes} {
		s.reset()
	}
	if rules == WVA {
		a.wva(in, &cfg, out)
	} else {
		a.safe(in, &cfg, out)
	}
	out.Classes = out.Classes[:len(in.Replicas)]
	for i := range a.entries {
		out.Classes[i] = a.entries[i].class
	}
	for i := range a.vars {
		if v := &a.vars[i]; v.sound {
			out.Decisions = append(out.Decisions, Decision{
				Variant: v.name, Cost: v.cost, Action: actionOf(v.current, v.target),
				Current: v.current, Desired: v.desired, Reporting: v.reporting, Starting: v.starting,
				CapacityTarget: v.capacity, HasCapacity: v.has, ModelBased: v.modelT, HasModelBased: v.hasModel,
				Target: v.target, SafetyOverride: v.override, Why: v.why, Capacity: v.capacityWhy, Hold: v.hold,
			})
		} else if v.has {
			out.hidden = append(out.hidden, Decision{Variant: v.name, CapacityTarget: v.capacity})
		}
	}
	return nil
}

// load takes over the variants, sorted by name, and the replicas. Of two variants with one
// name the last counts.
func (a *Analyzer) load(in *Input) {
	a.vars = a.vars[:0]
	for i := range in.Variants {
		w := &in.Variants[i]
		a.vars = append(a.vars, variant{
			name: w.Variant, listed: true, blocked: w.Unplaceable, slots: w.Slots, current: w.Current, desired: w.Desired, draining: w.Draining,
			pending: told(w.Pending), least: told(w.Min), most: told(w.Max),
			cost: w.Cost.Raw(), costTold: !w.Cost.IsZero(), costSeen: !w.Cost.IsZero(),
		})
	}
	a.sort()
	n := 0
	for i := range a.vars {
		if i+1 == len(a.vars) || a.vars[i].name != a.vars[i+1].name {
			a.vars[n] = a.vars[i]
			n++
		}
	}
	a.vars = a.vars[:n]
	a.replicas(in)
}

// told is a count, or -1 where nobody said.
func told(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// replicas finds the variant of every replica. Variants that are not listed are taken over,
// too.
func (a *Analyzer) replicas(in *Input) {
	a.entries = slices.Grow(a.entries[:0], len(in.Replicas))[:len(in.Replicas)]
	listed := len(a.vars)
	last, at := "", -1
	for i := range in.Replicas {
		r := &in.Replicas[i]
		if at < 0 || r.Variant != last {
			last = r.Variant
			if at = a.find(last, listed); at < 0 {
				a.vars = append(a.vars, variant{name: last, pending: -1, least: -1, most: -1})
				at = len(a.vars) - 1
			}
		}
		a.entries[i].variant = int32(at)
	}
	if len(a.vars) == listed {
		return
	}
	a.sort()
	a.vars = slices.CompactFunc(a.vars, func(x, y variant) bool { return x.name == y.name })
	for i := range in.Replicas {
		a.entries[i].variant = int32(a.find(in.Replicas[i].Variant, len(a.vars)))
	}
}

func (a *Analyzer) sort() {
	if len(a.vars) > 1 && !slices.IsSortedFunc(a.vars, byName) {
		slices.SortStableFunc(a.vars, byName)
	}
}

func byName(x, y variant) int { return strings.Compare(x.name, y.name) }

// find returns the place of a variant among the first n, which are sorted, or -1.
func (a *Analyzer) find(name string, n int) int {
	at, found := slices.BinarySearchFunc(a.vars[:n], name, func(v variant, name string) int { return strings.Compare(v.name, name) })
	if !found {
		return -1
	}
	return at
}

// costs settles what each variant costs, and the order by its price.
func (a *Analyzer) costs() {
	a.order = a.order[:0]
	sized := true
	for i := range a.vars {
		sized = sized && a.vars[i].slots > 0
	}
	for i := range a.vars {
		v := &a.vars[i]
		if !v.costSeen {
			v.cost = DefaultCost
		}
		if v.price = v.cost; sized && a.rules == Safe {
			v.price /= float64(v.slots)
		}
		// Insertion: there are few variants, and the order must be that of cost, then name,
		// from the last one.
		a.order = append(a.order, 0)
		at := len(a.order) - 1
		for ; at > 0 && cmp.Compare(a.vars[a.order[at-1]].price, v.price) <= 0; at-- {
			a.order[at] = a.order[at-1]
		}
		a.order[at] = int32(i)
	}
}

// cost notes what a replica says that its variant costs.
func (v *variant) noteCost(c enginemetrics.Value) {
	if !c.IsZero() && !v.costTold {
		if !v.costSeen || cmp.Compare(c.Raw(), v.cost) > 0 {
			v.cost = c.Raw()
		}
		v.costSeen = true
	}
}

// average is the sum of n values by n, absent for none.
func average(s *sum, n int) enginemetrics.Value {
	if n == 0 {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(s.value() / float64(n))
}

// unbounded is the upper bound of a variant that has none.
const unbounded = math.MaxInt
