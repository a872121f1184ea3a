package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// canaryShare is the share of failed requests from which on a new definition is rolled back if
// the old one does better: fewer are not worth an operator's attention.
const canaryShare = 0.1

// trials sees to the canaries of a group: one replica of each new definition beside
// the full set of old ones.
func (b *planBuilder) trials(g *group) {
	for _, v := range g.variants {
		if g.rolledBack {
			return
		}
		switch g.Rollouts[v.Name].Status {
		case state.RolloutCanary:
		case state.RolloutRolling:
			b.lateFailures(g, v)
			continue
		default:
			continue
		}
		c := g.canaries[v.Name]
		old := g.of(v.Name)
		if s := b.failedSuccessor(g.model, v); s != nil {
			b.rollBack(g.model, s, "canary failed: "+s.LastError)
			continue
		}
		failsMore := b.failsMore(g, v)
		switch {
		case g.target == 0 && !g.keeps() && (c != nil || len(old) > 0):
			// They are sent away, and then the rollout is over.
		case c == nil && len(old) == 0 && len(g.members) >= g.target:
			b.setRollout(g.model, v.Name, "", "")
			b.record(KindRolloutDone, g.Name, "", fmt.Sprintf("variant %s has no replicas: new ones will use the new definition", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
		case c == nil:
			b.placeCanary(g, v, old)
		case c.changed:
		case c.leavesNode() && !c.serving() && (!c.allocRuns() || c.next.Status == state.StatusFailed):
			b.record(KindMoveAway, g.Name, c.name, fmt.Sprintf("node %s is draining: replacing the canary", nodeName(c)), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
			b.end(c)
		case c.next.Status == state.StatusFailed:
			b.rollBack(g.model, c, "canary failed: "+c.LastError)
		case failsMore != "":
			b.rollBack(g.model, c, "canary failed: "+failsMore)
		case c.serving() && c.passes && b.due(c.Since.Add(b.conf.CanaryTime)):
			b.setRollout(g.model, v.Name, state.RolloutRolling, "")
			b.record(KindRolling, g.Name, c.name, fmt.Sprintf("canary served for %s: replacing the other replicas of variant %s", b.obs.Now.Sub(c.Since).Round(time.Millisecond), v.Name),
				inputs{"variant": v.Name, "version": strconv.Itoa(g.Version), "served_for": b.obs.Now.Sub(c.Since).String()})
			delete(g.canaries, v.Name)
			g.members = append(g.members, c)
		}
	}
	g.staying()
}

// lateFailures rolls a definition back that fails after its canary was good. Whoever
// made the replica failed, as when Nomad refuses its job, it has failed. Replicas that fail
// requests serve until others of the old definition do.
func (b *planBuilder) lateFailures(g *group, v *state.Variant) {
	if why := b.failsMore(g, v); why != "" {
		b.revertToStable(g.model, v.Name, "", "replicas of the new definition failed: "+why, nil)
		return
	}
	if s := b.failedSuccessor(g.model, v); s != nil {
		b.rollBack(g.model, s, s.LastError)
		return
	}
	for _, r := range g.of(v.Name) {
		if r.next.Status == state.StatusFailed && !r.changed && !b.mustMove(r) && g.hashOf(r) == v.Hash {
			b.rollBack(g.model, r, r.LastError)
			return
		}
	}
}

// placeCanary places the first replica of a new definition. If there is no room, or the model has
// no surge, an old replica makes way: one that has failed, and so serves no request, or another one
// as far as the model allows it.
func (b *planBuilder) placeCanary(g *group, v *state.Variant, old []*member) {
	// A member that uses GPUs out of use may have another one beside it.
	vacant := len(g.members)+len(g.canaries)+len(g.awaited) < g.target+min(g.spare(), g.count(b.mustMove))
	var refused []*placement.Refusal
	if vacant && b.awaitsSuccessor(g.model, v) {
		g.awaited[v.Name] = true
		return
	}
	if g.Surge() > 0 || vacant {
		var c *member
		if c, refused = b.placeFirst(g.model, []*state.Variant{v}, b.openPools(g.model), nil, func(p *state.Place) { p.Canary = true }); c != nil {
			g.canaries[v.Name] = c
			b.record(KindCanary, g.Name, c.name, fmt.Sprintf("first replica of the new definition of variant %s", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
			return
		}
	}
	if vacant && g.inPlace() && b.waitForPlace(g.model, v) {
		g.awaited[v.Name] = true
		return
	}
	what := "no room for the canary beside the old replicas, which stay"
	switch {
	case g.inPlace():
		what = "no room for the canary, also not in the place of an old replica"
	case g.Surge() == 0:
		what = b.staysBecause(g)
	}
	candidates := b.leastWanted(g, old)
	slices.SortStableFunc(candidates, func(x, y *member) int {
		return btoi(b.successorOf(g, v, y) != nil) - btoi(b.successorOf(g, v, x) != nil)
	})
	for _, r := range candidates {
		failed := r.next.Status == state.StatusFailed
		switch {
		case r.changed || !failed && !g.inPlace():
		case !failed && !b.mayGo(g, r):
			what = b.staysBecause(g)
		case !b.fitsWithout(g, r, v):
			what = cmp.Or(b.cannotTakeOver(g, r, v), what)
		case b.waitsForSuccessor(g, v, r, true):
			return
		default:
			reason := "drained to make room for the canary of variant " + v.Name
			if failed {
				reason = "failed replica stopped to make room for the canary of variant " + v.Name
			}
			sleeps := b.sleepsBeside(g, v, r)
			if sleeps {
				reason += ", WARM until that one has served"
			}
			b.record(KindCanary, g.Name, r.name, reason, inputs{"variant": v.Name, "failures": strconv.Itoa(r.Failures), "min_available": strconv.Itoa(g.MinAvailable(g.all))})
			if sleeps {
				b.happens(r, state.EventDrain, state.GoalWarm, nil)
			} else {
				b.end(r)
				if b.successorOf(g, v, r) == nil {
					b.waitForPlace(g.model, v) // before one that moves takes it in this plan
				}
			}
			g.staying()
			g.awaited[v.Name] = true
			return
		}
	}
	b.recordUnplaceable(KindRolloutWaits, g, v.Name, "canary", what+g.wayOut(), refused)
}

// inPlace reports whether a rollout may leave fewer replicas serving than the model's number, so
// that a replica makes way for its successor.
func (g *group) inPlace() bool { return g.MinAvailable(g.all) < g.all }

// wayOut is what an operator of a model that does not roll in place may do about a lack of room.
func (g *group) wayOut() string {
	if g.inPlace() || g.Surge() == 0 {
		return ""
	}
	return `: make room, or set "update { surge = 0 }" in the model file, so that each old replica makes way for its successor`
}

// staysBecause is why no further replica makes way.
func (b *planBuilder) staysBecause(g *group) string {
	return fmt.Sprintf("no old replica may make way for a new one: %d replicas serve, and min_available is %d", b.servingOf(g.model), g.MinAvailable(g.all))
}

// servingOf is how many replicas of a model serve.
func (b *planBuilder) servingOf(m *model) int {
	n := 0
	for _, r := range m.members {
		n += btoi(r.counts() && b.serves(r))
	}
	return n
}

// mayGo reports whether the model may do without a member during a rollout.
func (b *planBuilder) mayGo(g *group, r *member) bool {
	return !b.serves(r) || b.servingOf(g.model) > g.MinAvailable(g.all)
}

// fitsWithout reports whether a definition could be placed once a member is gone, without
// evicting anything. If its successor is there already, that one must be able to serve then.
func (b *planBuilder) fitsWithout(g *group, r *member, v *state.Variant) bool {
	s := b.successorOf(g, v, r)
	b.ledger().Drop(r.name)
	defer b.put(r)
	if s == nil {
		return b.fits(g.model, v, nil)
	}
	c := takesOver(g.model, s)
	return s.next.OutOfUse(s.node) == "" && b.ledger().Fits(&c, true)
}

// cannotTakeOver returns that the successor of a member could not serve in its place, empty if the member
// has no successor; see fitsWithout.
func (b *planBuilder) cannotTakeOver(g *group, r *member, v *state.Variant) string {
	s := b.successorOf(g, v, r)
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s has no room to serve in the place of %s, which stays", s.name, r.name)
}

// replaceInPlace drains outdated members of a variant whose places their successors will have, as far
// as the model may do without them. If none of them makes way and nothing is under way that allows
// it, the reason is recorded. refused is why there is no place beside them, nil if the model has no
// surge.
func (b *planBuilder) replaceInPlace(g *group, old []*member, about string, refused []*placement.Refusal) {
	old = slices.DeleteFunc(old, func(r *member) bool { return r.changed })
	if len(old) == 0 || b.full() {
		return
	}
	what := "no room for the next replica of the new definition beside the old ones, which stay"
	if g.Surge() == 0 {
		what = b.staysBecause(g)
	}
	if g.inPlace() {
		what = "no room for the next replica of the new definition, also not in the place of an old one, which stays"
		next := g.definitions()
		if own := g.definition(old[0].Name.Variant); own != nil {
			next = []*state.Variant{own}
		}
		fits, gone := false, false
		for _, r := range old {
			if b.full() {
				continue
			}
			if !slices.ContainsFunc(next, func(v *state.Variant) bool { return b.fitsWithout(g, r, v) }) {
				what = cmp.Or(b.cannotTakeOver(g, r, next[0]), what)
				continue
			}
			fits = true
			if !b.mayGo(g, r) {
				continue
			}
			gone = true
			if b.waitsForSuccessor(g, next[0], r, false) {
				continue
			}
			b.record(KindRolling, g.Name, r.name, "makes way for a replica of the new definition",
				inputs{"serving": strconv.Itoa(b.servingOf(g.model)), "min_available": strconv.Itoa(g.MinAvailable(g.all)), "target": strconv.Itoa(g.target), "version": strconv.Itoa(r.Version)})
			b.end(r)
			g.staying()
		}
		// One on its way to serving allows the next step.
		if gone || fits && (len(g.members) < g.target || g.count(b.serves) < len(g.members)) {
			return
		}
		if fits {
			what = b.staysBecause(g)
		}
	}
	b.recordUnplaceable(KindRolloutWaits, g, old[0].Name.Variant, about, what+g.wayOut(), refused)
}

// waitForPlace reserves a place that becomes free for a definition, and reports whether there is
// one.
func (b *planBuilder) waitForPlace(m *model, v *state.Variant) bool {
	for _, pool := range b.openPools(m) {
		if c, no := b.find(m, v, ask{pool: pool, future: true}); no == nil {
			b.reservePlace(m, v, c)
			return true
		}
	}
	return false
}

// refill brings up the replicas that a rollout has taken out, as far as that needs no eviction,
// and returns how many others are missing. A canary that has the place of another one stands in
// for it.
func (b *planBuilder) refill(g *group, missing int) int {
	if missing <= 0 {
		return missing
	}
	missing -= min(missing, len(g.awaited))
	beyond := g.target + g.Surge()
	for range min(missing, len(g.canaries)) {
		missing--
		if b.full() || len(g.members)+len(g.canaries)+len(g.awaited) >= beyond {
			continue
		}
		if r, _ := b.placeFirst(g.model, g.definitions(), b.openPools(g.model), nil, nil); r != nil {
			g.members = append(g.members, r)
		}
	}
	if !g.rolls() {
		return missing
	}
	// Those of the variants that are rolled out come first.
	next := g.definitions()
	slices.SortStableFunc(next, func(a, b *state.Variant) int {
		_, x := g.Rollouts[a.Name]
		_, y := g.Rollouts[b.Name]
		return btoi(y) - btoi(x)
	})
	for range min(missing, g.all-g.MinAvailable(g.all)) {
		if b.full() {
			return 0
		}
		if slices.ContainsFunc(next, func(v *state.Variant) bool { return b.awaitsSuccessor(g.model, v) }) {
			missing--
			continue
		}
		if r, _ := b.placeFirst(g.model, next, b.openPools(g.model), nil, nil); r != nil {
			g.members = append(g.members, r)
		} else if !slices.ContainsFunc(next, func(v *state.Variant) bool { return b.waitForPlace(g.model, v) }) {
			return missing
		}
		missing--
	}
	return missing
}

// rolls reports whether the model has another definition than some of its replicas, or one that
// was rolled back.
func (m *model) rolls() bool {
	return len(m.Rollouts) > 0 || slices.ContainsFunc(m.members, func(r *member) bool {
		v := m.definition(r.Name.Variant)
		return r.next.Tier() == state.Hot && (v == nil || v.Hash != m.hashOf(r))
	})
}

// keepPlaces keeps the places of replicas that a rollout has taken out for their successors, until
// it is their model's turn to place them.
func (b *planBuilder) keepPlaces() {
	for _, m := range b.models {
		missing := m.target.Replicas
		if m.MinAvailable(missing) >= missing || !m.rolls() {
			continue
		}
		for _, r := range m.members {
			missing -= btoi(r.counts())
		}
		missing = b.keepWakes(m, missing)
		for _, r := range m.members {
			// Its goal before this plan, which may be the last one that sees it.
			if missing <= 0 || r.Goal != state.GoalGone || r.MakesRoomFor != "" || r.gone() {
				continue
			}
			missing--
			held := r.Holds()
			held.Weights = state.Weights{} // those of the next version are others
			place := placement.Tenant{Name: "place of " + r.name, Node: r.Placement.Node, Model: m.Name, After: &held}
			if r.removed {
				place.Holds = *place.After
			}
			b.ledger().Put(place)
			b.places[m.Name] = append(b.places[m.Name], place.Name)
		}
	}
}

// takePlaces ends what keepPlaces has begun for a model.
func (b *planBuilder) takePlaces(m *model) {
	for _, name := range b.places[m.Name] {
		b.ledger().Drop(name)
	}
	for _, r := range b.keptWakes[m.Name] {
		b.put(r)
	}
}

// rollBack reverts the model to its stable version because of a replica of the new definition. The
// replica is stopped, or drained if it serves.
func (b *planBuilder) rollBack(m *model, r *member, reason string) {
	failures := r.Failures + 1
	b.revertToStable(m, r.Name.Variant, r.name, reason, inputs{"failures": strconv.Itoa(failures)})
	event := state.EventStop
	if b.serves(r) {
		event = state.EventDrain
	}
	b.happens(r, event, state.GoalGone, func(c *state.Move) { c.Failures, c.LastError = &failures, &reason })
}

// revertToStable returns the model to its stable version because of a variant. The replica, which may
// be empty, is the cause.
func (b *planBuilder) revertToStable(m *model, variant, replica, reason string, in inputs) {
	from, to := m.Version, m.StableVersion
	b.setRollout(m, variant, state.RolloutRolledBack, reason)
	all := inputs{"variant": variant, "version": strconv.Itoa(from), "stable_version": strconv.Itoa(to)}
	maps.Copy(all, in)
	b.record(KindRolledBack, m.Name, replica, fmt.Sprintf("rolled back from version %d to version %d: %s", from, to, reason), all)
}

// dropOutdated stops members of an outdated definition that do not serve, to free their seats.
func (b *planBuilder) dropOutdated(g *group) {
	for _, r := range g.members {
		if r.changed || b.full() || r.next.Tier() != state.Hot || !g.outdated(r) {
			continue
		}
		switch r.next.Status {
		case state.StatusPlaced, state.StatusStarting, state.StatusFailed:
			kind := KindRolling
			if g.Variant(r.Name.Variant) == nil {
				kind = KindVariantRemoved
			}
			b.record(kind, g.Name, r.name, fmt.Sprintf("definition is outdated: stopped while %s", r.next.Status), inputs{"version": strconv.Itoa(r.Version), "status": string(r.next.Status)})
			b.end(r)
		}
	}
	g.staying()
}

// finish ends the rollouts whose replicas all serve and are all of the new definition.
func (b *planBuilder) finish(g *group) {
	for _, v := range g.variants {
		if g.Rollouts[v.Name].Status != state.RolloutRolling {
			continue
		}
		done := true
		for _, r := range g.of(v.Name) {
			if g.outdated(r) || r.next.Tier() == state.Hot && !r.serving() {
				done = false
			}
		}
		if done && len(g.members) >= g.target {
			b.setRollout(g.model, v.Name, "", "")
			b.record(KindRolloutDone, g.Name, "", fmt.Sprintf("all replicas of variant %s use the new definition", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
		}
	}
}

// failsMore returns why the replicas of a new definition fail clearly more of their requests than
// those of the one that it replaces, empty if they do not. If none of those serves, going
// back helps no request.
func (b *planBuilder) failsMore(g *group, v *state.Variant) string {
	b.markDirty() // requests end all the time
	base := g.versions.Get(g.StableVersion).Variant(v.Name)
	if base == nil {
		return ""
	}
	is := func(hash string) func(*member) bool {
		return func(r *member) bool { return r.Name.Variant == v.Name && g.hashOf(r) == hash }
	}
	if !slices.ContainsFunc(g.model.members, func(r *member) bool { return b.serves(r) && is(base.Hash)(r) }) {
		return ""
	}
	stable, fresh := b.latest(g.model, is(base.Hash)), b.latest(g.model, is(v.Hash))
	if fresh.Failed < FailuresLeast || fresh.Over < failuresOver || fresh.share() < canaryShare || stable.share()*betterBy > fresh.share() {
		return ""
	}
	return fmt.Sprintf("%s recent requests failed (stable version: %s)", fresh, stable)
}
