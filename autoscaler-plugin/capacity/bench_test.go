package capacity_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// fleet makes n models of 20 replicas each, as the speed goal has them: two variants, mixed
// load, and some models that grow, shrink or have a replica of which nothing is known. The
// names come in no order.
func fleet(n int) []capacity.Input {
	rng := rand.New(rand.NewPCG(1, 2))
	models := make([]capacity.Input, n)
	for m := range models {
		in := &models[m]
		in.Model, in.Namespace, in.Config = fmt.Sprintf("model-%d", m), "prod", capacity.DefaultConfig()
		in.Variants = []capacity.Variant{{Variant: "a100", Current: 12}, {Variant: "h100", Current: 8}}
		busy := rng.Float64()
		for i := range 20 {
			name := rng.Uint64()
			r := capacity.Replica{
				Replica: fmt.Sprintf("model-%d:a100:%016x", m, name), Variant: "a100", Accelerator: "A100", Cost: enginemetrics.Of(10),
				KVCacheUsage: enginemetrics.Of(min(busy*(0.7+0.6*rng.Float64()), 1)), QueueLength: enginemetrics.Of(float64(int(busy * 6 * rng.Float64()))), AgeSeconds: 5,
			}
			if i >= 12 {
				r.Variant, r.Accelerator, r.Cost = "h100", "H100", enginemetrics.Of(25)
				r.Replica = fmt.Sprintf("model-%d:h100:%016x", m, name)
			}
			in.Replicas = append(in.Replicas, r)
		}
		if m%50 == 0 {
			in.Replicas[3].KVCacheUsage = enginemetrics.Value{}
		}
	}
	return models
}

// byName sorts the replicas of each model, as an observer does.
func byName(models []capacity.Input) []capacity.Input {
	for i := range models {
		slices.SortFunc(models[i].Replicas, func(x, y capacity.Replica) int { return strings.Compare(x.Replica, y.Replica) })
	}
	return models
}

// BenchmarkAnalyze is one cycle of 5,000 models with 20 replicas each. The goal is 5 ms on
// one core without allocations. Names that come in no order are looked up one by one.
func BenchmarkAnalyze(b *testing.B) {
	sorted, unsorted := byName(fleet(5000)), fleet(5000)
	for _, tc := range []struct {
		name   string
		rules  capacity.Rules
		models []capacity.Input
	}{
		{"safe", capacity.Safe, sorted}, {"wva", capacity.WVA, sorted},
		{"safe-unsorted", capacity.Safe, unsorted}, {"wva-unsorted", capacity.WVA, unsorted},
	} {
		b.Run(tc.name, func(b *testing.B) {
			var a capacity.Analyzer
			var r capacity.Result
			b.ReportAllocs()
			for b.Loop() {
				for i := range tc.models {
					if err := a.Analyze(tc.rules, &tc.models[i], &r); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(tc.models)*20), "ns/replica")
		})
	}
}
