package state

import (
	"fmt"
	"time"
)

// Replacements remember how often replicas of a model were replaced because they failed their
// requests, so that the planner waits longer after each of them.
type Replacements struct {
	// InARow is how many were replaced, each soon after the one before; Last is when the
	// last one was.
	InARow int
	Last   time.Time
}

// SetReplacements writes a model's Replacements. It is a part of a plan.
type SetReplacements struct {
	Model string
	Replacements
}

func (c *SetReplacements) apply(t *txn) *Error {
	errs := []error{checkTime("time of the last replacement", &c.Last)}
	if c.InARow < 0 {
		errs = append(errs, fmt.Errorf("replacements in a row is %d: must not be negative", c.InARow))
	}
	if err := invalid(c.Model, errs...); err != nil {
		return err
	}
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	m := *old
	m.Replacements, m.ModifyIndex = c.Replacements, t.index
	t.put(TableModels, &m)
	return nil
}
