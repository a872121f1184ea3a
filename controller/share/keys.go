package share

import "remuda/controller/api"

// modelKey is a key's use of one model. Requests of keys that a gateway does not name are a key of
// that gateway alone.
type modelKey struct{ model, key, gateway string }

// keyTotal is what a key needs at all gateways together.
type keyTotal struct {
	weight float64 // as of the last report that has it
	need   int
}

// demands are what keys need of models.
type demands map[string]map[modelKey]*keyTotal

func keyOf(gateway string, k api.KeyDemand) modelKey {
	if k.Key == "" {
		return modelKey{k.Model, "", gateway}
	}
	return modelKey{k.Model, k.Key, ""}
}

// replace counts a gateway's keys, which are now in place of was.
func (d demands) replace(gateway string, was, now []api.KeyDemand) {
	for _, k := range now {
		keys := d[k.Model]
		if keys == nil {
			keys = map[modelKey]*keyTotal{}
			d[k.Model] = keys
		}
		id := keyOf(gateway, k)
		t := keys[id]
		if t == nil {
			t = &keyTotal{}
			keys[id] = t
		}
		t.weight = k.Weight
		t.need += k.Need
	}
	for _, k := range was {
		keys, id := d[k.Model], keyOf(gateway, k)
		if t := keys[id]; t != nil {
			if t.need -= k.Need; t.need <= 0 {
				delete(keys, id)
			}
		}
		if len(keys) == 0 {
			delete(d, k.Model)
		}
	}
}

// parts returns the part of each key's need that is this gateway's.
func (d demands) parts(gateway string, keys []api.KeyDemand) []float64 {
	if len(keys) == 0 {
		return nil
	}
	out := make([]float64, len(keys))
	for i, k := range keys {
		out[i] = 1
		if t := d[k.Model][keyOf(gateway, k)]; t != nil {
			out[i] = float64(k.Need) / float64(t.need)
		}
	}
	return out
}

// slots returns, by model, how many of the slots, of which a model has so many, are for this gateway's
// keys. Each key gets slots by its weight, up to its need, and each gateway a part of them as large as
// its part of the key's need.
func (d demands) slots(gateway string, own []api.KeyDemand, has map[string]int) map[string]float64 {
	out, levels := map[string]float64{}, map[string]float64{}
	for _, k := range own {
		level, known := levels[k.Model]
		if !known {
			level = d.level(k.Model, has[k.Model])
			levels[k.Model] = level
		}
		if t := d[k.Model][keyOf(gateway, k)]; t != nil {
			out[k.Model] += min(float64(t.need), level*t.weight) * float64(k.Need) / float64(t.need)
		}
	}
	return out
}

// level is how many slots a key of weight 1 gets of so many if it needs more.
func (d demands) level(model string, slots int) float64 {
	all := make([]*keyTotal, 0, len(d[model]))
	for _, t := range d[model] {
		all = append(all, t)
	}
	return waterLevel(float64(slots), len(all), func(i int, level float64) float64 { return min(float64(all[i].need), level*all[i].weight) })
}
