package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// planWait is how long a plan waits for the one before it: one is made at a time, because a
// plan of a large fleet takes a core for a second, and so does parsing a long model file.
const planWait = 2 * time.Second

// plan tries a change on a copy of the state and returns what would follow from it.
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
	asks, err := s.hypothesis(rq, body, v)
	if err != nil {
		return answer{}, err
	}
	var before, asked *state.View
	preview, err := s.cfg.Reconciler.Preview(rq.ctx, func(fork *state.Store) error {
		before = fork.View()
		for i, ask := range asks {
			c, refused := ask.Resolve(fork.View())
			if refused != nil {
				return refused
			}
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
	out := foreseen(before, asked, preview)
	models := modelsAsked(asks, asked)
	for _, step := range preview.Steps {
		if r := cmp.Or(step.To, step.From); r != nil {
			models[r.Name.Model] = true
		}
	}
	for _, sb := range preview.Standbys {
		if models[sb.Replica.Name.Model] {
			out.Standbys = append(out.Standbys, s.standby(before, sb))
		}
	}
	return answer{value: out}, nil
}

// modelsAsked returns the models that a request names.
func modelsAsked(asks []state.Proposal, v *state.View) map[string]bool {
	models := map[string]bool{}
	for _, ask := range asks {
		switch a := ask.(type) {
		case *state.UpsertModels:
			for i := range a.Models {
				models[a.Models[i].Model.Name] = true
			}
		case *state.UpsertModel:
			models[a.Model.Name] = true
		case *state.ScaleRequest:
			models[a.Model] = true
		case *state.EvictRequest:
			if models[a.Model] = true; a.Replica != "" {
				if r := v.Replica(nil, a.Replica); r != nil {
					models[r.Name.Model] = true
				}
			}
		}
	}
	return models
}

// standby converts a standby. The last failover of a pair has shown how long the next one takes.
func (s *Server) standby(v *state.View, sb planner.Standby) api.PlannedStandby {
	out := api.PlannedStandby{
		Replica: sb.Replica.Name.String(), Kind: string(sb.Kind), Node: sb.Replica.Placement.Node, Seats: sb.Seats, GPUs: sb.GPUs,
		GPUMemory: sb.GPUMemory, HostMemory: sb.HostMemory, Takes: api.Duration(sb.Takes), Cold: api.Duration(sb.Cold), Measured: sb.Measured,
	}
	if n := v.Node(nil, out.Node); n != nil {
		out.NodeName = n.Name
	}
	if last := s.cfg.Reconciler.Pair(out.Replica).LastFailover; sb.Kind == planner.StandbyPair && last.Seconds > 0 {
		out.Takes, out.Measured = api.Duration(last.Seconds*float64(time.Second)), true
	}
	return out
}

// hypothesis returns what is to be tried, one after the other.
func (s *Server) hypothesis(rq *request, body api.PlanRequest, v *state.View) ([]state.Proposal, error) {
	var asks []state.Proposal
	now := s.cfg.Now()
	if len(body.Files) > 0 || len(body.Jobs) > 0 {
		models, err := s.modelsOf(body.Files, body.Jobs)
		if err != nil {
			return nil, err
		}
		ask := &state.UpsertModels{}
		for _, m := range models {
			var have uint64
			if old := v.Model(nil, m.Name); old != nil {
				have = old.ModifyIndex
			}
			ask.Models = append(ask.Models, state.UpsertModel{Model: m, ModifyIndex: have, Time: now})
		}
		asks = append(asks, ask)
	}
	if r := body.Revert; r != nil {
		m := v.Model(nil, r.Model)
		if m == nil {
			return nil, noModel(v, r.Model)
		}
		to, err := revertTarget(v, m, r.Version)
		if err != nil {
			return nil, err
		}
		asks = append(asks, &state.UpsertModel{Model: to.Model, ModifyIndex: m.ModifyIndex, Time: now})
	}
	for _, name := range slices.Sorted(maps.Keys(body.Scale)) {
		n := body.Scale[name]
		asks = append(asks, &state.ScaleRequest{Model: name, Replicas: &n, Origin: state.OriginOperator, Time: now})
	}
	if e := body.Evict; e != nil {
		if (e.Replica == "") == (e.Model == "") {
			return nil, badRequest("field \"Evict\": \"Replica\" is %q and \"Model\" is %q: exactly one must be set", e.Replica, e.Model)
		}
		to, err := evictionGoal(e.To)
		if err != nil {
			return nil, err
		}
		asks = append(asks, &state.EvictRequest{Replica: e.Replica, Model: e.Model, To: to, Force: e.Force, Time: now})
	}
	if c := body.Cordon; c != nil {
		if c.Node == "" {
			return nil, badRequest("field \"Cordon\": \"Node\" is empty: must be a node's ID, the beginning of one, or a name")
		}
		n, err := findNode(v, nil, c.Node)
		if err != nil {
			return nil, err
		}
		asks = append(asks, asIs{&state.Cordon{Node: n.ID, GPU: c.GPU, On: c.On}})
	}
	return asks, nil
}

// asIs is a command that is tried as it is.
type asIs struct{ command state.Command }

// Resolve implements state.Proposal.
func (a asIs) Resolve(*state.View) (state.Command, *state.Error) { return a.command, nil }

// foreseen returns the steps from the state as it is to what was asked for, and from there on.
func foreseen(before, asked *state.View, f planner.Foresight) api.PlanResponse {
	out := api.PlanResponse{
		Steps: []api.PlannedStep{}, Waits: []api.PlannedWait{}, Decisions: []api.Decision{}, Assumptions: []api.PlanAssumption{},
		Unfinished: f.Unfinished,
	}
	for _, s := range append(requested(before, asked), f.Steps...) {
		// What is asked for and what follows at once is one step.
		if last := len(out.Steps); s.After == 0 {
			if i := slices.IndexFunc(out.Steps[:last], func(o api.PlannedStep) bool { return o.Replica == s.Replica }); i >= 0 {
				out.Steps[i].To = statusText(s.To)
				out.Steps[i].Reason += "; " + whyOf(s)
				continue
			}
		}
		at := s.To
		if at == nil {
			at = s.From
		}
		step := api.PlannedStep{
			After: api.Duration(s.After.Round(time.Millisecond)), Replica: s.Replica, Node: at.Placement.Node,
			From: statusText(s.From), To: statusText(s.To), Reason: whyOf(s),
		}
		if n := before.Node(nil, step.Node); n != nil {
			step.NodeName = n.Name
		}
		out.Steps = append(out.Steps, step)
	}
	for i := range f.Decisions {
		out.Decisions = append(out.Decisions, decisionOf(&f.Decisions[i]))
	}
	for _, a := range f.Assumptions {
		out.Assumptions = append(out.Assumptions, api.PlanAssumption{
			Kind: string(a.Kind), Model: a.Model, Variant: a.Variant, Takes: api.Duration(a.Takes), Text: assumptionText(a),
		})
	}
	after := f.Store.View()
	for _, m := range after.Models(nil) {
		rs := after.ReplicasOf(nil, m.Name)
		if d := pendingDecision(after, m, after.Target(nil, m).Replicas, rs, after.Decisions(nil, m.Name, statusDecisions)); d != nil {
			out.Waits = append(out.Waits, api.PlannedWait{Model: m.Name, Replica: d.Replica, Reason: d.Reason})
		}
	}
	return out
}

// requested are the steps that a request takes by itself.
func requested(before, asked *state.View) []planner.Step {
	var out []planner.Step
	for _, is := range asked.Replicas(nil) {
		name := is.Name.String()
		if was := before.Replica(nil, name); was != is && was != nil && (was.Status != is.Status || was.Goal != is.Goal) {
			out = append(out, planner.Step{Replica: name, From: was, To: is, Why: "as requested"})
		}
	}
	return out
}

// whyOf is why a step happens. Those without a decision carry out an earlier one.
func whyOf(s planner.Step) string {
	switch {
	case s.Why != "":
		return s.Why
	case s.To == nil && s.From.Ending():
		return "the job has ended"
	case s.To != nil && s.To.MakesRoomFor != "":
		return fmt.Sprintf("makes room for model %q", s.To.MakesRoomFor)
	}
	return "continues a change in progress"
}

// assumptionText is an assumption as a sentence.
func assumptionText(a planner.Assumption) string {
	of, takes := a.Model+":"+a.Variant, a.Takes.Round(100*time.Millisecond)
	switch a.Kind {
	case planner.AssumeColdStart:
		if a.Measured {
			return fmt.Sprintf("A cold start of %s takes %s, as those before it.", of, takes)
		}
		from := ""
		if a.OnDisk {
			from = " on a node that has its weights"
		}
		return fmt.Sprintf("A cold start of %s%s takes %s, by the configured rates.", of, from, takes)
	case planner.AssumeWake:
		if a.Measured {
			return fmt.Sprintf("A wake of %s takes %s, as those before it.", of, takes)
		}
		return fmt.Sprintf("A wake of %s takes %s, by the configured rates.", of, takes)
	case planner.AssumeSleep:
		return fmt.Sprintf("To put %s to sleep takes %s, by the configured rates.", of, takes)
	case planner.AssumeDrain:
		return fmt.Sprintf("A drain takes %s.", takes)
	case planner.AssumeStop:
		return fmt.Sprintf("Nomad ends a job within %s.", takes)
	case planner.AssumeTraffic:
		return "The traffic stays as it is."
	case planner.AssumeSuccess:
		return "Nothing fails."
	}
	return string(a.Kind)
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
