package placement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// TestFleetRollsBack: a fleet that was changed and rolled back, over and over, answers as one
// that was made anew of the same tenants, at the costs of now.
func TestFleetRollsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var order []int
		f := w.fleet(nil)
		ways := map[string][]placement.Way{}
		for i, tenant := range w.tenants {
			ways[tenant.Name] = tenant.Ways
			order = append(order, i)
			tenant.Ways, tenant.Priced = nil, true
			f.Put(tenant)
		}
		requests := []placement.Request{drawRequest(t, w), drawRequest(t, w), drawRequest(t, w)}
		for range 4 {
			factor := rapid.Float64Range(0.1, 10).Draw(t, "factor")
			price := func(name string) []placement.Way {
				now := slices.Clone(ways[name])
				for i := range now {
					now[i].Cost *= factor
				}
				return now
			}
			f.Begin(price)
			for i := range w.tenants {
				w.tenants[i].Ways = price(w.tenants[i].Name)
			}
			fresh := w.fleet(order)
			for _, r := range requests {
				got, no := f.Place(r)
				want, refused := fresh.Place(r)
				require.Equal(t, want, got)
				require.Equal(t, refused == nil, no == nil)
				if no != nil {
					require.Equal(t, refused.Nodes(), no.Nodes())
				}
			}
			for _, n := range w.nodes {
				require.Equal(t, fresh.Usage(n.ID), f.Usage(n.ID))
			}
			for i := range rapid.IntRange(0, 4).Draw(t, "changes") {
				change(t, f, w, requests, i)
			}
			f.Rollback()
		}
	})
}

// change does one random thing to a fleet.
func change(t *rapid.T, f *placement.Fleet, w *world, requests []placement.Request, i int) {
	r := rapid.SampledFrom(requests).Draw(t, "request")
	c, no := f.Place(r)
	name := fmt.Sprint("new", i)
	switch rapid.IntRange(0, 4).Draw(t, "change") {
	case 0:
		if no == nil && !r.Future {
			f.Reserve(c, name, r.Model)
		}
	case 1:
		if no == nil && !r.Future && len(c.Evict) == 0 {
			f.Hold(name, c, r.Model)
		}
	case 2:
		if len(w.tenants) > 0 {
			f.Drop(rapid.SampledFrom(w.tenants).Draw(t, "dropped").Name)
		}
	case 3:
		if len(w.tenants) > 0 {
			tenant := rapid.SampledFrom(w.tenants).Draw(t, "changed")
			tenant.After, tenant.Ways = &state.Holding{}, nil
			f.Put(tenant)
		}
	case 4:
		r.Future = true
		f.Together([]placement.Request{r, r}, []string{"", ""}, math.Inf(1))
	}
}
