// Package replica holds the words that every part of remuda shares about a
// running copy of a model: its name and the engine that serves it.
//
// It is plain data. It does no I/O and imports nothing of remuda.
package replica

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ServiceName is the Consul service that every Active engine registers as.
const ServiceName = "remuda-engine"

// Roles of an engine in its failover group.
const (
	RolePrimary = "primary"
	RoleShadow  = "shadow"
)

// MaxSlots is how many slots an engine may have where no model file says how many it has.
const MaxSlots = 4096

// ErrBadName is wrapped by every error of ParseName.
var ErrBadName = errors.New("bad replica name")

// Name is the deterministic name of a replica,
// "<model>:<variant>:<replica id>". The Nomad job, the Consul service ID,
// metrics labels and logs all carry it.
type Name struct {
	// Model is what a client names in its request. It may hold ':' and '/'
	// (as "llama3:8b" or "meta-llama/Llama-3-8B" do).
	Model string
	// Variant is one way to run the model. It holds no ':'.
	Variant string
	// ID is the replica's UUID or another unique string. It holds no ':'.
	ID string
}

// String returns "<model>:<variant>:<id>".
func (n Name) String() string { return n.Model + ":" + n.Variant + ":" + n.ID }

// ServiceID is the Consul service ID of the engine that plays role in this
// replica: the replica name and the role.
func (n Name) ServiceID(role string) string { return n.String() + ":" + role }

// ParseName splits a replica name from the right, because a model's own name
// may hold colons.
func ParseName(s string) (Name, error) {
	rest, id, ok := cutLast(s)
	if !ok {
		return Name{}, fmt.Errorf("%w %q: must be <model>:<variant>:<replica id>", ErrBadName, s)
	}
	model, variant, ok := cutLast(rest)
	if !ok {
		return Name{}, fmt.Errorf("%w %q: must be <model>:<variant>:<replica id>", ErrBadName, s)
	}
	n := Name{Model: model, Variant: variant, ID: id}
	if n.Model == "" || n.Variant == "" || n.ID == "" {
		return Name{}, fmt.Errorf("%w %q: model, variant and replica id must not be empty", ErrBadName, s)
	}
	for _, r := range s {
		if r <= ' ' || r == 0x7f {
			return Name{}, fmt.Errorf("%w %q: spaces and control characters are not allowed", ErrBadName, s)
		}
	}
	return n, nil
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

// Engine is one engine as clients of Consul see it.
type Engine struct {
	Name Name
	// Role is RolePrimary or RoleShadow.
	Role string
	// Address and Port are where the engine itself serves HTTP.
	Address string
	Port    int
	// TLSPort is the port of Address at which the shim serves the engine over TLS, 0 without.
	TLSPort int
	// Token is the fencing token under which the engine serves.
	Token Token
	// Slots is how many requests the engine works on at once, at least 1.
	Slots int
	// Offer is what gateways derive the engine's API key from: see EngineKey. Empty: the engine asks
	// for none, or has one of its own.
	Offer string
	// Key is that API key, which only a gateway sets.
	Key string
	// Passing tells whether the engine's health check passes on a node that
	// Consul can see. One that does not pass proves that the model exists.
	Passing bool
	// NodeDown tells that the engine's own check passes, as far as Consul
	// knows, but its node's does not: the node's Consul agent is dead, and
	// perhaps the node. Passing is false then.
	NodeDown bool
	// Near tells that the engine is on the node of the Consul agent that listed it.
	Near bool
}

// ID is the engine's Consul service ID.
func (e Engine) ID() string { return e.Name.ServiceID(e.Role) }

// HostPort is the engine's address as "host:port".
func (e Engine) HostPort() string { return net.JoinHostPort(e.Address, strconv.Itoa(e.Port)) }
