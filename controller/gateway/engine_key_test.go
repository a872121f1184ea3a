package gateway_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/replica"
)

// keyMaker is a controller's key.
func keyMaker(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func wireKey(k ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(replica.GatewayKey(k).Bytes())
}

// lockedEngine is an engine that answers only to its key, of a job that the controller with that key
// registered.
func lockedEngine(t *testing.T, id string, public *ecdh.PublicKey) replica.Engine {
	t.Helper()
	var key atomic.Value
	e := newEngine(t, id, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key.Load().(string) || r.Header.Get("X-Api-Key") != "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"Unauthorized"}`))
			return
		}
		says(id)(w, r)
	})
	made, offer, err := replica.NewEngineKey(public, e.Name.String())
	require.NoError(t, err)
	key.Store(made)
	e.Offer = offer
	return e
}

// TestKeysOfEngines: the gateways of an engine's controller send the API key that the engine asks for. Other
// gateways cannot.
func TestKeysOfEngines(t *testing.T) {
	t.Parallel()
	mine := keyMaker(1)
	public := replica.GatewayKey(mine).PublicKey()
	locked := lockedEngine(t, "a", public)
	c := newController(t, 1)
	c.state.EngineKey = wireKey(mine)
	c.state.Models = []api.GatewayModel{{Name: "m", PassAuthorization: true}}
	f := newGateway(t, patient, c.config)
	f.follows(1)
	f.engines(locked)
	credentials := []string{"Authorization", "Bearer client", "X-Api-Key", "client"}
	passes := func(f *fixture, who string) {
		t.Helper()
		for range 3 {
			a := f.post(`{"model":"m"}`, credentials...)
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.JSONEq(t, `{"said":"`+who+`"}`, a.body)
		}
	}
	passes(f, "a")

	// Its process is another one, with another key.
	again := lockedEngine(t, "a", public)
	again.Token.Counter = locked.Token.Counter + 1
	f.engines(again)
	passes(f, "a")

	// An engine without a key gets the credentials of clients, as the model asks.
	open := newEngine(t, "b", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer client" || r.Header.Get("X-Api-Key") != "client" {
			w.WriteHeader(http.StatusTeapot)
		}
		says("b")(w, r)
	})
	f.engines(open)
	passes(f, "b")

	// The controller is away, and Consul has news.
	c.change(func() { c.down[0] = true })
	c.servers[0].CloseClientConnections()
	f.up(0)
	f.engines(again)
	passes(f, "a")
	c.change(func() { c.down[0] = false })
	f.up(1)

	// A controller that has lost its state makes another key: the engines serve on.
	c.change(func() { c.index, c.state.EngineKey = c.index+1, wireKey(keyMaker(2)) })
	f.follows(2)
	next := lockedEngine(t, "c", replica.GatewayKey(keyMaker(2)).PublicKey())
	f.engines(again)
	passes(f, "a")
	f.engines(next)
	passes(f, "c")

	// A gateway that starts then does not know the first key, and says so instead of failing requests.
	late := newGateway(t, patient, c.config)
	late.follows(2)
	late.engines(again, next)
	passes(late, "c")
	require.Equal(t, 1.0, late.metric("remuda_gateway_registrations_refused"))
	late.engines(next)
	require.Zero(t, late.metric("remuda_gateway_registrations_refused"))
}

// TestOffersThatLie: a changed offer in Consul reveals no key. Clients do not get an error that reads as if
// their own key were wrong.
func TestOffersThatLie(t *testing.T) {
	t.Parallel()
	mine := keyMaker(1)
	public := replica.GatewayKey(mine).PublicKey()
	locked, victim := lockedEngine(t, "a", public), lockedEngine(t, "b", public)
	c := newController(t, 1)
	c.state.EngineKey = wireKey(mine)
	f := newGateway(t, patient, c.config)
	f.follows(1)

	right := locked.Offer
	_, other, err := replica.NewEngineKey(public, locked.Name.String())
	require.NoError(t, err)
	for what, offer := range map[string]string{"of another engine": victim.Offer, "of nobody": other} {
		locked.Offer = offer
		f.engines(locked)
		a := f.post(`{"model":"m"}`, "Authorization", "Bearer client")
		require.GreaterOrEqual(t, a.status, http.StatusBadGateway, "%s: %s", what, a.body)
		require.NotContains(t, a.body, "Unauthorized", what)
	}
	locked.Offer = "AAAA"
	f.engines(locked)
	require.Equal(t, 1.0, f.metric("remuda_gateway_registrations_refused"))
	locked.Offer = right
	f.engines(locked)
	require.Zero(t, f.metric("remuda_gateway_registrations_refused"))
}

// TestEngineOfAControllerWithoutOne: a gateway without a controller cannot derive the key.
func TestEngineOfAControllerWithoutOne(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(lockedEngine(t, "a", replica.GatewayKey(keyMaker(1)).PublicKey()), newEngine(t, "b", says("b")))
	require.Equal(t, 1.0, f.metric("remuda_gateway_registrations_refused"))
	require.Equal(t, map[string]int{`{"said":"b"}`: 3}, f.who(3))
}
