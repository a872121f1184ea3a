package state

// Rescale is a change of a model's numbers by the planner itself: it prunes what is
// idle, evicts, or follows the demand. Where people scale, it is SetScale.
type Rescale struct {
	Model string
	// ModifyIndex is the model's as the plan knows it.
	ModifyIndex uint64
	// Replicas is the new total, within the model's bounds; Spread the new numbers of
	// variants, see Model.Spread.
	Replicas int
	Spread   map[string]int `json:",omitempty"`
}

func (c *Rescale) apply(t *txn) *Error {
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	// The plan itself may have changed it, with a rollout.
	if old.ModifyIndex != t.index {
		if err := compare("model", c.Model, old.ModifyIndex, c.ModifyIndex); err != nil {
			return err
		}
	}
	if c.Replicas < old.Min || c.Replicas > old.Max {
		return badRequest(c.Model, "model %q: replicas is %d: must be %d to %d, the model's min and max", c.Model, c.Replicas, old.Min, old.Max)
	}
	m := *old
	m.Replicas, m.Spread = c.Replicas, c.Spread
	m.bound()
	if m.sameScale(old) {
		return nil
	}
	if old.Management == ManagementDisabled {
		return refuse(CodeForbidden, c.Model, "model %q: scaling is disabled (management = \"disabled\" in the model file)", c.Model)
	}
	if n := min(dedicatedSet(t.Txn).number(c.Model), old.Replicas, old.Max); m.Replicas < n {
		return conflict(c.Model, "model %q is dedicated with %d replicas: cannot scale to %d", c.Model, n, m.Replicas)
	}
	m.ModifyIndex = t.index
	t.put(TableModels, &m)
	return nil
}

// number returns how many replicas the set, which may be nil, wants of a model.
func (d *Dedicated) number(model string) int {
	if d == nil {
		return 0
	}
	return d.Models[model]
}
