package placement_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// BenchmarkQuality compares rules of placement on seeded small cases: two nodes of four
// GPUs of 80 GiB, filled with replicas of which some may not be evicted, and a batch of
// models to be placed. The reference is an exact search over what is evicted, with an
// exact packing of the batch into what is free then. The rules are PlaceBatch, Place
// one by one (the biggest first), NDIF's and first fit. It reports of each
//
//   - solved_%: of the cases that can be solved, those where all of the batch was placed;
//   - mean, p50, p99: the cost of what was evicted relative to the optimum, over the cases
//     that the rule solved and where the optimum is above 0;
//   - needless_%: of the cases it solved where nothing has to be evicted, those where it
//     evicted something all the same (a ratio to 0 has no meaning);
//
// The cost is EvictionCost in seconds, and in a second set of cases just bytes, which is
// what NDIF's rule minimizes.
func BenchmarkQuality(b *testing.B) {
	const cases = 1000
	for _, fill := range []struct {
		name  string
		share float64
		batch int
	}{{"loose", 0.65, 6}, {"tight", 0.9, 5}} {
		for _, cost := range []string{"seconds", "bytes"} {
			var all []*quiz
			for i := 0; len(all) < cases; i++ {
				q := newQuiz(uint64(i), fill.share, fill.batch, cost == "bytes")
				q.optimum = q.solve()
				if !math.IsInf(q.optimum, 1) {
					all = append(all, q)
				}
			}
			for _, rule := range []struct {
				name string
				of   func(*quiz) (float64, bool)
			}{{"batch", (*quiz).together}, {"one-by-one", (*quiz).inTurn}, {"ndif", (*quiz).ndif}, {"first-fit", (*quiz).firstFit}} {
				b.Run(fmt.Sprintf("%s/cost=%s/%s", fill.name, cost, rule.name), func(b *testing.B) {
					for b.Loop() {
						score(b, all, rule.of)
					}
				})
			}
		}
	}
}

func score(b *testing.B, all []*quiz, rule func(*quiz) (float64, bool)) {
	var ratios []float64
	solved, needless, free := 0, 0, 0
	for _, q := range all {
		cost, ok := rule(q)
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
		if cost < q.optimum-1e-6 {
			b.Fatalf("case %d: %f is less than the optimum, %f", q.seed, cost, q.optimum)
		}
		ratios = append(ratios, cost/q.optimum)
	}
	slices.Sort(ratios)
	sum := 0.0
	for _, r := range ratios {
		sum += r
	}
	quantile := func(p float64) float64 { return ratios[min(len(ratios)-1, int(p*float64(len(ratios))))] }
	b.ReportMetric(100*float64(solved)/float64(len(all)), "solved_%")
	b.ReportMetric(sum/float64(len(ratios)), "mean")
	b.ReportMetric(quantile(0.5), "p50")
	b.ReportMetric(quantile(0.99), "p99")
	b.ReportMetric(100*float64(needless)/float64(max(1, free)), "needless_%")
	b.ReportMetric(float64(len(ratios)), "cases_above_0")
	b.ReportMetric(0, "ns/op")
}

// quiz is one case. GPUs are numbered through; the first half is on node n0.
type quiz struct {
	seed      uint64
	capacity  int64
	residents []resident
	batch     []piece
	optimum   float64
}

type resident struct {
	gpus    []int
	bytes   int64 // of each
	cost    float64
	movable bool
}

type piece struct {
	gpus  int
	bytes int64 // of each
}

const (
	quizNodes = 2
	quizGPUs  = 4
	quizSeats = 12
)

func newQuiz(seed uint64, share float64, batch int, bytes bool) *quiz {
	random := rand.New(rand.NewPCG(seed, 7))
	q := &quiz{seed: seed, capacity: 80 * gib}
	draw := func() piece {
		weights := []int64{8, 14, 16, 26, 30, 40, 60, 65, 130, 140, 230}[random.IntN(11)] * gib
		gpus, each := placement.Sizing(weights, q.capacity)
		return piece{gpus, each}
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
		r.cost = float64(p.bytes*int64(p.gpus)) / float64(gib)
		if !bytes {
			r.cost = placement.EvictionCost(placement.DefaultRates(), placement.Worth{
				Weights: p.bytes * int64(p.gpus), Idle: time.Duration(random.ExpFloat64() * float64(20*time.Minute)), Priority: 25 * random.IntN(5),
			}, state.GoalCold)
		}
		q.residents = append(q.residents, r)
	}
	for range 1 + random.IntN(batch) {
		q.batch = append(q.batch, draw())
	}
	slices.SortStableFunc(q.batch, func(a, b piece) int { return cmp.Compare(b.bytes*int64(b.gpus), a.bytes*int64(a.gpus)) })
	return q
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

// packs tells whether the batch from piece i on can be packed, trying all ways.
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

// fleet is the case as a fleet, with the requests for its batch.
func (q *quiz) fleet() (*placement.Fleet, []placement.Request) {
	var nodes []*state.Node
	for n := range quizNodes {
		nodes = append(nodes, node(fmt.Sprint("n", n), quizGPUs, quizSeats, q.capacity))
	}
	f := fleet(nodes)
	seats := make([]int, quizNodes*quizGPUs)
	for i, r := range q.residents {
		n := nodes[r.gpus[0]/quizGPUs]
		t := placement.Tenant{Name: fmt.Sprintf("r%02d", i), Node: n.ID, Holds: state.Holding{Memory: map[string]int64{}}}
		for _, g := range r.gpus {
			gpu := n.GPUs[g%quizGPUs]
			t.Holds.Seats = append(t.Holds.Seats, gpu.Seats[seats[g]])
			t.Holds.Memory[gpu.UUID] = r.bytes
			seats[g]++
		}
		if r.movable {
			t.Ways = []placement.Way{{To: state.GoalCold, Cost: r.cost}}
		}
		f.Put(t)
	}
	var rs []placement.Request
	for _, p := range q.batch {
		rs = append(rs, request(p.gpus, p.bytes, evicting))
	}
	return f, rs
}

// together is PlaceBatch.
func (q *quiz) together() (float64, bool) {
	f, rs := q.fleet()
	cost := 0.0
	for _, a := range f.PlaceBatch(rs) {
		if a.Refusal != nil {
			return 0, false
		}
		cost += a.Choice.Cost
	}
	return cost, true
}

// inTurn is Place for each.
func (q *quiz) inTurn() (float64, bool) {
	f, rs := q.fleet()
	cost := 0.0
	for i, r := range rs {
		c, no := f.Place(r)
		if no != nil {
			return 0, false
		}
		for _, e := range c.Evict {
			f.Drop(e.Tenant)
		}
		cost += c.Cost
		f.Hold(fmt.Sprint("new", i), c, "m")
	}
	return cost, true
}

// ndif is the placement rule of NDIF (https://ndif.us): biggest first; a node
// where it is free before one that is full, ties at random; on a GPU the smallest that
// may go first until there is room, and of a node the GPUs with the fewest evictions;
// best fit where it is free; those of the batch never go.
func (q *quiz) ndif() (float64, bool) {
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
func (q *quiz) firstFit() (float64, bool) {
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
