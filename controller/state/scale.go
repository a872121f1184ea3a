package state

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Origin says who asks for a scale. A model's management mode may refuse it.
type Origin string

// The origins.
const (
	OriginOperator   Origin = "operator"
	OriginAutoscaler Origin = "autoscaler"
)

// SetScale changes how many replicas a model should have, or stops or starts it.
//
// With a Variant, Replicas is how many of that variant there should be, and the model's
// total changes by as much: what the variant has now is its number in Spread or, where
// it has none, what it has of the rest that the variants without one share. That is all
// of the rest where it is the only one, and else its replicas that count, without those
// that a rollout has added. Without a Variant, Replicas is the total, and the numbers
// of variants are forgotten.
//
// The autoscaler is refused where the management mode or a switch says so, and below
// what people expect: the replicas of external pools and of the dedicated set.
type SetScale struct {
	Model string
	// Variant, empty: Replicas is of all together.
	Variant string `json:",omitempty"`
	// Replicas; the total is within the model's bounds. Nil: as it is.
	Replicas *int
	// Stopped, nil: as it is.
	Stopped *bool
	Origin  Origin
	// ModifyIndex is the model's as the caller knows it, 0: whatever it is.
	ModifyIndex uint64
	// Time is when it was decided, see Model.ScaledAt.
	Time time.Time `json:",omitzero"`
}

// Type implements Command.
func (*SetScale) Type() Type { return TypeSetScale }

func (c *SetScale) apply(t *txn) *Error {
	old, err := t.toScale(c.Model, c.Origin, c.ModifyIndex, &c.Time)
	if err != nil {
		return err
	}
	m := *old
	switch {
	case c.Variant != "":
		if err := c.scaleVariant(&m, t); err != nil {
			return err
		}
	case c.Replicas != nil:
		m.Replicas, m.Spread = *c.Replicas, nil
		if m.Replicas < m.Min || m.Replicas > m.Max {
			return badRequest(c.Model, "model %q: replicas is %d: must be %d to %d, the model's min and max", c.Model, m.Replicas, m.Min, m.Max)
		}
	}
	m.bound()
	if c.Stopped != nil {
		m.Stopped = *c.Stopped
	}
	return t.scaled(&m, old, c.Origin, c.Time)
}

// toScale returns the model that origin wants to scale at that time, as it knows it by its
// index; 0: whatever it is.
func (t *txn) toScale(model string, origin Origin, index uint64, at *time.Time) (*Model, *Error) {
	if err := faults(model, checkTime("time", at)); err != nil {
		return nil, err
	}
	if origin != OriginOperator && origin != OriginAutoscaler {
		return nil, badRequest(model, "origin is %q: must be operator or autoscaler", origin)
	}
	m := first[Model](t.Txn, TableModels, byID, model)
	if m == nil {
		return nil, notFound(model, "model %q does not exist", model)
	}
	if index != 0 {
		if err := compare("model", model, m.ModifyIndex, index); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// scaled makes m of old, where origin may do that.
func (t *txn) scaled(m, old *Model, origin Origin, at time.Time) *Error {
	if m.sameScale(old) && m.Stopped == old.Stopped {
		return nil
	}
	why := m.mayScale(origin, old)
	if why == "" && origin == OriginAutoscaler {
		why = t.mayAutoscale(m, old)
	}
	if why != "" {
		return refuse(CodeForbidden, m.Name, "model %q: %s", m.Name, why)
	}
	if origin == OriginOperator && (m.Target() < old.Target() || m.Stopped && !old.Stopped) {
		m.ScaledAt = at
	}
	m.ModifyIndex = t.index
	t.put(TableModels, m)
	return nil
}

// scaleVariant gives the variant of m its number.
func (c *SetScale) scaleVariant(m *Model, t *txn) *Error {
	switch {
	case m.Variant(c.Variant) == nil:
		return notFound(c.Model, "model %q has no variant %q: must be one of %s", c.Model, c.Variant, m.variantNames())
	case c.Replicas == nil:
		return badRequest(c.Model, "model %q: variant %q is set without a number of replicas", c.Model, c.Variant)
	case *c.Replicas < 0 || *c.Replicas > m.Max:
		return badRequest(c.Model, "model %q: %d replicas of variant %q: must be 0 to %d", c.Model, *c.Replicas, c.Variant, m.Max)
	}
	m.Replicas += *c.Replicas - m.numberOf(c.Variant, counting(t, m.Name))
	if m.Replicas < m.Min || m.Replicas > m.Max {
		return badRequest(c.Model, "model %q: %d replicas of variant %q would make %d in all: must be %d to %d, the model's min and max", c.Model, *c.Replicas, c.Variant, m.Replicas, m.Min, m.Max)
	}
	m.Spread = maps.Clone(m.Spread)
	if m.Spread == nil {
		m.Spread = map[string]int{}
	}
	m.Spread[c.Variant] = *c.Replicas
	return nil
}

// Target returns how many replicas should run now: none where it is stopped.
func (m *Model) Target() int {
	if m.Stopped {
		return 0
	}
	return m.Replicas
}

// Shared returns how many of Replicas the variants without a number in Spread share.
func (m *Model) Shared() int {
	shared := m.Replicas
	for _, n := range m.Spread {
		shared -= n
	}
	return shared
}

// numberOf returns how many of Replicas are the variant's; the replicas are those of
// the model that count.
func (m *Model) numberOf(variant string, replicas []*Replica) int {
	if n, ok := m.Spread[variant]; ok {
		return n
	}
	shared := m.Shared()
	if len(m.Spread) == len(m.Variants)-1 {
		return shared
	}
	own, all := 0, 0
	for _, r := range replicas {
		if _, set := m.Spread[r.Name.Variant]; set {
			continue
		}
		all++
		if r.Name.Variant == variant {
			own++
		}
	}
	if _, ok := m.Rollouts[variant]; ok {
		own -= max(all-shared, 0)
	}
	return min(max(own, 0), max(shared, 0))
}

// bound keeps Replicas within the model's bounds, and Spread and Expected within
// Replicas: what is too much is taken from the last variants of the file, and from the
// last pools by name; what is too little where no variant is without a number goes to
// the first.
func (m *Model) bound() {
	m.Replicas = min(max(m.Replicas, m.Min), m.Max)
	var spread map[string]int
	left := m.Replicas
	for i := range m.Variants {
		name := m.Variants[i].Name
		if n, ok := m.Spread[name]; ok {
			if spread == nil {
				spread = map[string]int{}
			}
			spread[name] = min(max(n, 0), left)
			left -= spread[name]
		}
	}
	if left > 0 && spread != nil && len(spread) == len(m.Variants) {
		spread[m.Variants[0].Name] += left
	}
	m.Spread = spread
	m.boundExpected()
}

// boundExpected keeps Expected within Replicas.
func (m *Model) boundExpected() {
	var expected map[string]int
	left := m.Replicas
	for _, pool := range sortedKeys(m.Expected) {
		if n := min(m.Expected[pool], left); n > 0 {
			if expected == nil {
				expected = map[string]int{}
			}
			expected[pool] = n
			left -= n
		}
	}
	m.Expected = expected
}

func (m *Model) variantNames() string {
	names := make([]string, len(m.Variants))
	for i := range m.Variants {
		names[i] = strconv.Quote(m.Variants[i].Name)
	}
	return strings.Join(names, ", ")
}

func (m *Model) sameScale(old *Model) bool {
	return m.Replicas == old.Replicas && maps.Equal(m.Spread, old.Spread) && maps.Equal(m.Expected, old.Expected)
}

// mayScale returns why origin may not change old into m, empty where it may. Stopping
// is for people, and always possible for them.
func (m *Model) mayScale(origin Origin, old *Model) string {
	switch {
	case origin == OriginOperator && m.sameScale(old):
		return ""
	case old.Management == ManagementDisabled:
		return "scaling is disabled (management = \"disabled\" in the model file)"
	case origin == OriginOperator:
		return ""
	case m.Stopped != old.Stopped:
		return "only an operator can stop or start the model"
	case old.Management == ManagementManual:
		return "the autoscaler cannot scale it (management = \"manual\" in the model file)"
	case old.Management == ManagementUpscaling && m.Replicas < old.Replicas:
		return "the autoscaler cannot scale it down (management = \"upscaling\" in the model file)"
	}
	return ""
}

// mayAutoscale returns why the autoscaler may not change old into m where the modes let
// it, empty where it may.
func (t *txn) mayAutoscale(m, old *Model) string {
	switch dedicated, expected := dedicatedSet(t.Txn).number(m.Name), old.expected(); {
	case scalingDisabled(t.switchValue, m.Name):
		return fmt.Sprintf("switch %s is set: only an operator can scale it", SwitchDisableScaling)
	case m.Replicas < min(expected, old.Replicas):
		return fmt.Sprintf("%d of its replicas are expected in external pools: only an operator can scale below that", expected)
	case m.Replicas < min(dedicated, old.Replicas):
		return fmt.Sprintf("it is dedicated with %d replicas: only an operator can scale below that", dedicated)
	}
	return ""
}
