package gateway

import (
	"crypto/ecdh"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/internal/replica"
)

// placement is where the controller has placed a replica.
type placement struct {
	addresses  map[string]bool // normalized, see normalAddress
	generation uint64
	slots      int
}

// placementsOf returns the placements of the controller's state by the name of the replica.
func placementsOf(s api.GatewayState) map[string]placement {
	out := make(map[string]placement, len(s.Replicas))
	for _, r := range s.Replicas {
		p := placement{addresses: make(map[string]bool, len(r.Addresses)), generation: r.Generation, slots: r.MaxSlots}
		for _, a := range r.Addresses {
			p.addresses[normalAddress(a)] = true
		}
		out[r.Name] = p
	}
	return out
}

// normalAddress returns host:port in one spelling. An IPv4 address in IPv6 is the same host.
func normalAddress(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	return address
}

// refusal is a registration in Consul that gets no requests.
type refusal struct {
	engine replica.Engine
	// reason is the text of a log line.
	reason string
}

// maxEngineKeys is how many of the last private keys of controllers a gateway keeps. There is another one
// when a controller has lost its whole state: the engines that run have keys by the one before.
const maxEngineKeys = 4

// engineKeys derives the API keys of engines from their offers.
type engineKeys struct {
	// private are the gateways' keys, the last one first; none without a controller.
	private []*ecdh.PrivateKey
	// known are the keys of the last list's engines, by name and offer: deriving one takes 50 µs.
	known map[string]string
}

// learn takes the controller's key.
func (k *engineKeys) learn(text string) error {
	if text == "" {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	key, err := ecdh.X25519().NewPrivateKey(raw)
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(k.private, func(o *ecdh.PrivateKey) bool { return o.Equal(key) })
	k.private = append([]*ecdh.PrivateKey{key}, rest[:min(len(rest), maxEngineKeys-1)]...)
	return nil
}

// unlock sets the keys of the engines, and refuses those whose key it cannot derive.
func (k *engineKeys) unlock(engines []replica.Engine) (use []replica.Engine, refused []refusal) {
	use = engines[:0]
	known := make(map[string]string, len(engines))
	for _, e := range engines {
		if e.Offer != "" {
			id := e.Name.String() + " " + e.Offer
			key, ok := k.known[id]
			if !ok {
				var reason string
				if key, reason = k.derive(e); reason != "" {
					refused = append(refused, refusal{e, reason})
					continue
				}
			}
			e.Key, known[id] = key, key
		}
		use = append(use, e)
	}
	k.known = known
	return use, refused
}

// derive returns the engine's key, or why there is none.
func (k *engineKeys) derive(e replica.Engine) (key, reason string) {
	reason = "it asks for an API key, and this gateway has no controller from which to derive it"
	for _, private := range k.private {
		key, err := replica.EngineKey(private, e.Name.String(), e.Offer)
		if err == nil {
			return key, ""
		}
		reason = err.Error()
	}
	return "", reason
}

// placed splits Consul's list into the engines that may be used and the registrations that are
// refused. Anyone who can write to Consul can register anything, so only an engine of a replica that
// the controller has placed, at an address that Nomad gave to it, is used. Its slots are limited to
// the replica's. A nil at is for a gateway without a controller: it uses all engines but those that
// claim more slots than an engine can have.
func placed(list []replica.Engine, at map[string]placement) (use []replica.Engine, refused []refusal) {
	use = make([]replica.Engine, 0, len(list))
	for _, e := range list {
		slots, reason := replica.MaxSlots, ""
		if p, known := at[e.Name.String()]; at != nil {
			slots, reason = max(p.slots, 1), p.problem(e, known)
		} else if e.Slots > slots {
			reason = fmt.Sprintf("slots is %d: must be at most %d without a controller", e.Slots, slots)
		}
		if reason != "" {
			refused = append(refused, refusal{e, reason})
			continue
		}
		e.Slots = min(e.Slots, slots)
		use = append(use, e)
	}
	return use, refused
}

// problem returns why an engine is not one of the replica, empty if it is.
func (p placement) problem(e replica.Engine, known bool) string {
	switch {
	case !known:
		return "the controller has no replica of this name"
	case !p.addresses[normalAddress(e.HostPort())]:
		return fmt.Sprintf("address is %s: must be one that Nomad gave to the replica", e.HostPort())
	case e.Token.Generation > p.generation:
		return fmt.Sprintf("fencing token is %s: its generation must be at most %d", e.Token, p.generation)
	}
	return ""
}

// admission decides which of Consul's engines the dispatcher gets. It joins the last list of Consul and
// the last state of the controller.
type admission struct {
	log hclog.Logger
	// controlled: there is a controller, and nothing is used before its first state.
	controlled bool
	// secured: engines are reached at their TLS ports.
	secured bool
	// use gives the dispatcher its list. It is called with mu held, so that lists keep their order.
	use func(engines []replica.Engine, afterOutage bool)

	mu     sync.Mutex // guards what follows
	listed []replica.Engine
	heard  bool                 // Consul has answered
	at     map[string]placement // nil without a controller, and before its first state
	keys   engineKeys
	used   []replica.Engine // what the dispatcher has
	given  bool             // the dispatcher has a list
	// refused are the registrations that are refused now, by ID and address, with the reason.
	refused map[string]refusal
}

// list takes a list of Consul.
func (a *admission) list(engines []replica.Engine, afterOutage bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed, a.heard = engines, true
	a.admit(true, afterOutage)
}

// place takes a state of the controller.
func (a *admission) place(s api.GatewayState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = placementsOf(s)
	if err := a.keys.learn(s.EngineKey); err != nil {
		a.log.Error("cannot use the controller's key for engines: the last one stays in force", "error", err)
	}
	a.admit(false, false)
}

// admit gives the dispatcher what may be used. Consul's news are news also where the list is the same as
// before; those of the controller are not. mu is held.
func (a *admission) admit(news, afterOutage bool) {
	if !a.heard || a.controlled && a.at == nil {
		return
	}
	engines, open := a.listed, []refusal(nil)
	if a.secured {
		engines, open = secured(engines)
	}
	engines, refused := placed(engines, a.at)
	engines, locked := a.keys.unlock(engines)
	a.note(slices.Concat(open, refused, locked))
	if a.given && !news && slices.Equal(engines, a.used) {
		return
	}
	a.used, a.given = engines, true
	a.use(engines, afterOutage)
}

// note logs each refusal once while it lasts, and its end.
func (a *admission) note(refused []refusal) {
	now := make(map[string]refusal, len(refused))
	for _, r := range refused {
		id := r.engine.ID() + " " + r.engine.HostPort()
		now[id] = r
		if a.refused[id].reason != r.reason {
			a.log.Warn("refused a registration in Consul: it gets no requests", "engine", r.engine.ID(), "address", r.engine.HostPort(), "reason", r.reason)
		}
	}
	for id, r := range a.refused {
		if now[id].reason == "" {
			a.log.Info("a registration in Consul is not refused any more", "engine", r.engine.ID(), "address", r.engine.HostPort())
		}
	}
	a.refused = now
}

// refusals returns how many registrations are refused now.
func (a *admission) refusals() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.refused)
}
