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

// picks tells which engines of model "m" get n requests, none of which ends.
func picks(t *testing.T, table *balance.Table, now time.Time, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		p, err := table.Pick(now, balance.Request{Model: "m"})
		require.NoError(t, err)
		got[p.ServiceID]++
	}
	return got
}

func TestDrainingReplicaGetsNothingNew(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
	table.Direct(t0, draining("m:v:a"))
	require.Equal(t, map[string]int{"m:v:b:primary": 9}, picks(t, table, t0, 9), "however busy the other one is")
	require.Equal(t, balance.Load{Model: "m", InFlight: 9, Active: 1, Draining: 1}, table.Loads(t0)[0])
	table.Direct(t0, balance.Orders{Index: 8})
	require.Equal(t, map[string]int{"m:v:a:primary": 9}, picks(t, table, t0, 9), "it drains no more, and is idle")
}

// TestDrainFailsNoRequest: where nothing else can be relied upon, the replica that
// drains serves.
func TestDrainFailsNoRequest(t *testing.T) {
	down := func(e *replica.Engine) { e.Passing, e.NodeDown = false, true }
	for name, others := range map[string][]replica.Engine{
		"it is the last":        nil,
		"the other is critical": {eng("b", critical)},
		"the other is lost":     {eng("b", down)},
		"all drain":             {eng("b", critical), eng("c", critical)},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			table.Direct(t0, draining("m:v:a", "m:v:c")) // before it is known
			table.Update(t0, append(others, eng("a")), false)
			require.Equal(t, map[string]int{"m:v:a:primary": 3}, picks(t, table, t0, 3))
			table.Update(t0, others, false)
			_, err := table.Pick(t0, balance.Request{Model: "m"})
			if name != "the other is lost" {
				require.ErrorIs(t, err, balance.ErrNoEngine, "gone is gone")
			}
		})
	}
	t.Run("the other is suspect", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		table.Direct(t0, draining("m:v:a"))
		p, err := table.Pick(t0, balance.Request{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, "m:v:b:primary", p.ServiceID)
		table.DialFailed(t0, p)
		table.Release(t0, p)
		require.Equal(t, map[string]int{"m:v:a:primary": 3}, picks(t, table, t0.Add(config.Suspect-1), 3))
		require.Equal(t, map[string]int{"m:v:b:primary": 3}, picks(t, table, t0.Add(config.Suspect), 3))
	})
	t.Run("the other was tried", func(t *testing.T) {
		table := newTable(t)
		table.Update(t0, []replica.Engine{eng("a"), eng("b")}, false)
		table.Direct(t0, draining("m:v:a"))
		p, err := table.Pick(t0, balance.Request{Model: "m", Tried: []string{"m:v:b:primary"}})
		require.NoError(t, err)
		require.Equal(t, "m:v:a:primary", p.ServiceID)
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
	table.Update(t0, []replica.Engine{eng("a"), eng("b", ofModel("n")), eng("idle")}, false)
	table.Direct(t0, draining("m:v:idle"))
	index, loads := table.Flights(64, 1000)
	require.EqualValues(t, 7, index)
	require.Empty(t, loads, "nothing was ever sent")

	var held []balance.Pick
	at := func(i int) time.Time { return t0.Add(time.Duration(i) * time.Second) }
	for i, id := range []string{"r0", "r1", "r2", "r3"} {
		p, err := table.Pick(at(i), balance.Request{ID: id, Model: "m"})
		require.NoError(t, err)
		held = append(held, p)
	}
	other, err := table.Pick(at(9), balance.Request{ID: "x", Model: "n"})
	require.NoError(t, err)
	table.Release(at(10), other)

	flight := func(i int) balance.Flight {
		return balance.Flight{ID: []string{"r0", "r1", "r2", "r3"}[i], Started: at(i)}
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
