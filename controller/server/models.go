package server

import (
	"fmt"
	"math"
	"net/http"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/closest"
)

// statusDecisions is how many decisions a model's status has: the latest story.
const statusDecisions = 10

func (s *Server) listModels(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	of := map[string][]*state.Replica{}
	for _, r := range v.Replicas(ws) {
		of[r.Name.Model] = append(of[r.Name.Model], r)
	}
	limits := v.Limits(ws)
	models := list(v.Models(ws), func(m *state.Model) api.ModelSummary { return summaryOf(v, ws, m, limits(m.Name), of[m.Name]) })
	return answer{value: models, index: v.TableIndex(state.TableModels, state.TableReplicas, state.TableDedicated, state.TableSwitches)}, nil
}

func (s *Server) listPolicies(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	s.autoscalers.note(rq, s.cfg.Now(), func(*api.Autoscaler) {})
	policies := []api.Policy{}
	for _, m := range v.Models(ws) {
		if p := scalingOf(m); p != nil {
			policies = append(policies, api.Policy{Model: m.Name, Min: m.Min, Max: m.Max, Scaling: *p})
		}
	}
	return answer{value: policies, index: v.TableIndex(state.TableModels)}, nil
}

func noModel(v *state.View, name string) *api.Error {
	hint := ""
	if near := closest.Word(name, list(v.Models(nil), func(m *state.Model) string { return m.Name })); near != "" {
		hint = fmt.Sprintf(", did you mean %q?", near)
	}
	return notFound("model %q does not exist%s: see \"remuda model list\"", name, hint)
}

func (s *Server) getModel(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableModels, state.TableReplicas, state.TableDecisions, state.TableSwitches, state.TableDedicated)
	name := rq.PathValue("model")
	s.autoscalers.note(rq, s.cfg.Now(), func(a *api.Autoscaler) { a.EvaluatedAt = a.LastSeenAt })
	m := v.Model(ws, name)
	if m == nil {
		return answer{index: index}, noModel(v, name)
	}
	rs := v.ReplicasOf(ws, name)
	ds, limits := v.Decisions(ws, name, statusDecisions), v.Limits(ws)(name)
	status := api.ModelStatus{
		Model: modelOf(m, limits), Limits: limitsOf(limits), Counts: countsOf(rs), VariantCounts: variantCountsOf(m, rs), VariantStarts: variantStartsOf(m), Replicas: list(rs, s.replicasIn(v, false).convert),
		Decisions: list(ds, decisionOf), StatusDescription: statusDescription(v, ws, m, rs, ds), Queue: s.modelQueue(m, m.Target(limits).Replicas, rs), Unplaceable: s.cfg.Reconciler.Unplaceable(name),
	}
	if d := v.LastDecision(name, "scale"); d != nil {
		status.LastScaledAt = d.Time
	}
	return answer{index: index, value: status}, nil
}

func (s *Server) getModelFile(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TableModels, state.TableVersions)
	m := v.Model(ws, rq.PathValue("model"))
	if m == nil {
		return answer{index: index}, noModel(v, rq.PathValue("model"))
	}
	number := m.Version
	if n := rq.numbers["version"]; n != 0 {
		number = int(min(n, math.MaxInt32))
	}
	version, err := versionFrom(m, v.Versions(ws, m.Name), number)
	if err != nil {
		return answer{index: index}, err
	}
	text := version.Model.Source
	if name := rq.query.Get("variant"); name != "" {
		variant := version.Variant(name)
		if variant == nil {
			return answer{index: index}, notFound("version %d of model %q has no variant %q", version.Number, m.Name, name)
		}
		text = variant.Job
	}
	return answer{index: index, raw: []byte(text), contentType: contentText}, nil
}

func (s *Server) deleteModel(rq *request, _ *state.View) (answer, error) {
	cmd := &state.DeleteModel{Model: rq.PathValue("model"), ModifyIndex: rq.cas()}
	_, err := s.decide(rq, cmd, state.Decision{Model: cmd.Model, Kind: "delete", Reason: fmt.Sprintf("%s deleted the model", by(rq.token))})
	return answer{}, err
}

func (s *Server) stopModel(rq *request, v *state.View) (answer, error) {
	return s.setStopped(rq, v, true)
}

func (s *Server) startModel(rq *request, v *state.View) (answer, error) {
	return s.setStopped(rq, v, false)
}

func (s *Server) setStopped(rq *request, v *state.View, stopped bool) (answer, error) {
	name := rq.PathValue("model")
	if v.Model(nil, name) == nil {
		return answer{}, noModel(v, name)
	}
	kind, verb := "start", "started"
	if stopped {
		kind, verb = "stop", "stopped"
	}
	res, err := s.propose(rq, &state.ScaleRequest{Model: name, Stopped: &stopped, Origin: state.OriginOperator, Time: s.cfg.Now()},
		state.Decision{Model: name, Kind: kind, Reason: fmt.Sprintf("%s %s the model", by(rq.token), verb)})
	if err != nil {
		return answer{}, err
	}
	return s.scaled(name, "", res.Changed)
}

// origin is the one that the caller may have: an autoscaler only its own.
func origin(asked string, token *state.Token) (state.Origin, error) {
	o := state.Origin(asked)
	if o == "" {
		o = state.OriginOperator
		if token != nil && token.Role == state.RoleAutoscaler {
			o = state.OriginAutoscaler
		}
	}
	if o != state.OriginOperator && o != state.OriginAutoscaler {
		return o, badRequest("origin is %q: must be %s or %s", asked, state.OriginOperator, state.OriginAutoscaler)
	}
	if token != nil && token.Role == state.RoleAutoscaler && o != state.OriginAutoscaler {
		return o, &api.Error{Status: http.StatusForbidden, Code: api.CodeForbidden,
			Message: fmt.Sprintf("permission denied: a token of the role %s can scale as %q only, not as %q: use an operator token to scale by hand", token.Role, state.OriginAutoscaler, o)}
	}
	return o, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// scaled answers what became of a scale.
func (s *Server) scaled(name, variant string, changed bool) (answer, error) {
	v := s.cfg.Raft.Store().View()
	m := v.Model(nil, name)
	if m == nil {
		return answer{}, conflict("model %q was deleted in the meantime", name)
	}
	rs := v.ReplicasOf(nil, name)
	target := v.Target(nil, m)
	out := api.ScaleResponse{
		Model: name, Variant: variant, Target: target.Replicas, Bound: string(target.Bound), Changed: changed, ModifyIndex: m.ModifyIndex, Replicas: outcomes(rs, variant),
	}
	for _, r := range rs {
		if r.Counts() && (variant == "" || r.Name.Variant == variant) {
			out.Current++
		}
	}
	if variant != "" && !m.Stopped {
		out.Target, _ = m.Active().Of(variant)
	}
	return answer{value: out}, nil
}
