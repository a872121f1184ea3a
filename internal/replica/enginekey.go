package replica

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// Gateways prove themselves to an engine with its API key, which the shim and the gateways agree on
// without a message (X25519): the shim knows the gateways' public key from its job, and publishes a
// public key of its own, the offer, with the engine's registration in Consul. Nomad and Consul have
// nothing that is secret, and a shim can start its engine while the controller is away.

// keyContext begins what engines' keys are derived from, gatewayContext the gateways' private key.
const keyContext, gatewayContext = "remuda engine key\x00", "remuda gateways\x00"

// publicLen is the length of an X25519 public key. An offer is two of them: the gateways', and the
// shim's.
const publicLen = 32

// Errors of EngineKey.
var (
	// ErrBadOffer means that no shim makes such an offer.
	ErrBadOffer = errors.New("bad offer of an engine's key")
	// ErrOtherGateways means that the offer was made to the gateways of another controller.
	ErrOtherGateways = errors.New("the engine's key was agreed on with the gateways of another controller")
)

// GatewayKey returns the gateways' private key, which the controller derives from its own.
func GatewayKey(controller ed25519.PrivateKey) *ecdh.PrivateKey {
	mac := hmac.New(sha256.New, controller.Seed())
	mac.Write([]byte(gatewayContext))
	key, err := ecdh.X25519().NewPrivateKey(mac.Sum(nil))
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	return key
}

// GatewayPublicKey returns the public part of the gateways' key, in base64, as the shims take it.
func GatewayPublicKey(controller ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(GatewayKey(controller).PublicKey().Bytes())
}

// ParseGatewayPublicKey reads what GatewayPublicKey returns.
func ParseGatewayPublicKey(s string) (*ecdh.PublicKey, error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	return ecdh.X25519().NewPublicKey(raw)
}

// NewEngineKey returns a new API key for an engine of the replica with that name, and the offer from
// which the gateways derive it. The error is that of a public key which gives the same secret to
// everybody.
func NewEngineKey(gateways *ecdh.PublicKey, name string) (key, offer string, err error) {
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make the engine's key: %w", err)
	}
	shared, err := own.ECDH(gateways)
	if err != nil {
		return "", "", fmt.Errorf("make the engine's key: %w", err)
	}
	raw := append(gateways.Bytes(), own.PublicKey().Bytes()...)
	return engineKey(shared, raw, name), base64.RawURLEncoding.EncodeToString(raw), nil
}

// OfferedTo reports whether the offer was made to these gateways.
func OfferedTo(gateways *ecdh.PublicKey, offer string) bool {
	raw, err := base64.RawURLEncoding.DecodeString(offer)
	return err == nil && len(raw) == 2*publicLen && string(raw[:publicLen]) == string(gateways.Bytes())
}

// EngineKey returns the key that belongs to the offer of an engine of the replica with that name. The
// offer comes from Consul: one of another replica gives another key.
func EngineKey(gateways *ecdh.PrivateKey, name, offer string) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(offer)
	if err != nil || len(raw) != 2*publicLen {
		return "", fmt.Errorf("%w: it is %.100q: must be two X25519 public keys in base64", ErrBadOffer, offer)
	}
	if string(raw[:publicLen]) != string(gateways.PublicKey().Bytes()) {
		return "", ErrOtherGateways
	}
	shim, err := ecdh.X25519().NewPublicKey(raw[publicLen:])
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadOffer, err)
	}
	shared, err := gateways.ECDH(shim)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadOffer, err)
	}
	return engineKey(shared, raw, name), nil
}

func engineKey(shared, offer []byte, name string) string {
	mac := hmac.New(sha256.New, shared)
	mac.Write([]byte(keyContext))
	mac.Write(offer)
	mac.Write([]byte(name))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
