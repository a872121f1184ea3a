package replica

import (
	"crypto/ed25519"
	"encoding/base64"
)

// A controller proves itself to a replica's shims with the replica's secret: its signature of the
// replica's name. The shims know the controller's public key from their job, which may be read by
// anybody: so no secret is stored for a replica, neither by the controller nor in Nomad. A secret
// that is overheard is good for this replica alone.

// secretContext begins what is signed, so that no signature means anything else.
const secretContext = "remuda shim\x00"

// PublicKey returns the public part of the key, in base64, as the shims take it.
func PublicKey(key ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(key[ed25519.PrivateKeySize-ed25519.PublicKeySize:]) // RFC 8032: the seed, then the public key
}

// Secret returns the secret of the replica with that name.
func Secret(key ed25519.PrivateKey, name string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(secretContext+name)))
}

// IsSecret reports whether secret is that of the replica with that name.
func IsSecret(key ed25519.PublicKey, name, secret string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(secret)
	return err == nil && ed25519.Verify(key, []byte(secretContext+name), raw)
}
