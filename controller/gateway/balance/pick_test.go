package balance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

const (
	engineA = "m:v:a:primary"
	engineB = "m:v:b:primary"
	engineC = "m:v:c:primary"
)

// down puts an engine on a node that Consul cannot see.
func down(e *replica.Engine) { e.Passing, e.NodeDown = false, true }

func TestSlotsBound(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(1)), eng("b", slots(3))}, false)
	var order string
	var held []balance.Pick
	for range 4 {
		p := take(t, table, t0)
		order += p.Name.ID
		held = append(held, p)
	}
	require.Equal(t, "abbb", order)
	busy(t, table, t0)
	_, ok := table.NextProbe(t0, "m")
	require.False(t, ok, "time alone frees no slot")
	table.Release(t0, held[2])
	held[2] = take(t, table, t0)
	require.Equal(t, engineB, held[2].ServiceID)
	busy(t, table, t0)

	t.Run("fewer slots than requests", func(t *testing.T) {
		table.Update(t0, []replica.Engine{eng("a", slots(1)), eng("b", slots(2))}, false)
		table.Release(t0, held[3])
		busy(t, table, t0)
		require.Equal(t, balance.Load{Model: "m", InFlight: 3, Work: 3, Slots: 3, Active: 2}, table.Loads(t0)[0])
		table.Release(t0, held[2])
		require.Equal(t, engineB, take(t, table, t0).ServiceID)
	})
	t.Run("more slots", func(t *testing.T) {
		table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b", slots(2))}, false)
		require.Equal(t, engineA, take(t, table, t0).ServiceID)
		busy(t, table, t0)
	})
	t.Run("another process has all its slots free", func(t *testing.T) {
		table.Update(t0, []replica.Engine{eng("a", slots(2), token(5))}, false)
		take(t, table, t0)
		take(t, table, t0)
		busy(t, table, t0)
	})
	t.Run("a process that was gone for a moment still has its requests", func(t *testing.T) {
		table := newTable(t)
		list := []replica.Engine{eng("a", slots(2), token(3))}
		moved := []replica.Engine{eng("a", slots(2), token(3), port(9))}
		table.Update(t0, list, false)
		old := take(t, table, t0)
		table.Failed(t0, old, balance.Reset)
		table.Update(t0, nil, false)
		table.Update(t0, list, false)
		require.Equal(t, balance.Load{Model: "m", InFlight: 1, Work: 1, Slots: 2, Free: 1, Active: 1}, table.Loads(t0)[0], "closed, with a slot taken")
		table.Update(t0, moved, false)
		require.Equal(t, 2, table.Loads(t0)[0].Free)
		elsewhere := take(t, table, t0)
		table.Update(t0, nil, false)
		table.Update(t0, list, false)
		table.Release(t0, elsewhere)
		second := take(t, table, t0)
		busy(t, table, t0)
		table.Failed(t0, old, balance.Reset)
		require.Zero(t, open(table, t0), "old news")
		table.Update(t0, nil, false)
		table.Release(t0, old)
		table.Release(t0, second)
		table.Update(t0, list, false)
		require.Equal(t, 2, table.Loads(t0)[0].Free)
	})
	t.Run("absurd slots", func(t *testing.T) {
		table.Update(t0, []replica.Engine{eng("a", token(5), slots(-3)), eng("b", slots(1<<62)), eng("c", slots(1<<62))}, false)
		require.Equal(t, 1+2<<20, table.Loads(t0)[0].Slots)
	})
}

func TestLeastWorkPerSlot(t *testing.T) {
	pick := func(table *balance.Table, cost int64) balance.Pick {
		p, err := table.Pick(t0, balance.Request{Model: "m", Cost: cost})
		require.NoError(t, err)
		return p
	}
	t.Run("tokens count, not requests", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(8)), eng("b", slots(8))}, false)
		long := pick(table, 1000)
		require.Equal(t, "a", long.Name.ID)
		for range 8 {
			require.Equal(t, "b", pick(table, 100).Name.ID)
		}
		require.EqualValues(t, 1800, table.Loads(t0)[0].Work)
		table.Release(t0, long)
		require.Equal(t, "a", pick(table, 100).Name.ID)
	})
	t.Run("per slot", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b", slots(6))}, false)
		count := map[string]int{}
		for range 8 {
			count[pick(table, 10).Name.ID]++
			loads := table.Loads(t0)[0]
			require.Equal(t, 8, loads.Free+loads.InFlight)
		}
		require.Equal(t, map[string]int{"a": 2, "b": 6}, count)
	})
	t.Run("an update keeps the work and takes the new slots", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(4)), eng("b", slots(4))}, false)
		pick(table, 100)
		pick(table, 90)
		table.Update(t0, []replica.Engine{eng("a", slots(8)), eng("b", slots(4))}, false)
		require.Equal(t, "a", pick(table, 1).Name.ID, "100/8 < 90/4")
	})
	t.Run("of equal work the fewest requests", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(9)), eng("b", slots(9))}, false)
		pick(table, 20)                   // a
		pick(table, 10)                   // b
		last := pick(table, 10).ServiceID // b
		require.Equal(t, engineB, last)   // 20 each, two requests at b
		require.Equal(t, "a", pick(table, 1).Name.ID)
	})
	t.Run("no cost and absurd costs", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(100)), eng("b", slots(100))}, false)
		pick(table, -5)
		pick(table, 0)
		require.EqualValues(t, 2, table.Loads(t0)[0].Work)
		for range 100 {
			pick(table, 1<<62)
		}
		require.Positive(t, table.Loads(t0)[0].Work, "no overflow")
	})
}

func TestEqualsTakeTurns(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a"), eng("b"), eng("c")}, false)
	var order string
	for range 6 {
		p := take(t, table, t0)
		order += p.Name.ID
		table.Release(t0, p)
	}
	require.Equal(t, "abcabc", order)
}

func TestTried(t *testing.T) {
	t.Run("another one comes first, however busy", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b", slots(2))}, false)
		for range 2 {
			require.Equal(t, engineB, take(t, table, t0, engineA).ServiceID)
		}
		busy(t, table, t0, engineA)
		require.Equal(t, engineA, take(t, table, t0).ServiceID, "others need not wait")
	})
	t.Run("all were tried", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		require.Equal(t, engineA, take(t, table, t0, engineB, engineA).ServiceID)
		require.Equal(t, engineB, take(t, table, t0, engineB, engineA).ServiceID)
		busy(t, table, t0, engineB, engineA)
	})
	t.Run("the other one is open", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		p := take(t, table, t0, engineA)
		table.Failed(t0, p, balance.Reset)
		table.Release(t0, p)
		require.Equal(t, engineA, take(t, table, t0, engineA).ServiceID)
	})
	t.Run("the other one is only known", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b", critical)}, false)
		require.Equal(t, engineA, take(t, table, t0, engineA).ServiceID)
	})
}

func TestNodeThatConsulCannotSee(t *testing.T) {
	list := []replica.Engine{eng("a", slots(2)), eng("b", slots(2), down)}
	t.Run("comes last, also where the others are busy", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, list, false)
		p := take(t, table, t0)
		require.Equal(t, engineA, p.ServiceID)
		require.Equal(t, engineA, take(t, table, t0).ServiceID)
		busy(t, table, t0)
		require.Equal(t, engineB, take(t, table, t0, engineA).ServiceID, "a request that failed there does not wait for it")
	})
	t.Run("serves where no other is left", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, list[1:], false)
		p := take(t, table, t0)
		require.Equal(t, engineB, p.ServiceID)
		require.True(t, table.Failed(t0, p, balance.Dial), "the node is gone")
		_, err := table.Pick(t0.Add(time.Hour), balance.Request{Model: "m"})
		require.ErrorIs(t, err, balance.ErrNoEngine)
	})
	t.Run("serves where the others are open", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, list, false)
		p := take(t, table, t0)
		table.Failed(t0, p, balance.Timeout)
		table.Release(t0, p)
		require.Equal(t, engineB, take(t, table, t0).ServiceID)
		probe := take(t, table, t0.Add(2*time.Second))
		require.Equal(t, engineA, probe.ServiceID, "a probe is due")
		require.Equal(t, engineB, take(t, table, t0.Add(2*time.Second)).ServiceID)
	})
}

func table8(t testing.TB, slots int) *balance.Table {
	table, err := balance.New(config)
	require.NoError(t, err)
	var list []replica.Engine
	for i := range 8 {
		list = append(list, eng(fmt.Sprintf("r%02d", i), func(e *replica.Engine) { e.Slots = slots }))
	}
	table.Update(t0, list, false)
	return table
}

func TestPickAllocatesTheFlightOnly(t *testing.T) {
	table := table8(t, 4)
	r := balance.Request{Model: "m", Cost: 100, Prefix: 7, Tried: []string{"m:v:r00:primary"}}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		p, err := table.Pick(t0, r)
		if err != nil {
			t.Fatal(err)
		}
		table.Answered(t0, p)
		table.Release(t0, p)
	}), 1.0)
}

func BenchmarkPickRelease8Engines(b *testing.B) {
	for name, r := range map[string]balance.Request{
		"plain":  {Model: "m", Cost: 300},
		"prefix": {Model: "m", Cost: 300, Prefix: 42},
		"tried":  {Model: "m", Cost: 300, Tried: []string{"m:v:r00:primary", "m:v:r03:primary"}},
	} {
		b.Run(name, func(b *testing.B) {
			table := table8(b, 8)
			b.ReportAllocs()
			for b.Loop() {
				p, err := table.Pick(t0, r)
				if err != nil {
					b.Fatal(err)
				}
				table.Answered(t0, p)
				table.Release(t0, p)
			}
		})
	}
}

// TestNearEnginesComeFirst where nothing else makes a difference.
func TestNearEnginesComeFirst(t *testing.T) {
	table := newTable(t)
	near := func(e *replica.Engine) { e.Near = true }
	table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b", slots(2), near), eng("c", slots(2))}, false)
	first := take(t, table, t0)
	require.Equal(t, engineB, first.ServiceID)
	require.Equal(t, engineA, take(t, table, t0).ServiceID, "one with less work comes before")
	require.Equal(t, engineC, take(t, table, t0).ServiceID)
	table.Release(t0, first)
	require.Equal(t, engineB, take(t, table, t0).ServiceID)
	require.Equal(t, engineB, take(t, table, t0).ServiceID, "of equal work, although it was picked last")
}

// TestHomeOfAResponse: a request that goes on from a response waits for its replica.
func TestHomeOfAResponse(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(1)), eng("b", slots(1))}, false)
	of := func(replica string) balance.Request { return balance.Request{Model: "m", Replica: replica} }
	held, err := table.Pick(t0, of("m:v:b"))
	require.NoError(t, err)
	require.Equal(t, engineB, held.ServiceID)
	_, err = table.Pick(t0, of("m:v:b"))
	require.ErrorIs(t, err, balance.ErrBusy)
	table.Release(t0, held)
	gone, err := table.Pick(t0, of("m:v:gone"))
	require.NoError(t, err, "another one says that it does not have it")
	table.Release(t0, gone)
	p, err := table.Pick(t0, of("m:v:b"))
	require.NoError(t, err)
	require.Equal(t, engineB, p.ServiceID)
	table.Failed(t0, p, balance.Dial)
	table.Release(t0, p)
	p, err = table.Pick(t0, of("m:v:b"))
	require.NoError(t, err, "its breaker is open")
	require.Equal(t, engineA, p.ServiceID)
}
