package checkup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"remuda/controller/api"
)

// checkController checks that the servers answer, their version, the token and their health. It
// reports whether the rest can be asked.
func (r *round) checkController() bool {
	answers := 0
	for _, address := range r.cfg.Controllers {
		if err := r.checkServer("controller", address); err != nil {
			r.problem("controller", fmt.Sprintf("no answer from %s: %v", address, err), "start it (docs/install.md, 4. Controller), or set REMUDA_ADDR to its address")
			continue
		}
		answers++
	}
	if answers == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	self, err := r.cfg.Client.AgentSelf(ctx)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && strings.Contains(refused.Message, "acl bootstrap"):
		r.problem("token", "ACLs are on, and there is no token yet", "run \"remuda acl bootstrap\" once, and set REMUDA_TOKEN")
		return false
	case errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden):
		r.problem("token", refused.Message, "set REMUDA_TOKEN to the secret of an operator's token")
		return false
	case err != nil:
		r.problem("controller", err.Error(), "read its log")
		return false
	}
	if self.Version != r.cfg.Version {
		r.warn("controller", fmt.Sprintf("it is version %s, and this program %s", self.Version, r.cfg.Version), "upgrade as docs/guides/upgrades.md says")
	} else {
		r.ok("controller", "version "+self.Version)
	}
	if !self.ACL.Enabled {
		r.warn("token", "ACLs are off: everybody who reaches the API may do everything", "set acl { enabled = true } in the controller's configuration")
	} else if token, _, err := r.cfg.Client.SelfToken(ctx, api.QueryOptions{}); err == nil {
		r.ok("token", "its role is "+token.Role)
	}
	health, err := r.cfg.Client.AgentHealth(ctx)
	if err != nil {
		r.problem("controller", err.Error(), "read its log")
	}
	for _, p := range health.Problems {
		r.problem("controller", p, "read its log; its rights at Nomad and Consul are in jobs/acl")
	}
	nodes, _, err := r.cfg.Client.Nodes(ctx, api.NodeFilter{}, api.QueryOptions{})
	if err != nil {
		r.problem("controller", err.Error(), "read its log")
		return true
	}
	for id, name := range r.gpuNodes {
		if !slices.ContainsFunc(nodes, func(n api.Node) bool { return n.ID == id }) {
			r.problem("controller", fmt.Sprintf("it does not know the GPU node %s", name), "compare the controller's nomad { address } with NOMAD_ADDR: they may be two clusters")
		}
	}
	for _, n := range nodes {
		if n.Unusable != "" {
			r.warn("GPU nodes", fmt.Sprintf("the controller does not use %s: %s", n.Name, n.Unusable), "see \"remuda node status "+n.Name+"\"")
		}
	}
	return true
}

// checkServers checks the members of the Raft cluster and their ports.
func (r *round) checkServers() {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	config, _, err := r.cfg.Client.RaftConfiguration(ctx, api.QueryOptions{})
	if err != nil {
		r.problem("servers", err.Error(), "see \"remuda raft list-peers\"")
		return
	}
	voters := 0
	for _, s := range config.Servers {
		if s.Voter {
			voters++
		} else {
			r.warn("servers", fmt.Sprintf("%s has no vote: %s", s.Address, s.PromotionBlocked), "see \"remuda raft list-peers\"")
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Address)
		if err != nil {
			r.problem("servers", fmt.Sprintf("the Raft port %s does not answer: %v", s.Address, err), "start that server, open its port, or remove it with \"remuda raft remove-peer\"")
			continue
		}
		conn.Close()
	}
	switch {
	case voters == 1:
		r.note("servers", "one server: while it is away, nothing is placed; requests are served", "three servers for production")
	case voters%2 == 0:
		r.warn("servers", fmt.Sprintf("%d servers are no safer than %d", voters, voters-1), "add one or remove one")
	default:
		r.ok("servers", count(voters, "server"))
	}
}

// checkGateways checks that gateways report, and that the one of REMUDA_GATEWAY is ready.
func (r *round) checkGateways() {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	gateways, err := r.cfg.Client.Gateways(ctx)
	switch {
	case err != nil:
		r.problem("gateway", err.Error(), "")
		return
	case len(gateways) == 0:
		r.problem("gateway", "none reports to the controller", "start one (docs/install.md, 5. Gateway), with a token of the role gateway")
		return
	}
	r.ok("gateway", fmt.Sprintf("%d report to the controller", len(gateways)))
	if r.cfg.Gateway == "" {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.cfg.Gateway, "/")+"/ready", nil)
	if err == nil {
		var resp *http.Response
		if resp, err = http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s answers %s", req.URL, resp.Status)
			}
		}
	}
	if err != nil {
		r.problem("gateway", err.Error(), "set REMUDA_GATEWAY to the address for clients, and open its port")
		return
	}
	r.ok("gateway", r.cfg.Gateway+" is ready")
}

// checkModels checks that a model serves, and whether one is scaled by its load.
func (r *round) checkModels() {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	models, _, err := r.cfg.Client.Models(ctx, api.QueryOptions{})
	if err != nil {
		r.problem("models", err.Error(), "")
		return
	}
	if len(models) == 0 {
		r.note("models", "there is none", "write a model file with \"remuda model init\" and apply it with \"remuda model apply FILE\"")
		return
	}
	serving := 0
	for _, m := range models {
		serving += m.Counts.Hot
		switch {
		case m.Target > 0 && m.Counts.Hot == 0 && m.Unplaceable != "":
			r.problem("models", fmt.Sprintf("%s serves nowhere: %s", m.Name, m.Unplaceable), "see \"remuda model status "+m.Name+"\"")
		case m.Target > 0 && m.Counts.Hot == 0:
			r.warn("models", fmt.Sprintf("%s: none of %s serves yet", m.Name, count(m.Target, "replica")), "see \"remuda model status "+m.Name+"\"")
		}
	}
	r.ok("models", fmt.Sprintf("%s, %s serve", count(len(models), "model"), count(serving, "replica")))
	decisions, _, err := r.cfg.Client.Decisions(ctx, api.DecisionFilter{Limit: 1000}, api.QueryOptions{})
	if err == nil && !slices.ContainsFunc(decisions, func(d api.Decision) bool {
		return d.Kind == "scale" && strings.HasPrefix(d.Reason, "the autoscaler")
	}) {
		r.note("autoscaler", "it has not scaled a model lately", "")
	}
}
