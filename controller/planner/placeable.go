package planner

import (
	"fmt"
	"strings"

	"remuda/controller/state"
)

// Prober tells which variants could have a further replica now, from one view and one
// observation. It plans nothing. Its methods are not to be called from several goroutines at
// once.
type Prober struct {
	b           *planBuilder
	unplaceable map[string]map[string]string // by model
}

// NewProber makes one. The view and the observation must not be those of another moment.
func NewProber(v *state.View, o Observation, c Config) *Prober {
	b := newWorld(c).beginPlan(v, o)
	// What changes by itself first, as in Plan: what was lost gives its place, and jobs that
	// the state does not know hold theirs.
	for _, m := range b.models {
		for _, r := range m.members {
			b.updateStatus(m, r)
		}
		b.dropDuplicateCold(m)
	}
	b.resolveUnknownJobs()
	return &Prober{b: b, unplaceable: map[string]map[string]string{}}
}

// Unplaceable has the variants of a model of which Plan would find no place for a further
// replica, now or soon, in any pool and also by evicting others, or of which Nomad does not
// place one that is there; and why. It says nothing of a model that is stopped or does not
// exist, and of none while the own Nomad cannot be asked: then nobody knows. Bounds, switches
// and the management of the model are not looked at.
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

// notPlaced says why Nomad does not place the member, or did not when it was last tried;
// empty where it has, or does not say.
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
