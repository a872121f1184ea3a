package server

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (s *Server) listReplicas(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableReplicas, state.TableModels)
	var rs []*state.Replica
	if rq.query.Has("model") {
		name := rq.query.Get("model")
		if v.Model(ws, name) == nil {
			return answer{index: index}, noModel(v, name)
		}
		rs = v.ReplicasOf(ws, name)
	} else {
		rs = v.Replicas(ws)
	}
	return answer{value: list(rs, s.replicasIn(v, false).convert), index: index}, nil
}

func noReplica(name string) *api.Error {
	return notFound("replica %q does not exist: see \"remuda replica list\"", name)
}

func (s *Server) getReplica(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableReplicas)
	r := v.Replica(ws, rq.PathValue("replica"))
	if r == nil {
		return answer{index: index}, noReplica(rq.PathValue("replica"))
	}
	return answer{value: s.replicasIn(v, true).convert(r), index: index}, nil
}

func (s *Server) evict(rq *request, v *state.View) (answer, error) {
	var body api.EvictRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	if (body.Replica == "") == (body.Model == "") {
		return answer{}, badRequest("field \"Replica\" is %q and field \"Model\" is %q: exactly one must be set", body.Replica, body.Model)
	}
	to, err := evictionGoal(body.To)
	if err != nil {
		return answer{}, err
	}
	var before []*state.Replica
	model := body.Model
	if body.Replica != "" {
		r := v.Replica(nil, body.Replica)
		if r == nil {
			return answer{}, noReplica(body.Replica)
		}
		before, model = []*state.Replica{r}, r.Name.Model
	} else {
		if v.Model(nil, body.Model) == nil {
			return answer{}, noModel(v, body.Model)
		}
		before = v.ReplicasOf(nil, body.Model)
	}
	what := "all replicas"
	if body.Replica != "" {
		what = "replica " + body.Replica
	}
	if _, err := s.propose(rq, &state.EvictRequest{Replica: body.Replica, Model: body.Model, To: to, Force: body.Force, Time: s.cfg.Now()},
		state.Decision{Model: model, Replica: body.Replica, Kind: "evict", Reason: fmt.Sprintf("%s evicted %s", by(rq.token), what),
			Details: map[string]string{"to": string(to), "force": strconv.FormatBool(body.Force)}}); err != nil {
		return answer{}, err
	}
	after := s.cfg.Raft.Store().View()
	out := api.EvictResponse{Replicas: []api.Eviction{}}
	for _, r := range before {
		name := r.Name.String()
		out.Replicas = append(out.Replicas, evicted(r, after.Replica(nil, name), after.UsageWithout(nil, r.Placement.Node, name)))
	}
	return answer{value: out}, nil
}

// evictionGoal parses the field "To" of an eviction.
func evictionGoal(to string) (state.Goal, error) {
	switch goal := state.Goal(strings.ToLower(to)); goal {
	case "":
		return state.GoalGone, nil
	case state.GoalWarm, state.GoalCold:
		return goal, nil
	}
	return "", badRequest("field \"To\" is %q: must be %q, %q or empty", to, state.GoalWarm, state.GoalCold)
}

// evicted says what became of a replica; after is nil where it is gone already. Others is what the other
// replicas hold of its node.
func evicted(before, after *state.Replica, others *state.NodeUsage) api.Eviction {
	e := api.Eviction{Name: before.Name.String(), Node: before.Placement.Node, From: string(before.Tier())}
	switch {
	case after != nil && after.ModifyIndex == before.ModifyIndex:
		e.To = string(before.Goal.Tier())
		switch {
		case before.Resting():
			e.Error = fmt.Sprintf("unchanged: already WARM or on its way there (%s)", before.Status)
		case before.Leaving():
			e.Error = fmt.Sprintf("unchanged: already leaving (%s)", before.Status)
		default:
			e.To, e.Error = e.From, fmt.Sprintf("unchanged: %s", before.Status)
		}
		return e
	case after != nil && after.Counts():
		e.To, e.Error = e.From, fmt.Sprintf("unchanged: %s", after.Status)
		return e
	case after != nil:
		e.To = string(after.Goal.Tier())
	}
	h := before.Holds()
	for gpu, b := range h.Memory {
		e.FreedBytes += b - others.Shared(&h, gpu)
	}
	if e.To == string(state.Warm) {
		// It keeps its seats, and sleeps in a process that has a little of each GPU.
		e.FreedBytes -= before.Placement.SleepMemory * int64(len(h.Memory))
		return e
	}
	on := map[string]bool{}
	for _, seat := range h.Seats {
		gpu, _, _ := strings.Cut(seat, "#")
		on[gpu] = true
	}
	e.FreedGPUs = len(on)
	return e
}
