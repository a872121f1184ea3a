package planner

import (
	"cmp"
	"slices"

	"remuda/controller/state"
)

// group is a number of replicas that variants share: one variant with shares of its own, or
// all that have none.
type group struct {
	*model
	// share is the variant whose shares they are, empty for those of any.
	share  string
	target int
	// all is the sum of the targets of the model's groups.
	all int
	// variants in the order in which they are placed: the cheapest first, then as the
	// file has them.
	variants []*state.Variant
	// members stay, and count against the target. Canaries are beyond it while they
	// are on trial, one of each variant.
	members  []*member
	canaries map[string]*member
	// awaited are the variants whose canary waits for a place that becomes free.
	awaited map[string]bool
}

// groups splits a model's replicas that stay. Those of variants that are gone belong
// where what replaces them is placed.
func (m *model) groups() []*group {
	byCost := func(a, b *state.Variant) int { return cmp.Compare(a.Cost, b.Cost) }
	var all []*state.Variant
	for i := range m.Variants {
		all = append(all, &m.Variants[i])
	}
	slices.SortStableFunc(all, byCost)

	active := m.active
	if floor := m.target.Replicas; floor > active.Total() {
		// What is displaced comes back first.
		next := *m.Model
		next.Displaced = m.Recall(floor-active.Total(), "", state.UntilAsked, state.UntilRoom)
		active = next.Active()
		active = m.With(active, floor-active.Total(), "")
	}
	anyVariant, _ := active.Of("")
	shared := &group{model: m, target: anyVariant, canaries: map[string]*member{}}
	groups := []*group{shared}
	of := map[string]*group{}
	for _, v := range all {
		if n, own := active.Of(v.Name); own {
			of[v.Name] = &group{model: m, share: v.Name, target: n, variants: []*state.Variant{v}, canaries: map[string]*member{}}
			groups = append(groups, of[v.Name])
			continue
		}
		shared.variants = append(shared.variants, v)
		of[v.Name] = shared
	}
	if len(shared.variants) == 0 {
		groups = groups[1:]
	}
	for i := range groups {
		of[groups[i].share] = groups[i]
	}
	for _, r := range m.members {
		if !r.counts() {
			continue
		}
		g := of[m.shareOf(r.Name.Variant)]
		if m.onTrial(r) && g.canaries[r.Name.Variant] == nil {
			g.canaries[r.Name.Variant] = r
			continue
		}
		g.members = append(g.members, r)
	}
	left := m.target.Replicas
	want := make([]int, len(groups))
	for i, g := range groups {
		// What serves already has its part of a ceiling before what does not.
		want[i] = g.target
		g.target = min(want[i], left, g.count((*member).serving))
		left -= g.target
	}
	for i, g := range groups {
		more := min(want[i]-g.target, left)
		g.target += more
		left -= more
	}
	sum := 0
	for _, g := range groups {
		sum += g.target
	}
	for _, g := range groups {
		g.all, g.awaited = sum, map[string]bool{}
	}
	return groups
}

// shareOf returns the variant whose shares a replica of that variant counts against, empty for
// those of any. One of a variant that is gone counts where what replaces it is placed.
func (m *model) shareOf(variant string) string {
	if _, own := m.Desired.Of(variant); own {
		return variant
	}
	for i := range m.Variants {
		if _, own := m.Desired.Of(m.Variants[i].Name); !own {
			return ""
		}
	}
	return cheapest(m.Model).Name
}

// staying drops the members that the plan has ended.
func (g *group) staying() {
	g.members = slices.DeleteFunc(g.members, func(r *member) bool { return !r.counts() })
	for variant, r := range g.canaries {
		if !r.counts() {
			delete(g.canaries, variant)
		}
	}
}

// keeps reports whether the group keeps its surplus members: its model's management is disabled,
// and the model is not stopped.
func (g *group) keeps() bool { return g.Management == state.ManagementDisabled && !g.Stopped }

// count returns how many members are so.
func (g *group) count(so func(*member) bool) int {
	n := 0
	for _, r := range g.members {
		if so(r) {
			n++
		}
	}
	return n
}

// of returns the members of a variant.
func (g *group) of(variant string) []*member {
	var out []*member
	for _, r := range g.members {
		if r.Name.Variant == variant {
			out = append(out, r)
		}
	}
	return out
}

// definition returns what replicas of a variant are made from now, nil where the
// variant is gone.
func (m *model) definition(variant string) *state.Variant {
	if m.Rollouts[variant].Status == state.RolloutCanary {
		return m.versions.Get(m.StableVersion).Variant(variant)
	}
	return m.Variant(variant)
}

// outdated reports whether the member is made from another definition than it should.
func (g *group) outdated(r *member) bool {
	v := g.definition(r.Name.Variant)
	return v == nil || v.Hash != g.hashOf(r)
}

// cost of the member's variant, for comparisons.
func (g *group) cost(r *member) float64 {
	if v := g.Variant(r.Name.Variant); v != nil {
		return v.Cost
	}
	return 0
}

// leastWanted sorts members, the one to end first at the front: those that do not run, the farthest
// from running first; those that are outdated or must move; pairs without a standby; those in the most expensive external
// pool, and those expected in a pool last; the highest cost; the fewest requests; the youngest.
func (b *planBuilder) leastWanted(g *group, rs []*member) []*member {
	if len(rs) > 0 {
		b.markDirty() // loads change all the time
	}
	distance := func(r *member) int {
		switch {
		case b.serves(r):
			return 0
		case r.next.Status == state.StatusFailed:
			return 3
		case r.next.Status == state.StatusPlaced:
			return 2
		}
		return 1
	}
	unwanted := func(r *member) int {
		if g.outdated(r) || b.mustMove(r) {
			return 1
		}
		return 0
	}
	out := slices.Clone(rs)
	slices.SortStableFunc(out, func(x, y *member) int {
		return cmp.Or(
			cmp.Compare(distance(y), distance(x)),
			cmp.Compare(unwanted(y), unwanted(x)),
			cmp.Compare(btoi(y.degraded() != ""), btoi(x.degraded() != "")),
			cmp.Compare(b.dearness(g.model, y), b.dearness(g.model, x)),
			cmp.Compare(g.cost(y), g.cost(x)),
			cmp.Compare(b.obs.Loads[x.name].InFlight, b.obs.Loads[y.name].InFlight),
			y.CreatedAt.Compare(x.CreatedAt),
			cmp.Compare(x.name, y.name),
		)
	})
	return out
}
