package balance_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// home is where a request with the prefix goes; it ends at once.
func home(t require.TestingT, table *balance.Table, prefix uint64, tried ...string) string {
	p, err := table.Pick(t0, balance.Request{Model: "m", Prefix: prefix, Cost: 1, Tried: tried})
	require.NoError(t, err)
	table.Release(t0, p)
	return p.ServiceID
}

func fleet(n int) (list []replica.Engine) {
	for i := range n {
		list = append(list, eng(fmt.Sprintf("r%02d", i), slots(4)))
	}
	return list
}

func TestPrefixStaysWithItsEngine(t *testing.T) {
	one, other := newTable(t), newTable(t)
	list := fleet(5)
	one.Update(t0, list, false)
	// Another gateway hears of the engines in another order, and has other load.
	for i := range list {
		other.Update(t0, list[i:], false)
	}
	other.Update(t0, list, false)
	home(t, other, 0)
	homes := map[uint64]string{}
	count := map[string]int{}
	for prefix := uint64(1); prefix <= 500; prefix++ {
		at := home(t, one, prefix)
		require.Equal(t, at, home(t, one, prefix), "prefix %d", prefix)
		require.Equal(t, at, home(t, other, prefix), "prefix %d at another gateway", prefix)
		homes[prefix] = at
		count[at]++
	}
	require.Len(t, count, 5)
	for at, n := range count {
		require.InDelta(t, 100, n, 40, at) // four standard deviations
	}

	one.Update(t0, list[1:], false)
	for prefix, was := range homes {
		if is := home(t, one, prefix); was != "m:v:r00:primary" {
			require.Equal(t, was, is, "only the prefixes of the engine that went move")
		} else {
			require.NotEqual(t, was, is)
		}
	}
	one.Update(t0, list, false)
	for prefix, was := range homes {
		require.Equal(t, was, home(t, one, prefix), "they move back")
	}
}

func TestPrefixYields(t *testing.T) {
	setup := func(t *testing.T) (table *balance.Table, mine string, others func(cost int64)) {
		table = newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(100)), eng("b", slots(100)), eng("c", slots(100))}, false)
		mine = home(t, table, 42)
		return table, mine, func(cost int64) {
			for _, id := range []string{engineA, engineB, engineC} {
				if id == mine {
					continue
				}
				tried := []string{mine, engineA, engineB, engineC}
				for i := 1; i < len(tried); i++ {
					if tried[i] == id {
						tried[i] = mine
					}
				}
				p, err := table.Pick(t0, balance.Request{Model: "m", Cost: cost, Tried: tried})
				require.NoError(t, err)
				require.Equal(t, id, p.ServiceID)
			}
		}
	}
	send := func(t *testing.T, table *balance.Table, cost int64) string {
		p, err := table.Pick(t0, balance.Request{Model: "m", Prefix: 42, Cost: cost})
		require.NoError(t, err)
		return p.ServiceID
	}
	t.Run("up to the slack", func(t *testing.T) {
		table, mine, _ := setup(t)
		require.Equal(t, mine, send(t, table, 204800), "it is idle")
		require.Equal(t, mine, send(t, table, 100), "2048 per slot are just what is allowed over idle engines")
		require.NotEqual(t, mine, send(t, table, 1), "2049 are not")
	})
	t.Run("up to the factor", func(t *testing.T) {
		table, mine, others := setup(t)
		others(1_000_000)
		require.Equal(t, mine, send(t, table, 1_500_000+204_800))
		require.Equal(t, mine, send(t, table, 1), "one and a half times the least, and the slack")
		require.NotEqual(t, mine, send(t, table, 1))
	})
	t.Run("no free slot", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		first, second := send(t, table, 1), send(t, table, 1)
		require.ElementsMatch(t, []string{engineA, engineB}, []string{first, second})
		_, err := table.Pick(t0, balance.Request{Model: "m", Prefix: 42})
		require.ErrorIs(t, err, balance.ErrBusy)
	})
	t.Run("always to the same other engine", func(t *testing.T) {
		table, others := newTable(t), map[string]int{}
		table.Update(t0, fleet(5), false)
		for range 4 {
			send(t, table, 1)
		}
		for range 4 {
			others[send(t, table, 1)]++
		}
		require.Len(t, others, 1, "the first engine has no free slot")
	})
	t.Run("tried", func(t *testing.T) {
		table, mine, _ := setup(t)
		require.NotEqual(t, mine, home(t, table, 42, mine))
	})
	t.Run("open, then closed", func(t *testing.T) {
		table, mine, _ := setup(t)
		p, err := table.Pick(t0, balance.Request{Model: "m", Prefix: 42})
		require.NoError(t, err)
		table.Failed(t0, p, balance.Dial)
		table.Release(t0, p)
		next := home(t, table, 42)
		require.NotEqual(t, mine, next)
		require.Equal(t, next, home(t, table, 42), "it has another home meanwhile")
		p, err = table.Pick(t0.Add(config.Grace), balance.Request{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, mine, p.ServiceID, "the probe")
		table.Answered(t0.Add(config.Grace), p)
		table.Release(t0.Add(config.Grace), p)
		require.Equal(t, mine, home(t, table, 42))
	})
	t.Run("a node that Consul cannot see is no home", func(t *testing.T) {
		table, mine, _ := setup(t)
		list := []replica.Engine{eng("a", slots(100)), eng("b", slots(100)), eng("c", slots(100))}
		for i := range list {
			if list[i].ID() == mine {
				down(&list[i])
			}
		}
		table.Update(t0, list, false)
		require.NotEqual(t, mine, home(t, table, 42))
	})
}

// TestPrefixNeverUnbalances: whatever the prefixes are, no engine gets more work than
// the bound and one request allow.
func TestPrefixNeverUnbalances(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, err := balance.New(balance.Config{Imbalance: balance.Imbalance{Factor: 2, Slack: 1000}})
		require.NoError(rt, err)
		n := rapid.IntRange(1, 5).Draw(rt, "engines")
		var list []replica.Engine
		for i := range n {
			list = append(list, eng(fmt.Sprint(i), slots(1000)))
		}
		table.Update(t0, list, false)
		work := map[string]float64{}
		for range rapid.IntRange(1, 60).Draw(rt, "requests") {
			r := balance.Request{Model: "m", Prefix: rapid.Uint64Range(0, 3).Draw(rt, "prefix"), Cost: rapid.Int64Range(1, 1_000_000).Draw(rt, "cost")}
			least := work[list[0].ID()]
			for _, e := range list {
				least = min(least, work[e.ID()])
			}
			p, err := table.Pick(t0, r)
			require.NoError(rt, err)
			if had := work[p.ServiceID]; had > 2*least+1000*1000 {
				rt.Fatalf("an engine with %.0f tokens got a request, the least has %.0f", had, least)
			}
			work[p.ServiceID] += float64(r.Cost)
		}
	})
}
