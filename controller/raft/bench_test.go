package raft_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// BenchmarkPlacements commits placements, one to a plan, by many callers at once.
func BenchmarkPlacements(b *testing.B) {
	for _, servers := range []int{1, 3} {
		for _, callers := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("servers=%d/callers=%d", servers, callers), func(b *testing.B) {
				c := start(b, servers, nil)
				l := c.leader()
				l.apply(&state.UpsertModel{Model: state.Model{
					Name: "m", Max: 1 << 30, Management: state.ManagementFull, Hash: "h",
					Variants: []state.Variant{{Name: "v", GPUs: 1, Hash: "h"}},
				}})
				const gpus = 16
				var nodes []state.Node
				for i := 0; i < b.N; i += gpus {
					n := state.Node{ID: fmt.Sprint("n", i/gpus), Ready: true, HostMemory: 1 << 40}
					for g := range gpus {
						uuid := fmt.Sprintf("GPU-%s-%d", n.ID, g)
						n.GPUs = append(n.GPUs, state.GPU{UUID: uuid, Memory: 80 << 30, Seats: []string{uuid + "#0", uuid + "#1"}, Healthy: true})
					}
					if nodes = append(nodes, n); len(nodes) == 500 {
						l.apply(&state.UpsertNodes{Nodes: nodes})
						nodes = nil
					}
				}
				l.apply(&state.UpsertNodes{Nodes: nodes})
				index := l.node.Store().View().Index()
				var next atomic.Int64
				b.ResetTimer()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
							node := fmt.Sprint("n", i/gpus)
							uuid := fmt.Sprintf("GPU-%s-%d", node, i%gpus)
							_, err := l.node.Apply(b.Context(), &state.Plan{ID: "p", Index: index, Place: []state.Place{{
								Name: replica.Name{Model: "m", Variant: "v", ID: fmt.Sprint(i)}, Version: 1,
								Placement: state.Placement{Node: node, Seats: []string{uuid + "#0"}, Memory: map[string]int64{uuid: 60 << 30}, HostMemory: 60 << 30},
							}}})
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				require.Len(b, l.node.Store().View().Replicas(nil), b.N)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "placements/s")
			})
		}
	}
}
