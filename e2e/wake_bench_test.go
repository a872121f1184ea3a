//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"remuda/internal/devcluster"

	"github.com/stretchr/testify/require"
)

// BenchmarkWakeToHot takes the time from a client's first request, which finds no HOT
// replica, to the first token of the answer: with a WARM replica, and with a COLD one
// whose weights file the node has in its page cache. The gateway
// holds the request meanwhile. For each size it reports the medians, what the
// engine itself took of the wake, and the rest, which is ours.
func BenchmarkWakeToHot(b *testing.B) {
	f := newFleet(b, 1, func(*devcluster.Options) {})
	for _, bench := range []struct {
		weights string
		rounds  int
		init    string // what the engine takes for its own start after the weights
	}{{"32MiB", 20, ""}, {"256MiB", 20, ""}, {"1GiB", 5, ""}, {"256MiB", 5, "10s"}} {
		b.Run(fmt.Sprintf("weights=%s/init=%s", bench.weights, bench.init), func(b *testing.B) {
			f.t = b
			model := strings.ToLower("w-" + bench.weights + bench.init)
			vars := `, memory = "3072"`
			if bench.init != "" {
				vars += fmt.Sprintf(", init_delay = %q", bench.init)
			}
			f.applyTier(tierModel{name: model, replicas: 1, weights: bench.weights, vars: vars})
			f.tiers(model, 1, 0, 0)
			var warm, cold, engine, rest []time.Duration
			for range b.N {
				for range bench.rounds {
					f.tiers(model, 1, 0, 0)
					before := f.wakeSum(b, model)
					f.remuda("evict", model, "-to", "warm")
					f.tiers(model, 0, 1, 0)
					took := f.firstToken(b, model)
					own := f.wakeSum(b, model) - before
					warm, engine, rest = append(warm, took), append(engine, own), append(rest, took-own)
				}
				for range (bench.rounds + 3) / 4 {
					f.tiers(model, 1, 0, 0)
					f.remuda("evict", model, "-to", "cold")
					f.tiers(model, 0, 0, 1)
					cold = append(cold, f.firstToken(b, model))
				}
			}
			for name, d := range map[string][]time.Duration{"warm": warm, "cold": cold, "engine": engine, "ours": rest} {
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, name+"-p50-ms")
				b.ReportMetric(float64(d[len(d)-1].Microseconds())/1000, name+"-max-ms")
			}
			b.ReportMetric(float64(cold[len(cold)/2])/float64(warm[len(warm)/2]), "cold/warm")
			b.ReportMetric(float64(len(warm)), "n-warm")
			b.ReportMetric(float64(len(cold)), "n-cold")
			b.ReportMetric(0, "ns/op")
			f.clear(model)
		})
	}
	f.t = b
}

// firstToken asks once, which the gateway holds until an engine is there, and returns how
// long it took until the first token.
func (f *fleet) firstToken(t testing.TB, model string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	begin := time.Now()
	prompt := fmt.Sprintf("asked at %d", begin.UnixNano())
	got, err := streamChat(ctx, f.info.Gateway, model, prompt, 4)
	require.NoError(t, err)
	require.Equal(t, exact(model, prompt, 4).Text, got.text)
	return got.first.Sub(begin)
}

// wakeSum is how long the engine of the model's one replica took for all its wakes so
// far, up to its registration, by its shim's metrics.
func (f *fleet) wakeSum(t testing.TB, model string) time.Duration {
	t.Helper()
	all, err := f.replicas(model)
	require.NoError(t, err)
	require.Len(t, all, 1)
	for name := range all {
		allocs, _, err := f.nomad.Jobs().Allocations(name, false, nil)
		require.NoError(t, err)
		a, _, err := f.nomad.Allocations().Info(allocs[0].ID, nil)
		require.NoError(t, err)
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port(t, a, "shim")))
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		for sample, value := range linesWith(string(raw), "remuda_engine_wake_seconds_sum") {
			var seconds float64
			_, err := fmt.Sscan(value, &seconds)
			require.NoError(t, err, sample)
			return time.Duration(seconds * float64(time.Second))
		}
	}
	t.Fatal("the shim tells no remuda_engine_wake_seconds_sum")
	return 0
}
