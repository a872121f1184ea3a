package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Origin is the kind of client that requests a scale. A model's management mode may reject it.
type Origin string

// The origins.
const (
	OriginOperator   Origin = "operator"
	OriginAutoscaler Origin = "autoscaler"
)

// ScaleRequest requests another scale of a model. Resolve computes the complete scale from it.
// Replicas is the total, or with a Pool the number in that pool; Variants has the numbers of
// some variants. At most one of Replicas and Variants is set.
type ScaleRequest struct {
	Model string
	// Replicas of the model. The numbers of variants are dropped, and external pools keep theirs
	// as far as there are enough.
	Replicas *int
	// Pool is the capacity pool that Replicas is about, empty for all pools. The replicas of an
	// external pool are taken from the controller's own pool as far as it has them, and return to it.
	Pool string
	// Variants has the new numbers of some variants, in all pools together. Other variants keep
	// their numbers.
	Variants map[string]int
	// Stopped is nil to leave it unchanged.
	Stopped *bool
	Origin  Origin
	// ModifyIndex is the model's index that the caller has read, nil for any.
	ModifyIndex *uint64
	// Time is when it was decided, see Model.ScaledAt.
	Time time.Time
}

// Resolve implements Proposal. It returns a *Scale. The request is rejected if the model's
// management, a switch or its bounds do not allow it; see mayScale.
func (r *ScaleRequest) Resolve(v *View) (Command, *Error) {
	c, err := r.resolve(v)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (r *ScaleRequest) resolve(v *View) (*Scale, *Error) {
	old := v.Model(nil, r.Model)
	if old == nil {
		return nil, notFound(r.Model, "model %q does not exist", r.Model)
	}
	if err := checkIndexIf("model", old.Name, old.ModifyIndex, r.ModifyIndex); err != nil {
		return nil, err
	}
	if err := r.check(old); err != nil {
		return nil, err
	}
	replicas, m := v.StayingOf(nil, old.Name), *old
	switch {
	case r.Variants != nil:
		m.Desired = old.withVariants(r.Variants, replicas)
		m.Displaced = old.Displaced.without(func(s Share) bool { _, named := r.Variants[s.Variant]; return named })
	case r.Pool != "":
		m.Desired = old.withPool(r.Pool, *r.Replicas)
		m.Displaced = old.Displaced.without(func(s Share) bool { return s.Pool == r.Pool })
	case r.Replicas != nil:
		m.Desired, m.Displaced = old.withTotal(*r.Replicas), Displaced{}
	}
	m.Displaced = m.Displaced.within(m.Desired)
	if r.Stopped != nil {
		m.Stopped = *r.Stopped
	}
	if !m.sameScale(old) {
		if err := m.mayScale(old, r.Origin, v.Limits(nil)(m.Name), replicas); err != nil {
			return nil, err
		}
	}
	if r.Origin == OriginOperator && m.wants() < old.wants() {
		m.ScaledAt = r.Time
	}
	return ScaleOf(&m), nil
}

// ScaleOf returns the command that gives a model the scale that m, which was made from the
// model's row, has.
func ScaleOf(m *Model) *Scale {
	return &Scale{Model: m.Name, Desired: m.Desired, Displaced: m.Displaced, Stopped: m.Stopped, ScaledAt: m.ScaledAt, ModifyIndex: m.ModifyIndex}
}

// check rejects numbers that no scale of the model can have.
func (r *ScaleRequest) check(m *Model) *Error {
	var unknown, bad []string
	check := func(n int, of string) {
		if n < 0 || n > m.Max {
			bad = append(bad, fmt.Sprintf("%d replicas%s: must be 0 to %d, the model's max", n, of, m.Max))
		}
	}
	for _, name := range sortedKeys(r.Variants) {
		if m.Variant(name) == nil {
			unknown = append(unknown, strconv.Quote(name))
		}
		check(r.Variants[name], fmt.Sprintf(" of variant %q", name))
	}
	if r.Replicas != nil && r.Pool != "" {
		check(*r.Replicas, fmt.Sprintf(" in pool %q", r.Pool))
	} else if r.Replicas != nil {
		check(*r.Replicas, "")
	}
	switch {
	case len(unknown) > 0:
		return notFound(m.Name, "model %q has no variant %s: its variants are %s", m.Name, strings.Join(unknown, ", "), m.variantNames())
	case len(bad) > 0:
		return badRequest(m.Name, "model %q: %s", m.Name, strings.Join(bad, "; "))
	case r.Variants != nil && (r.Replicas != nil || r.Pool != ""):
		return badRequest(m.Name, "model %q: numbers of variants are set together with a number of the model or of a pool: set one of them", m.Name)
	case r.Variants != nil && len(r.Variants) == 0:
		return badRequest(m.Name, "model %q: no variants are set: set at least one of %s", m.Name, m.variantNames())
	case r.Pool != "" && r.Replicas == nil:
		return badRequest(m.Name, "model %q: pool %q is set without a number of replicas", m.Name, r.Pool)
	case r.Origin != OriginOperator && r.Origin != OriginAutoscaler:
		return badRequest(m.Name, "model %q: origin is %q: must be %s or %s", m.Name, r.Origin, OriginOperator, OriginAutoscaler)
	}
	return nil
}

// Scale changes how many replicas a model should have, or stops or starts it. It is the only
// command that does, but for a model file. The planner and evictions displace replicas by it,
// and the planner lets them come back. Who may scale what is decided before; see
// ScaleRequest.
type Scale struct {
	Model string
	// Desired, Displaced and Stopped are the whole scale, ScaledAt as of Model.
	Desired   Shares
	Displaced Displaced `json:",omitzero"`
	Stopped   bool      `json:",omitempty"`
	ScaledAt  time.Time `json:",omitzero"`
	// ModifyIndex is that of the model from which they were made.
	ModifyIndex uint64
}

// Type implements Command.
func (*Scale) Type() Type { return TypeScale }

func (c *Scale) apply(t *txn) *Error {
	old := first[Model](t.Txn, TableModels, byID, c.Model)
	if old == nil {
		return notFound(c.Model, "model %q does not exist", c.Model)
	}
	errs := append(old.shareErrors("desired", c.Desired), checkTime("scaled at", &c.ScaledAt))
	if within := c.Displaced.within(old.shares(c.Desired.cells())); !within.equal(c.Displaced) {
		errs = append(errs, fmt.Errorf("displaced is %s until there is room and %s until clients wait: must be a part of desired, which is %s", c.Displaced.UntilRoom, c.Displaced.UntilAsked, c.Desired))
	}
	if err := invalid(c.Model, errs...); err != nil {
		return err
	}
	// The plan that it is a part of may have changed the model, with a rollout.
	if old.ModifyIndex != t.index {
		if err := checkIndex("model", c.Model, old.ModifyIndex, c.ModifyIndex); err != nil {
			return err
		}
	}
	m := *old
	m.Desired, m.Displaced, m.Stopped = old.shares(c.Desired.cells()), c.Displaced, c.Stopped
	if m.sameScale(old) {
		return nil
	}
	m.ScaledAt, m.ModifyIndex = c.ScaledAt, t.index
	t.put(TableModels, &m)
	return nil
}

// mayScale returns why origin may not change the scale of old to that of m. All rules of who
// may scale what are here. The replicas are those of the model that count.
func (m *Model) mayScale(old *Model, origin Origin, l Limits, replicas []*Replica) *Error {
	before := old.Active()
	is, was := m.Active().Total(), before.Total()
	no := func(format string, args ...any) *Error {
		return reject(CodeForbidden, m.Name, "model %q: "+format, append([]any{m.Name}, args...)...)
	}
	// Stopping is for people, and always possible for them.
	rescaled := !slices.Equal(m.Desired, old.Desired) || !m.Displaced.equal(old.Displaced)
	if all := m.Desired.Total(); all != old.Desired.Total() && (all < m.Min || all > m.Max) {
		return badRequest(m.Name, "model %q: replicas is %d (%s): must be %d to %d, the model's min and max", m.Name, all, m.Desired, m.Min, m.Max)
	}
	if rescaled && m.Management == ManagementDisabled {
		return no("scaling is disabled (management = \"disabled\" in the model file)")
	}
	if m.Stopped != old.Stopped && origin != OriginOperator {
		return no("only an operator can stop or start the model")
	}
	if origin != OriginAutoscaler {
		return nil
	}
	switch {
	case m.Management == ManagementManual:
		return no("the autoscaler cannot scale it (management = \"manual\" in the model file)")
	case l.ScalingDisabled:
		return no("switch %s is set: only an operator can scale it", SwitchDisableScaling)
	case l.Cap != nil && is > max(*l.Cap, was):
		return no("switch %s is %d: the autoscaler cannot scale it to %d", SwitchCapMaxReplicas, *l.Cap, is)
	case is == 0 && was > 0 && l.KeepLast:
		return no("switch %s is %s: only an operator can scale it to 0", SwitchScaleToZeroDelay, switchNever)
	}
	for _, pool := range old.Desired.External() {
		if n := old.Desired.In(pool); m.Desired.In(pool) < n {
			return no("%s in pool %q: only an operator can scale below that", replicaCount(n), pool)
		}
	}
	if m.Management != ManagementUpscaling {
		return nil
	}
	if is < was {
		return no("the autoscaler cannot scale it down from %d to %d (management = \"upscaling\" in the model file)", was, is)
	}
	for i := range m.Variants {
		name := m.Variants[i].Name
		if n, own := m.Desired.Of(name); own && n < old.numberOf(before, name, replicas) {
			return no("the autoscaler cannot scale it down to %d of variant %q, which has %d (management = \"upscaling\" in the model file)", n, name, old.numberOf(before, name, replicas))
		}
	}
	return nil
}

func replicaCount(n int) string {
	if n == 1 {
		return "1 replica is"
	}
	return strconv.Itoa(n) + " replicas are"
}

// wants returns how many replicas were asked for: none where it is stopped.
func (m *Model) wants() int {
	if m.Stopped {
		return 0
	}
	return m.Desired.Total()
}

func (m *Model) variantNames() string {
	names := make([]string, len(m.Variants))
	for i := range m.Variants {
		names[i] = strconv.Quote(m.Variants[i].Name)
	}
	return strings.Join(names, ", ")
}

func (m *Model) sameScale(old *Model) bool {
	return m.Stopped == old.Stopped && slices.Equal(m.Desired, old.Desired) && m.Displaced.equal(old.Displaced)
}
