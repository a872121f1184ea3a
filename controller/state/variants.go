package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SetVariants changes the numbers of several of a model's variants at once, all of them or
// none: what SetScale with a Variant would make of one after the other, of which only the
// result must be within the model's bounds. Variants that it does not name keep what they
// have; where it names all of them, the model's total is their sum.
//
// The autoscaler is refused where SetScale refuses it. Of a model whose management is
// upscaling it takes nothing from any variant, also not to give it to another one.
type SetVariants struct {
	Model string
	// Variants has the new numbers, of one variant at least, each 0 or more.
	Variants map[string]int
	Origin   Origin
	// ModifyIndex is the model's as the caller knows it, 0: whatever it is.
	ModifyIndex uint64 `json:",omitempty"`
	// Time is when it was decided, see Model.ScaledAt.
	Time time.Time `json:",omitzero"`
}

// Type implements Command.
func (*SetVariants) Type() Type { return TypeSetVariants }

func (c *SetVariants) apply(t *txn) *Error {
	old, err := t.toScale(c.Model, c.Origin, c.ModifyIndex, &c.Time)
	if err != nil {
		return err
	}
	if err := c.check(old); err != nil {
		return err
	}
	m := *old
	m.Spread = maps.Clone(m.Spread)
	if m.Spread == nil {
		m.Spread = map[string]int{}
	}
	staying := counting(t, m.Name)
	less := ""
	for i := range m.Variants {
		name := m.Variants[i].Name
		n, named := c.Variants[name]
		if !named {
			continue
		}
		had := m.numberOf(name, staying)
		if n < had && less == "" {
			less = fmt.Sprintf("%d of variant %q, which has %d", n, name, had)
		}
		m.Replicas += n - had
		m.Spread[name] = n
	}
	if m.Replicas < m.Min || m.Replicas > m.Max {
		return badRequest(c.Model, "model %q: %s would make %d replicas in all: must be %d to %d, the model's min and max", c.Model, c.text(), m.Replicas, m.Min, m.Max)
	}
	if less != "" && c.Origin == OriginAutoscaler && old.Management == ManagementUpscaling {
		return refuse(CodeForbidden, c.Model, "model %q: the autoscaler cannot scale it down to %s (management = \"upscaling\" in the model file)", c.Model, less)
	}
	m.bound()
	return t.scaled(&m, old, c.Origin, c.Time)
}

// check refuses what no scale of the model can be.
func (c *SetVariants) check(m *Model) *Error {
	if len(c.Variants) == 0 {
		return badRequest(c.Model, "model %q: no variants are set: set at least one of %s", c.Model, m.variantNames())
	}
	var unknown, bad []string
	for _, name := range sortedKeys(c.Variants) {
		if m.Variant(name) == nil {
			unknown = append(unknown, strconv.Quote(name))
		}
		if n := c.Variants[name]; n < 0 || n > m.Max {
			bad = append(bad, fmt.Sprintf("%d replicas of variant %q: must be 0 to %d", n, name, m.Max))
		}
	}
	switch {
	case len(unknown) > 0:
		return notFound(c.Model, "model %q has no variant %s: its variants are %s", c.Model, strings.Join(unknown, ", "), m.variantNames())
	case len(bad) > 0:
		return badRequest(c.Model, "model %q: %s", c.Model, strings.Join(bad, "; "))
	}
	return nil
}

// text is the numbers for people, as "h100=2, a100=0".
func (c *SetVariants) text() string { return VariantsText(c.Variants) }

// VariantsText puts numbers of variants into words, as "a100=0, h100=2".
func VariantsText(variants map[string]int) string {
	parts := make([]string, 0, len(variants))
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, variants[name]))
	}
	return strings.Join(parts, ", ")
}
