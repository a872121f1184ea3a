package state

import (
	"maps"
	"slices"
	"time"
)

// VariantOf returns the definition that r was made from: its variant's current one,
// or the one that a rollout replaces; nil where it is neither, because the variant is
// gone or has changed twice. The model may be nil.
func (m *Model) VariantOf(r *Replica) *Variant {
	v, _ := m.definition(r.Name.Variant, r.VariantHash)
	return v
}

// FailoverOf tells whether replicas of a variant's definition with that hash are
// pairs; Failover where the definition is not known.
func (m *Model) FailoverOf(variant, hash string) bool {
	_, failover := m.definition(variant, hash)
	return failover
}

// definition returns a variant's definition of that hash, nil where it is not known,
// and whether its replicas are pairs.
func (m *Model) definition(variant, hash string) (*Variant, bool) {
	v := m.Variant(variant)
	if v == nil {
		return nil, m != nil && m.Failover
	}
	if v.Hash == hash {
		return v, m.Failover
	}
	if r, ok := m.Rollouts[variant]; ok && r.Old.Hash == hash {
		return &r.Old, r.Failover
	}
	return nil, m.Failover
}

// rolloutsAfter returns what is being rolled out once old has become m, nil where
// nothing is. The replicas are those of the model that count.
func (m *Model) rolloutsAfter(old *Model, replicas []*Replica, now time.Time) map[string]Rollout {
	var after map[string]Rollout
	for i := range m.Variants {
		v := &m.Variants[i]
		if r, ok := v.rolloutAfter(old, replicas, now); ok {
			if after == nil {
				after = map[string]Rollout{}
			}
			after[v.Name] = r
		}
	}
	return after
}

// rolloutAfter returns the rollout of v, its new definition, and whether there is one.
//
// What is replaced is the definition that is known to work: the current one, unless
// that was still on trial or has failed. To go back to a definition from which no
// replica was taken yet ends the rollout; to go back in the middle of one is a rollout
// as well, without a canary, because that definition has served before.
func (v *Variant) rolloutAfter(old *Model, replicas []*Replica, now time.Time) (Rollout, bool) {
	was := old.Variant(v.Name)
	if was == nil {
		return Rollout{}, false
	}
	current, ongoing := old.Rollouts[v.Name]
	if was.Hash == v.Hash {
		return current, ongoing
	}
	next := Rollout{Status: RolloutCanary, Old: *was, Failover: old.Failover, NewHash: v.Hash, Since: now}
	switch {
	case !ongoing:
	case current.Status != RolloutRolling:
		next.Old, next.Failover = current.Old, current.Failover
		if next.Old.Hash == v.Hash {
			return Rollout{}, false
		}
	case current.Old.Hash == v.Hash:
		next.Status = RolloutRolling
	}
	replaces := slices.ContainsFunc(replicas, func(r *Replica) bool {
		return r.Name.Variant == v.Name && r.VariantHash != v.Hash
	})
	return next, replaces
}

// rolloutSteps are the ways on from each status; the empty one is the end of every
// rollout. A new trial begins with another definition, and with UpsertModel.
var rolloutSteps = map[RolloutStatus][]RolloutStatus{
	RolloutCanary:     {RolloutRolling, RolloutRolledBack, ""},
	RolloutRolling:    {RolloutRolledBack, ""},
	RolloutRolledBack: {""},
}

// SetRollout says how far a rollout has come. It is refused where the rollout is over
// or is another one by now. The same status with another reason is no step and keeps
// its time.
type SetRollout struct {
	Model, Variant string
	// NewHash is the rollout's.
	NewHash string
	// Status, empty: it is finished, or needless, and is forgotten. Replicas are then
	// made from the current definition alone.
	Status RolloutStatus
	Reason string
}

func (c *SetRollout) apply(t *txn, planned uint64, now time.Time) *Error {
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	switch c.Status {
	case RolloutCanary, RolloutRolling, RolloutRolledBack, "":
	default:
		return badRequest(c.Model, "model %q: variant %q: rollout status is %q: must be canary, rolling, rolled_back or empty", c.Model, c.Variant, c.Status)
	}
	// The plan itself may have changed it, with another variant's rollout.
	if planned != 0 && old.ModifyIndex > planned && old.ModifyIndex != t.index {
		return conflict(c.Model, "model %q changed at index %d, after the plan was made at index %d", c.Model, old.ModifyIndex, planned)
	}
	r, ok := old.Rollouts[c.Variant]
	if !ok {
		return conflict(c.Model, "model %q: variant %q is not being rolled out", c.Model, c.Variant)
	}
	if r.NewHash != c.NewHash {
		return conflict(c.Model, "model %q: variant %q is being rolled out to %q, not to %q", c.Model, c.Variant, r.NewHash, c.NewHash)
	}
	switch {
	case r.Status == c.Status && r.Reason == c.Reason:
		return nil
	case r.Status == c.Status:
	case !slices.Contains(rolloutSteps[r.Status], c.Status):
		return conflict(c.Model, "model %q: variant %q: rollout status cannot change from %s to %q", c.Model, c.Variant, r.Status, c.Status)
	default:
		r.Status, r.Since = c.Status, now
	}
	r.Reason = c.Reason
	m := *old
	m.Rollouts = maps.Clone(old.Rollouts)
	m.Rollouts[c.Variant] = r
	if c.Status == "" {
		delete(m.Rollouts, c.Variant)
	}
	if len(m.Rollouts) == 0 {
		m.Rollouts = nil
	}
	m.ModifyIndex = t.index
	t.put(TableModels, &m)
	return nil
}
