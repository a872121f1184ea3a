package planner

import (
	"fmt"
	"strings"

	"remuda/controller/state"
)

// Prober computes which variants could have a further replica now, from one view and one
// observation. It plans nothing. It is not safe for concurrent use.
type Prober struct {
	b           *planBuilder
	unplaceable map[string]map[string]string // by model
}

// NewProber returns a Prober. The view and the observation must be of the same moment.
func NewProber(v *state.View, o Observation, c Config) *Prober {
	b := newWorld(c).beginPlan(v, o)
	// First apply what Plan would: lost replicas release their places, and unknown jobs hold theirs.
	for _, m := range b.models {
		for _, r := range m.members {
			b.updateStatus(m, r)
		}
		b.dropDuplicateCold(m)
	}
	b.resolveUnknownJobs()
	return &Prober{b: b, unplaceable: map[string]map[string]string{}}
}

// Unplaceable returns the variants of a model for a further replica of which Plan would find no
// place, now or soon, in any pool and by evicting others, or of which Nomad does not place an
// existing replica, with the reason. It returns nil for a model that is stopped or does not exist,
// and for all models while the controller's own Nomad is unreachable. It ignores bounds, switches and
// the management of the model.
func (p *Prober) Unplaceable(model string) map[string]string {
	m := p.b.byName[model]
	if m == nil || m.Stopped || !p.b.open("") {
		return nil
	}
	out, known := p.unplaceable[model]
	if known {
		return out
	}
	for i := range m.Variants {
		if why := p.b.unplaceable(m, &m.Variants[i]); why != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[m.Variants[i].Name] = why
		}
	}
	p.unplaceable[model] = out
	return out
}

// unplaceable returns why no further replica of a variant could be placed, empty if one could.
// It searches where acquireReplica and placeExpected would, and changes nothing.
func (b *planBuilder) unplaceable(m *model, v *state.Variant) string {
	for _, r := range m.members {
		if why := b.notPlaced(r); why != "" && r.Name.Variant == v.Name {
			return fmt.Sprintf("replica %s: %s", r.Name.ID, why)
		}
	}
	v = m.definition(v.Name)
	for _, r := range m.members {
		going := r.next.Status == state.StatusDraining || r.next.Status == state.StatusSleeping
		if r.resting() && going && r.next.MakesRoomFor == "" && !r.changed && r.Name.Variant == v.Name && m.hashOf(r) == v.Hash {
			return "" // it would be called off, or awaited
		}
	}
	_, no := b.find(m, v, ask{})
	if no == nil {
		return ""
	}
	if _, later := b.find(m, v, ask{future: true}); later == nil {
		return ""
	}
	var refused []string
	for _, pool := range b.byPrice() {
		if !b.open(pool.Name) || !pool.spills() && len(b.inPool(m, pool.Name, m.shareOf(v.Name))) >= m.expectedIn(pool.Name, m.shareOf(v.Name)) {
			continue
		}
		_, away := b.find(m, v, ask{pool: pool.Name})
		if away == nil {
			return ""
		}
		refused = append(refused, fmt.Sprintf("pool %s: %s", pool.Name, away))
	}
	if _, no = b.findRoom(m, v, false); no == nil {
		return ""
	}
	return strings.Join(append([]string{no.Error()}, refused...), "; ")
}

// notPlaced returns why Nomad does not place the member, or did not at the last try, empty if
// Nomad has placed it or reports no reason.
func (b *planBuilder) notPlaced(r *member) string {
	switch {
	case !r.counts() || b.serves(r):
		return ""
	case r.job != nil && r.job.Unplaceable != "":
		return "Nomad cannot place the job: " + r.job.Unplaceable
	case !r.serving() && r.NotPlaced:
		return r.LastError
	}
	return ""
}
