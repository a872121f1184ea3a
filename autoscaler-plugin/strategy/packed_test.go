package strategy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/measure"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/strategy"
	"remuda/autoscaler-plugin/target"
	"remuda/controller/api"
)

// A memory that is larger than usual is packed, and read again.
func TestALargeMemoryIsPacked(t *testing.T) {
	w := newWorld(model(0, 2, 0.2))
	for i := range 300 {
		w.snapshot.Variants = append(w.snapshot.Variants, observe.Variant{Variant: fmt.Sprintf("v%03d", i), Unplaceable: true, Why: strings.Repeat("no node has one free ", 20)})
	}
	w.snapshot.Queue.Waiting = 8
	p := w.plugin(t, strategy.HPA, map[string]string{"target": "1"})
	require.Equal(t, up, run(t, p, 2, check).Direction)
	kept := w.scalers.all["remuda-hpa/m"]
	require.Less(t, len(kept.State), 32<<10)
	require.Contains(t, string(kept.State), `{"gzip":"`)

	// Another process knows what was held down.
	w.snapshot.Variants = w.snapshot.Variants[:3]
	w.snapshot.Variants[2].Unplaceable, w.snapshot.Variants[2].Cost = false, measure.Of(0.1)
	w.now = w.now.Add(time.Second)
	targets := func(config map[string]string) any {
		a := run(t, w.plugin(t, strategy.HPA, config), 2, check)
		require.Equal(t, up, a.Direction, a.Reason)
		return a.Meta[target.ActionTargets]
	}
	require.Equal(t, `{"h100":0,"l4":6,"v000":0}`, targets(map[string]string{"target": "1"}), "v000 is the cheapest, and held down")
	require.Equal(t, `{"h100":0,"l4":2,"v000":4}`, targets(map[string]string{"target": "1", "unplaceable_hold": "0s"}))

	for _, bad := range []string{`{"gzip":"AAAA"}`, `{"gzip":"H4sIAAAAAAAA/w=="}`} {
		w.scalers.all["remuda-hpa/m"] = api.Scaler{State: []byte(bad), ModifyIndex: 9}
		require.NotEmpty(t, run(t, w.plugin(t, strategy.HPA, nil), 2, check).Reason, "it starts with nothing")
	}
}
