package strategy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/strategy"
)

// The optimizer learns from the engines how long a request takes at which concurrency, and
// then asks for more replicas where the analyzer alone sees no need.
func TestTheOptimizerLearnsAndIsHeardByTheAnalyzer(t *testing.T) {
	w := newWorld(model(0, 2, 0.5))
	p := w.plugin(t, strategy.Capacity, map[string]string{"optimizer": "true", "target_wait": "1s", "target_probability": "0.99"})
	load := func(running float64) {
		seconds := 1 + 0.1*running // how long a request takes where so many run
		for i := range w.snapshot.Engines {
			w.snapshot.Engines[i].Rates = observe.Rates{Finished: measure.Of(running / seconds), EndToEnd: measure.Of(seconds), Queue: measure.Of(0)}
		}
		w.snapshot.Queue.Served = measure.Of(2 * running / seconds)
		w.snapshot.At = w.now
	}
	load(3.5)
	first := run(t, p, 2, check)
	require.Equal(t, none, first.Direction, "it refuses while it knows nothing")
	require.Contains(t, first.Reason, "; no targets from the optimizer: ")
	for i := range 80 {
		w.now = w.now.Add(30 * time.Second)
		load(1 + float64(i%6)/2)
		run(t, p, 2, check)
	}
	w.now = w.now.Add(30 * time.Second)
	load(3.9)
	a := run(t, p, 2, check)
	require.Equal(t, up, a.Direction, a.Reason)
	require.Contains(t, a.Reason, "model-based target")
}
