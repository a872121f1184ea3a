package planner

import (
	"maps"
	"slices"
	"strings"
	"time"

	"remuda/controller/state"
)

// The first parts of the keys of marks, and what follows them.
const (
	markEvicted = "evicted" // the model that was evicted, and the one that it made room for
	markNoSleep = "nosleep" // a model and the hash of a variant whose engine has no sleep
	markKept    = "kept"    // a replica whose way to WARM was called off
	markSpilled = "spilled" // a replica that was placed in an external pool for lack of room
	markLeft    = "left"    // an external pool from which a replica was sent away
	markPrune   = "prune"   // idle replicas were pruned
)

// markKey joins the parts of a key. Names hold no such character.
func markKey(parts ...string) string { return strings.Join(parts, markSep) }

const markSep = "\x1f"

// mark writes a mark with the time of the plan.
func (d *draft) mark(parts ...string) { d.setMark(markKey(parts...), d.obs.Now) }

func (d *draft) setMark(key string, t time.Time) {
	if d.marks[key].Equal(t) {
		return
	}
	d.stir()
	d.plan.Marks = append(d.plan.Marks, state.Mark{Key: key, Time: t})
	d.marks[key] = t
	if t.IsZero() {
		delete(d.marks, key)
	}
}

// marked tells whether there is a mark that is younger than that.
func (d *draft) marked(window time.Duration, parts ...string) bool {
	t, ok := d.marks[markKey(parts...)]
	return ok && !d.due(t.Add(window))
}

// noSleep tells whether the engines of a definition are known to have no sleep.
func (d *draft) noSleep(model, hash string) bool {
	_, ok := d.marks[markKey(markNoSleep, model, hash)]
	return ok
}

// forgetMarks takes marks away that mean nothing any more.
func (d *draft) forgetMarks() {
	for _, key := range slices.Sorted(maps.Keys(d.marks)) {
		if d.full() {
			return
		}
		at := d.marks[key]
		parts := strings.Split(key, markSep)
		over := false
		switch parts[0] {
		case markEvicted:
			over = d.due(at.Add(d.conf.ThrashWindow))
		case markNoSleep:
			over = len(parts) != 3 || !d.defines(parts[1], parts[2])
		case markKept:
			over = d.due(at.Add(d.conf.ThrashWindow)) || len(parts) != 2 || d.byMember[parts[1]] == nil
		case markSpilled:
			over = len(parts) != 2 || d.byMember[parts[1]] == nil
		case markLeft:
			over = len(parts) != 2 || d.due(at.Add(d.pools[parts[1]].Interval))
		case markPrune:
			over = d.due(at.Add(d.conf.PruneInterval))
		}
		if over {
			d.setMark(key, time.Time{})
		}
	}
}

// defines reports whether a version of the model has a variant with that hash.
func (d *draft) defines(model, hash string) bool {
	m := d.byName[model]
	if m == nil {
		return false
	}
	return slices.ContainsFunc(m.versions, func(v *state.Version) bool {
		return slices.ContainsFunc(v.Model.Variants, func(d state.Variant) bool { return d.Hash == hash })
	})
}
