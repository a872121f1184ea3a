package gateway_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/replica"
)

// TestRegistrationsThatLie: whoever can write to Consul gets no request of a client, and takes none
// from the engine that the controller has placed.
func TestRegistrationsThatLie(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	c.state.Models = []api.GatewayModel{{Name: "m", PassAuthorization: true}}
	f := newGateway(t, c.config, patient)
	engine := newEngine(t, "a", says("a"))
	engine.Token = replica.Token{Generation: 7, Counter: 1}
	f.follows(1)
	f.engines(engine)

	var reached atomic.Int64
	lies := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		says("liar")(w, r)
	})
	lies.Token = engine.Token
	for _, tc := range []struct {
		name string
		lie  func(*replica.Engine)
	}{
		{"a million slots", func(e *replica.Engine) { e.Name.ID, e.Slots = "b", 1<<20 }},
		{"the highest token", func(e *replica.Engine) { e.Token.Generation = 1 << 60 }},
		{"the highest token of the shadow", func(e *replica.Engine) { e.Role, e.Token.Counter = replica.RoleShadow, 1<<60 }},
		{"the replica's name and token at another address", func(*replica.Engine) {}},
		{"another replica", func(e *replica.Engine) { e.Name.ID = "z" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := f.in(t)
			e := lies
			tc.lie(&e)
			f.feed.say(list{engines: []replica.Engine{e, engine}, lie: true})
			require.Equal(t, 1.0, f.metric("remuda_gateway_registrations_refused"))
			for range 20 {
				a := f.post(`{"model":"m"}`, "Authorization", "Bearer secret")
				require.Equal(t, `{"said":"a"}`, a.body)
			}
			require.Zero(t, f.metric("remuda_gateway_engines", "model", "m", "state", "fenced"))
			require.Equal(t, float64(engine.Slots), f.metric("remuda_gateway_slots", "model", "m"))
			// Nothing of it stays.
			f.engines(engine)
			require.Zero(t, f.metric("remuda_gateway_registrations_refused"))
			require.Equal(t, map[string]int{`{"said":"a"}`: 3}, f.who(3))
		})
	}
	require.Zero(t, reached.Load())
}

// TestEngineThatMoves: with the controller away an engine at a new address is not used; the
// controller's word admits it.
func TestEngineThatMoves(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	f := newGateway(t, c.config, patient)
	old, moved := newEngine(t, "a", says("old")), newEngine(t, "a", says("moved"))
	f.follows(1)
	f.engines(old)
	c.change(func() { c.down[0] = true })
	c.servers[0].CloseClientConnections()
	f.up(0)
	require.Equal(t, map[string]int{`{"said":"old"}`: 3}, f.who(3), "the last list holds")
	f.feed.say(list{engines: []replica.Engine{moved}, lie: true})
	require.Equal(t, http.StatusServiceUnavailable, f.post(`{"model":"m"}`, "X-Remuda-Timeout", "1s").status)

	c.change(func() { c.down[0] = false })
	f.up(1)
	c.place(moved)
	require.Equal(t, map[string]int{`{"said":"moved"}`: 3}, f.who(3))
}
