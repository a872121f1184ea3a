package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// outcomes are those of replica a.
func outcomes(t *testing.T, table *balance.Table) balance.Outcomes {
	t.Helper()
	_, loads := table.Flights(0, 0)
	require.Len(t, loads, 1)
	require.Equal(t, "m:v:a", loads[0].Replica)
	return loads[0].Outcomes
}

func TestOutcomes(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(20))}, false)
	is := func(want balance.Outcomes, why string) {
		t.Helper()
		require.Equal(t, want, outcomes(t, table), why)
	}
	serve(t, table, t0)
	fail(t, table, t0, balance.Status)
	is(balance.Outcomes{Answered: 1, Failed: 1, FailedInARow: 1}, "a 5xx")
	p := take(t, table, t0)
	table.Answered(t0, p)
	is(balance.Outcomes{Answered: 1, Failed: 1, FailedInARow: 1}, "an answer counts when it is complete")
	table.Failed(t0, p, balance.Cut)
	table.Failed(t0, p, balance.Timeout)
	table.Release(t0, p)
	is(balance.Outcomes{Answered: 1, Failed: 2, FailedInARow: 2}, "an answer that broke off is one failure")
	table.Release(t0, take(t, table, t0))
	is(balance.Outcomes{Answered: 1, Failed: 2, FailedInARow: 2}, "a client that left before the answer")
	serve(t, table, t0)
	is(balance.Outcomes{Answered: 2, Failed: 2}, "an answer ends the row")

	// What was sent before the breaker opened is no news for the breaker, and failed all the
	// same.
	var lost []balance.Pick
	for range 3 {
		lost = append(lost, take(t, table, t0))
	}
	for _, p := range lost {
		table.Failed(t0, p, balance.Reset)
		table.Release(t0, p)
	}
	is(balance.Outcomes{Answered: 2, Failed: 5, FailedInARow: 3}, "three that were lost with one process")
	later := t0.Add(time.Minute)
	fail(t, table, later, balance.Dial)
	is(balance.Outcomes{Answered: 2, Failed: 5, FailedInARow: 3}, "a connection that is refused takes no request")

	// Another process of the replica goes on counting.
	table.Update(later, []replica.Engine{eng("a", token(2))}, false)
	serve(t, table, later)
	is(balance.Outcomes{Answered: 3, Failed: 5}, "another process")
}
