package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// UpsertModel creates or changes a model. The scale of a model that exists is kept, unless the
// number of replicas in its file has changed. A stopped model is started unless Model.Stopped is
// set. The same Hash and Stopped as before change nothing; another Hash is a new
// version. Model.Version, StableVersion, ScaledAt, Rollouts, Replacements, EvictedFor and
// NoSleep are the state's own and are ignored.
//
// A variant whose definition changes while replicas of another one serve begins a
// rollout. A variant that is gone takes its rollout with it, and its share becomes one of any
// variant; its replicas remain until the controller has replaced them.
type UpsertModel struct {
	Model Model
	// ModifyIndex is the model's index that the caller has read, 0 if the model does not exist.
	ModifyIndex uint64
	// Time is when it was asked for, and that of the rollouts it begins.
	Time time.Time `json:",omitzero"`
}

// Type implements Command.
func (*UpsertModel) Type() Type { return TypeUpsertModel }

func (c *UpsertModel) apply(t *txn) *Error {
	if err := invalid(c.Model.Name, c.problems()...); err != nil {
		return err
	}
	if err := c.checkIndex(t); err != nil {
		return err
	}
	c.write(t)
	return nil
}

// problems returns the errors of the command itself. Some may be nil.
func (c *UpsertModel) problems() []error {
	return append(c.Model.problems(), checkTime("time", &c.Time))
}

func (c *UpsertModel) checkIndex(t *txn) *Error {
	if err := t.pipelineHas(c.Model.Name); err != nil {
		return err
	}
	return checkIndex("model", c.Model.Name, modifyIndex(first[Model](t.Txn, TableModels, byID, c.Model.Name)), c.ModifyIndex)
}

func (c *UpsertModel) write(t *txn) {
	m := c.Model.definition()
	m.Stopped, m.CreateIndex, m.ModifyIndex = c.Model.Stopped, t.index, t.index
	old := first[Model](t.Txn, TableModels, byID, m.Name)
	switch {
	case old == nil:
		t.addVersion(&m, c.Time)
		m.StableVersion, m.Desired = m.Version, m.shares(m.Desired.cells())
	case old.Hash == m.Hash && old.Stopped == m.Stopped:
		return
	case old.Hash == m.Hash: // started or stopped
		m = *old
		m.Stopped, m.ModifyIndex = c.Model.Stopped, t.index
	default:
		t.newVersion(&m, old, c.Time)
	}
	t.put(TableModels, &m)
}

// newVersion makes m, which is to take the place of old, a version of its own, and begins
// its rollouts.
func (t *txn) newVersion(m, old *Model, at time.Time) {
	m.StableVersion = old.StableVersion
	if trial := slices.ContainsFunc(slices.Collect(maps.Values(old.Rollouts)), func(r Rollout) bool { return r.Status == RolloutCanary }); !trial {
		m.StableVersion = old.Version // its canaries have served, or it needed none
	}
	t.addVersion(m, at)
	m.CreateIndex, m.ScaledAt, m.Replacements, m.EvictedFor, m.NoSleep = old.CreateIndex, old.ScaledAt, old.Replacements, old.EvictedFor, old.NoSleep
	file := m.Desired.Total()
	m.Desired = m.shares(old.Desired.cells())
	m.Displaced = old.Displaced.within(m.Desired)
	if m.Rescales(old) {
		m.Displaced = Displaced{}
		m.Desired = m.withTotal(file)
		if m.wants() < old.wants() {
			m.ScaledAt = at
		}
	}
	vs := t.versions(m.Name)
	m.Rollouts = m.rolloutsAfter(old, vs.Get(old.StableVersion), countedReplicas(t, m.Name), vs, at)
	if m.Rollouts == nil {
		m.StableVersion = m.Version
	}
}

// UpsertModels creates or changes several models, all or none. It reports the errors of every
// model: first those of the definitions, then those of the index checks.
type UpsertModels struct {
	// Models, each name once.
	Models []UpsertModel
}

// Type implements Command.
func (*UpsertModels) Type() Type { return TypeUpsertModels }

func (c *UpsertModels) apply(t *txn) *Error {
	var errs []error
	subject := ""
	add := func(name string, err error) {
		if err == nil {
			return
		}
		if errs == nil {
			subject = name
		}
		errs = append(errs, fmt.Errorf("model %q: %w", name, err))
	}
	seen := make(map[string]bool, len(c.Models))
	for i := range c.Models {
		name := c.Models[i].Model.Name
		for _, err := range c.Models[i].problems() {
			add(name, err)
		}
		if seen[name] {
			add(name, errors.New("duplicate model"))
		}
		seen[name] = true
	}
	if err := invalid(subject, errs...); err != nil {
		return err
	}
	var rejected *Error
	for i := range c.Models {
		switch err := c.Models[i].checkIndex(t); {
		case err == nil:
		case rejected == nil:
			rejected = err
		default:
			rejected.Message += "\n" + err.Message
		}
	}
	if rejected != nil {
		return rejected
	}
	for i := range c.Models {
		c.Models[i].write(t)
	}
	return nil
}

func modifyIndex(m *Model) uint64 {
	if m == nil {
		return 0
	}
	return m.ModifyIndex
}

// checkIndex is the comparison of compare-and-set. It rejects a command unless have, the
// ModifyIndex in the state (0 if there is no row), equals want, the caller's.
func checkIndex(what, name string, have, want uint64) *Error {
	switch {
	case have == want:
		return nil
	case have == 0:
		return notFound(name, "%s %q does not exist", what, name)
	case want == 0:
		return conflict(name, "%s %q already exists", what, name)
	}
	return conflict(name, "%s %q has changed since it was read: its index is %d, not %d", what, name, have, want)
}

// checkIndexIf is checkIndex if the caller has an index.
func checkIndexIf(what, name string, have uint64, want *uint64) *Error {
	if want == nil {
		return nil
	}
	return checkIndex(what, name, have, *want)
}

// problems returns the errors of the model. Some may be nil.
func (m *Model) problems() []error {
	errs := []error{checkName("model name", m.Name)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Min < 0 || m.Max < m.Min {
		bad("min is %d and max is %d: must satisfy 0 <= min <= max", m.Min, m.Max)
	}
	if m.Priority < 0 || m.Priority > 100 {
		bad("priority is %d: must be 0 to 100", m.Priority)
	}
	switch m.Management {
	case ManagementDisabled, ManagementManual, ManagementUpscaling, ManagementFull:
	default:
		bad("management is %q: must be disabled, manual, upscaling or full", m.Management)
	}
	if m.IdleWarm < 0 || m.IdleCold < 0 {
		bad("idle times are %s and %s: must not be negative", m.IdleWarm, m.IdleCold)
	}
	if m.KeepWarm < 0 || m.KeepWarm > m.Max {
		bad("keep_warm is %d: must be 0 to %d, the model's max", m.KeepWarm, m.Max)
	}
	errs = append(errs, m.Update.problems()...)
	if m.Hash == "" {
		bad("hash is empty")
	}
	if len(m.Variants) == 0 {
		bad("no variants: at least one is required")
	}
	seen := make(map[string]bool, len(m.Variants))
	for i := range m.Variants {
		v := &m.Variants[i]
		if err := checkName("variant name", v.Name); err != nil {
			errs = append(errs, err)
		}
		if strings.Contains(v.Name, ":") {
			bad("variant name %q contains a ':'", v.Name)
		}
		if seen[v.Name] {
			bad("duplicate variant %q", v.Name)
		}
		seen[v.Name] = true
		if v.GPUs < 1 {
			bad("variant %q: gpus is %d: must be at least 1", v.Name, v.GPUs)
		}
		if v.Memory < 0 || v.HostMemory < 0 {
			bad("variant %q: memory is %d and host memory is %d: must not be negative", v.Name, v.Memory, v.HostMemory)
		}
		if v.Weights < 0 {
			bad("variant %q: weights is %d bytes: must not be negative", v.Name, v.Weights)
		}
		if v.SleepMemory < 0 || v.SleepMemory > v.Memory {
			bad("variant %q: sleep memory is %d: must be 0 to %d, the variant's memory", v.Name, v.SleepMemory, v.Memory)
		}
		if v.Reach != 0 && (v.Reach < v.GPUs || v.Reach > maxReach) {
			bad("variant %q: reach is %d GPUs: must be 0, or %d (the variant's GPUs) to %d", v.Name, v.Reach, v.GPUs, maxReach)
		}
		if v.Cost < 0 || v.Slots < 0 {
			bad("variant %q: cost is %g and slots is %d: must not be negative", v.Name, v.Cost, v.Slots)
		}
		if v.Hash == "" {
			bad("variant %q: hash is empty", v.Name)
		}
	}
	return append(errs, m.shareErrors("desired", m.Desired)...)
}

// maxReach is on how many GPUs an engine has seats at most: more are in no node's clique.
const maxReach = 16

// Variant returns the current definition of the variant of that name, nil where there
// is none. The model may be nil.
func (m *Model) Variant(name string) *Variant {
	if m == nil {
		return nil
	}
	for i := range m.Variants {
		if m.Variants[i].Name == name {
			return &m.Variants[i]
		}
	}
	return nil
}

// DeleteModel forgets a model, and where its weights are: its COLD replicas. It is
// rejected while it has others. The model is removed from the dedicated set.
type DeleteModel struct {
	Model string
	// ModifyIndex is the model's as the caller knows it; nil: any.
	ModifyIndex *uint64 `json:",omitempty"`
}

// Type implements Command.
func (*DeleteModel) Type() Type { return TypeDeleteModel }

func (c *DeleteModel) apply(t *txn) *Error {
	m := first[Model](t.Txn, TableModels, byID, c.Model)
	if m == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	if err := checkIndexIf("model", c.Model, m.ModifyIndex, c.ModifyIndex); err != nil {
		return err
	}
	rs, _ := each[Replica](t.Txn, TableReplicas, byModel, c.Model)
	left := 0
	for _, r := range rs {
		if r.Status == StatusCold {
			t.remove(TableReplicas, r)
		} else {
			left++
		}
	}
	if left > 0 {
		return conflict(c.Model, "model %q still has %d replicas: stop the model first", c.Model, left)
	}
	t.undedicate(c.Model)
	for _, v := range t.versions(c.Model) {
		t.remove(TableVersions, v)
	}
	t.remove(TableModels, m)
	return nil
}
