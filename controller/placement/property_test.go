package placement_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// world is a small fleet, as plain data.
type world struct {
	nodes   []*state.Node
	tenants []placement.Tenant
	share   float64
}

// holdings is what is held of a world, counted in the plainest way.
type holdings struct {
	memory map[string]int64
	seats  map[string]int
	host   map[string]int64
	// shared is how many hold the same weights on the same GPUs.
	shared map[state.Weights]int
}

func (w *world) fleet(order []int) *placement.Fleet {
	f := placement.NewFleet(w.nodes, placement.Config{Rates: placement.DefaultRates(), WarmShare: w.share})
	for _, i := range order {
		f.Put(w.tenants[i])
	}
	return f
}

// order is that of the tenants.
func (w *world) order() []int {
	order := make([]int, len(w.tenants))
	for i := range order {
		order[i] = i
	}
	return order
}

func count(tenants []placement.Tenant, future bool) holdings {
	h := holdings{map[string]int64{}, map[string]int{}, map[string]int64{}, map[state.Weights]int{}}
	for _, t := range tenants {
		held := t.Holds
		if future && t.After != nil {
			held = *t.After
		}
		h.add(t.Node, held)
	}
	return h
}

func (h holdings) add(node string, held state.Holding) {
	for _, s := range held.Seats {
		h.seats[s]++
	}
	for g, b := range held.Memory {
		h.memory[g] += b
		if h.shared[held.Weights] > 0 {
			h.memory[g] -= held.Weights.On(g)
		}
	}
	if held.Weights.Of != "" {
		h.shared[held.Weights]++
	}
	h.host[node] += held.HostMemory
}

// over says what of a world is held more than once, or more than there is. Memory of
// nodes for WARM ones may be more than its share where it was before.
func (w *world) over(h, before holdings) string {
	for _, n := range w.nodes {
		if h.host[n.ID] > max(int64(float64(n.HostMemory)*w.share), before.host[n.ID]) {
			return n.ID + ": host memory"
		}
		for _, g := range n.GPUs {
			if h.memory[g.UUID] > g.Memory {
				return g.UUID + ": memory"
			}
			for _, s := range g.Seats {
				if h.seats[s] > 1 {
					return s
				}
			}
		}
	}
	return ""
}

// after returns the tenants as they are once evictions are done, and the replica that
// wakes is gone from where it slept.
func (w *world) after(evict []placement.Eviction, wake string) []placement.Tenant {
	var out []placement.Tenant
	for _, t := range w.tenants {
		if t.Name == wake {
			continue
		}
		for _, e := range evict {
			if e.Tenant != t.Name {
				continue
			}
			i := slices.IndexFunc(t.Ways, func(x placement.Way) bool { return x.To == e.To })
			t.Holds, t.After = t.Ways[i].Holds, nil
		}
		out = append(out, t)
	}
	return out
}

// room tells whether a choice has room once these evictions are done.
func (w *world) room(c placement.Choice, evict []placement.Eviction, future bool) string {
	h := count(w.after(evict, c.Wake), future)
	held := holds(c)
	if c.Wake != "" {
		i := slices.IndexFunc(w.tenants, func(t placement.Tenant) bool { return t.Name == c.Wake })
		held.HostMemory = w.tenants[i].Holds.HostMemory
	}
	h.add(c.Placement.Node, held)
	return w.over(h, count(w.tenants, future))
}

// holds is what a choice holds. What it shares counts only where the search has counted on it.
func holds(c placement.Choice) state.Holding {
	held := state.Holding{Seats: c.Placement.Seats, Memory: c.Placement.Memory}
	if c.Inputs["memory_shared"] != "" {
		held.Weights = c.Weights
	}
	return held
}

func drawWorld(t *rapid.T) *world {
	w := &world{share: rapid.SampledFrom([]float64{0.5, 1}).Draw(t, "share")}
	flag := func(what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }
	for i := range rapid.IntRange(1, 2).Draw(t, "nodes") {
		n := node(fmt.Sprintf("n%d", i), rapid.IntRange(1, 4).Draw(t, "gpus"), rapid.IntRange(1, 3).Draw(t, "seats"), 10)
		n.HostMemory = rapid.Int64Range(0, 30).Draw(t, "host")
		n.Draining = flag("draining")
		for g := range n.GPUs {
			n.GPUs[g].Healthy = !flag("ill")
			n.GPUs[g].Memory = rapid.Int64Range(6, 12).Draw(t, "memory")
			if flag("clique") {
				n.GPUs[g].Clique = "d"
			}
			if flag("model") {
				n.GPUs[g].Model = "A100"
			}
		}
		w.nodes = append(w.nodes, n)
	}
	for i := range rapid.IntRange(0, 7).Draw(t, "tenants") {
		n := rapid.SampledFrom(w.nodes).Draw(t, "node")
		have := count(w.tenants, false)
		tenant := placement.Tenant{Name: fmt.Sprintf("t%d", i), Node: n.ID, Model: fmt.Sprintf("m%d", i%3), Holds: state.Holding{Memory: map[string]int64{}}}
		sleeps := rapid.IntRange(0, 2).Draw(t, "sleeps") == 0
		bytes, host := rapid.Int64Range(0, 8).Draw(t, "bytes"), rapid.Int64Range(0, 8).Draw(t, "weights")
		if sleeps {
			bytes = min(bytes, 1)
			if have.host[n.ID]+host > int64(float64(n.HostMemory)*w.share) {
				continue
			}
			tenant.Holds.HostMemory = host
		}
		wanted := rapid.IntRange(1, 2).Draw(t, "span")
		for _, g := range n.GPUs {
			free := slices.IndexFunc(g.Seats, func(s string) bool { return have.seats[s] == 0 })
			if free < 0 || have.memory[g.UUID]+bytes > g.Memory || len(tenant.Holds.Seats) == wanted || rapid.Bool().Draw(t, "skip") {
				continue
			}
			tenant.Holds.Seats = append(tenant.Holds.Seats, g.Seats[free])
			tenant.Holds.Memory[g.UUID] = bytes
		}
		if !sleeps && rapid.Bool().Draw(t, "joins") {
			for _, other := range w.tenants {
				if x := other.Holds.Weights; x.Of != "" && other.Node == n.ID && other.After == nil {
					more := rapid.Int64Range(1, 3).Draw(t, "rest")
					if seats := have.beside(w, other, more); seats != nil {
						bytes = x.Bytes + more
						tenant.Holds = state.Holding{Seats: seats, Weights: x, Memory: map[string]int64{}}
						for g := range other.Holds.Memory {
							tenant.Holds.Memory[g] = bytes
						}
						break
					}
				}
			}
		}
		if len(tenant.Holds.Seats) == 0 {
			continue
		}
		if tenant.Holds.Weights.Of == "" && !sleeps && bytes > 1 && rapid.Bool().Draw(t, "shares") {
			p := state.Placement{Memory: tenant.Holds.Memory, SharedMemory: rapid.Int64Range(1, bytes-1).Draw(t, "shared")}
			tenant.Holds.Weights = state.NewWeights(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "weights"), &p)
		}
		cost := rapid.SampledFrom([]float64{0, 8, 8, 16, 24, 80, float64(i)}).Draw(t, "cost")
		if !sleeps && rapid.Bool().Draw(t, "can sleep") {
			asleep := state.Holding{Seats: tenant.Holds.Seats, HostMemory: host, Memory: map[string]int64{}}
			for g := range tenant.Holds.Memory {
				asleep.Memory[g] = min(bytes, 1)
			}
			tenant.Ways = append(tenant.Ways, placement.Way{To: state.GoalWarm, Holds: asleep, Cost: cost / 8})
		}
		if rapid.IntRange(0, 3).Draw(t, "movable") > 0 {
			tenant.Ways = append(tenant.Ways, placement.Way{To: state.GoalCold, Cost: cost})
		}
		if len(tenant.Ways) == 0 && rapid.Bool().Draw(t, "leaving") {
			tenant.After = &state.Holding{}
		}
		w.tenants = append(w.tenants, tenant)
	}
	return w
}

// beside returns seats for a second tenant that shares the weights of one and takes more bytes on each of the same
// GPUs. It returns nil if one of the GPUs has no free seat or too little memory.
func (h holdings) beside(w *world, one placement.Tenant, more int64) []string {
	var seats []string
	for _, n := range w.nodes {
		for _, g := range n.GPUs {
			if _, on := one.Holds.Memory[g.UUID]; !on {
				continue
			}
			free := slices.IndexFunc(g.Seats, func(s string) bool { return h.seats[s] == 0 })
			if free < 0 || h.memory[g.UUID]+more > g.Memory {
				return nil
			}
			seats = append(seats, g.Seats[free])
		}
	}
	return seats
}

func drawRequest(t *rapid.T, w *world) placement.Request {
	r := request(rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "gpus"), rapid.Int64Range(1, 10).Draw(t, "bytes"))
	r.Variant.Weights = 40 * gib
	r.Variant.SharedMemory = rapid.Int64Range(0, r.Variant.Memory-1).Draw(t, "shared")
	r.Weights = rapid.SampledFrom([]string{"x", "x", "y", "z"}).Draw(t, "name of the weights")
	var crowds []state.Weights
	for _, tenant := range w.tenants {
		if tenant.Holds.Weights.Of != "" {
			crowds = append(crowds, tenant.Holds.Weights)
		}
	}
	if len(crowds) > 0 && rapid.Bool().Draw(t, "like another") {
		like := rapid.SampledFrom(crowds).Draw(t, "like")
		r.Variant.SharedMemory, r.Weights, r.Variant.GPUs = like.Bytes, like.Of, len(strings.Split(like.GPUs, ","))
		r.Variant.Memory = like.Bytes + rapid.Int64Range(1, 3).Draw(t, "more")
	}
	r.Variant.Reach = rapid.SampledFrom([]int{0, 0, 0, r.Variant.GPUs + 1}).Draw(t, "reach")
	r.Variant.GPUModel = rapid.SampledFrom([]string{"", "H100"}).Draw(t, "wanted")
	r.Failover = rapid.IntRange(0, 3).Draw(t, "pair") == 0
	r.Future = rapid.IntRange(0, 3).Draw(t, "future") == 0
	if rapid.Bool().Draw(t, "on disk") {
		r.OnDisk = map[string]bool{w.nodes[0].ID: true}
	}
	if rapid.IntRange(0, 4).Draw(t, "evicts") > 0 {
		spared := rapid.SampledFrom([]string{"", "m0"}).Draw(t, "spared")
		r.MayEvict = func(t *placement.Tenant) bool { return t.Model != spared }
	}
	for _, tenant := range w.tenants {
		if tenant.Holds.HostMemory > 0 && tenant.After == nil && rapid.IntRange(0, 3).Draw(t, "wakes") == 0 {
			var gpus []string
			for g := range tenant.Holds.Memory {
				gpus = append(gpus, g)
			}
			slices.Sort(gpus)
			warm := asleep(tenant, gpus[:rapid.IntRange(1, len(gpus)).Draw(t, "slept on")]...)
			warm.Weights, warm.Placement.SharedMemory = r.Weights, r.Variant.SharedMemory
			r.Warm = append(r.Warm, warm)
		}
	}
	return r
}

// exact is the least of seconds and cost for a request over all ways to evict, and over
// all sets of GPUs, infinite where there is none.
func (w *world) exact(r placement.Request) (best, free float64) {
	best, free = math.Inf(1), math.Inf(1)
	rates := placement.DefaultRates()
	var evict []placement.Eviction
	var try func(i int, cost float64)
	try = func(i int, cost float64) {
		if i < len(w.tenants) {
			try(i+1, cost)
			t := &w.tenants[i]
			if r.MayEvict != nil && r.MayEvict(t) {
				for _, way := range t.Ways {
					evict = append(evict, placement.Eviction{Tenant: t.Name, To: way.To})
					try(i+1, cost+way.Cost)
					evict = evict[:len(evict)-1]
				}
			}
			return
		}
		before := count(w.tenants, r.Future)
		h := count(w.after(evict, ""), r.Future)
		for _, n := range w.nodes {
			if h.host[n.ID] > max(int64(float64(n.HostMemory)*w.share), before.host[n.ID]) {
				return
			}
		}
		found := func(seconds float64) {
			best = min(best, seconds+cost)
			if len(evict) == 0 {
				free = min(free, seconds)
			}
		}
		for _, n := range w.nodes {
			if n.Usable() != "" {
				continue
			}
			type counts struct{ fit, seated int }
			groups := map[string]counts{}
			for _, g := range n.GPUs {
				left := 0
				for _, s := range g.Seats {
					if h.seats[s] == 0 {
						left++
					}
				}
				if !g.Healthy || r.Variant.GPUModel != "" && g.Model != r.Variant.GPUModel || left < r.SeatsPerGPU() {
					continue
				}
				c := groups[g.Model+g.Clique]
				c.seated++
				if g.Memory-h.memory[g.UUID] >= r.Variant.Memory {
					c.fit++
				}
				groups[g.Model+g.Clique] = c
			}
			for key, left := range h.shared {
				if left > 0 && r.Variant.GPUs == max(r.Variant.GPUs, r.Variant.Reach) && w.beside(n, h, key, r) {
					found(rates.ColdSeconds(r.Variant.Weights, r.OnDisk[n.ID]))
				}
			}
			for _, c := range groups {
				if c.fit >= r.Variant.GPUs && c.seated >= max(r.Variant.GPUs, r.Variant.Reach) {
					found(rates.ColdSeconds(r.Variant.Weights, r.OnDisk[n.ID]))
				}
			}
		}
		for _, s := range r.Warm {
			i := slices.IndexFunc(w.tenants, func(t placement.Tenant) bool { return t.Name == s.Tenant })
			if slices.ContainsFunc(evict, func(e placement.Eviction) bool { return e.Tenant == s.Tenant }) {
				continue
			}
			n := w.nodes[slices.IndexFunc(w.nodes, func(n *state.Node) bool { return n.ID == s.Placement.Node })]
			fit := 0
			for _, seat := range s.Placement.Seats {
				for _, g := range n.GPUs {
					if slices.Contains(g.Seats, seat) && g.Healthy && g.Memory-h.memory[g.UUID]+w.tenants[i].Holds.Memory[g.UUID] >= r.Variant.Memory {
						fit++
					}
				}
			}
			if n.Usable() == "" && fit >= len(s.Placement.Memory) {
				found(rates.WarmSeconds(r.Variant.Weights))
			}
			for key, left := range h.shared {
				gpus := strings.Split(key.GPUs, ",")
				if left == 0 || key.Of != s.Weights || key.Bytes != s.Placement.SharedMemory || len(gpus) != len(s.Placement.Memory) || n.Usable() != "" {
					continue
				}
				if !slices.ContainsFunc(gpus, func(uuid string) bool {
					g := n.GPU(uuid)
					return g == nil || !g.Healthy || g.Memory-h.memory[uuid]+w.tenants[i].Holds.Memory[uuid] < r.Variant.Memory-key.Bytes ||
						!slices.ContainsFunc(s.Placement.Seats, func(seat string) bool { return slices.Contains(g.Seats, seat) })
				}) {
					found(rates.WarmSeconds(r.Variant.Weights))
				}
			}
		}
	}
	try(0, 0)
	return best, free
}

// beside reports whether a new replica fits on the GPUs that already have the weights of key.
func (w *world) beside(n *state.Node, h holdings, key state.Weights, r placement.Request) bool {
	gpus := strings.Split(key.GPUs, ",")
	if key.Of != r.Weights || key.Bytes != r.Variant.SharedMemory || len(gpus) != r.Variant.GPUs {
		return false
	}
	group := ""
	for _, uuid := range gpus {
		g := n.GPU(uuid)
		if g == nil || !g.Healthy || r.Variant.GPUModel != "" && g.Model != r.Variant.GPUModel || group != "" && group != g.Model+g.Clique {
			return false
		}
		group = g.Model + g.Clique
		left := 0
		for _, s := range g.Seats {
			if h.seats[s] == 0 {
				left++
			}
		}
		if left < r.SeatsPerGPU() || g.Memory-h.memory[uuid] < r.Variant.Memory-key.Bytes {
			return false
		}
	}
	return true
}

// justified requires that a choice has room, and evicts nothing that it need not or may not.
func (w *world) justified(t *rapid.T, r placement.Request, got placement.Choice) {
	t.Helper()
	require.Empty(t, w.room(got, got.Evict, r.Future), "%+v", got)
	for i, e := range got.Evict {
		victim := w.tenants[slices.IndexFunc(w.tenants, func(t placement.Tenant) bool { return t.Name == e.Tenant })]
		require.True(t, r.MayEvict(&victim))
		require.NotEqual(t, got.Wake, e.Tenant)
		rest := slices.Delete(slices.Clone(got.Evict), i, i+1)
		require.NotEmpty(t, w.room(got, rest, r.Future), "%s need not go: %+v", e.Tenant, got)
	}
}

// TestPlaceIsExact: what is chosen costs what the best of all ways costs; it is never
// over-committed, evicts nothing that it need not or may not, and evicts nothing where
// there is a place as good without.
func TestPlaceIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		order := w.order()
		f, again := w.fleet(order), w.fleet(rapid.Permutation(order).Draw(t, "order"))
		for range 3 {
			r := drawRequest(t, w)
			best, free := w.exact(r)
			got, no := f.Place(r)
			same, _ := again.Place(r)
			require.Equal(t, got, same, "the same whatever came first")
			if no != nil {
				require.True(t, math.IsInf(best, 1), "%s, and it can be done for %v", no, best)
				require.Len(t, no.Nodes(), len(w.nodes))
				for n, why := range no.Nodes() {
					require.NotEmpty(t, why, n)
				}
				continue
			}
			require.InDelta(t, best, got.Seconds+got.Cost, 1e-6, "%+v", got)
			if len(got.Evict) > 0 {
				require.Less(t, got.Seconds+got.Cost, free)
			}
			w.justified(t, r, got)
			require.True(t, slices.IsSortedFunc(got.Evict, func(a, b placement.Eviction) int {
				if a.Tenant < b.Tenant {
					return -1
				}
				return 1
			}))
		}
	})
}

// TestFleetFollows: indexes that have followed changes answer as those of a fleet that
// was made anew.
func TestFleetFollows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		all := make([]int, len(w.tenants))
		for i := range all {
			all[i] = i
		}
		f := w.fleet(nil)
		there := map[int]bool{}
		requests := []placement.Request{drawRequest(t, w), drawRequest(t, w), {}}
		requests[2] = requests[1]
		requests[2].MayEvict = anybody
		for range 12 {
			if len(all) > 0 {
				i := rapid.SampledFrom(all).Draw(t, "tenant")
				if there[i] = !there[i]; there[i] {
					f.Put(w.tenants[i])
				} else {
					f.Drop(w.tenants[i].Name)
				}
			}
			var order []int
			for _, i := range all {
				if there[i] {
					order = append(order, i)
				}
			}
			fresh := w.fleet(order)
			for _, r := range requests {
				got, no := f.Place(r)
				want, refused := fresh.Place(r)
				require.Equal(t, want, got)
				require.Equal(t, refused == nil, no == nil)
			}
			for _, n := range w.nodes {
				require.Equal(t, fresh.Usage(n.ID), f.Usage(n.ID))
			}
		}
	})
}

// TestTogetherHolds: all choices of a joint search have room together once all its evictions
// are done, and what leaves is gone; together they cost less than asked for and, where each
// can be placed after the other, no more than that; and the fleet is as it was.
func TestTogetherHolds(t *testing.T) {
	t.Parallel()
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		var order []int
		for i := range w.tenants {
			order = append(order, i)
		}
		f := w.fleet(order)
		var rs []placement.Request
		for range rapid.IntRange(1, 4).Draw(t, "requests") {
			r := drawRequest(t, w)
			r.Future = true
			if slices.ContainsFunc(rs, func(other placement.Request) bool { return other.Weights == r.Weights }) {
				r.Variant.SharedMemory = 0 // a joint search does not count on what its own choices share
			}
			rs = append(rs, r)
		}
		near := make([]string, len(rs))
		for i := range near {
			near[i] = rapid.SampledFrom([]string{"", "n0", "unknown"}).Draw(t, "near")
		}
		below := rapid.SampledFrom([]float64{math.Inf(1), math.Inf(1), 150}).Draw(t, "below")
		got := f.Together(rs, near, below)
		require.Equal(t, got, w.fleet(order).Together(rs, near, below))
		for _, n := range w.nodes {
			require.Equal(t, w.fleet(order).Usage(n.ID), f.Usage(n.ID))
		}
		alone, ok := w.inTurn(f, rs)
		if got == nil {
			require.False(t, ok && alone < below-1e-6, "one by one it can be done for %v", alone)
			return
		}
		found++
		total := 0.0
		for _, c := range got {
			total += c.Seconds + c.Cost
		}
		require.Less(t, total, below)
		require.False(t, ok && total > alone+1e-6, "%v, and one by one %v", total, alone)

		var evict []placement.Eviction
		wakes := map[string]bool{}
		for i, c := range got {
			require.True(t, f.Fits(&c, true) || len(got) > 1)
			require.False(t, c.Wake != "" && wakes[c.Wake])
			wakes[c.Wake] = true
			for _, e := range c.Evict {
				require.False(t, slices.ContainsFunc(evict, func(x placement.Eviction) bool { return x.Tenant == e.Tenant }))
				tenant := w.tenants[slices.IndexFunc(w.tenants, func(t placement.Tenant) bool { return t.Name == e.Tenant })]
				require.True(t, rs[i].MayEvict(&tenant))
				evict = append(evict, e)
			}
		}
		room := func(evict []placement.Eviction) string {
			var gone []placement.Tenant
			for _, t := range w.after(evict, "") {
				if !wakes[t.Name] {
					gone = append(gone, t)
				}
			}
			h := count(gone, true)
			for _, c := range got {
				held := holds(c)
				if c.Wake != "" {
					held.HostMemory = c.Placement.HostMemory
				}
				h.add(c.Placement.Node, held)
			}
			return w.over(h, count(w.tenants, true))
		}
		require.Empty(t, room(evict), "%+v", got)
		for i := range evict {
			require.False(t, wakes[evict[i].Tenant])
		}
	})
	require.NotZero(t, found)
}

// inTurn is the cost of requests that are placed one after the other, in a fleet that is as
// before afterwards, and whether there is a place for each.
func (w *world) inTurn(f *placement.Fleet, rs []placement.Request) (float64, bool) {
	total := 0.0
	for i, r := range rs {
		c, no := f.Place(r)
		if no != nil || len(c.Evict) > 0 {
			total = math.Inf(1)
			break
		}
		total += c.Seconds
		f.Hold(fmt.Sprint("new", i), c, "new")
	}
	for i := range rs {
		f.Drop(fmt.Sprint("new", i))
	}
	for _, t := range w.tenants {
		f.Drop(t.Name)
	}
	for _, t := range w.tenants {
		f.Put(t)
	}
	return total, !math.IsInf(total, 1)
}

// TestBudget: a search that is too large to be exact still finds a place where there is
// one, and evicts nothing that it need not or may not.
func TestBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.SampledFrom([]int{8, 16}).Draw(t, "gpus")
		w := &world{share: 0.9, nodes: []*state.Node{node("n", gpus, 6, 80, func(n *state.Node) { n.HostMemory = 200 })}}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		// Each GPU has 6 tenants, of which some span it and the next one.
		seats := make([]int, gpus+1)
		for g := range gpus {
			for seats[g] < 6 {
				tenant := placement.Tenant{Name: fmt.Sprintf("t%02d-%d", g, seats[g]), Node: "n", Holds: state.Holding{Memory: map[string]int64{}}}
				span := 1
				if g+1 < gpus && seats[g+1] < 6 && random.IntN(2) == 0 {
					span = 2
				}
				bytes := 1 + random.Int64N(13)
				for k := range span {
					gpu := w.nodes[0].GPUs[g+k]
					tenant.Holds.Seats = append(tenant.Holds.Seats, gpu.Seats[seats[g+k]])
					tenant.Holds.Memory[gpu.UUID] = bytes
					seats[g+k]++
				}
				cost := 1 + float64(random.IntN(100))
				tenant.Ways = []placement.Way{
					{To: state.GoalWarm, Holds: state.Holding{Seats: tenant.Holds.Seats, HostMemory: bytes}, Cost: cost / 10},
					{To: state.GoalCold, Cost: cost},
				}
				w.tenants = append(w.tenants, tenant)
			}
		}
		order := w.order()
		r := request(gpus/2, 70, evicting)
		got, no := w.fleet(order).Place(r)
		require.Nil(t, no)
		require.Empty(t, w.room(got, got.Evict, false))
		for i := range got.Evict {
			rest := slices.Delete(slices.Clone(got.Evict), i, i+1)
			require.NotEmpty(t, w.room(got, rest, false), "%s need not go", got.Evict[i].Tenant)
		}
		r.MayEvict = func(t *placement.Tenant) bool { return t.Holds.Memory["n-G0"]+t.Holds.Memory["n-G1"] == 0 }
		got, no = w.fleet(order).Place(r)
		require.Nil(t, no)
		require.NotContains(t, got.Placement.Memory, "n-G0")
	})
}

// TestHurriedSearch: a search that runs out of its budget at once, in the worlds of TestPlaceIsExact with their
// shared weights, finds a place where there is one, which has room and evicts nothing that it need not or may not.
func TestHurriedSearch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		f := w.fleet(w.order())
		f.Hurry(rapid.IntRange(1, 8).Draw(t, "steps"))
		for range 3 {
			r := drawRequest(t, w)
			best, _ := w.exact(r)
			got, no := f.Place(r)
			if no != nil {
				require.True(t, math.IsInf(best, 1), "%s, and it can be done for %v", no, best)
				continue
			}
			require.GreaterOrEqual(t, got.Seconds+got.Cost, best-1e-6, "%+v", got)
			w.justified(t, r, got)
		}
	})
}
