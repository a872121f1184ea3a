package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// planWait is how long a plan waits for the one before it: one is made at a time, because a
// plan of a large fleet takes a core for a second, and so does parsing a long model file.
const planWait = 2 * time.Second

// plan tries a change on a copy of the state and returns what the planner would make of it.
func (s *Server) plan(rq *request, v *state.View) (answer, error) {
	var body api.PlanRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	wait, cancel := context.WithTimeout(rq.ctx, planWait)
	defer cancel()
	select {
	case s.planning <- struct{}{}:
		defer func() { <-s.planning }()
	case <-wait.Done():
		return answer{}, &api.Error{Status: http.StatusTooManyRequests, Code: api.CodeBusy, RetryAfter: planWait,
			Message: fmt.Sprintf("other plans are being made, and none finished within %s: retry later", planWait)}
	}
	cmds, err := s.hypothesis(rq, body, v)
	if err != nil {
		return answer{}, err
	}
	var before, asked *state.View
	preview, err := s.cfg.Reconciler.Preview(func(fork *state.Store) error {
		before = fork.View()
		for i, c := range cmds {
			raw, err := state.Encode(c)
			if err != nil {
				return err
			}
			// A nil *state.Error in an error is none.
			if res := fork.Apply(before.Index()+1+uint64(i), raw); res.Err != nil {
				return res.Err
			}
		}
		asked = fork.View()
		return nil
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: foreseen(before, asked, preview)}, nil
}

// hypothesis makes the commands of what is to be tried.
func (s *Server) hypothesis(rq *request, body api.PlanRequest, v *state.View) ([]state.Command, error) {
	var cmds []state.Command
	now := s.cfg.Now()
	if body.File != "" {
		models, err := modelfile.Parse(cmp.Or(body.Filename, "model.hcl"), []byte(body.File), nil)
		if err != nil {
			return nil, fileError(err)
		}
		cmd := &state.UpsertModels{}
		for _, m := range models {
			var have uint64
			if old := v.Model(nil, m.Name); old != nil {
				have = old.ModifyIndex
			}
			cmd.Models = append(cmd.Models, state.UpsertModel{Model: m, ModifyIndex: have, Time: now})
		}
		cmds = append(cmds, cmd)
	}
	for _, name := range slices.Sorted(maps.Keys(body.Scale)) {
		n := body.Scale[name]
		cmds = append(cmds, &state.SetScale{Model: name, Replicas: &n, Origin: state.OriginOperator, Time: now})
	}
	if e := body.Evict; e != nil {
		if (e.Replica == "") == (e.Model == "") {
			return nil, badRequest("field \"Evict\": \"Replica\" is %q and \"Model\" is %q: exactly one must be set", e.Replica, e.Model)
		}
		to, err := evictionGoal(e.To)
		if err != nil {
			return nil, err
		}
		cmds = append(cmds, &state.Evict{Replica: e.Replica, Model: e.Model, To: to, Force: e.Force, Time: now})
	}
	return cmds, nil
}

// foreseen says what differs between the state as it is, as it was asked for, and as the
// plan leaves it.
func foreseen(before, asked *state.View, p planner.Preview) api.PlanResponse {
	out := api.PlanResponse{Changes: []api.PlannedChange{}, Waits: []api.PlannedWait{}, Decisions: []api.Decision{}}
	after := p.Store.View()
	why := map[string][]string{} // by replica
	waiting := map[string]bool{} // models
	if p.Plan != nil {
		for i := range p.Plan.Decisions {
			d := &p.Plan.Decisions[i]
			out.Decisions = append(out.Decisions, decisionOf(d))
			if isWait(d.Kind) {
				out.Waits = append(out.Waits, api.PlannedWait{Model: d.Model, Replica: d.Replica, Why: d.Reason})
				waiting[d.Model] = true
				continue
			}
			if d.Replica != "" {
				why[d.Replica] = append(why[d.Replica], d.Reason)
			}
		}
	}
	acts := map[string]string{}
	for _, a := range p.Actions {
		acts[a.Replica] = a.Reason
	}
	names := map[string]bool{}
	for _, v := range []*state.View{before, after} {
		for _, r := range v.Replicas(nil) {
			names[r.Name.String()] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is, tried := before.Replica(nil, name), after.Replica(nil, name), asked.Replica(nil, name)
		if was == is || was != nil && is != nil && was.Status == is.Status && was.Goal == is.Goal {
			continue
		}
		c := api.PlannedChange{Replica: name, From: statusText(was), To: statusText(is)}
		at := is
		if at == nil {
			at = was
		}
		if at == nil { // it came and went
			continue
		}
		c.Node = at.Placement.Node
		if n := after.Node(nil, c.Node); n != nil {
			c.NodeName = n.Name
		}
		switch {
		case len(why[name]) > 0:
			c.Why = strings.Join(why[name], "; ")
		case statusText(was) != statusText(tried):
			c.Why = "as requested"
		case at.For != "":
			c.Why = fmt.Sprintf("makes room for model %q", at.For)
		case acts[name] != "":
			c.Why = acts[name]
		default:
			c.Why = "continues a change already in progress"
		}
		out.Changes = append(out.Changes, c)
	}
	// What was said when it began to wait is not said again by the planner.
	for _, m := range after.Models(nil) {
		rs := after.ReplicasOf(nil, m.Name)
		if waiting[m.Name] {
			continue
		}
		if d := waits(after, m, rs, after.Decisions(nil, m.Name, statusDecisions)); d != nil {
			out.Waits = append(out.Waits, api.PlannedWait{Model: m.Name, Replica: d.Replica, Why: d.Reason})
		}
	}
	return out
}

// isWait tells whether a decision says that something could not be done now.
func isWait(kind string) bool {
	switch kind {
	case planner.KindCannotPlace, planner.KindWaitsForRoom, planner.KindRolloutWaits, planner.KindGPUOutOfUse:
		return true
	}
	return false
}

// statusText is a replica's status, with the tier that follows: "draining, then WARM". It
// is empty for nil.
func statusText(r *state.Replica) string {
	switch {
	case r == nil:
		return ""
	case r.Status == state.StatusDraining, r.Ending() && r.Goal == state.GoalCold:
		if tier := r.Goal.Tier(); tier != "" {
			return fmt.Sprintf("%s, then %s", r.Status, tier)
		}
	}
	return string(r.Status)
}
