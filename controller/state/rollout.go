package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// rolloutSteps are the ways on from each status; the empty one is the end of every
// rollout. A new trial begins with another definition, and with UpsertModel.
var rolloutSteps = map[RolloutStatus][]RolloutStatus{
	RolloutCanary:     {RolloutRolling, RolloutRolledBack, ""},
	RolloutRolling:    {RolloutRolledBack, ""},
	RolloutRolledBack: {""},
}

// Update is how a rollout replaces the replicas of a model.
type Update struct {
	// Surge is how many replicas beyond its number the model may have meanwhile. With 0 a
	// replica goes before its successor is placed.
	Surge int
	// MinAvailable is how many of the model's replicas a rollout leaves serving, nil: all of
	// them, and all but one if Surge is 0.
	MinAvailable *Amount `json:",omitempty"`
}

// Amount is a number, or a percentage of one.
type Amount struct {
	Number  int
	Percent bool `json:",omitempty"`
}

// Of returns the amount, where 100 percent are n. Fractions are rounded up.
func (a Amount) Of(n int) int {
	if a.Percent {
		return (n*a.Number + 99) / 100
	}
	return a.Number
}

// String returns the amount as a model file has it, without quotes.
func (a Amount) String() string {
	if a.Percent {
		return strconv.Itoa(a.Number) + "%"
	}
	return strconv.Itoa(a.Number)
}

// defaultSurge: GPUs are dear, so a rollout is slow and small.
const defaultSurge = 1

// Surge returns how many replicas beyond its number the model may have during a rollout.
func (m *Model) Surge() int {
	if m.Update == nil {
		return defaultSurge
	}
	return m.Update.Surge
}

// MinAvailable returns how many of target replicas a rollout leaves serving.
func (m *Model) MinAvailable(target int) int {
	switch {
	case m.Update != nil && m.Update.MinAvailable != nil:
		return m.Update.MinAvailable.Of(target)
	case m.Surge() == 0:
		return max(target-1, 0)
	}
	return target
}

// problems returns the errors of the update stanza; u may be nil.
func (u *Update) problems() []error {
	if u == nil {
		return nil
	}
	var errs []error
	if u.Surge < 0 {
		errs = append(errs, fmt.Errorf("update: surge is %d: must be 0 or more", u.Surge))
	}
	if a := u.MinAvailable; a != nil && (a.Number < 0 || a.Percent && a.Number > 100) {
		errs = append(errs, fmt.Errorf("update: min_available is %s: must be 0 or more, and at most 100%%", a))
	}
	return errs
}

// SetRollout sets the status of a rollout. It is rejected if the rollout is over or another one
// has replaced it. The same status with another reason keeps the time of the status.
type SetRollout struct {
	Model, Variant string
	// Version is the rollout's.
	Version int
	// Status is empty if the rollout is finished or no longer needed: its entry is removed. With
	// RolloutRolledBack the model returns to its stable version, with all variants.
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
	if r.Version != c.Version {
		return conflict(c.Model, "model %q: the rollout of variant %q is of version %d, not %d", c.Model, c.Variant, r.Version, c.Version)
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
	m, err := old.WithRollout(c.Variant, r, t.versions(c.Model))
	if err != nil {
		return conflict(c.Model, "%v", err)
	}
	m.ModifyIndex = t.index
	t.put(TableModels, m)
	return nil
}

// WithRollout returns m with a step of a variant's rollout; versions are those of m. With
// RolloutRolledBack it is m with the definition of its stable version.
func (m *Model) WithRollout(variant string, r Rollout, versions Versions) (*Model, error) {
	next := *m
	next.Rollouts = maps.Clone(m.Rollouts)
	next.Rollouts[variant] = r
	switch r.Status {
	case "":
		delete(next.Rollouts, variant)
	case RolloutRolledBack:
		stable := versions.Get(m.StableVersion)
		if stable == nil {
			return nil, fmt.Errorf("model %q cannot return to version %d, which does not exist", m.Name, m.StableVersion)
		}
		next.Rollouts = map[string]Rollout{variant: r}
		return next.defined(stable), nil
	}
	ongoing := false
	for _, r := range next.Rollouts {
		ongoing = ongoing || r.Ongoing()
	}
	if !ongoing {
		next.StableVersion = next.Version
	}
	if len(next.Rollouts) == 0 {
		next.Rollouts = nil
	}
	return &next, nil
}
