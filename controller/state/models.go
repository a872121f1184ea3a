package state

import (
	"errors"
	"fmt"
	"strings"
)

// UpsertModel creates or changes a model. The scale of a model that exists is kept,
// within its new bounds; a stopped one is started unless Model.Stopped says so again.
// The same Hash and Stopped as before change nothing.
type UpsertModel struct {
	Model Model
	// ModifyIndex is the model's as the caller knows it, 0: it does not exist.
	ModifyIndex uint64
}

// Type implements Command.
func (*UpsertModel) Type() Type { return TypeUpsertModel }

func (c *UpsertModel) apply(t *txn) *Error {
	m := c.Model
	if err := m.validate(); err != nil {
		return err
	}
	old := first[Model](t.Txn, TableModels, byID, m.Name)
	if err := compare("model", m.Name, modifyIndex(old), c.ModifyIndex); err != nil {
		return err
	}
	m.CreateIndex, m.ModifyIndex = t.index, t.index
	if old != nil {
		if old.Hash == m.Hash && old.Stopped == m.Stopped {
			return nil
		}
		m.CreateIndex, m.Replicas = old.CreateIndex, old.Replicas
	}
	m.Replicas = min(max(m.Replicas, m.Min), m.Max)
	t.put(TableModels, &m)
	return nil
}

func modifyIndex(m *Model) uint64 {
	if m == nil {
		return 0
	}
	return m.ModifyIndex
}

// compare is the compare of compare-and-set: have is the ModifyIndex in the state, 0
// where there is none, want the caller's.
func compare(what, name string, have, want uint64) *Error {
	switch {
	case have == want:
		return nil
	case have == 0:
		return notFound(name, "%s %q does not exist", what, name)
	case want == 0:
		return conflict(name, "%s %q exists already", what, name)
	}
	return conflict(name, "%s %q has changed: its index is %d, not %d", what, name, have, want)
}

// validate finds all that is wrong.
func (m *Model) validate() *Error {
	errs := []error{checkName("model name", m.Name)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Min < 0 || m.Max < m.Min {
		bad("min is %d and max %d: want 0 <= min <= max", m.Min, m.Max)
	}
	if m.Priority < 0 || m.Priority > 100 {
		bad("priority is %d: want 0 to 100", m.Priority)
	}
	switch m.Management {
	case ManagementDisabled, ManagementManual, ManagementUpscaling, ManagementFull:
	default:
		bad("management is %q: want disabled, manual, upscaling or full", m.Management)
	}
	if m.IdleWarm < 0 || m.IdleCold < 0 {
		bad("idle times are %s and %s: want none below 0", m.IdleWarm, m.IdleCold)
	}
	if m.Hash == "" {
		bad("hash is empty")
	}
	if len(m.Variants) == 0 {
		bad("there is no variant")
	}
	seen := make(map[string]bool, len(m.Variants))
	for i := range m.Variants {
		v := &m.Variants[i]
		if err := checkName("variant name", v.Name); err != nil {
			errs = append(errs, err)
		}
		if strings.Contains(v.Name, ":") {
			bad("variant name %q holds a ':'", v.Name)
		}
		if seen[v.Name] {
			bad("variant %q is there twice", v.Name)
		}
		seen[v.Name] = true
		if v.GPUs < 1 {
			bad("variant %q: gpus is %d: want at least 1", v.Name, v.GPUs)
		}
		if v.Memory < 0 || v.HostMemory < 0 {
			bad("variant %q: memory is %d and host memory %d: want none below 0", v.Name, v.Memory, v.HostMemory)
		}
		if v.Cost < 0 || v.Slots < 0 {
			bad("variant %q: cost is %g and slots %d: want none below 0", v.Name, v.Cost, v.Slots)
		}
		if v.Hash == "" {
			bad("variant %q: hash is empty", v.Name)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return badRequest(m.Name, "%v", err)
	}
	return nil
}

// variant returns the variant of that name, nil where there is none.
func (m *Model) variant(name string) *Variant {
	for i := range m.Variants {
		if m.Variants[i].Name == name {
			return &m.Variants[i]
		}
	}
	return nil
}

// DeleteModel forgets a model. It is refused while the model has replicas.
type DeleteModel struct {
	Model string
	// ModifyIndex is the model's as the caller knows it, 0: whatever it is.
	ModifyIndex uint64
}

// Type implements Command.
func (*DeleteModel) Type() Type { return TypeDeleteModel }

func (c *DeleteModel) apply(t *txn) *Error {
	m := first[Model](t.Txn, TableModels, byID, c.Model)
	if m == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	if c.ModifyIndex != 0 {
		if err := compare("model", c.Model, m.ModifyIndex, c.ModifyIndex); err != nil {
			return err
		}
	}
	if rs, _ := each[Replica](t.Txn, TableReplicas, byModel, c.Model); len(rs) > 0 {
		return conflict(c.Model, "model %q still has %d replicas: stop it first", c.Model, len(rs))
	}
	t.remove(TableModels, m)
	return nil
}

// Origin says who asks for a scale. A model's management mode may refuse it.
type Origin string

// The origins.
const (
	OriginOperator   Origin = "operator"
	OriginAutoscaler Origin = "autoscaler"
)

// SetScale changes how many replicas a model should have, or stops or starts it.
type SetScale struct {
	Model string
	// Replicas is within the model's bounds; nil: as it is.
	Replicas *int
	// Stopped, nil: as it is.
	Stopped *bool
	Origin  Origin
	// ModifyIndex is the model's as the caller knows it, 0: whatever it is.
	ModifyIndex uint64
}

// Type implements Command.
func (*SetScale) Type() Type { return TypeSetScale }

func (c *SetScale) apply(t *txn) *Error {
	if c.Origin != OriginOperator && c.Origin != OriginAutoscaler {
		return badRequest(c.Model, "origin is %q: want operator or autoscaler", c.Origin)
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
	m := *old
	if c.Replicas != nil {
		m.Replicas = *c.Replicas
		if m.Replicas < m.Min || m.Replicas > m.Max {
			return badRequest(c.Model, "model %q: %d replicas are outside its bounds, %d to %d", c.Model, m.Replicas, m.Min, m.Max)
		}
	}
	if c.Stopped != nil {
		m.Stopped = *c.Stopped
	}
	if m.Replicas == old.Replicas && m.Stopped == old.Stopped {
		return nil
	}
	if why := m.mayScale(c.Origin, old); why != "" {
		return refuse(CodeForbidden, c.Model, "model %q: %s", c.Model, why)
	}
	m.ModifyIndex = t.index
	t.put(TableModels, &m)
	return nil
}

// mayScale returns why origin may not change old into m, empty where it may. Stopping
// is for people, and always possible for them.
func (m *Model) mayScale(origin Origin, old *Model) string {
	switch {
	case origin == OriginOperator && m.Replicas == old.Replicas:
		return ""
	case old.Management == ManagementDisabled:
		return "its management is disabled: nobody changes its scale"
	case origin == OriginOperator:
		return ""
	case m.Stopped != old.Stopped:
		return "only an operator stops or starts it"
	case old.Management == ManagementManual:
		return "its management is manual: the autoscaler does not change its scale"
	case old.Management == ManagementUpscaling && m.Replicas < old.Replicas:
		return "its management is upscaling: the autoscaler does not scale it down"
	}
	return ""
}
