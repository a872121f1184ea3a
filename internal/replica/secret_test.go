package replica_test

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
)

func TestSecret(t *testing.T) {
	t.Parallel()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	public := key.Public().(ed25519.PublicKey)
	secret := replica.Secret(key, "m:v:1")
	require.Equal(t, secret, replica.Secret(key, "m:v:1"), "nothing needs to be stored")
	require.True(t, replica.IsSecret(public, "m:v:1", secret))
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	for what, bad := range map[string]string{
		"another replica's": replica.Secret(key, "m:v:2"), "another controller's": replica.Secret(other, "m:v:1"),
		"empty": "", "cut short": secret[:len(secret)-1], "not base64": secret + "!", "longer": secret + "AA",
	} {
		require.False(t, replica.IsSecret(public, "m:v:1", bad), what)
	}
}
