package server

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

func (s *Server) listNodes(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	filter, limit := rq.query.Get("filter"), int(min(rq.numbers["limit"], math.MaxInt32))
	var found []*state.Node
	for _, n := range v.Nodes(ws) {
		if (filter == "" || strings.Contains(n.Name, filter) || strings.HasPrefix(n.ID, filter)) && (limit == 0 || len(found) < limit) {
			found = append(found, n)
		}
	}
	nodes := list(found, func(n *state.Node) api.Node { return s.nodeOf(n, v.ReplicasOn(ws, n.ID)) })
	return answer{value: nodes, index: v.TableIndex(state.TableNodes, state.TableReplicas)}, nil
}

// findNode returns the node of that ID, or else the only one of that name, or the only
// one whose ID begins so.
func findNode(v *state.View, ws memdb.WatchSet, asked string) (*state.Node, error) {
	if n := v.Node(ws, asked); n != nil {
		return n, nil
	}
	var named, begun []*state.Node
	for _, n := range v.Nodes(ws) {
		if n.Name == asked {
			named = append(named, n)
		}
		if strings.HasPrefix(n.ID, asked) {
			begun = append(begun, n)
		}
	}
	if len(named) == 0 {
		named = begun
	}
	switch len(named) {
	case 0:
		return nil, notFound("node %q does not exist: see \"remuda node list\"", asked)
	case 1:
		return named[0], nil
	}
	ids := list(named, func(n *state.Node) string { return n.ID })
	return nil, badRequest("%q is ambiguous: it matches nodes %s: use the full ID", asked, strings.Join(ids, ", "))
}

func (s *Server) getNode(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableNodes, state.TableReplicas)
	n, err := findNode(v, ws, rq.PathValue("node"))
	if err != nil {
		return answer{index: index}, err
	}
	rs := v.ReplicasOn(ws, n.ID)
	return answer{index: index, value: api.NodeStatus{
		Node:     s.nodeOf(n, rs),
		Replicas: list(rs, s.replicasIn(v, false).convert),
	}}, nil
}

func (s *Server) cordon(rq *request, v *state.View) (answer, error) {
	var body api.CordonRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	n, err := findNode(v, nil, rq.PathValue("node"))
	if err != nil {
		return answer{}, err
	}
	cmd := &state.Cordon{Node: n.ID, GPU: body.GPU, On: body.On}
	verb, why := "uncordoned", ""
	if body.On {
		verb = "cordoned"
		if body.Reason != "" {
			why = ": " + body.Reason
		}
		cmd.Reason = by(rq.token) + why
	} else if body.Reason != "" {
		return answer{}, badRequest("field \"Reason\" is %q: must be empty if On is false", body.Reason)
	}
	what := "all GPUs"
	if body.GPU != "" {
		what = "GPU " + body.GPU
	}
	if _, err := s.decide(rq, cmd,
		state.Decision{Kind: "cordon", Reason: fmt.Sprintf("%s %s %s of node %s%s", by(rq.token), verb, what, n.Name, why),
			Details: map[string]string{"node": n.ID, "gpu": body.GPU, "on": strconv.FormatBool(body.On)}}); err != nil {
		return answer{}, err
	}
	after := s.cfg.Raft.Store().View()
	if n = after.Node(nil, n.ID); n == nil {
		return answer{}, conflict("node %q was removed in the meantime", rq.PathValue("node"))
	}
	return answer{value: s.nodeOf(n, after.ReplicasOn(nil, n.ID))}, nil
}
