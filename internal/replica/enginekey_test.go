package replica_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
)

func TestEngineKey(t *testing.T) {
	t.Parallel()
	controller := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	gateways := replica.GatewayKey(controller)
	public, err := replica.ParseGatewayPublicKey(replica.GatewayPublicKey(controller))
	require.NoError(t, err)
	require.NotEqual(t, controller.Seed(), gateways.Bytes(), "gateways cannot sign for the controller")

	key, offer, err := replica.NewEngineKey(public, "m:v:1")
	require.NoError(t, err)
	got, err := replica.EngineKey(replica.GatewayKey(controller), "m:v:1", offer)
	require.NoError(t, err)
	require.Equal(t, key, got)
	require.NotContains(t, offer, key)

	again, second, err := replica.NewEngineKey(public, "m:v:1")
	require.NoError(t, err)
	require.NotEqual(t, key, again, "each is new")
	require.NotEqual(t, offer, second)

	got, err = replica.EngineKey(gateways, "m:v:2", offer)
	require.NoError(t, err)
	require.NotEqual(t, key, got, "an offer that is registered for another replica does not give its key away")

	other := replica.GatewayKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize)))
	_, err = replica.EngineKey(other, "m:v:1", offer)
	require.ErrorIs(t, err, replica.ErrOtherGateways)

	zero := base64.RawURLEncoding.EncodeToString(append(gateways.PublicKey().Bytes(), make([]byte, 32)...))
	for what, bad := range map[string]string{
		"empty": "", "cut short": offer[:len(offer)-4], "not base64": offer[:len(offer)-1] + "!", "longer": offer + "AAAA",
		"a point that gives the same key to everybody": zero,
	} {
		_, err = replica.EngineKey(gateways, "m:v:1", bad)
		require.ErrorIs(t, err, replica.ErrBadOffer, what)
	}
	for _, bad := range []string{"", "abc", "!", replica.GatewayPublicKey(controller) + "AAAA"} {
		_, err = replica.ParseGatewayPublicKey(bad)
		require.Error(t, err, bad)
	}
}
