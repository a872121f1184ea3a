package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/load"
	"remuda/controller/state"
)

// gatewayBody is the last answer to gateways, which all ask the same at the same time.
type gatewayBody struct {
	mu        sync.Mutex
	models    []*state.Model
	replicas  []*state.Replica
	pipelines []*state.Pipeline
	raw       []byte
}

// get returns the JSON of these rows. Rows are never changed, so that the same ones
// have the same JSON.
func (b *gatewayBody) get(models []*state.Model, replicas []*state.Replica, pipelines []*state.Pipeline) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.raw != nil && slices.Equal(models, b.models) && slices.Equal(replicas, b.replicas) && slices.Equal(pipelines, b.pipelines) {
		return b.raw, nil
	}
	raw, err := json.Marshal(gatewayStateOf(models, replicas, pipelines))
	if err != nil {
		return nil, fmt.Errorf("gateway state: %w", err)
	}
	b.models, b.replicas, b.pipelines, b.raw = models, replicas, pipelines, append(raw, '\n')
	return b.raw, nil
}

func (s *Server) gatewayState(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	raw, err := s.gateways.get(v.Models(ws), v.Replicas(ws), v.Pipelines(ws))
	return answer{raw: raw, index: v.TableIndex(state.TableModels, state.TableReplicas, state.TablePipelines)}, err
}

func gatewayStateOf(models []*state.Model, replicas []*state.Replica, pipelines []*state.Pipeline) api.GatewayState {
	out := api.GatewayState{Models: make([]api.GatewayModel, 0, len(models)), Replicas: make([]api.GatewayReplica, 0, len(replicas))}
	byName := make(map[string]*state.Model, len(models))
	for _, m := range models {
		byName[m.Name] = m
		g := api.GatewayModel{Name: m.Name, Wanted: m.Target(), Stopped: m.Stopped, Continuation: m.Continuation}
		for _, variant := range m.Variants {
			if variant.Slots > 0 {
				g.Slots = variant.Slots
				break
			}
		}
		out.Models = append(out.Models, g)
	}
	for _, r := range replicas {
		g := api.GatewayReplica{
			Name: r.Name.String(), Model: r.Name.Model, Variant: r.Name.Variant, Node: r.Placement.Node,
			Status: string(r.Status),
			// What sleeps is drained already, and what stops is not waited for.
			Draining: r.Status == state.StatusDraining || r.Status == state.StatusSleeping || r.Ending(),
		}
		if variant := byName[r.Name.Model].VariantOf(r); variant != nil {
			g.Slots = variant.Slots
		}
		out.Replicas = append(out.Replicas, g)
	}
	for _, p := range pipelines {
		out.Pipelines = append(out.Pipelines, api.GatewayPipeline{Name: p.Name, Source: p.Source})
	}
	return out
}

func (s *Server) gatewayReport(rq *request, _ *state.View) (answer, error) {
	var body api.GatewayReport
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	report := load.Report{
		Gateway: body.Gateway, Index: body.Index, Since: body.Since, Wanted: body.Wanted, Replicas: make([]load.Replica, len(body.Replicas)),
		Queues: make([]load.Queue, len(body.Queues)), Counters: make([]load.Counters, len(body.Counters)), Draining: body.Draining,
	}
	for i, r := range body.Replicas {
		to := &report.Replicas[i]
		to.Name, to.InFlight, to.Oldest, to.LastRequest = r.Name, r.InFlight, r.Oldest, r.LastRequest
		to.Answered, to.Failed, to.FailedInARow = r.Answered, r.Failed, r.FailedInARow
		to.Requests = requestsOf(r.Requests)
	}
	for i, q := range body.Queues {
		report.Queues[i] = load.Queue{
			Model: q.Model, State: load.State(q.State), Waiting: q.Waiting, InFlight: q.InFlight, Oldest: q.Oldest, Served: q.Served,
			Requests: requestsOf(q.Requests),
		}
	}
	for i, c := range body.Counters {
		report.Counters[i] = load.Counters{Model: c.Model, Arrived: c.Arrived, Finished: c.Finished, ServedSeconds: c.ServedSeconds, Refused: c.Refused}
	}
	if err := report.Validate(); err != nil {
		return answer{}, badRequest("%v", err)
	}
	if err := s.cfg.Loads.Put(report); err != nil {
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeBusy, RetryAfter: retryNomad,
			Message: fmt.Sprintf("gateway %q: %v: at most %d may, see \"remuda gateway list\"", report.Gateway, err, load.MaxGateways)}
	}
	orders := s.cfg.Loads.Orders(report.Gateway)
	return answer{value: api.GatewayOrders{Kill: orders.Kill, Drain: orders.Drain}}, nil
}

func requestsOf(rs []api.Request) []load.Request {
	out := make([]load.Request, len(rs))
	for i, r := range rs {
		out[i] = load.Request{ID: r.ID, Started: r.Started}
	}
	return out
}
