package server

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/state"
)

// listQueues answers from what gateways reported to this server, which therefore leads, and
// cannot be watched.
func (s *Server) listQueues(_ *request, v *state.View, _ memdb.WatchSet) (answer, error) {
	queues, limits := s.cfg.Loads.Queues(), v.Limits(nil)
	out := []api.Queue{}
	for _, m := range v.Models(nil) {
		out = append(out, s.queueOf(queues[m.Name], m, m.Target(limits(m.Name)).Replicas, v.ReplicasOf(nil, m.Name)))
		delete(queues, m.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) { // somebody waits for what does not exist any more
		out = append(out, s.queueOf(queues[name], nil, 0, nil))
	}
	slices.SortFunc(out, func(a, b api.Queue) int { return cmp.Compare(a.Model, b.Model) })
	return answer{value: out}, nil
}

func (s *Server) getQueue(rq *request, v *state.View, _ memdb.WatchSet) (answer, error) {
	name := rq.PathValue("model")
	m, rs := v.Model(nil, name), v.ReplicasOf(nil, name)
	target := 0
	if m != nil {
		target = v.Target(nil, m).Replicas
	}
	of, requests := s.cfg.Loads.QueueOf(name)
	if m == nil && len(of) == 0 {
		return answer{}, noModel(v, name)
	}
	sum := s.cfg.Loads.Queues()[name]
	sum.Model = name
	out := api.QueueStatus{
		Queue: s.queueOf(sum, m, target, rs), Gateways: of, Waiting: []api.QueuedRequest{}, InFlight: []api.QueuedRequest{},
		Replicas: list(rs, s.replicasIn(v, true).convert), History: s.history.of(name),
	}
	for _, p := range requests {
		if p.Position > 0 {
			out.Waiting = append(out.Waiting, p)
		} else {
			out.InFlight = append(out.InFlight, p)
		}
	}
	return answer{value: out}, nil
}

// queueOf completes what gateways have of a model; m is nil where it does not exist.
func (s *Server) queueOf(q api.Queue, m *state.Model, target int, rs []*state.Replica) api.Queue {
	q.Serving, q.Incomplete = countsOf(rs).Hot, !s.cfg.Loads.AllReported()
	if m != nil {
		q.Model = m.Name
	}
	if c, ok := s.cfg.Loads.Count(q.Model); ok {
		q.Counters = &c
	}
	if q.State == "" {
		q.State = unheard(m, target, rs)
	}
	return q
}

// unheard is the state of a model that no gateway has anything of.
func unheard(m *state.Model, target int, rs []*state.Replica) api.QueueState {
	switch c := countsOf(rs); {
	case m == nil || m.Stopped:
		return api.QueueStopped
	case c.Hot > 0:
		return api.QueueReady
	case c.Starting+c.Failed > 0 || target > 0:
		return api.QueueDeploying
	}
	return api.QueueIdle
}

// modelQueue is what gateways have of a model, nil where none reports to this server.
func (s *Server) modelQueue(m *state.Model, target int, rs []*state.Replica) *api.Queue {
	if len(s.cfg.Loads.Gateways()) == 0 {
		return nil
	}
	q := s.queueOf(s.cfg.Loads.Queues()[m.Name], m, target, rs)
	return &q
}

func (s *Server) getRequest(rq *request, _ *state.View, _ memdb.WatchSet) (answer, error) {
	id := rq.PathValue("id")
	if err := checkRequestID(id); err != nil {
		return answer{}, err
	}
	return answer{value: s.requestStatus(id, s.cfg.Loads.Find(id))}, nil
}

func (s *Server) requestStatus(id string, where []api.QueuedRequest) api.RequestStatus {
	return api.RequestStatus{ID: id, Places: where, Killed: s.cfg.Loads.Killed(id), Complete: s.cfg.Loads.AllReported()}
}

// checkRequestID refuses what no gateway could have as an ID.
func checkRequestID(id string) error {
	const longest = 256
	if len(id) > longest {
		return badRequest("request ID is %d bytes: must be at most %d bytes", len(id), longest)
	}
	if strings.ContainsFunc(id, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return badRequest("request ID is %q: control characters are not allowed", id)
	}
	return nil
}

// killRequest orders all gateways to end a request. The response has no places if no gateway
// names it, which they do of some of their requests only. The order is in memory alone, and
// is lost with the leader.
func (s *Server) killRequest(rq *request, _ *state.View) (answer, error) {
	id := rq.PathValue("id")
	if err := checkRequestID(id); err != nil {
		return answer{}, err
	}
	err := s.cfg.Loads.Kill(id)
	switch {
	case errors.Is(err, gatewayreport.ErrNoGateway):
		return answer{}, notFound("request %q: %v: see \"remuda gateway list\"", id, err)
	case errors.Is(err, gatewayreport.ErrTooManyOrders):
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeBusy, RetryAfter: retryLeader,
			Message: "request " + id + ": too many pending kill orders: retry in a moment"}
	case err != nil:
		return answer{}, err
	}
	where := s.cfg.Loads.Find(id)
	s.log.Info("request kill requested", "id", id, "named_by", len(where), "gateways", len(s.cfg.Loads.Gateways()), "by", by(rq.token))
	return answer{value: s.requestStatus(id, where)}, nil
}
