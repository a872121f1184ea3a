package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

func TestModelStatusTellsOfItsVariants(t *testing.T) {
	t.Parallel()
	r := said(t, map[string]any{"GET /v1/model/m": api.ModelStatus{
		Model:         api.Model{Name: "m", Variants: []api.Variant{{Name: "h100", GPUs: 1, Cost: 8}, {Name: "l4", GPUs: 1, Cost: 1}}},
		VariantCounts: map[string]api.Counts{"h100": {Hot: 3}, "l4": {Warm: 2}},
		VariantStarts: map[string]api.Start{"h100": {Cold: api.Duration(91234 * time.Millisecond), Warm: api.Duration(456789 * time.Microsecond)}},
		Unplaceable:   map[string]string{"h100": "no node has a GPU H100"},
	}})
	out := r.ok("model", "status", "m")
	require.Regexp(t, `(?m)^NAME +HOT +WARM `, out)
	require.Regexp(t, `(?m)^h100 +3 +0 `, out)
	require.Regexp(t, `(?m)^l4 +0 +2 `, out)
	require.Contains(t, out, "h100: a start takes about 1m31s, a wake takes about 500ms\n")
	require.Contains(t, out, "No room for another replica of h100: no node has a GPU H100")
}

func TestQueueStatusTellsThatItIsIncomplete(t *testing.T) {
	t.Parallel()
	for _, incomplete := range []bool{true, false} {
		r := said(t, map[string]any{"GET /v1/queue/m": api.QueueStatus{Queue: api.Queue{Model: "m", State: "READY", Incomplete: incomplete}}})
		out := r.ok("queue", "status", "m")
		if incomplete {
			require.Contains(t, out, "the leader is new, and not all gateways have reported yet")
			continue
		}
		require.NotContains(t, out, "Incomplete")
	}
}
