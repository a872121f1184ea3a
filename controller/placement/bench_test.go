package placement_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// BenchmarkFleet measures decisions on one core: a place is found and taken, and the
// oldest replica goes, so that the fleet stays as full as it was. Half full nothing has
// to go for it; full, each decision evicts. Indexes are warm, as they are within a plan.
func BenchmarkFleet(b *testing.B) {
	for _, count := range []int{10, 1000, 10000} {
		for _, full := range []bool{false, true} {
			name := fmt.Sprintf("nodes=%d/half-full", count)
			if full {
				name = fmt.Sprintf("nodes=%d/full", count)
			}
			b.Run(name, func(b *testing.B) { benchFleet(b, count, full) })
		}
	}
}

// sizes are what is placed in turn: most on one GPU, some on several.
var sizes = []struct {
	gpus int
	gib  int64
}{{1, 16}, {1, 20}, {1, 40}, {2, 40}, {1, 24}, {1, 70}, {1, 16}, {4, 60}, {1, 40}, {1, 16}}

func benchFleet(b *testing.B, count int, full bool) {
	random := rand.New(rand.NewPCG(1, 2))
	var nodes []*state.Node
	for i := range count {
		nodes = append(nodes, node(fmt.Sprintf("node-%05d", i), 8, 4, 80*gib))
	}
	var requests []placement.Request
	for i, s := range sizes {
		requests = append(requests, request(s.gpus, s.gib*gib, evicting, func(r *placement.Request) {
			r.Model = fmt.Sprint("model-", i)
			r.Variant.Weights = s.gib * gib * int64(s.gpus)
		}))
	}
	before := heap()
	f := placement.NewFleet(nodes, config())
	total, used := int64(count)*8*80*gib, int64(0)
	type held struct {
		name  string
		bytes int64
	}
	var old []held
	at, serial, evictions := 0, 0, 0
	there := map[string]int64{}
	place := func() bool {
		r := &requests[at%len(requests)]
		at++
		c, no := f.Place(*r)
		if no != nil {
			return false
		}
		for _, e := range c.Evict {
			f.Drop(e.Tenant)
			used -= there[e.Tenant]
			delete(there, e.Tenant)
			evictions++
		}
		serial++
		name := fmt.Sprintf("%s/%d", r.Model, serial)
		bytes := r.Variant.Memory * int64(r.Variant.GPUs)
		if full {
			f.Put(placement.Tenant{Name: name, Node: c.Placement.Node, Model: r.Model, Holds: state.Holding{Seats: c.Placement.Seats, Memory: c.Placement.Memory},
				Ways: []placement.Way{{To: state.GoalCold, Cost: 50 + 400*random.Float64()}}})
		} else {
			f.Hold(name, c, r.Model)
		}
		used += bytes
		there[name] = bytes
		old = append(old, held{name, bytes})
		return true
	}
	drop := func() {
		for len(old) > 0 {
			o := old[0]
			old = old[1:]
			if _, ok := there[o.name]; ok {
				f.Drop(o.name)
				delete(there, o.name)
				used -= o.bytes
				return
			}
		}
	}
	for full && evictions < 20 || !full && used < total/2 {
		if !place() {
			b.Fatal("nothing fits")
		}
	}
	mebibytes := float64(heap()-before) / (1 << 20)
	serial, evictions = 0, 0
	spent := processorTime(b)
	b.ResetTimer()
	for range b.N {
		if !place() {
			b.Fatal("nothing fits")
		}
		for !full && used > total/2 {
			drop()
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(b.N)/(processorTime(b)-spent).Seconds(), "decisions/core-s")
	b.ReportMetric(float64(evictions)/float64(b.N), "evictions/decision")
	b.ReportMetric(mebibytes, "MiB")
	runtime.KeepAlive(f)
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

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkFirstDecision is of a fleet that is made for one decision, as a plan begins: with all indexes to
// be made.
func BenchmarkFirstDecision(b *testing.B) {
	for _, count := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			var nodes []*state.Node
			var tenants []placement.Tenant
			for i := range count {
				n := node(fmt.Sprintf("node-%05d", i), 8, 2, 80*gib)
				nodes = append(nodes, n)
				for g := range n.GPUs {
					tenants = append(tenants, cold(hot(n.GPUs[g].UUID, n.ID, 40*gib, n.GPUs[g].Seats[0]), float64(10+(i*8+g)%997)))
				}
			}
			for b.Loop() {
				f := fleet(nodes, tenants...)
				if _, no := f.Place(request(1, 60*gib, evicting)); no != nil {
					b.Fatal(no)
				}
			}
		})
	}
}
