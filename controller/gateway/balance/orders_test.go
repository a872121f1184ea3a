package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

func draining(names ...string) balance.Orders {
	o := balance.Orders{Index: 7, Draining: map[string]bool{}}
	for _, n := range names {
		o.Draining[n] = true
	}
	return o
}

// all picks engines of model "m" until none is free, and tells how many times each.
func all(t *testing.T, table *balance.Table, now time.Time) map[string]int {
	t.Helper()
	got := map[string]int{}
	for {
		p, err := table.Pick(now, balance.Request{Model: "m"})
		if err != nil {
			require.ErrorIs(t, err, balance.ErrBusy)
			return got
		}
		got[p.ServiceID]++
	}
}

func TestDrainingReplicaGetsNothingNew(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(3)), eng("b", slots(3))}, false)
	held := take(t, table, t0)
	require.Equal(t, engineA, held.ServiceID)
	table.Direct(t0, draining("m:v:a"))
	require.Equal(t, map[string]int{engineB: 3}, all(t, table, t0), "however busy the other one is")
	busy(t, table, t0, engineB)
	require.Equal(t, balance.Load{Model: "m", InFlight: 4, Work: 4, Slots: 3, Active: 1, Draining: 1}, table.Loads(t0)[0])
	require.Equal(t, balance.State{Known: true, Usable: 1, Draining: 1, InFlight: 4}, table.State(t0, "m"))
	table.Release(t0, held)
	busy(t, table, t0)
	table.Direct(t0, balance.Orders{Index: 8})
	require.Equal(t, map[string]int{engineA: 3}, all(t, table, t0), "it drains no more, and is idle")
}

// TestOnlyDrainingEngines: a model that is left with them is wanted anew, unless nobody
// is there to want it.
func TestOnlyDrainingEngines(t *testing.T) {
	for name, c := range map[string]struct {
		others []replica.Engine
		away   map[string]int
	}{
		"it is the last":        {nil, map[string]int{engineA: 1}},
		"the other is critical": {[]replica.Engine{eng("b", critical)}, map[string]int{engineA: 1}},
		"all drain":             {[]replica.Engine{eng("b", critical), eng("c")}, map[string]int{engineA: 1, engineC: 1}},
		"a lost one drains":     {[]replica.Engine{eng("c", down)}, map[string]int{engineA: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			table.Direct(t0, draining("m:v:a", "m:v:c")) // before it is known
			table.Update(t0, append(c.others, eng("a")), false)
			_, err := table.Pick(t0, balance.Request{Model: "m"})
			require.ErrorIs(t, err, balance.ErrNoEngine)
			require.Zero(t, table.State(t0, "m").Usable)
			require.Zero(t, table.Loads(t0)[0].Slots)

			table.Away(true)
			require.NotZero(t, table.State(t0, "m").Usable)
			require.Zero(t, table.State(t0, "m").Draining)
			require.Equal(t, c.away, all(t, table, t0))
			table.Away(false)
			_, err = table.Pick(t0, balance.Request{Model: "m"})
			require.ErrorIs(t, err, balance.ErrNoEngine)

			o := draining("m:v:a", "m:v:c")
			o.Away = true
			table.Direct(t0, o)
			busy(t, table, t0)
			table.Update(t0, c.others[:min(len(c.others), 1)], false)
			if name != "a lost one drains" {
				_, err = table.Pick(t0, balance.Request{Model: "m"})
				require.ErrorIs(t, err, balance.ErrNoEngine, "gone is gone")
			}
		})
	}
	t.Run("another one comes", func(t *testing.T) {
		table := newTable(t)
		table.Direct(t0, draining("m:v:a"))
		table.Away(true)
		table.Update(t0, []replica.Engine{eng("a", slots(2))}, false)
		require.Equal(t, engineA, take(t, table, t0).ServiceID)
		table.Update(t0, []replica.Engine{eng("a", slots(2)), eng("b")}, false)
		require.Equal(t, map[string]int{engineB: 1}, all(t, table, t0), "then it waits for that one")
	})
	t.Run("the other one is open", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		table.Direct(t0, draining("m:v:a"))
		table.Away(true)
		fail(t, table, t0, balance.Reset)
		busy(t, table, t0)
		require.Equal(t, balance.State{Known: true, Usable: 1, Open: 1, Draining: 1}, table.State(t0, "m"))
	})
	t.Run("a draining one fails", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a")}, false)
		table.Direct(t0, draining("m:v:a"))
		table.Away(true)
		fail(t, table, t0, balance.Dial)
		require.Equal(t, 100*time.Millisecond, next(t, table, t0))
	})
}

func TestModelOfTheControllerIsKnown(t *testing.T) {
	table := newTable(t)
	table.Direct(t0, balance.Orders{Index: 1, Models: map[string]bool{"m": false, "off": true}})
	_, err := table.Pick(t0, balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrNoList, "only Consul knows the engines")
	table.Update(t0, nil, false)
	for _, name := range []string{"m", "off"} {
		_, err = table.Pick(t0, balance.Request{Model: name})
		require.ErrorIs(t, err, balance.ErrNoEngine)
		m, err := table.Lookup(t0, name)
		require.NoError(t, err)
		require.Equal(t, balance.Model{Name: name, First: t0}, m)
	}
	require.Len(t, table.Models(t0), 2)
	require.False(t, table.Stopped("m"))
	require.True(t, table.Stopped("off"))
	require.False(t, table.Stopped("none"))
	require.True(t, table.Wanted("m"))
	require.False(t, table.Wanted("off"))
	require.False(t, table.Wanted("none"))

	later := t0.Add(100 * config.Remember)
	require.Empty(t, table.Expire(later).Models)
	require.Len(t, table.Models(later), 2)
	ch := table.Direct(later, balance.Orders{Index: 2, Models: map[string]bool{"off": false}})
	require.Equal(t, []string{"m"}, ch.Models, "it never had an engine")
	_, err = table.Pick(later, balance.Request{Model: "m"})
	require.ErrorIs(t, err, balance.ErrUnknownModel)
	require.False(t, table.Stopped("off"))

	// One that had engines is remembered as without a controller.
	table.Update(later, []replica.Engine{eng("a", ofModel("off"))}, false)
	table.Direct(later, balance.Orders{Index: 3})
	table.Update(later, nil, false)
	_, err = table.Pick(later.Add(config.Remember-1), balance.Request{Model: "off"})
	require.ErrorIs(t, err, balance.ErrNoEngine)
	_, err = table.Pick(later.Add(config.Remember), balance.Request{Model: "off"})
	require.ErrorIs(t, err, balance.ErrUnknownModel)
}

// TestFlightsWithoutRemembering: what is in flight is known though nothing is
// remembered of replicas that are gone.
func TestFlightsWithoutRemembering(t *testing.T) {
	table, err := balance.New(balance.Config{})
	require.NoError(t, err)
	inFlight := func() []int {
		var out []int
		_, loads := table.Flights(64, 1000)
		for _, l := range loads {
			out = append(out, l.InFlight)
		}
		return out
	}
	table.Update(t0, []replica.Engine{eng("a")}, false)
	p, err := table.Pick(t0, balance.Request{ID: "r", Model: "m"})
	require.NoError(t, err)
	require.Equal(t, []int{1}, inFlight())
	table.Expire(t0.Add(time.Second))
	table.Direct(t0.Add(time.Second), draining("m:v:a"))
	require.Equal(t, []int{1}, inFlight())
	table.Release(t0.Add(time.Second), p)
	require.Equal(t, []int{0}, inFlight())
	table.Update(t0.Add(2*time.Second), nil, false)
	require.Empty(t, inFlight())
}

func TestFlights(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a", slots(4)), eng("b", ofModel("n")), eng("idle")}, false)
	table.Direct(t0, draining("m:v:idle"))
	index, loads := table.Flights(64, 1000)
	require.EqualValues(t, 7, index)
	require.Empty(t, loads, "nothing was ever sent")

	var held []balance.Pick
	at := func(i int) time.Time { return t0.Add(time.Duration(i) * time.Second) }
	for i, id := range []string{"r0", "r1", "r2", "r3"} {
		p, err := table.Pick(at(i), balance.Request{ID: id, Key: "k", Model: "m"})
		require.NoError(t, err)
		held = append(held, p)
	}
	other, err := table.Pick(at(9), balance.Request{ID: "x", Model: "n"})
	require.NoError(t, err)
	table.Release(at(10), other)

	flight := func(i int) balance.Flight {
		return balance.Flight{ID: []string{"r0", "r1", "r2", "r3"}[i], Key: "k", Started: at(i)}
	}
	load := func(oldest int, flights ...balance.Flight) []balance.ReplicaLoad {
		l := balance.ReplicaLoad{Replica: "m:v:a", InFlight: 4, Last: at(3), Oldest: at(oldest), Flights: flights}
		return []balance.ReplicaLoad{l, {Replica: "n:v:b", Last: at(9)}}
	}
	_, loads = table.Flights(64, 1000)
	require.Equal(t, load(0, flight(0), flight(1), flight(2), flight(3)), loads)
	_, loads = table.Flights(2, 1000)
	require.Equal(t, load(0, flight(0), flight(1)), loads)
	_, loads = table.Flights(64, 3)
	require.Equal(t, load(0, flight(0), flight(1), flight(2)), loads)
	_, loads = table.Flights(64, 0)
	require.Equal(t, load(0, flight(0)), loads, "one at least")

	table.Release(at(20), held[1]) // in the middle
	table.Release(at(20), held[3]) // the last
	_, loads = table.Flights(64, 1000)
	require.Equal(t, []balance.Flight{flight(0), flight(2)}, loads[0].Flights)
	require.Equal(t, 2, loads[0].InFlight)
	table.Release(at(20), held[0]) // the first
	_, loads = table.Flights(64, 1000)
	require.Equal(t, at(2), loads[0].Oldest)
	table.Release(at(20), held[2])
	_, loads = table.Flights(64, 1000)
	require.Equal(t, balance.ReplicaLoad{Replica: "m:v:a", Last: at(3)}, loads[0])

	table.Update(at(20), nil, false)
	ch := table.Expire(at(20).Add(config.Remember))
	require.Contains(t, ch.Replicas, "m:v:a")
	_, loads = table.Flights(64, 1000)
	require.Empty(t, loads)
}
