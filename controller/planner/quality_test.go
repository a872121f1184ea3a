package planner_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// The quality of placement, as the planner does it, on seeded small cases: two nodes of four
// GPUs of 80 GiB, filled with replicas of models without traffic, of which some are dedicated
// and may not be evicted; and a few models of a higher priority that have no replica yet. The
// planner plans until nothing is left to do (see planner.Foresee). The reference is an exact
// search over what is evicted, with an exact packing of the new replicas into what is free
// then. Beside it are the planner without its joint search, NDIF's rule and first fit. Of each
// rule is reported
//
//   - solved: of the cases that can be solved, those where all new replicas were placed;
//   - mean, p50, p99: the cost of what was evicted relative to the optimum, over the cases
//     that the rule solved and where the optimum is above 0;
//   - needless: of the cases it solved where nothing has to be evicted, those where it
//     evicted something all the same (a ratio to 0 has no meaning);
//
// The cost is placement.EvictionCost in seconds.

var fills = []struct {
	name  string
	share float64
	batch int
}{{"loose", 0.65, 6}, {"tight", 0.9, 5}}

var rules = []struct {
	name string
	of   func(*quiz, require.TestingT) (float64, bool)
}{{"planner", (*quiz).planned}, {"one-by-one", (*quiz).alone}, {"ndif", (*quiz).ndif}, {"first-fit", (*quiz).firstFit}}

// TestQuality holds the planner to its goals.
func TestQuality(t *testing.T) {
	t.Parallel()
	for _, fill := range fills {
		t.Run(fill.name, func(t *testing.T) {
			t.Parallel()
			got := score(t, quizzes(100, fill.share, fill.batch), rules[0].of)
			require.Equal(t, 1.0, got.solved, "%+v", got)
			require.LessOrEqual(t, got.mean, 1.02, "%+v", got)
			require.LessOrEqual(t, got.over, 0.01, "%+v", got)
			require.Zero(t, got.needless, "%+v", got)
		})
	}
}

// BenchmarkQuality compares the rules on more cases.
func BenchmarkQuality(b *testing.B) {
	for _, fill := range fills {
		all := quizzes(1000, fill.share, fill.batch)
		for _, rule := range rules {
			b.Run(fill.name+"/"+rule.name, func(b *testing.B) {
				for b.Loop() {
					got := score(b, all, rule.of)
					b.ReportMetric(100*got.solved, "solved_%")
					b.ReportMetric(got.mean, "mean")
					b.ReportMetric(got.p50, "p50")
					b.ReportMetric(got.p99, "p99")
					b.ReportMetric(100*got.needless, "needless_%")
					b.ReportMetric(float64(got.above0), "cases_above_0")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// quizzes returns so many cases that can be solved.
func quizzes(count int, share float64, batch int) []*quiz {
	var all []*quiz
	for i := uint64(0); len(all) < count; i++ {
		q := newQuiz(i, share, batch)
		if q.optimum = q.solve(); !math.IsInf(q.optimum, 1) {
			all = append(all, q)
		}
	}
	return all
}

// quality is how good a rule is.
type quality struct {
	solved, mean, p50, p99, needless float64
	over                             float64 // of the cases, those with a ratio above 1.10
	above0                           int     // cases
}

func score(t require.TestingT, all []*quiz, rule func(*quiz, require.TestingT) (float64, bool)) quality {
	var ratios []float64
	solved, needless, free := 0, 0, 0
	for _, q := range all {
		cost, ok := rule(q, t)
		if !ok {
			continue
		}
		solved++
		if q.optimum == 0 {
			free++
			if cost > 0 {
				needless++
			}
			continue
		}
		require.GreaterOrEqual(t, cost, q.optimum-1e-6, "case %d: less than the optimum", q.seed)
		ratios = append(ratios, cost/q.optimum)
	}
	slices.Sort(ratios)
	sum, over := 0.0, 0
	for _, r := range ratios {
		sum += r
		over += btoi(r > 1.10)
	}
	quantile := func(p float64) float64 { return ratios[min(len(ratios)-1, int(p*float64(len(ratios))))] }
	return quality{
		solved: float64(solved) / float64(len(all)), needless: float64(needless) / float64(max(1, free)),
		over: float64(over) / float64(len(all)),
		mean: sum / float64(len(ratios)), p50: quantile(0.5), p99: quantile(0.99), above0: len(ratios),
	}
}

// quiz is one case. GPUs are numbered through; the first half is on node n0.
type quiz struct {
	seed      uint64
	capacity  int64
	residents []resident
	batch     []piece // the biggest first
	optimum   float64
}

type resident struct {
	gpus     []int
	bytes    int64 // of each
	idle     time.Duration
	priority int
	cost     float64
	movable  bool
}

type piece struct {
	gpus  int
	bytes int64 // of each
	name  string
}

const (
	quizNodes = 2
	quizGPUs  = 4
	quizSeats = 12
	gib       = int64(1) << 30
)

func newQuiz(seed uint64, share float64, batch int) *quiz {
	random := rand.New(rand.NewPCG(seed, 7))
	q := &quiz{seed: seed, capacity: 80 * gib}
	draw := func() piece {
		weights := []int64{8, 14, 16, 26, 30, 40, 60, 65, 130, 140, 230}[random.IntN(11)] * gib
		gpus, each := placement.Sizing(weights, q.capacity)
		return piece{gpus: gpus, bytes: each}
	}
	free := make([]int64, quizNodes*quizGPUs)
	for i := range free {
		free[i] = q.capacity
	}
	total, used := q.capacity*int64(len(free)), int64(0)
	for tries := 0; tries < 60 && float64(used) < share*float64(total); tries++ {
		p := draw()
		first := random.IntN(quizNodes) * quizGPUs
		var gpus []int
		for _, g := range random.Perm(quizGPUs) {
			if len(gpus) < p.gpus && free[first+g] >= p.bytes {
				gpus = append(gpus, first+g)
			}
		}
		if len(gpus) < p.gpus {
			continue
		}
		slices.Sort(gpus)
		for _, g := range gpus {
			free[g] -= p.bytes
		}
		used += p.bytes * int64(p.gpus)
		r := resident{gpus: gpus, bytes: p.bytes, movable: random.IntN(8) > 0}
		r.idle = planner.DefaultConfig().TrafficWindow + time.Duration(random.ExpFloat64()*float64(20*time.Minute))
		r.priority = 25 * random.IntN(4)
		r.cost = placement.EvictionCost(placement.DefaultRates(), placement.Worth{Weights: p.bytes * int64(p.gpus), Idle: r.idle, Priority: r.priority}, state.GoalCold)
		q.residents = append(q.residents, r)
	}
	for range 1 + random.IntN(batch) {
		p := draw()
		p.name = fmt.Sprintf("new%d", len(q.batch)) // the planner's order is not that of their size
		q.batch = append(q.batch, p)
	}
	slices.SortStableFunc(q.batch, func(a, b piece) int { return cmp.Compare(b.bytes*int64(b.gpus), a.bytes*int64(a.gpus)) })
	return q
}

// planned is what the planner does.
func (q *quiz) planned(t require.TestingT) (float64, bool) { return q.foreseen(t, planner.Plan) }

// alone is what it does without its joint search.
func (q *quiz) alone(t require.TestingT) (float64, bool) { return q.foreseen(t, planner.PlanAlone) }

// foreseen is the cost of what is evicted until nothing is left to do, and whether all new
// models have their replica then.
func (q *quiz) foreseen(t require.TestingT, plan func(*state.View, planner.Observation, planner.Config) (*state.Plan, time.Time)) (float64, bool) {
	w, o := q.world(t)
	store := w.store.Fork()
	f, err := planner.Foresee(store, o, w.conf, planner.Rules{Plan: plan, Actions: planner.Actions, After: planner.After}, planner.DefaultBounds())
	require.NoError(t, err)
	require.Empty(t, f.Unfinished)
	evicted := map[string]bool{}
	for _, d := range f.Decisions {
		if d.Kind == planner.KindEvict {
			evicted[d.Model] = true
		}
	}
	cost := 0.0
	for i, r := range q.residents {
		if evicted[q.name(i)] {
			require.True(t, r.movable)
			cost += r.cost
		}
	}
	v := store.View()
	for _, p := range q.batch {
		if !slices.ContainsFunc(v.ReplicasOf(nil, p.name), func(r *state.Replica) bool { return r.Status == state.StatusServing }) {
			return 0, false
		}
	}
	return cost, true
}

func (q *quiz) name(resident int) string { return fmt.Sprintf("r%02d", resident) }

// world is the case as a state, with what is observed of it. Nodes have no memory for WARM
// replicas: what is evicted goes COLD.
func (q *quiz) world(t require.TestingT) (*world, planner.Observation) {
	w := newWorld(t, nil)
	var nodes []state.Node
	for n := range quizNodes {
		own := node(fmt.Sprint("n", n), quizGPUs)
		own.HostMemory = 0
		for g := range own.GPUs {
			gpu := &own.GPUs[g]
			gpu.Memory, gpu.Seats = q.capacity, nil
			for s := range quizSeats {
				gpu.Seats = append(gpu.Seats, fmt.Sprintf("%s#%d", gpu.UUID, s))
			}
		}
		nodes = append(nodes, own)
	}
	w.addNodes(nodes...)
	w.now = epoch.Add(24 * time.Hour)
	o := planner.Observation{
		Now: w.now, Jobs: map[string]planner.Job{}, Pools: map[string]planner.PoolView{"": {JobsKnown: true}}, EnginesKnown: true, Engines: map[string][]planner.Engine{},
		TrafficKnown: true, GatewaysSince: epoch, Loads: map[string]planner.Load{},
	}
	p := &state.Plan{ID: "quiz", Time: epoch}
	seats := make([]int, quizNodes*quizGPUs)
	for i, r := range q.residents {
		m := model(q.name(i), 1, variant("v", "h", func(v *state.Variant) { v.GPUs, v.Memory = len(r.gpus), r.bytes }))
		m.Priority, m.Dedicated = r.priority, !r.movable
		w.model(m)
		n := nodes[r.gpus[0]/quizGPUs]
		at := state.Placement{Node: n.ID, HostMemory: 10, Memory: map[string]int64{}}
		for _, g := range r.gpus {
			gpu := n.GPUs[g%quizGPUs]
			at.Seats = append(at.Seats, gpu.Seats[seats[g]])
			at.Memory[gpu.UUID] = r.bytes
			seats[g]++
		}
		name := replica.Name{Model: m.Name, Variant: "v", ID: fmt.Sprintf("%08d-0000-0000-0000-000000000000", i)}
		p.Place = append(p.Place, state.Place{Name: name, Version: 1, Placement: at, Adopt: true, JobIndex: uint64(i + 1), Status: state.StatusServing})
		o.Jobs[name.String()] = planner.Job{
			Name: name, Hash: "h", Placement: at, Index: uint64(i + 1),
			Alloc: &planner.Alloc{ID: name.ID, Client: "running", First: true, Started: epoch.Add(-time.Minute)},
		}
		o.Engines[name.String()] = []planner.Engine{{Passing: true}}
		o.Loads[name.String()] = planner.Load{LastRequest: w.now.Add(-r.idle)}
	}
	p.Index = w.view().Index()
	w.must(p)
	for _, b := range q.batch {
		m := model(b.name, 1, variant("v", "h", func(v *state.Variant) { v.GPUs, v.Memory = b.gpus, b.bytes }))
		m.Priority = 100
		w.model(m)
	}
	return w, o
}

// free is what is free of each GPU once some residents are gone.
func (q *quiz) free(gone func(i int) bool) []int64 {
	free := make([]int64, quizNodes*quizGPUs)
	for i := range free {
		free[i] = q.capacity
	}
	for i, r := range q.residents {
		if !gone(i) {
			for _, g := range r.gpus {
				free[g] -= r.bytes
			}
		}
	}
	return free
}

// packs reports whether the batch from piece i on can be packed, trying all ways.
func (q *quiz) packs(free []int64, i int) bool {
	if i == len(q.batch) {
		return true
	}
	p := q.batch[i]
	for first := 0; first < len(free); first += quizGPUs {
		for set := range 1 << quizGPUs {
			n, ok := 0, true
			for g := range quizGPUs {
				if set>>g&1 == 1 {
					n++
					ok = ok && free[first+g] >= p.bytes
				}
			}
			if n != p.gpus || !ok {
				continue
			}
			next := slices.Clone(free)
			for g := range quizGPUs {
				if set>>g&1 == 1 {
					next[first+g] -= p.bytes
				}
			}
			if q.packs(next, i+1) {
				return true
			}
		}
	}
	return false
}

// solve is the least cost of residents without which the batch can be packed, infinite
// where there is none: over all sets of them, but those that cost more than one that is
// known, and those without hope.
func (q *quiz) solve() float64 {
	best := math.Inf(1)
	gone := make([]bool, len(q.residents))
	order := make([]int, 0, len(q.residents))
	for i, r := range q.residents {
		if r.movable {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(q.residents[b].cost, q.residents[a].cost) })
	var try func(k int, cost float64)
	try = func(k int, cost float64) {
		if cost >= best {
			return
		}
		if q.packs(q.free(func(i int) bool { return gone[i] }), 0) {
			best = cost
			return
		}
		if k == len(order) {
			return
		}
		open := order[k:]
		if !q.packs(q.free(func(i int) bool { return gone[i] || slices.Contains(open, i) }), 0) {
			return
		}
		try(k+1, cost)
		gone[order[k]] = true
		try(k+1, cost+q.residents[order[k]].cost)
		gone[order[k]] = false
	}
	try(0, 0)
	return best
}

// ndif is the placement rule of NDIF (https://ndif.us): biggest first; a node
// where it is free before one that is full, ties at random; on a GPU the smallest that
// may go first until there is room, and of a node the GPUs with the fewest evictions;
// best fit where it is free; those of the batch never go.
func (q *quiz) ndif(require.TestingT) (float64, bool) {
	random := rand.New(rand.NewPCG(q.seed, 99))
	gone, free := make([]bool, len(q.residents)), q.free(func(int) bool { return false })
	cost := 0.0
	for _, p := range q.batch {
		type plan struct {
			gpus  []int
			evict []int
		}
		var levels [2][]plan // free, full
		for first := 0; first < len(free); first += quizGPUs {
			type offer struct {
				gpu   int
				evict []int
			}
			var offers []offer
			for g := first; g < first+quizGPUs; g++ {
				o, have := offer{gpu: g}, free[g]
				var own []int
				for i, r := range q.residents {
					if !gone[i] && r.movable && slices.Contains(r.gpus, g) {
						own = append(own, i)
					}
				}
				slices.SortStableFunc(own, func(a, b int) int { return cmp.Compare(q.residents[a].bytes, q.residents[b].bytes) })
				for _, i := range own {
					if have >= p.bytes {
						break
					}
					have += q.residents[i].bytes
					o.evict = append(o.evict, i)
				}
				if have >= p.bytes {
					offers = append(offers, o)
				}
			}
			if len(offers) < p.gpus {
				continue
			}
			slices.SortStableFunc(offers, func(a, b offer) int {
				return cmp.Or(cmp.Compare(len(a.evict), len(b.evict)), cmp.Compare(free[a.gpu], free[b.gpu]))
			})
			var pl plan
			for _, o := range offers[:p.gpus] {
				pl.gpus = append(pl.gpus, o.gpu)
				for _, i := range o.evict {
					if !slices.Contains(pl.evict, i) {
						pl.evict = append(pl.evict, i)
					}
				}
			}
			level := min(1, len(pl.evict))
			levels[level] = append(levels[level], pl)
		}
		best := levels[0]
		if len(best) == 0 {
			best = levels[1]
		}
		if len(best) == 0 {
			return 0, false
		}
		chosen := best[random.IntN(len(best))]
		cost += q.evict(chosen.evict, gone, free)
		for _, g := range chosen.gpus {
			free[g] -= p.bytes
		}
	}
	return cost, true
}

func (q *quiz) evict(which []int, gone []bool, free []int64) float64 {
	cost := 0.0
	for _, i := range which {
		gone[i] = true
		cost += q.residents[i].cost
		for _, g := range q.residents[i].gpus {
			free[g] += q.residents[i].bytes
		}
	}
	return cost
}

// firstFit takes the first GPUs of the first node where there is room, and where there
// is none, the first GPUs where there is once the oldest that may go are gone.
func (q *quiz) firstFit(require.TestingT) (float64, bool) {
	gone, free := make([]bool, len(q.residents)), q.free(func(int) bool { return false })
	cost := 0.0
	for _, p := range q.batch {
		placed := false
		for _, evicts := range []bool{false, true} {
			for first := 0; first < len(free) && !placed; first += quizGPUs {
				var gpus, evict []int
				have := slices.Clone(free)
				for g := first; g < first+quizGPUs && len(gpus) < p.gpus; g++ {
					var own []int
					for i, r := range q.residents {
						if evicts && have[g] < p.bytes && !gone[i] && !slices.Contains(evict, i) && r.movable && slices.Contains(r.gpus, g) {
							own = append(own, i)
							for _, x := range r.gpus {
								have[x] += r.bytes
							}
						}
					}
					if have[g] < p.bytes {
						for _, i := range own {
							for _, x := range q.residents[i].gpus {
								have[x] -= q.residents[i].bytes
							}
						}
						continue
					}
					gpus, evict = append(gpus, g), append(evict, own...)
				}
				if len(gpus) < p.gpus {
					continue
				}
				placed = true
				cost += q.evict(evict, gone, free)
				for _, g := range gpus {
					free[g] -= p.bytes
				}
			}
		}
		if !placed {
			return 0, false
		}
	}
	return cost, true
}
