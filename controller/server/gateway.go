package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/state"
)

// gatewayBody is the last answer to gateways, which all ask the same at the same time.
type gatewayBody struct {
	mu        sync.Mutex
	models    []*state.Model
	targets   map[string]int
	replicas  []*state.Replica
	pipelines []*state.Pipeline
	switches  []*state.Switch
	raw       []byte
}

// get returns the JSON of these rows, with the target of each model. Rows are never changed, so
// that the same ones have the same JSON.
func (b *gatewayBody) get(v *state.View, models []*state.Model, targets map[string]int, replicas []*state.Replica, pipelines []*state.Pipeline, switches []*state.Switch) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.raw != nil && slices.Equal(models, b.models) && maps.Equal(targets, b.targets) && slices.Equal(replicas, b.replicas) && slices.Equal(pipelines, b.pipelines) && slices.Equal(switches, b.switches) {
		return b.raw, nil
	}
	raw, err := json.Marshal(gatewayStateOf(v, models, targets, replicas, pipelines))
	if err != nil {
		return nil, fmt.Errorf("gateway state: %w", err)
	}
	b.models, b.targets, b.replicas, b.pipelines, b.switches, b.raw = models, targets, replicas, pipelines, switches, append(raw, '\n')
	return b.raw, nil
}

func (s *Server) gatewayState(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	models, limits := v.Models(ws), v.Limits(ws)
	targets := make(map[string]int, len(models))
	for _, m := range models {
		targets[m.Name] = m.Target(limits(m.Name)).Replicas
	}
	raw, err := s.gateways.get(v, models, targets, v.Replicas(ws), v.Pipelines(ws), v.Switches(ws))
	return answer{raw: raw, index: v.TableIndex(state.TableModels, state.TableReplicas, state.TablePipelines, state.TableDedicated, state.TableSwitches)}, err
}

func gatewayStateOf(v *state.View, models []*state.Model, targets map[string]int, replicas []*state.Replica, pipelines []*state.Pipeline) api.GatewayState {
	out := api.GatewayState{Models: make([]api.GatewayModel, 0, len(models)), Replicas: make([]api.GatewayReplica, 0, len(replicas))}
	problems := problemsOf(v, models, targets, replicas)
	for _, m := range models {
		out.Models = append(out.Models, api.GatewayModel{Name: m.Name, Stopped: m.Stopped, Continuation: m.Continuation, Problem: problems[m.Name]})
	}
	for _, r := range replicas {
		out.Replicas = append(out.Replicas, api.GatewayReplica{
			Name: r.Name.String(), Model: r.Name.Model, Variant: r.Name.Variant,
			Status: string(r.Status),
			// What sleeps is drained already, and what stops is not waited for.
			Draining: r.Status == state.StatusDraining || r.Status == state.StatusSleeping || r.Ending(),
		})
	}
	for _, p := range pipelines {
		out.Pipelines = append(out.Pipelines, api.GatewayPipeline{Name: p.Name, Source: p.Source})
	}
	return out
}

// problemsOf returns why models without a serving replica get none.
func problemsOf(v *state.View, models []*state.Model, targets map[string]int, replicas []*state.Replica) map[string]*api.GatewayProblem {
	comes, failed := map[string]bool{}, map[string]*state.Replica{}
	for _, r := range replicas {
		switch model := r.Name.Model; r.Status {
		case state.StatusServing, state.StatusPlaced, state.StatusStarting, state.StatusWaking:
			comes[model] = true
		case state.StatusFailed:
			if last := failed[model]; last == nil || r.RetryAt.Before(last.RetryAt) {
				failed[model] = r // the first one to be tried again
			}
		}
	}
	problems, limits := map[string]*api.GatewayProblem{}, v.Limits(nil)
	for _, m := range models {
		r, why := failed[m.Name], keptAway(v, m, limits(m.Name), targets[m.Name])
		switch {
		case comes[m.Name] || m.Stopped:
		case why != "":
			problems[m.Name] = &api.GatewayProblem{State: api.QueueCantPlace, Message: why}
		case targets[m.Name] == 0:
		case r != nil:
			problems[m.Name] = &api.GatewayProblem{State: api.QueueLoadFailed, Message: fmt.Sprintf("load failed %s: %s", plural(r.Failures, "time"), r.LastError), Since: r.Since, RetryAt: r.RetryAt}
		case m.Unplaceable != nil:
			problems[m.Name] = &api.GatewayProblem{State: api.QueueCantPlace, Message: m.Unplaceable.Reason, Since: m.Unplaceable.Since}
		}
	}
	return problems
}

// keptAway returns which setting keeps a model from getting a replica when clients ask for
// it, empty if none does.
func keptAway(v *state.View, m *state.Model, l state.Limits, target int) string {
	switch {
	case l.Cap != nil && *l.Cap == 0:
		return "capped at 0 replicas by switch " + cappedBy(v, nil, m.Name, 0)
	case target > 0:
	case m.Management == state.ManagementDisabled:
		return "the target is 0 replicas, and scaling is disabled by the model file (management = \"disabled\")"
	case l.ScalingDisabled:
		return "the target is 0 replicas, and scaling is disabled by switch " + disabledBy(v, nil, m.Name)
	}
	return ""
}

func (s *Server) gatewayReport(rq *request, _ *state.View) (answer, error) {
	var report api.GatewayReport
	if err := rq.decode(&report); err != nil {
		return answer{}, err
	}
	if err := gatewayreport.Validate(report); err != nil {
		return answer{}, badRequest("%v", err)
	}
	if err := s.cfg.Loads.Put(report); err != nil {
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeBusy, RetryAfter: retryNomad,
			Message: fmt.Sprintf("gateway %q: %v, see \"remuda gateway list\"", report.Gateway, err)}
	}
	return answer{value: s.cfg.Loads.Orders(report.Gateway)}, nil
}
