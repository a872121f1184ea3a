package planner_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// large returns a world of that many nodes with 8 GPUs each, half full: on each GPU one
// replica serves, and takes half of its memory and one of its two seats. There are as
// many models as tenths of nodes, of 80 replicas each.
func large(t require.TestingT, nodes int) (*world, planner.Observation) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 2)))
	var all []state.Node
	for i := range nodes {
		n := node(fmt.Sprintf("node-%05d", i), 8)
		all = append(all, n)
		w.nodes[n.ID] = &n
	}
	for part := range slices.Chunk(all, 1000) {
		w.must(&state.UpsertNodes{Nodes: part})
	}
	models := nodes / 10
	for i := range models {
		m := model(fmt.Sprintf("m%04d", i), 80, variant("a", "h1", func(v *state.Variant) { v.Memory = 40 }))
		m.IdleWarm, m.IdleCold = time.Hour, time.Hour
		w.model(m)
	}
	w.now = epoch.Add(time.Hour)
	o := planner.Observation{
		Now: w.now, Jobs: map[string]planner.Job{}, Pools: map[string]planner.PoolView{"": {JobsKnown: true}}, EnginesKnown: true, Engines: map[string][]planner.Engine{},
		TrafficKnown: true, GatewaysSince: epoch.Add(-time.Hour), Loads: map[string]planner.Load{},
	}
	p := &state.Plan{ID: "large", Index: w.view().Index(), Time: epoch}
	i := 0
	for _, n := range all {
		for _, g := range n.GPUs {
			name := replica.Name{Model: fmt.Sprintf("m%04d", i%models), Variant: "a", ID: fmt.Sprintf("%08d-0000-0000-0000-000000000000", i)}
			at := state.Placement{Node: n.ID, Seats: g.Seats[:1], Memory: map[string]int64{g.UUID: 40}, HostMemory: 10}
			p.Place = append(p.Place, state.Place{Name: name, Version: 1, Placement: at, Adopt: true, JobIndex: uint64(i + 1), Status: state.StatusServing})
			o.Jobs[name.String()] = planner.Job{
				Name: name, Hash: "h1", Placement: at, Index: uint64(i + 1),
				Alloc: &planner.Alloc{ID: name.ID, Client: "running", First: true, Started: epoch.Add(-time.Minute)},
			}
			o.Engines[name.String()] = []planner.Engine{{Passing: true}}
			o.Loads[name.String()] = planner.Load{InFlight: 1, LastRequest: w.now}
			i++
		}
	}
	for part := range slices.Chunk(p.Place, 500) {
		w.must(&state.Plan{ID: p.ID, Index: p.Index, Time: p.Time, Place: part})
	}
	return w, o
}

// heardAgain returns the observation as it is after everything was heard again: with maps of its
// own, and newer requests.
func heardAgain(o planner.Observation) planner.Observation {
	o.Jobs, o.Engines, o.Loads = maps.Clone(o.Jobs), maps.Clone(o.Engines), maps.Clone(o.Loads)
	for name, j := range o.Jobs {
		alloc := *j.Alloc
		j.Alloc = &alloc
		o.Jobs[name] = j
	}
	for name, es := range o.Engines {
		o.Engines[name] = slices.Clone(es)
	}
	for name, l := range o.Loads {
		if l.InFlight > 0 {
			l.InFlight, l.LastRequest = l.InFlight+1, l.LastRequest.Add(time.Second)
		}
		o.Loads[name] = l
	}
	return o
}

// processorTime is what this process has used of all processors, the garbage collector's
// share included. It does not count the time that others take of a shared machine.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPlanLarge is plans for many nodes that are half full. The leader's planner makes them
// one after the other: at rest, with nothing heard or everything heard again in between; with one
// replica missing, and then at rest with it placed; with one missing for which others have to
// go. The first plan is that of a new leader.
func BenchmarkPlanLarge(b *testing.B) {
	for _, nodes := range []int{1000, 10_000} {
		w, o := large(b, nodes)
		again := heardAgain(o)
		rest := w.view()
		n := 81
		w.must(&state.ScaleRequest{Model: "m0000", Replicas: &n, Origin: state.OriginOperator})
		missing := w.view()
		p, _ := planner.Plan(missing, o, w.conf)
		require.Len(b, p.Place, 1)
		w.must(p)
		placed := w.view()

		run := func(name string, step func(b *testing.B, l *planner.Planner)) {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, name), func(b *testing.B) {
				l := planner.New(w.conf)
				step(b, l)
				runtime.GC()
				b.ReportAllocs()
				spent := processorTime(b)
				for b.Loop() {
					step(b, l)
				}
				b.ReportMetric(float64((processorTime(b)-spent).Microseconds())/1000/float64(b.N), "core-ms/op")
			})
		}
		nothing := func(b *testing.B, p *state.Plan) {
			if p != nil {
				b.Fatalf("%+v", p)
			}
		}
		one := func(b *testing.B, p *state.Plan) {
			if p == nil || len(p.Place) != 1 {
				b.Fatalf("%+v", p)
			}
		}
		run("first", func(b *testing.B, _ *planner.Planner) {
			p, _ := planner.Plan(rest, o, w.conf)
			nothing(b, p)
		})
		run("first-one-missing", func(b *testing.B, _ *planner.Planner) {
			p, _ := planner.Plan(missing, o, w.conf)
			one(b, p)
		})
		run("at-rest", func(b *testing.B, l *planner.Planner) {
			p, _ := l.Plan(rest, o)
			nothing(b, p)
		})
		i := 0
		alternate := func() planner.Observation {
			if i++; i%2 == 0 {
				return o
			}
			return again
		}
		run("at-rest-heard", func(b *testing.B, l *planner.Planner) {
			p, _ := l.Plan(rest, alternate())
			nothing(b, p)
		})
		run("one-missing-and-placed", func(b *testing.B, l *planner.Planner) {
			p, _ := l.Plan(missing, o)
			one(b, p)
			p, _ = l.Plan(placed, o)
			nothing(b, p)
		})
		run("one-missing-heard", func(b *testing.B, l *planner.Planner) {
			p, _ := l.Plan(missing, alternate())
			one(b, p)
		})
		big := model("big", 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 8, 60 }))
		big.Priority = 90
		w.model(big)
		evicting := w.view()
		run("one-missing-evicts", func(b *testing.B, l *planner.Planner) {
			p, _ := l.Plan(evicting, o)
			if p == nil || len(p.Move) != 8 {
				b.Fatalf("%+v", p)
			}
		})
		b.Run(fmt.Sprintf("nodes=%d/actions", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if as := planner.Actions(rest, o, w.conf); len(as) > 0 {
					b.Fatal(as)
				}
			}
		})
	}
}

// oneModel is such a world in which one model holds everything, and may lose one replica,
// to one that asks for two GPUs.
func oneModel(t require.TestingT, nodes int) (*world, planner.Observation) {
	full, o := large(t, nodes)
	w := newWorld(t, full.rand)
	w.now = full.now
	var all []state.Node
	for _, n := range full.view().Nodes(nil) {
		all = append(all, *n)
	}
	w.must(&state.UpsertNodes{Nodes: all})
	m := model("all", nodes*8, variant("a", "h1", func(v *state.Variant) { v.Memory = 40 }))
	m.Min, m.Max = nodes*8-1, nodes*8
	w.model(m)
	w.model(model("asks", 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 2, 60 })))
	jobs, engines := map[string]planner.Job{}, map[string][]planner.Engine{}
	p := &state.Plan{ID: "all", Index: w.view().Index(), Time: epoch}
	for _, name := range sorted(o.Jobs) {
		j := o.Jobs[name]
		j.Name.Model = m.Name
		jobs[j.Name.String()], engines[j.Name.String()] = j, o.Engines[name]
		p.Place = append(p.Place, state.Place{Name: j.Name, Version: 1, Placement: j.Placement, Adopt: true, JobIndex: j.Index, Status: state.StatusServing})
	}
	for part := range slices.Chunk(p.Place, 500) {
		w.must(&state.Plan{ID: p.ID, Index: p.Index, Time: p.Time, Place: part})
	}
	o.Jobs, o.Engines, o.Loads = jobs, engines, map[string]planner.Load{}
	return w, o
}

// TestManyToSpare: on each of many nodes an eviction would take more from a model than it
// may lose. The work, counted by its allocations, grew with the square of the nodes once.
func TestManyToSpare(t *testing.T) { // not in parallel: AllocsPerRun counts everybody's
	work := map[int]float64{}
	for _, nodes := range []int{100, 400} {
		w, o := oneModel(t, nodes)
		v := w.view()
		var p *state.Plan
		work[nodes] = testing.AllocsPerRun(1, func() { p, _ = planner.Plan(v, o, w.conf) })
		require.NotNil(t, p)
		require.Empty(t, p.Move, "nothing is evicted: it would not help")
		require.Equal(t, planner.KindCannotPlace, p.Decisions[0].Kind)
	}
	require.Less(t, work[400], 4*work[100])
}

// BenchmarkManyToSpare is how long that takes.
func BenchmarkManyToSpare(b *testing.B) {
	w, o := oneModel(b, 1000)
	v := w.view()
	for b.Loop() {
		if p, _ := planner.Plan(v, o, w.conf); p == nil || len(p.Move) > 0 {
			b.Fatalf("%+v", p)
		}
	}
}
