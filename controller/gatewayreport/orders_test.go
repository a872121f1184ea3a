package gatewayreport_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
)

// flying has one request in flight.
func flying(gateway, id string) api.GatewayReport {
	return report(gateway, 1, api.ReplicaLoad{Name: r1, InFlight: 1, Requests: []api.Request{{ID: id, Started: at(1)}}})
}

// answer puts a report and returns what its answer orders.
func answer(s *gatewayreport.Store, r api.GatewayReport) api.GatewayOrders {
	s.Put(r)
	return s.Orders(r.Gateway)
}

func TestAKillIsRepeatedUntilItIsCarriedOut(t *testing.T) {
	s, _ := listening()
	require.Zero(t, answer(s, flying("a", "x")))
	s.Put(report("b", 1))
	require.NoError(t, s.Kill("x"))
	require.True(t, s.Killed("x"))

	kill := api.GatewayOrders{Kill: []string{"x"}}
	for range 5 { // for as long as it reports it
		require.Equal(t, kill, answer(s, flying("a", "x")))
	}
	require.Zero(t, answer(s, report("a", 1)))
	require.Zero(t, answer(s, flying("a", "x")), "another request of the same ID is not meant")
	// The other names none: it may have one all the same, and is told twice, as one answer
	// may be lost.
	require.Equal(t, kill, answer(s, report("b", 1)))
	require.Equal(t, kill, answer(s, report("b", 1)))
	require.Zero(t, answer(s, report("b", 1)))
	// So is one that appears only now.
	require.Equal(t, kill, answer(s, flying("c", "x")))
	require.True(t, s.Killed("x"))

	// Who asks again means what there is now.
	require.NoError(t, s.Kill("x"))
	require.Equal(t, kill, answer(s, flying("a", "x")))
}

func TestOrdersEnd(t *testing.T) {
	s, c := listening()
	s.Put(report("a", 1))
	require.NoError(t, s.Kill("x"))
	require.NoError(t, s.Kill("b"))
	require.True(t, s.Drain("a"))
	require.False(t, s.Drain("nobody"))
	require.Equal(t, api.GatewayOrders{Kill: []string{"b", "x"}, Drain: true}, answer(s, flying("a", "x")), "sorted")
	c.advance(gatewayreport.OrderTTL - 1)
	require.Equal(t, api.GatewayOrders{Kill: []string{"b", "x"}, Drain: true}, answer(s, flying("a", "x")))
	require.True(t, s.Gateways()[0].DrainOrdered)
	c.advance(1)
	require.Zero(t, answer(s, flying("a", "x")))
	require.False(t, s.Killed("x"))
	require.False(t, s.Gateways()[0].DrainOrdered)
	require.Zero(t, s.Orders("nobody"))
}

func TestADrainIsRepeatedUntilTheGatewayDrains(t *testing.T) {
	s, _ := listening()
	s.Put(report("a", 1))
	s.Put(report("b", 1))
	require.True(t, s.Drain("a"))
	for range 5 {
		require.Equal(t, api.GatewayOrders{Drain: true}, answer(s, report("a", 1)))
		require.Zero(t, answer(s, report("b", 1)))
	}
	require.Zero(t, answer(s, api.GatewayReport{Gateway: "a", Index: 1, Draining: true}))
}

func TestOrdersAreLostWithTheLeader(t *testing.T) {
	s, c := listening()
	s.Put(flying("a", "x"))
	require.True(t, s.AllReported())
	require.NoError(t, s.Kill("x"))
	require.True(t, s.Drain("a"))
	s.Begin(1)
	require.Zero(t, answer(s, flying("a", "x")))
	require.False(t, s.Killed("x"))
	require.False(t, s.AllReported(), "that no gateway names a request says nothing yet")
	c.advance(ttl)
	require.True(t, s.AllReported())
}

func TestKillsAreBounded(t *testing.T) {
	s, c := listening()
	require.ErrorIs(t, s.Kill("x"), gatewayreport.ErrNoGateway)
	require.False(t, s.Killed("x"), "what is rejected leaves no order")
	s.Put(report("a", 1))
	for i := range gatewayreport.MaxKills {
		require.NoError(t, s.Kill(fmt.Sprint(i)))
	}
	require.ErrorIs(t, s.Kill("one more"), gatewayreport.ErrTooManyOrders)
	require.NoError(t, s.Kill("7"), "that one is among them")
	c.advance(gatewayreport.OrderTTL)
	s.Put(report("a", 1))
	require.NoError(t, s.Kill("one more"))
}
