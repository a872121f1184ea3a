package dispatch

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"remuda/controller/api"
	"remuda/controller/gateway/queue"
)

// keyLoad is what a key has of one model here: requests at engines and waiting for one.
type keyLoad struct {
	need   int
	weight float64 // the key's whole weight
	// part is how much of the key's need at all gateways is here, by the controller's last word.
	part float64
}

// enter counts a request that waits for an engine or gets one, leave one that does neither any more.
func (m *model) enter(r *Request) {
	k := m.keys[r.Key]
	if k == nil {
		k = &keyLoad{part: 1}
		m.keys[r.Key] = k
	}
	k.need++
	k.weight = queue.NormalWeight(r.Weight)
}

func (m *model) leave(key string) {
	k := m.keys[key]
	if k.need--; k.need == 0 {
		delete(m.keys, key)
	}
}

// weight is the weight of a request's key here. Its weight at all gateways together is the key's.
func (m *model) weight(r *Request) float64 {
	if k := m.keys[r.Key]; k != nil {
		return queue.NormalWeight(r.Weight) * k.part
	}
	return r.Weight
}

// KeyDemands returns what keys want of models, at most so many. If there are more, half of the places
// are for those with the largest needs, and the others for one without a name for all other keys of a
// model, the largest first.
func (d *Dispatcher) KeyDemands(most int) []api.KeyDemand {
	out := d.keyDemands()
	order := func(a, b api.KeyDemand) int {
		return cmp.Or(cmp.Compare(b.Need, a.Need), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key))
	}
	slices.SortFunc(out, order)
	if len(out) <= most {
		return out
	}
	named := most / 2
	rest := map[string]api.KeyDemand{}
	for _, k := range out[named:] {
		r := rest[k.Model]
		rest[k.Model] = api.KeyDemand{Model: k.Model, Weight: r.Weight + k.Weight, Need: r.Need + k.Need}
	}
	others := slices.SortedFunc(maps.Values(rest), order)
	return append(out[:named], others[:min(len(others), most-named)]...)
}

func (d *Dispatcher) keyDemands() (out []api.KeyDemand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, m := range d.models {
		for key, k := range m.keys {
			out = append(out, api.KeyDemand{Model: name, Key: key, Weight: k.weight, Need: k.need})
		}
	}
	return out
}

// partBand is the part of its part by which a key's part may differ before it counts: it differs a little
// in every report.
const partBand = 1.0 / 32

// SetKeyParts takes the parts that the controller gives of these keys; other keys are used here alone.
func (d *Dispatcher) SetKeyParts(keys []api.KeyDemand, parts []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	type one struct{ model, key string }
	given := make(map[one]float64, len(keys))
	for i, part := range parts[:min(len(parts), len(keys))] {
		if part > 0 && part <= 1 {
			given[one{keys[i].Model, keys[i].Key}] = part
		}
	}
	for name, m := range d.models {
		for key, k := range m.keys {
			part, ok := given[one{name, key}]
			if !ok {
				part = 1
			}
			if math.Abs(part-k.part) > partBand*k.part {
				k.part = part
				m.queue.Reweigh(key, k.weight*part)
			}
		}
	}
}
