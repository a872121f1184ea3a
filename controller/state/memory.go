package state

import (
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/go-memdb"
)

// What the planner remembers, so that it does not do a thing again too soon. These are parts of
// a plan.

// SetEvictedFor writes a model's EvictedFor.
type SetEvictedFor struct {
	Model      string
	EvictedFor map[string]time.Time `json:",omitempty"`
}

func (c *SetEvictedFor) apply(t *txn) *Error {
	times, errs := checkTimes("model to make room for", c.EvictedFor)
	if err := invalid(c.Model, errs...); err != nil {
		return err
	}
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	if maps.EqualFunc(old.EvictedFor, times, time.Time.Equal) {
		return nil
	}
	m := *old
	m.EvictedFor = times
	t.put(TableModels, &m)
	return nil
}

// SetSleep notes what a sleep of a variant's definition has shown.
type SetSleep struct {
	Model string
	// Hash is the definition's.
	Hash  string
	Sleep Sleep
}

// apply joins it with what was known, and removes what belongs to no version any more. Replicas that do
// not sleep are expected to keep as much; their ModifyIndex stays, because that is no decision about them.
func (c *SetSleep) apply(t *txn) *Error {
	if c.Sleep.Memory < 0 {
		return badRequest(c.Model, "memory of a sleeping replica is %d: must not be negative", c.Sleep.Memory)
	}
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	versions := t.versions(c.Model)
	was, known := old.Sleeps[c.Hash]
	next := Sleep{None: was.None || c.Sleep.None, Memory: max(was.Memory, c.Sleep.Memory)}
	if !versions.define(c.Hash) || known && next == was {
		return nil
	}
	m := *old
	m.Sleeps = learned(versions, old.Sleeps, c.Hash, next)
	t.put(TableModels, &m)
	replicas, _ := each[Replica](t.Txn, TableReplicas, byModel, c.Model)
	for _, old := range replicas {
		v := versions.VariantOf(old)
		if v == nil || v.Hash != c.Hash || old.Status.Tier() != Hot || old.Placement.SleepMemory == m.SleepMemory(v) {
			continue
		}
		r := *old
		r.Placement.SleepMemory = m.SleepMemory(v)
		t.put(TableReplicas, &r)
	}
	return nil
}

// define reports whether a variant of one of the versions has this hash.
func (vs Versions) define(hash string) bool {
	for _, v := range vs {
		for i := range v.Model.Variants {
			if v.Model.Variants[i].Hash == hash {
				return true
			}
		}
	}
	return false
}

// learned returns what is known by hash, with the newest, and without what is of no version.
func learned[T any](vs Versions, known map[string]T, hash string, newest T) map[string]T {
	out := map[string]T{hash: newest}
	for h, v := range known {
		if h != hash && vs.define(h) {
			out[h] = v
		}
	}
	return out
}

// served notes how long the start took by which a replica has come to serve.
func (t *txn) served(old, r *Replica) {
	var took Start
	switch {
	case old.Status == StatusWaking && old.Failures == 0:
		took.Warm = r.Since.Sub(old.Since)
	// One that was adopted while it started has an unknown beginning: its status is as old as it is itself.
	case old.Status == StatusStarting && !old.Served && old.Failures == 0 && old.Since.After(old.CreatedAt):
		took.Cold = r.Since.Sub(old.CreatedAt)
	}
	model := first[Model](t.Txn, TableModels, byID, r.Name.Model)
	versions := t.versions(r.Name.Model)
	v := versions.VariantOf(r)
	if took.Cold <= 0 && took.Warm <= 0 || model == nil || v == nil {
		return
	}
	was := model.Starts[v.Hash]
	m := *model
	m.Starts = learned(versions, model.Starts, v.Hash, Start{Cold: average(was.Cold, took.Cold), Warm: average(was.Warm, took.Warm)})
	t.put(TableModels, &m)
}

// average joins a new duration with the average of those before; 0 is none.
func average(was, newest time.Duration) time.Duration {
	switch {
	case newest <= 0:
		return was
	case was == 0:
		return newest
	}
	return was + (newest-was)/4
}

// SleepMemory is what a replica of v takes of each GPU while it is WARM: as measured, or as the
// model file estimates it.
func (m *Model) SleepMemory(v *Variant) int64 {
	if s, known := m.Sleeps[v.Hash]; known && !s.None {
		return min(s.Memory, v.Memory)
	}
	return v.SleepMemory
}

// apply writes the row.
func (p *Pace) apply(t *txn) *Error {
	left, errs := checkTimes("pool", p.Left)
	if err := invalid("pace", append(errs, checkTime("time of the last prune", &p.Pruned))...); err != nil {
		return err
	}
	next := &Pace{Pruned: p.Pruned, Left: left}
	old := first[Pace](t.Txn, TablePace, byID, onlyRow)
	switch {
	case old != nil && next.key() == "":
		t.remove(TablePace, old)
	case next.key() != "" && (old == nil || !old.Pruned.Equal(next.Pruned) || !maps.EqualFunc(old.Left, next.Left, time.Time.Equal)):
		t.put(TablePace, next)
	}
	return nil
}

// key is onlyRow, and empty for a row that says nothing and is not stored.
func (p *Pace) key() string {
	if p.Pruned.IsZero() && len(p.Left) == 0 {
		return ""
	}
	return onlyRow
}

// Pace returns when the planner last did what it does only so often. It is never nil.
func (v *View) Pace(ws memdb.WatchSet) *Pace {
	if p := queryOne[Pace](v, ws, TablePace, byID, onlyRow); p != nil {
		return p
	}
	return &Pace{}
}

// checkTimes returns a map of times as the state has it, nil for an empty one, and what is wrong
// with it.
func checkTimes(what string, times map[string]time.Time) (map[string]time.Time, []error) {
	var errs []error
	var out map[string]time.Time
	for _, name := range sortedKeys(times) {
		at := times[name]
		errs = append(errs, checkName(what, name), checkTime(fmt.Sprintf("time of %s %q", what, name), &at))
		if out == nil {
			out = make(map[string]time.Time, len(times))
		}
		out[name] = at
	}
	return out, errs
}
