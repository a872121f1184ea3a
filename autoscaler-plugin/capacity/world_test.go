package capacity_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// rep is a replica of a variant; the name says the variant.
func rep(variant string, n int, cost, kv, queue float64) capacity.Replica {
	return capacity.Replica{
		Replica: fmt.Sprintf("%s-%d", variant, n), Variant: variant, Accelerator: "A100",
		Cost: enginemetrics.Of(cost), KVCacheUsage: enginemetrics.Of(kv), QueueLength: enginemetrics.Of(queue),
	}
}

// reps are n equal ones.
func reps(variant string, n int, cost, kv, queue float64) []capacity.Replica {
	var all []capacity.Replica
	for i := range n {
		all = append(all, rep(variant, i, cost, kv, queue))
	}
	return all
}

func join(lists ...[]capacity.Replica) []capacity.Replica {
	var all []capacity.Replica
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func explain(t *testing.T, rules capacity.Rules, in capacity.Input) capacity.Answer {
	t.Helper()
	a, err := capacity.Explain(rules, in)
	require.NoError(t, err)
	return a
}

func targets(a capacity.Answer) map[string]int {
	m := map[string]int{}
	for name, d := range a.Decisions {
		m[name] = d.Target
	}
	return m
}

var both = []capacity.Rules{capacity.Safe, capacity.WVA}
