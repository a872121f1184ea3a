package planner

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"remuda/controller/state"
)

// canaryShare is the share of failed requests from which on a new definition is rolled back if
// the old one does better: fewer are not worth an operator's attention.
const canaryShare = 0.1

// trials sees to the canaries of a group: one replica of each new definition beside
// the full set of old ones.
func (d *draft) trials(g *group) {
	for _, v := range g.variants {
		if g.rolledBack {
			return
		}
		switch g.Rollouts[v.Name].Status {
		case state.RolloutCanary:
		case state.RolloutRolling:
			d.lateFailures(g, v)
			continue
		default:
			continue
		}
		c := g.canaries[v.Name]
		old := g.of(v.Name)
		failsMore := d.failsMore(g, v)
		switch {
		case g.target == 0 && !g.keeps() && (c != nil || len(old) > 0):
			// They are sent away, and then the rollout is over.
		case c == nil && len(old) == 0 && len(g.members) >= g.target:
			d.setRollout(g.model, v.Name, "", "")
			d.decide(KindRolloutDone, g.Name, "", fmt.Sprintf("variant %s has no replicas: new ones will use the new definition", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
		case c == nil:
			d.placeCanary(g, v, old)
		case c.changed:
		case c.leavesNode() && !c.serving() && (!c.allocRuns() || c.next.Status == state.StatusFailed):
			d.decide(KindMoveAway, g.Name, c.name, fmt.Sprintf("node %s is draining: replacing the canary", nodeName(c)), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
			d.dismiss(c)
		case c.next.Status == state.StatusFailed:
			d.rollBack(g.model, c, "canary failed: "+c.LastError)
		case failsMore != "":
			d.rollBack(g.model, c, "canary failed: "+failsMore)
		case c.serving() && c.passes && d.due(c.Since.Add(d.conf.CanaryTime)):
			d.setRollout(g.model, v.Name, state.RolloutRolling, "")
			d.decide(KindRolling, g.Name, c.name, fmt.Sprintf("canary served for %s: replacing the other replicas of variant %s", d.obs.Now.Sub(c.Since).Round(time.Millisecond), v.Name),
				inputs{"variant": v.Name, "version": strconv.Itoa(g.Version), "served_for": d.obs.Now.Sub(c.Since).String()})
			delete(g.canaries, v.Name)
			g.members = append(g.members, c)
		}
	}
	g.staying()
}

// lateFailures rolls a definition back that fails after its canary was good. Whoever
// made the replica failed, as when Nomad refuses its job, it has failed. Replicas that fail
// requests serve until others of the old definition do.
func (d *draft) lateFailures(g *group, v *state.Variant) {
	if why := d.failsMore(g, v); why != "" {
		d.giveUp(g.model, v.Name, "", "replicas of the new definition failed: "+why, nil)
		return
	}
	for _, r := range g.of(v.Name) {
		if r.next.Status == state.StatusFailed && !r.changed && !d.displaced(r) && g.hashOf(r) == v.Hash {
			d.rollBack(g.model, r, r.LastError)
			return
		}
	}
}

// placeCanary places the first replica of a new definition. Where there is no room an
// old one that has failed, and so serves nobody, makes it.
func (d *draft) placeCanary(g *group, v *state.Variant, old []*member) {
	c, refused := d.placeFirst(g.model, []*state.Variant{v}, d.openPools(g.model), nil, func(p *state.Place) { p.Canary = true })
	if c != nil {
		g.canaries[v.Name] = c
		d.decide(KindCanary, g.Name, c.name, fmt.Sprintf("first replica of the new definition of variant %s", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
		return
	}
	for _, r := range old {
		if r.next.Status != state.StatusFailed || r.changed {
			continue
		}
		d.ledger().Drop(r.name)
		fits := d.fits(g.model, v, nil)
		d.put(r)
		if fits {
			d.decide(KindCanary, g.Name, r.name, fmt.Sprintf("failed replica stopped to make room for the canary of variant %s", v.Name), inputs{"variant": v.Name, "failures": strconv.Itoa(r.Failures)})
			d.dismiss(r)
			return
		}
	}
	d.cannot(KindRolloutWaits, g, v.Name, "canary", "no room for the canary beside the old replicas, which stay", refused)
}

// rollBack gives a new definition up because of one of its replicas, which is stopped, or
// drained if it serves.
func (d *draft) rollBack(m *model, r *member, reason string) {
	failures := r.Failures + 1
	d.giveUp(m, r.Name.Variant, r.name, reason, inputs{"failures": strconv.Itoa(failures)})
	event := state.EventStop
	if d.serves(r) {
		event = state.EventDrain
	}
	d.happens(r, event, state.GoalGone, func(c *state.Move) { c.Failures, c.LastError = &failures, &reason })
}

// giveUp returns the model to its stable version because of a variant. The replica, which may
// be empty, is why.
func (d *draft) giveUp(m *model, variant, replica, reason string, in inputs) {
	from, to := m.Version, m.StableVersion
	d.setRollout(m, variant, state.RolloutRolledBack, reason)
	all := inputs{"variant": variant, "version": strconv.Itoa(from), "stable_version": strconv.Itoa(to)}
	maps.Copy(all, in)
	d.decide(KindRolledBack, m.Name, replica, fmt.Sprintf("rolled back from version %d to version %d: %s", from, to, reason), all)
}

// dropOutdated stops members of another definition that serve nobody: their seats are
// better used.
func (d *draft) dropOutdated(g *group) {
	for _, r := range g.members {
		if r.changed || d.full() || r.next.Tier() != state.Hot || !g.outdated(r) {
			continue
		}
		switch r.next.Status {
		case state.StatusPlaced, state.StatusStarting, state.StatusFailed:
			kind := KindRolling
			if g.Variant(r.Name.Variant) == nil {
				kind = KindVariantRemoved
			}
			d.decide(kind, g.Name, r.name, fmt.Sprintf("definition is outdated: stopped while %s", r.next.Status), inputs{"version": strconv.Itoa(r.Version), "status": string(r.next.Status)})
			d.dismiss(r)
		}
	}
	g.staying()
}

// finish ends the rollouts whose replicas all serve and are all of the new definition.
func (d *draft) finish(g *group) {
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
			d.setRollout(g.model, v.Name, "", "")
			d.decide(KindRolloutDone, g.Name, "", fmt.Sprintf("all replicas of variant %s use the new definition", v.Name), inputs{"variant": v.Name, "version": strconv.Itoa(g.Version)})
		}
	}
}

// failsMore returns why the replicas of a new definition fail clearly more of their requests than
// those of the one that it replaces, empty where they do not. If none of those serves, going
// back helps no request.
func (d *draft) failsMore(g *group, v *state.Variant) string {
	d.stir() // requests end all the time
	base := g.versions.Get(g.StableVersion).Variant(v.Name)
	if base == nil {
		return ""
	}
	is := func(hash string) func(*member) bool {
		return func(r *member) bool { return r.Name.Variant == v.Name && g.hashOf(r) == hash }
	}
	if !slices.ContainsFunc(g.model.members, func(r *member) bool { return d.serves(r) && is(base.Hash)(r) }) {
		return ""
	}
	stable, fresh := d.latest(g.model, is(base.Hash)), d.latest(g.model, is(v.Hash))
	if fresh.Failed < FailuresLeast || fresh.Over < failuresOver || fresh.share() < canaryShare || stable.share()*betterBy > fresh.share() {
		return ""
	}
	return fmt.Sprintf("%s recent requests failed (stable version: %s)", fresh, stable)
}
