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
// version. Model.Version, StableVersion, ScaledAt, Rollouts, Replacements, EvictedFor,
// Sleeps and Starts are the state's own and are ignored.
//
// A variant whose definition changes while replicas of another one serve begins a
// rollout. A variant that is gone takes its rollout with it, and its share becomes one of any
// variant; its replicas remain until the controller has replaced them.
type UpsertModel struct {
	Model Model
	// ModifyIndex is the model's index that the caller has read, 0 if the model does not exist.
	ModifyIndex uint64
	// Time is when it was asked for, and that of the rollouts it begins.
	Time time.Time
}

// Resolve implements Proposal: it returns a *WriteModels.
func (r *UpsertModel) Resolve(v *View) (Command, *Error) {
	if err := invalid(r.Model.Name, r.problems()...); err != nil {
		return nil, err
	}
	if err := r.checkIndex(v); err != nil {
		return nil, err
	}
	return writeModels(v, *r), nil
}

// problems returns the errors of the proposal itself. Some may be nil.
func (r *UpsertModel) problems() []error {
	return append(r.Model.problems(), checkTime("time", &r.Time))
}

func (r *UpsertModel) checkIndex(v *View) *Error {
	if v.Pipeline(nil, r.Model.Name) != nil {
		return pipelineHas(r.Model.Name)
	}
	return checkIndex("model", r.Model.Name, modifyIndex(v.Model(nil, r.Model.Name)), r.ModifyIndex)
}

// UpsertModels creates or changes several models, all or none. What is wrong is reported
// of every one of them: first of the models as they are, then of those that are not
// what the caller knows.
type UpsertModels struct {
	// Models, each name once.
	Models []UpsertModel
}

// Resolve implements Proposal: it returns a *WriteModels.
func (r *UpsertModels) Resolve(v *View) (Command, *Error) {
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
	seen := make(map[string]bool, len(r.Models))
	for i := range r.Models {
		name := r.Models[i].Model.Name
		for _, err := range r.Models[i].problems() {
			add(name, err)
		}
		if seen[name] {
			add(name, errors.New("duplicate model"))
		}
		seen[name] = true
	}
	if err := invalid(subject, errs...); err != nil {
		return nil, err
	}
	var rejected *Error
	for i := range r.Models {
		switch err := r.Models[i].checkIndex(v); {
		case err == nil:
		case rejected == nil:
			rejected = err
		default:
			rejected.Message += "\n" + err.Message
		}
	}
	if rejected != nil {
		return nil, rejected
	}
	return writeModels(v, r.Models...), nil
}

// writeModels returns the command that carries proposals out that are allowed.
func writeModels(v *View, of ...UpsertModel) *WriteModels {
	c := &WriteModels{}
	for i := range of {
		if w := of[i].write(v); w != nil {
			c.Models = append(c.Models, *w)
		}
	}
	return c
}

// write returns how the model is written, nil where nothing changes.
func (r *UpsertModel) write(v *View) *WriteModel {
	m := r.Model.definition()
	m.Stopped = r.Model.Stopped
	old := v.Model(nil, m.Name)
	switch {
	case old == nil:
		m.Version = v.Versions(nil, m.Name).next()
		m.StableVersion, m.Desired = m.Version, m.shares(m.Desired.cells())
	case old.Hash == m.Hash && old.Stopped == m.Stopped:
		return nil
	case old.Hash == m.Hash: // started or stopped
		m = *old
		m.Stopped = r.Model.Stopped
	default:
		m.follow(old, v.Versions(nil, m.Name), v.StayingOf(nil, m.Name), r.Time)
	}
	w := &WriteModel{
		Name: m.Name, Version: m.Version, StableVersion: m.StableVersion,
		Desired: m.Desired, Displaced: m.Displaced, Stopped: m.Stopped, ScaledAt: m.ScaledAt, Rollouts: m.Rollouts,
		Time: r.Time, ModifyIndex: modifyIndex(old),
	}
	if old == nil || old.Hash != m.Hash {
		definition := r.Model.definition()
		w.Definition = &definition
	}
	return w
}

// follow makes m, which is to take the place of old, a version of its own, and begins its
// rollouts. The versions and the replicas that count are those of old.
func (m *Model) follow(old *Model, vs Versions, counting []*Replica, at time.Time) {
	m.StableVersion = old.StableVersion
	if trial := slices.ContainsFunc(slices.Collect(maps.Values(old.Rollouts)), func(r Rollout) bool { return r.Status == RolloutCanary }); !trial {
		m.StableVersion = old.Version // its canaries have served, or it needed none
	}
	m.Version, m.ScaledAt = vs.next(), old.ScaledAt
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
	m.Rollouts = m.rolloutsAfter(old, vs.Get(old.StableVersion), counting, vs, at)
	if m.Rollouts == nil {
		m.StableVersion = m.Version
	}
}

// WriteModels writes models, all or none. What becomes of a model file is decided before; see
// UpsertModel.
type WriteModels struct {
	Models []WriteModel
}

// WriteModel is the row of a model as it is to be, without what the planner notes there.
type WriteModel struct {
	Name string
	// Definition is that of a new version with the number Version, nil: the model keeps the
	// version that it has.
	Definition             *Model `json:",omitempty"`
	Version, StableVersion int
	Desired                Shares             `json:",omitempty"`
	Displaced              Displaced          `json:",omitzero"`
	Stopped                bool               `json:",omitempty"`
	ScaledAt               time.Time          `json:",omitzero"`
	Rollouts               map[string]Rollout `json:",omitempty"`
	// Time is when a new version was applied.
	Time time.Time `json:",omitzero"`
	// ModifyIndex is that of the row that it was made from, 0: there was none.
	ModifyIndex uint64
}

// Type implements Command.
func (*WriteModels) Type() Type { return TypeWriteModels }

// Level implements the method that package raft asks for; see Level.
func (c *WriteModels) Level() int {
	for _, m := range c.Models {
		if d := m.Definition; d != nil && (d.PassAuthorization || d.Queue != Queue{} || d.SLO != SLO{} || d.Scaling != nil) {
			return levelKeys
		}
	}
	return 1
}

func (c *WriteModels) apply(t *txn) *Error {
	for i := range c.Models {
		if err := c.Models[i].apply(t); err != nil {
			return err
		}
	}
	return nil
}

func (c *WriteModel) apply(t *txn) *Error {
	if first[Pipeline](t.Txn, TablePipelines, byID, c.Name) != nil {
		return pipelineHas(c.Name)
	}
	old := first[Model](t.Txn, TableModels, byID, c.Name)
	if err := checkIndex("model", c.Name, modifyIndex(old), c.ModifyIndex); err != nil {
		return err
	}
	vs := t.versions(c.Name)
	var m Model
	switch {
	case c.Definition == nil && (old == nil || c.Version != old.Version):
		return badRequest(c.Name, "model %q: version %d has no definition", c.Name, c.Version)
	case c.Definition == nil:
		m = *old
	case c.Definition.Name != c.Name || c.Version < vs.next():
		return badRequest(c.Name, "model %q: version %d of model %q cannot follow %d versions", c.Name, c.Version, c.Definition.Name, len(vs))
	default:
		m = c.Definition.definition()
		if old != nil {
			m.Unplaceable, m.Replacements, m.EvictedFor = old.Unplaceable, old.Replacements, old.EvictedFor
			m.Sleeps, m.Starts = old.Sleeps, old.Starts
		}
	}
	m.Version, m.StableVersion, m.Rollouts = c.Version, c.StableVersion, c.Rollouts
	m.Desired, m.Displaced, m.Stopped, m.ScaledAt = c.Desired, c.Displaced, c.Stopped, c.ScaledAt
	if err := invalid(c.Name, append(m.problems(), m.rowProblems(vs, c)...)...); err != nil {
		return err
	}
	m.CreateIndex, m.ModifyIndex = t.index, t.index
	if old != nil {
		m.CreateIndex = old.CreateIndex
	}
	if c.Definition != nil {
		t.addVersion(&m, c)
	}
	t.put(TableModels, &m)
	return nil
}

// rowProblems returns what no row of a model can have. Some may be nil. The versions are those
// before.
func (m *Model) rowProblems(vs Versions, c *WriteModel) []error {
	errs := []error{checkTime("time", &c.Time), checkTime("scaled at", &m.ScaledAt)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if is := m.shares(m.Desired.cells()); !slices.Equal(is, m.Desired) {
		bad("desired is %s: must be in its one form, which is %s", m.Desired, is)
	}
	if !m.Displaced.within(m.Desired).equal(m.Displaced) {
		bad("displaced must be a part of desired, which is %s", m.Desired)
	}
	if m.StableVersion != m.Version && vs.Get(m.StableVersion) == nil {
		bad("stable version %d does not exist", m.StableVersion)
	}
	for _, variant := range sortedKeys(m.Rollouts) {
		r := m.Rollouts[variant]
		errs = append(errs, checkTime("rollout", &r.Since))
		m.Rollouts[variant] = r
		switch {
		case m.Variant(variant) == nil:
			bad("a rollout of variant %q, which does not exist", variant)
		case rolloutSteps[r.Status] == nil:
			bad("the rollout of variant %q is %q: must be canary, rolling or rolled_back", variant, r.Status)
		case r.Ongoing() && (r.Version != m.Version || m.StableVersion == m.Version):
			bad("the rollout of variant %q is of version %d, from version %d: must be of version %d, from another one", variant, r.Version, m.StableVersion, m.Version)
		}
	}
	return errs
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
	if q := m.Queue; q.Length < 0 || q.Wait < 0 || q.FirstByte < 0 {
		bad("queue length is %d, wait is %s and first byte is %s: must not be negative", q.Length, q.Wait, q.FirstByte)
	}
	if m.SLO.TTFT < 0 || m.SLO.ITL < 0 {
		bad("ttft_p95 is %s and itl_p95 is %s: must not be negative", m.SLO.TTFT, m.SLO.ITL)
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
		if v.SharedMemory < 0 || v.SharedMemory > v.Memory {
			bad("variant %q: shared memory is %d: must be 0 to %d, the variant's memory", v.Name, v.SharedMemory, v.Memory)
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
