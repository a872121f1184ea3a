package server

import (
	"slices"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

// listGateways answers from what gateways reported to this server, which therefore leads,
// and cannot be watched.
func (s *Server) listGateways(*request, *state.View, memdb.WatchSet) (answer, error) {
	return answer{value: s.cfg.Loads.Gateways()}, nil
}

// drainGateway orders a gateway to end. The order is in memory alone, and is lost with the
// leader.
func (s *Server) drainGateway(rq *request, _ *state.View) (answer, error) {
	name := rq.PathValue("gateway")
	if s.cfg.Loads.Drain(name) {
		all := s.cfg.Loads.Gateways()
		if i := slices.IndexFunc(all, func(g api.Gateway) bool { return g.Name == name }); i >= 0 {
			s.log.Info("gateway drain requested", "gateway", name, "in_flight", all[i].InFlight, "waiting", all[i].Waiting, "by", by(rq.token))
			return answer{value: all[i]}, nil
		}
	}
	return answer{}, notFound("gateway %q does not report to the controller: see \"remuda gateway list\"", name)
}
