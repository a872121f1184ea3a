package consul

import (
	"fmt"
	"strconv"

	"github.com/hashicorp/consul/api"

	"remuda/internal/replica"
)

// Meta keys of the service remuda-engine. Gateways and controllers read them: they are a
// format that other programs rely on.
const (
	metaModel   = "model"    // the model's name
	metaVariant = "variant"  // the variant's name
	metaReplica = "replica"  // the replica's ID, the last part of its name
	metaRole    = "role"     // primary or shadow
	metaToken   = "token"    // the fencing token of the engine's lock, 0 without one
	metaSlots   = "slots"    // how many requests the engine works on at once
	metaOffer   = "offer"    // a public key with which gateways derive the engine's API key, empty where it asks for none
	metaTLSPort = "tls_port" // where the shim serves the engine over TLS, 0 without
	// metaCohort tells two lives of one engine apart: both have the same
	// service ID, and only the living one's registration may stand.
	metaCohort = "cohort"
)

// checkID is the ID of the engine's TTL check.
func checkID(e replica.Engine) string { return "service:" + e.ID() }

// registration renders an engine as Consul wants it.
func registration(e replica.Engine, cohort string, cfg RegistrarConfig) *api.AgentServiceRegistration {
	return &api.AgentServiceRegistration{
		Kind:    api.ServiceKindTypical,
		ID:      e.ID(),
		Name:    replica.ServiceName,
		Tags:    []string{"model=" + e.Name.Model, "variant=" + e.Name.Variant, "role=" + e.Role},
		Address: e.Address,
		Port:    e.Port,
		Meta: map[string]string{
			metaModel:   e.Name.Model,
			metaVariant: e.Name.Variant,
			metaReplica: e.Name.ID,
			metaRole:    e.Role,
			metaToken:   e.Token.String(),
			metaSlots:   strconv.Itoa(e.Slots),
			metaOffer:   e.Offer,
			metaTLSPort: strconv.Itoa(e.TLSPort),
			metaCohort:  cohort,
		},
		Check: &api.AgentServiceCheck{
			CheckID:                        checkID(e),
			Name:                           "engine is Active",
			TTL:                            cfg.TTL.String(),
			Status:                         api.HealthPassing,
			Notes:                          "pushed by remuda engine",
			DeregisterCriticalServiceAfter: cfg.ReapAfter.String(),
		},
	}
}

// maxSlots bounds what a registration may claim; no engine comes near it.
const maxSlots = 1 << 20

// health judges an engine by its own checks and by its node's (serfHealth): an
// agent that dies leaves its services' checks as they were.
func health(checks api.HealthChecks) (passing, nodeDown bool) {
	var own, node api.HealthChecks
	for _, c := range checks {
		if c.ServiceID != "" {
			own = append(own, c)
		} else {
			node = append(node, c)
		}
	}
	passing = own.AggregatedStatus() == api.HealthPassing
	if !passing {
		return false, false
	}
	switch node.AggregatedStatus() {
	case api.HealthPassing:
		return true, false
	case api.HealthCritical:
		return false, true
	default: // a warning, or maintenance, which asks for no new requests
		return false, false
	}
}

// engineOf reads an engine back from a health entry.
func engineOf(entry *api.ServiceEntry) (replica.Engine, error) {
	s := entry.Service
	meta := s.Meta
	e := replica.Engine{
		Name:    replica.Name{Model: meta[metaModel], Variant: meta[metaVariant], ID: meta[metaReplica]},
		Role:    meta[metaRole],
		Address: s.Address,
		Port:    s.Port,
		Offer:   meta[metaOffer],
	}
	e.Passing, e.NodeDown = health(entry.Checks)
	if e.Address == "" && entry.Node != nil {
		e.Address = entry.Node.Address
	}
	if e.Name.Model == "" || e.Name.Variant == "" || e.Name.ID == "" {
		return e, fmt.Errorf("service %q: meta model, variant and replica must be set", s.ID)
	}
	if e.Role != replica.RolePrimary && e.Role != replica.RoleShadow {
		return e, fmt.Errorf("service %q: meta role is %q: must be primary or shadow", s.ID, e.Role)
	}
	if e.Port < 1 || e.Port > 65535 {
		return e, fmt.Errorf("service %q: port %d: must be 1 to 65535", s.ID, e.Port)
	}
	var err error
	if e.Token, err = replica.ParseToken(meta[metaToken]); err != nil {
		return e, fmt.Errorf("service %q: meta %w", s.ID, err)
	}
	if port := meta[metaTLSPort]; port != "" {
		if e.TLSPort, err = strconv.Atoi(port); err != nil || e.TLSPort < 0 || e.TLSPort > 65535 {
			return e, fmt.Errorf("service %q: meta tls_port is %q: must be 0 to 65535", s.ID, port)
		}
	}
	if e.Slots, err = strconv.Atoi(meta[metaSlots]); err != nil || e.Slots < 1 || e.Slots > maxSlots {
		return e, fmt.Errorf("service %q: meta slots is %q: must be a whole number from 1 to %d", s.ID, meta[metaSlots], maxSlots)
	}
	return e, nil
}
