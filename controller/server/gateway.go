package server

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/state"
	"remuda/controller/usage"
	"remuda/internal/replica"
)

// gatewayRows are what the answer to gateways is made from.
type gatewayRows struct {
	models    []*state.Model
	targets   map[string]int // by model
	replicas  []*state.Replica
	pipelines []*state.Pipeline
	switches  []*state.Switch
	keys      []*state.Key
	// engineKey is the private key of the gateways, empty before the first job was registered.
	engineKey string
	// day is today, and usage the index of what keys have used.
	day   string
	usage uint64
}

// equal reports whether the answers are the same. Rows are never changed, so that the same ones
// have the same JSON.
func (r *gatewayRows) equal(o *gatewayRows) bool {
	return slices.Equal(r.models, o.models) && maps.Equal(r.targets, o.targets) && slices.Equal(r.replicas, o.replicas) && slices.Equal(r.pipelines, o.pipelines) &&
		slices.Equal(r.switches, o.switches) && slices.Equal(r.keys, o.keys) && r.engineKey == o.engineKey && r.day == o.day && r.usage == o.usage
}

// gatewayBody is the last answer to gateways, which all ask the same at the same time.
type gatewayBody struct {
	mu   sync.Mutex
	rows gatewayRows
	raw  []byte
}

// get returns the JSON of these rows.
func (b *gatewayBody) get(v *state.View, rows gatewayRows) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.raw != nil && rows.equal(&b.rows) {
		return b.raw, nil
	}
	raw, err := json.Marshal(rows.state(v))
	if err != nil {
		return nil, fmt.Errorf("gateway state: %w", err)
	}
	b.rows, b.raw = rows, append(raw, '\n')
	return b.raw, nil
}

func (s *Server) gatewayState(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	models, limits := v.Models(ws), v.Limits(ws)
	targets := make(map[string]int, len(models))
	for _, m := range models {
		targets[m.Name] = m.Target(limits(m.Name)).Replicas
	}
	// Usage changes all the time: it is not watched, and is not a part of the index.
	rows := gatewayRows{models: models, targets: targets, replicas: v.Replicas(ws), pipelines: v.Pipelines(ws), switches: v.Switches(ws), keys: v.Keys(ws),
		day: state.UsageDay(s.cfg.Now()), usage: v.TableIndex(state.TableUsage)}
	if key := v.ShimKey(ws); key != nil {
		rows.engineKey = base64.RawURLEncoding.EncodeToString(replica.GatewayKey(key).Bytes())
	}
	raw, err := s.gateways.get(v, rows)
	return answer{raw: raw, index: v.TableIndex(state.TableModels, state.TableReplicas, state.TablePipelines, state.TableDedicated, state.TableSwitches, state.TableKeys, state.TableShimKey)}, err
}

// state returns the answer.
func (r *gatewayRows) state(v *state.View) api.GatewayState {
	out := api.GatewayState{Models: make([]api.GatewayModel, 0, len(r.models)), Replicas: make([]api.GatewayReplica, 0, len(r.replicas)), Keys: gatewayKeys(v, r.keys, r.day), EngineKey: r.engineKey}
	problems := problemsOf(v, r.models, r.targets, r.replicas)
	for _, m := range r.models {
		out.Models = append(out.Models, api.GatewayModel{
			Name: m.Name, Stopped: m.Stopped, Continuation: m.Continuation, PassAuthorization: m.PassAuthorization, Engines: enginesOf(m),
			QueueLength: m.Queue.Length, QueueWait: api.Duration(m.Queue.Wait), FirstByte: api.Duration(m.Queue.FirstByte), TTFTP95: api.Duration(m.SLO.TTFT), Problem: problems[m.Name],
		})
	}
	for _, r := range r.replicas {
		out.Replicas = append(out.Replicas, api.GatewayReplica{
			Name: r.Name.String(), Model: r.Name.Model, Variant: r.Name.Variant,
			Status: string(r.Status),
			// What sleeps is drained already, and what stops is not waited for.
			Draining:  r.Status == state.StatusDraining || r.Status == state.StatusSleeping || r.Ending(),
			Addresses: r.Addresses, Generation: r.Generation, MaxSlots: maxSlotsOf(v, r),
		})
	}
	for _, p := range r.pipelines {
		out.Pipelines = append(out.Pipelines, api.GatewayPipeline{Name: p.Name, Source: p.Source})
	}
	return out
}

// maxSlotsOf returns how many slots an engine of the replica may have.
func maxSlotsOf(view *state.View, r *state.Replica) int {
	if v := view.VariantOf(nil, r); v != nil && v.Slots > 0 {
		return v.Slots
	}
	return replica.MaxSlots
}

// enginesOf returns the dialects of a model's variants, sorted, each once.
func enginesOf(m *state.Model) []string {
	var out []string
	for _, v := range m.Variants {
		if v.Engine != "" {
			out = append(out, v.Engine)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// gatewayKeys returns the keys with the hashes of their secrets.
func gatewayKeys(v *state.View, keys []*state.Key, day string) []api.GatewayKey {
	var used map[string]state.TokensUsed
	if slices.ContainsFunc(keys, func(k *state.Key) bool { return k.HasBudget() }) {
		used = v.TokensUsed(nil, day)
	}
	var out []api.GatewayKey
	for _, k := range keys {
		one := api.GatewayKey{Name: k.Name, KeyLimits: api.KeyLimits(k.KeyLimits)}
		if k.HasBudget() {
			one.Used = usedOf(used[k.Name], day)
		}
		for _, s := range k.Secrets {
			one.Secrets = append(one.Secrets, api.GatewaySecret{SHA256: s.Hash, ExpiresAt: s.ExpiresAt})
		}
		out = append(out, one)
	}
	return out
}

// problemsOf returns why models without a serving replica get none.
func problemsOf(v *state.View, models []*state.Model, targets map[string]int, replicas []*state.Replica) map[string]*api.GatewayProblem {
	comes, failed := map[string]bool{}, map[string]*state.Replica{}
	for _, r := range replicas {
		switch model := r.Name.Model; r.Status {
		case state.StatusServing, state.StatusPlaced, state.StatusStarting, state.StatusWaking:
			comes[model] = comes[model] || !r.Loads() // what loads to become WARM serves nothing by itself
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

// checkAddress returns an error unless a gateway's address is empty or the URL of a server.
func checkAddress(s string) error {
	const longest = 512
	u, err := url.Parse(s)
	if s == "" || err == nil && len(s) <= longest && u.Host != "" && (s == "http://"+u.Host || s == "https://"+u.Host) {
		return nil
	}
	return fmt.Errorf("address is %.100q: must be a URL such as \"http://10.0.0.7:8080\"", s)
}

func (s *Server) gatewayReport(rq *request, _ *state.View) (answer, error) {
	var report api.GatewayReport
	if err := rq.decode(&report); err != nil {
		return answer{}, err
	}
	if err := errors.Join(gatewayreport.Validate(report), usage.Validate(report), checkAddress(report.Address)); err != nil {
		return answer{}, badRequest("%v", err)
	}
	term, budgets, err := s.takeReport(report)
	if err != nil {
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeBusy, RetryAfter: retryNomad,
			Message: fmt.Sprintf("gateway %q: %v, see \"remuda gateway list\"", report.Gateway, err)}
	}
	orders := s.cfg.Loads.Orders(report.Gateway)
	orders.UsageTerm, orders.Budgets = term, budgets
	return answer{value: orders}, nil
}

// takeReport takes the usage of a report and its claims in one step: what is left of a budget has to be what
// it is when it is divided.
func (s *Server) takeReport(report api.GatewayReport) (term uint64, budgets map[string]api.TokensUsed, err error) {
	s.reports.Lock()
	defer s.reports.Unlock()
	term, budgets = s.cfg.Usage.Report(report)
	report.Usage = nil // not a part of the gateway's load
	return term, budgets, s.cfg.Loads.Put(report)
}
