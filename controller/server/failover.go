package server

import (
	"time"

	"remuda/controller/api"
	"remuda/controller/state"
)

const (
	// failoverDrain is the preset of the parameter timeout, as of "remuda engine -drain-timeout".
	failoverDrain = 30 * time.Second
	// failoverDrainMax leaves time for the standby's wake within Config.SnapshotTimeout.
	failoverDrainMax = 5 * time.Minute
)

// failover hands a pair over to its standby.
func (s *Server) failover(rq *request, v *state.View) (answer, error) {
	name := rq.PathValue("replica")
	if v.Replica(nil, name) == nil {
		return answer{}, noReplica(name)
	}
	order := api.FailoverRequest{Timeout: api.Duration(failoverDrain)}
	switch text := rq.query.Get("drill"); text {
	case "", "true", "1":
		order.Drill = rq.query.Has("drill")
	case "false", "0":
	default:
		return answer{}, badRequest("drill is %q: must be empty, true or false", text)
	}
	if text := rq.query.Get("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > failoverDrainMax {
			return answer{}, badRequest("timeout is %q: must be a duration above 0s and at most %s, such as \"30s\"", text, failoverDrainMax)
		}
		order.Timeout = api.Duration(d)
	}
	out, err := s.cfg.Reconciler.Failover(rq.ctx, name, order, by(rq.token))
	if err != nil {
		return answer{}, err
	}
	return answer{value: out}, nil
}
