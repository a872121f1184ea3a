package balance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

func TestLoadsCountEachEngineOnce(t *testing.T) {
	table := newTable(t)
	table.Update(t0, []replica.Engine{
		eng("a", slots(3)), eng("b", critical), eng("c", token(1)), eng("c", shadow, token(2), slots(2)), eng("d", down),
		eng("e"), eng("x", ofModel("n"), slots(4)), eng("y", ofModel("n"), slots(8)),
	}, false)
	table.Direct(t0, draining("m:v:e"))
	p, err := table.Pick(t0, balance.Request{Model: "n", Cost: 50})
	require.NoError(t, err)
	require.Equal(t, "x", p.Name.ID)
	table.Failed(t0, p, balance.Timeout)
	_, err = table.Pick(t0, balance.Request{Model: "m", Cost: 7})
	require.NoError(t, err)
	require.Equal(t, []balance.Load{
		{Model: "m", InFlight: 1, Work: 7, Slots: 6, Free: 5, Active: 2, Kept: 1, NotPassing: 1, Fenced: 1, Draining: 1},
		{Model: "n", InFlight: 1, Work: 50, Slots: 12, Free: 8, Active: 1, Open: 1},
	}, table.Loads(t0))
	table.Release(t0, p)
	later := t0.Add(time.Minute)
	require.Equal(t, 1, table.Loads(later)[1].Open, "half-open is not closed")
}

func TestState(t *testing.T) {
	table := newTable(t)
	require.Equal(t, balance.State{}, table.State(t0, "m"))
	orders := balance.Orders{
		Index: 1, Models: map[string]bool{"m": false, "off": true},
		Draining: map[string]bool{"m:v:c": true}, Starting: map[string]int{"m": 2, "gone": 1},
	}
	table.Direct(t0, orders)
	require.Equal(t, balance.State{Known: true, Exists: true, Starting: 2}, table.State(t0, "m"))
	require.Equal(t, balance.State{Known: true, Exists: true, Stopped: true}, table.State(t0, "off"))
	require.Equal(t, balance.State{}, table.State(t0, "gone"))

	table.Update(t0, []replica.Engine{eng("a"), eng("b", slots(2)), eng("c"), eng("d", critical)}, false)
	fail(t, table, t0, balance.Content)
	take(t, table, t0)
	require.Equal(t, balance.State{Known: true, Exists: true, Usable: 2, Open: 1, Draining: 1, Starting: 2, InFlight: 1}, table.State(t0, "m"))

	table.Direct(t0, balance.Orders{Index: 2})
	require.Equal(t, balance.State{Known: true, Usable: 3, Open: 1, InFlight: 1}, table.State(t0, "m"), "it has engines, whatever the controller says")
	table.Update(t0, nil, false)
	require.Equal(t, balance.State{Known: true, InFlight: 1}, table.State(t0.Add(config.Remember), "m"))
}
