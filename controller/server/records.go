package server

import (
	"errors"
	"fmt"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// defaultDecisions is how many decisions are listed where the caller does not say.
const defaultDecisions = 100

// decide has a command applied together with the decisions of people that it carries
// out, and logs them where it changed something.
func (s *Server) decide(rq *request, c state.Command, ds ...state.Decision) (state.Result, error) {
	now := s.cfg.Now()
	for i := range ds {
		ds[i].Time = now
	}
	decided, err := state.Decide(c, ds...)
	if err != nil {
		return state.Result{}, err
	}
	res, err := s.apply(rq, decided)
	if err == nil && res.Changed {
		for _, d := range ds {
			s.log.Info("decision", "kind", d.Kind, "model", d.Model, "replica", d.Replica, "reason", d.Reason)
		}
	}
	return res, err
}

// apply applies a command through Raft. A command that the state as it is now would reject is
// answered without Raft: the log keeps every entry, rejected or not, until the next snapshot.
func (s *Server) apply(rq *request, c state.Command) (state.Result, error) {
	raw, err := state.Encode(c)
	if err != nil {
		return state.Result{}, err
	}
	trial := s.cfg.Raft.Store().Fork()
	if res := trial.Apply(trial.View().Index()+1, raw); res.Err != nil {
		return res, res.Err
	}
	res, err := s.cfg.Raft.Apply(rq.ctx, c)
	var rejected *state.Error // by the command's own entry of the log
	if err == nil || errors.As(err, &rejected) || errors.Is(err, raft.ErrUnknownOutcome) {
		rq.settled = true
	}
	return res, err
}

func (s *Server) listDecisions(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	limit := int(rq.numbers["limit"])
	model, of := rq.query.Get("model"), rq.query.Get("replica")
	if of != "" {
		name, err := replica.ParseName(of)
		if err != nil {
			return answer{}, badRequest("replica: %v", err)
		}
		if model != "" && model != name.Model {
			return answer{}, badRequest("replica %q does not belong to model %q", of, model)
		}
		model = name.Model
	}
	on := func(*state.Decision) bool { return true }
	if node := rq.query.Get("node"); node != "" {
		on = decidedOn(v, node)
	}
	most := limit
	if of != "" || rq.query.Get("node") != "" {
		most = 0 // Those of the others are left out first.
	}
	out := []api.Decision{}
	for _, d := range v.Decisions(ws, model, most) {
		if (of == "" || d.Replica == of) && on(d) && len(out) < limit {
			out = append(out, decisionOf(d))
		}
	}
	return answer{value: out, index: v.TableIndex(state.TableDecisions)}, nil
}

// decidedOn returns what tells whether a decision is about a node, of that ID or name: its numbers name the
// node, or its replica is there. A node that is gone is only found by what the numbers say.
func decidedOn(v *state.View, node string) func(*state.Decision) bool {
	id, name := node, node
	if n, err := findNode(v, nil, node); err == nil {
		id, name = n.ID, n.Name
	}
	there := map[string]bool{}
	for _, r := range v.ReplicasOn(nil, id) {
		there[r.Name.String()] = true
	}
	return func(d *state.Decision) bool {
		on := d.Details["node"]
		return on == id || on == name || on == "" && there[d.Replica]
	}
}

func (s *Server) listSwitches(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	return answer{value: list(v.Switches(ws), switchOf), index: v.TableIndex(state.TableSwitches)}, nil
}

func (s *Server) setSwitch(rq *request, _ *state.View) (answer, error) {
	var body api.SwitchRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	name := rq.PathValue("switch")
	const longest = 4096 // it is kept in the log, the state and a decision
	if len(body.Value) > longest {
		return answer{}, badRequest("field \"Value\" is %d bytes: must be at most %d bytes", len(body.Value), longest)
	}
	if err := state.CheckSwitch(name, body.Value); err != nil {
		return answer{}, badRequest("%v", err)
	}
	if _, err := s.decide(rq, &state.SetSwitch{Name: name, Value: body.Value, ModifyIndex: body.CAS},
		state.Decision{Kind: "switch", Reason: fmt.Sprintf("%s set switch %q to %q", by(rq.token), name, body.Value),
			Details: map[string]string{"switch": name, "value": body.Value}}); err != nil {
		return answer{}, err
	}
	for _, sw := range s.cfg.Raft.Store().View().Switches(nil) {
		if sw.Name == name {
			return answer{value: switchOf(sw)}, nil
		}
	}
	return answer{}, conflict("switch %q was unset in the meantime", name)
}

func (s *Server) deleteSwitch(rq *request, _ *state.View) (answer, error) {
	name := rq.PathValue("switch")
	_, err := s.decide(rq, &state.SetSwitch{Name: name, Delete: true},
		state.Decision{Kind: "switch", Reason: fmt.Sprintf("%s unset switch %q", by(rq.token), name), Details: map[string]string{"switch": name}})
	return answer{}, err
}
