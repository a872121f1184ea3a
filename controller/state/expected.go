package state

import "maps"

// SetExpected says how many of a model's replicas are expected in an external capacity
// pool. They are a part of the model's total, which is raised where it is too small.
//
// It is refused where the total would be above the model's maximum, and where its
// management is disabled. Whether there is such a pool is not known here: pools are in
// the config of the agents.
type SetExpected struct {
	Model, Pool string
	// Replicas, 0: none is expected there.
	Replicas int
	// ModifyIndex is the model's as the caller knows it, 0: whatever it is.
	ModifyIndex uint64
}

// Type implements Command.
func (*SetExpected) Type() Type { return TypeSetExpected }

func (c *SetExpected) apply(t *txn) *Error {
	if err := faults(c.Model, checkName("pool", c.Pool)); err != nil {
		return err
	}
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	if c.ModifyIndex != 0 {
		if err := compare("model", c.Model, old.ModifyIndex, c.ModifyIndex); err != nil {
			return err
		}
	}
	if c.Replicas < 0 || c.Replicas > old.Max {
		return badRequest(c.Model, "model %q: %d replicas in pool %q: must be 0 to %d, the model's max", c.Model, c.Replicas, c.Pool, old.Max)
	}
	m := *old
	m.Expected = maps.Clone(old.Expected)
	if m.Expected == nil {
		m.Expected = map[string]int{}
	}
	m.Expected[c.Pool] = c.Replicas
	total := m.expected()
	if total > m.Max {
		return badRequest(c.Model, "model %q: %d replicas in pool %q would make %d in all pools: must be at most %d, the model's max", c.Model, c.Replicas, c.Pool, total, m.Max)
	}
	m.Replicas = max(m.Replicas, total)
	m.bound()
	if m.sameScale(old) {
		return nil
	}
	if old.Management == ManagementDisabled {
		return refuse(CodeForbidden, c.Model, "model %q: scaling is disabled (management = \"disabled\" in the model file)", c.Model)
	}
	m.ModifyIndex = t.index
	t.put(TableModels, &m)
	return nil
}

// expected returns how many replicas are expected in all external pools together.
func (m *Model) expected() int {
	total := 0
	for _, n := range m.Expected {
		total += n
	}
	return total
}
