package state

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
)

// VersionsKept is how many versions of a model are kept at least, as Nomad keeps those of a
// job. Older ones are kept as long as a replica of them exists.
const VersionsKept = 6

// Version is a model as one model file defined it. It never changes.
type Version struct {
	// Number counts the versions of a model from 1. A number is not used again while the
	// model exists.
	Number int
	// Model has the definition. Of the fields that are not of the file only Name is set;
	// Desired is that of the file.
	Model Model
	// Time is when it was applied.
	Time time.Time

	CreateIndex uint64
}

// Variant returns the definition of a variant, nil if there is none. The version may be
// nil.
func (v *Version) Variant(name string) *Variant {
	if v == nil {
		return nil
	}
	return v.Model.Variant(name)
}

// Versions are versions of one model in the order of their numbers.
type Versions []*Version

// Get returns the version of that number, nil if there is none.
func (vs Versions) Get(number int) *Version {
	i, ok := slices.BinarySearchFunc(vs, number, func(v *Version, n int) int { return cmp.Compare(v.Number, n) })
	if !ok {
		return nil
	}
	return vs[i]
}

// VariantOf returns the definition that r was made from, nil where it is unknown.
func (vs Versions) VariantOf(r *Replica) *Variant {
	return vs.Get(r.Version).Variant(r.Name.Variant)
}

// HashOf returns the hash of the definition that r was made from, empty if it is
// unknown. Replicas of one variant with the same hash are alike, whatever their versions.
func (vs Versions) HashOf(r *Replica) string {
	if v := vs.VariantOf(r); v != nil {
		return v.Hash
	}
	return ""
}

// With returns the newest version in which the variant has that hash, nil where there is
// none.
func (vs Versions) With(variant, hash string) *Version {
	for _, v := range slices.Backward(vs) {
		if d := v.Variant(variant); d != nil && d.Hash == hash {
			return v
		}
	}
	return nil
}

// defined returns m with the definition of a version: its scale is kept.
func (m *Model) defined(v *Version) *Model {
	next := v.Model
	next.Version, next.StableVersion, next.Source = v.Number, m.StableVersion, ""
	next.Desired, next.Stopped, next.ScaledAt = next.shares(m.Desired.cells()), m.Stopped, m.ScaledAt
	next.Displaced = m.Displaced.within(next.Desired)
	next.Unplaceable, next.Replacements, next.EvictedFor = m.Unplaceable, m.Replacements, m.EvictedFor
	next.Sleeps, next.Starts = m.Sleeps, m.Starts
	next.Rollouts, next.CreateIndex, next.ModifyIndex = m.Rollouts, m.CreateIndex, m.ModifyIndex
	return &next
}

// Rescales reports whether the file of m, which is to take the place of old, sets the scale:
// it sets a number of replicas that old's file did not.
func (m *Model) Rescales(old *Model) bool {
	return m.FileReplicas != nil && (old.FileReplicas == nil || *old.FileReplicas != *m.FileReplicas)
}

// definition returns m without what is not of its file.
func (m *Model) definition() Model {
	d := *m
	d.Version, d.StableVersion, d.Stopped, d.ScaledAt, d.Rollouts = 0, 0, false, time.Time{}, nil
	d.CreateIndex, d.ModifyIndex, d.Unplaceable, d.Replacements, d.EvictedFor, d.Sleeps, d.Starts = 0, 0, nil, Replacements{}, nil, nil, nil
	d.Displaced = Displaced{}
	return d
}

// versionKey is the key of a version: its model, and its number in the order of numbers.
func versionKey(model string, number int) string {
	// In hex: an index's key holds no NUL.
	const digits = "0123456789abcdef"
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(number))
	key := append(make([]byte, 0, len(model)+17), model...)
	key = append(key, '\x1f')
	for _, c := range b {
		key = append(key, digits[c>>4], digits[c&15])
	}
	return string(key)
}

func (t *txn) versions(model string) Versions {
	vs, _ := each[Version](t.Txn, TableVersions, byModel, model)
	return vs
}

// next returns the number of the version that follows them.
func (vs Versions) next() int {
	if len(vs) == 0 {
		return 1
	}
	return vs[len(vs)-1].Number + 1
}

// addVersion makes the definition in c the newest version of m, and forgets old ones that
// nothing needs. Its source is in the version alone.
func (t *txn) addVersion(m *Model, c *WriteModel) {
	vs := t.versions(m.Name)
	t.put(TableVersions, &Version{Number: c.Version, Model: c.Definition.definition(), Time: c.Time, CreateIndex: t.index})
	m.Source = ""

	needed := map[int]bool{m.Version: true, m.StableVersion: true}
	rs, _ := each[Replica](t.Txn, TableReplicas, byModel, m.Name)
	for _, r := range rs {
		needed[r.Version] = true
	}
	for _, v := range vs[:max(len(vs)+1-VersionsKept, 0)] {
		if !needed[v.Number] {
			t.remove(TableVersions, v)
		}
	}
}

// Versions returns the versions of a model that are kept.
func (v *View) Versions(ws memdb.WatchSet, model string) Versions {
	return query[Version](v, ws, TableVersions, byModel, model)
}

// VariantOf returns the definition that a replica was made from, nil where its model or
// version is gone.
func (v *View) VariantOf(ws memdb.WatchSet, r *Replica) *Variant {
	return queryOne[Version](v, ws, TableVersions, byID, versionKey(r.Name.Model, r.Version)).Variant(r.Name.Variant)
}

// rolloutsAfter returns what is being rolled out once old has become m, nil where nothing
// is. stable is the version that the new one falls back on.
func (m *Model) rolloutsAfter(old *Model, stable *Version, replicas []*Replica, vs Versions, now time.Time) map[string]Rollout {
	var after map[string]Rollout
	for i := range m.Variants {
		v := &m.Variants[i]
		was, base := old.Variant(v.Name), stable.Variant(v.Name)
		current := old.Rollouts[v.Name]
		// A replica that never served needs no protection: it may go before its successor comes.
		replaces := slices.ContainsFunc(replicas, func(r *Replica) bool {
			return r.Name.Variant == v.Name && r.Served && vs.HashOf(r) != v.Hash
		})
		next := Rollout{Version: m.Version, Since: now}
		switch {
		case was == nil || base == nil:
			continue // there is nothing to fall back on
		case was.Hash == v.Hash && current.Ongoing():
			next.Status, next.Reason, next.Since = current.Status, current.Reason, current.Since
		case was.Hash == v.Hash || !replaces:
			continue
		case base.Hash != v.Hash:
			next.Status = RolloutCanary
		case current.Status == RolloutCanary:
			continue // the canary goes, and all others are of this definition
		default:
			next.Status = RolloutRolling // it has served before
		}
		if after == nil {
			after = map[string]Rollout{}
		}
		after[v.Name] = next
	}
	return after
}
