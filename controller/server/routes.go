package server

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/controller/ui"
)

// where says which server answers.
type where int

const (
	whereLocal  where = iota + 1 // the one that was asked
	whereLeader                  // the leader, to which others pass it on
	whereRead                    // the leader, or with ?stale the one that was asked
)

// Bodies that are not JSON.
type (
	// text is text/plain.
	text string
	// binary is application/octet-stream. In a request it is at most Config.MaxSnapshot, and
	// never in memory.
	binary []byte
)

// route is one method of one path. It has one of read, write, act and serve.
type route struct {
	method string
	// pattern's segments in braces are parameters.
	pattern string
	access  access
	where   where
	// read answers from a view, and may be a blocking query: it adds to ws what it looks
	// at. It is called again whenever that has changed.
	read func(s *Server, rq *request, v *state.View, ws memdb.WatchSet) (answer, error)
	// write changes the state with Server.apply, and nothing else. It is called on the leader.
	// The view, and the state while it runs, may be those of a leader that was deposed and
	// does not know: see Server.lead.
	write func(s *Server, rq *request, v *state.View) (answer, error)
	// act does anything else. It is called on the leader with a view that has seen all that was
	// acknowledged.
	act func(s *Server, rq *request, v *state.View) (answer, error)
	// serve answers from this server alone.
	serve func(s *Server, rq *request) (answer, error)

	// tag is the group of the route in the documents, id the client's method for it.
	tag, id string
	// summary is a sentence or two on what it does.
	summary string
	// in is a value of the body's type, nil: the body must be empty. A JSON body is at most
	// Config.MaxBody.
	in any
	// out is a value of the answer's type; nil: an empty object.
	out any
	// status of the answer, 0: 200.
	status int
	// errors are statuses of errors that do not follow from the other fields.
	errors []int
	// params are the query parameters that it takes, beside those of reads.
	params []param
	// large: the body may be largeFactor times as long as others.
	large bool
	// long: it may take Config.SnapshotTimeout, as a snapshot or a drain may.
	long bool
	// once: a read that is not of the state, and so cannot wait for a change of it.
	once bool
}

// param is a query parameter.
type param struct {
	name, about string
	// number: it is a whole number, from min to max where max is not 0. Without the
	// parameter it is preset.
	number           bool
	min, max, preset uint64
}

// bounds names the values that a number may have.
func (p param) bounds() string {
	if p.max > 0 {
		return fmt.Sprintf("%d to %d", p.min, p.max)
	}
	return fmt.Sprintf("a whole number of at least %d", p.min)
}

// streams is true if the body never is in memory as a whole.
func (rt *route) streams() bool {
	_, ok := rt.in.(binary)
	return ok
}

// Parameters of every read.
const (
	paramIndex = "index"
	paramWait  = "wait"
	paramStale = "stale"
)

// routes is the whole API.
var routes = []*route{
	{method: http.MethodGet, pattern: "/v1/overview", access: accessRead, where: whereLeader, once: true, read: (*Server).overview,
		tag: "models", id: "Overview", summary: "The cluster at a glance: what needs a hand, sums, and the models with their queues.", out: api.Overview{},
		params: []param{{name: "filter", about: "Only models whose name contains this."},
			{name: "limit", about: "How many models, at most.", number: true, min: 1, max: maxOverview, preset: defaultOverview}}},
	{method: http.MethodGet, pattern: "/v1/models", access: accessModels, where: whereRead, read: (*Server).listModels,
		tag: "models", id: "Models", summary: "List the models.", out: []api.ModelSummary{}},
	{method: http.MethodPut, pattern: "/v1/models", access: accessOperator, where: whereLeader, write: (*Server).applyModels,
		tag: "models", id: "ApplyModels", summary: "Apply a model file, all of it or nothing.", in: api.ApplyRequest{}, out: api.ApplyResponse{}},
	{method: http.MethodGet, pattern: "/v1/policies", access: accessRead, where: whereRead, read: (*Server).listPolicies,
		tag: "models", id: "Policies", summary: "List the models that have a policy for nomad-autoscaler in their files, with it.", out: []api.Policy{}},
	{method: http.MethodGet, pattern: "/v1/model/{model}", access: accessModels, where: whereRead, read: (*Server).getModel,
		tag: "models", id: "Model", summary: "A model with its replicas, decisions and status.", out: api.ModelStatus{}},
	{method: http.MethodGet, pattern: "/v1/model/{model}/file", access: accessRead, where: whereRead, read: (*Server).getModelFile,
		tag: "models", id: "ModelFile", summary: "The model's part of the model file that was applied as a version, or a job file of it.", out: text(""),
		params: []param{{name: "version", about: "The number of the version; none: the current one.", number: true}, {name: "variant", about: "Return the job file of this variant."}}},
	{method: http.MethodGet, pattern: "/v1/model/{model}/versions", access: accessRead, where: whereRead, read: (*Server).listVersions,
		tag: "models", id: "ModelVersions", summary: "The versions of the model, the newest first.", out: []api.Version{}},
	{method: http.MethodPut, pattern: "/v1/model/{model}/revert", access: accessOperator, where: whereLeader, write: (*Server).revertModel,
		tag: "models", id: "RevertModel", summary: "Return the model to the definition of an earlier version, as a new version.", in: api.RevertRequest{}, out: api.AppliedModel{}},
	{method: http.MethodDelete, pattern: "/v1/model/{model}", access: accessOperator, where: whereLeader, write: (*Server).deleteModel,
		tag: "models", id: "DeleteModel", summary: "Delete a model without replicas.",
		params: []param{{name: "cas", about: "The model's ModifyIndex as the caller knows it; none: any.", number: true}}},
	{method: http.MethodPut, pattern: "/v1/model/{model}/stop", access: accessOperator, where: whereLeader, write: (*Server).stopModel,
		tag: "models", id: "StopModel", summary: "Stop a model: its replicas drain and stop.", out: api.ScaleResponse{}},
	{method: http.MethodPut, pattern: "/v1/model/{model}/start", access: accessOperator, where: whereLeader, write: (*Server).startModel,
		tag: "models", id: "StartModel", summary: "Start a stopped model.", out: api.ScaleResponse{}},
	{method: http.MethodPut, pattern: "/v1/model/{model}/scale", access: accessScale, where: whereLeader, write: (*Server).scaleModel,
		tag: "models", id: "Scale", summary: "Scale a model, or one of its variants. The role autoscaler scales with its own origin only.", in: api.ScaleRequest{}, out: api.ScaleResponse{}},
	{method: http.MethodPut, pattern: "/v1/model/{model}/pool/{pool}", access: accessOperator, where: whereLeader, write: (*Server).scalePool,
		tag: "models", id: "ScalePool", summary: "Set the number of a model's replicas in an external capacity pool.", in: api.ScalePoolRequest{}, out: api.ScaleResponse{}},

	{method: http.MethodPut, pattern: "/v1/plan", access: accessRead, where: whereLeader, act: (*Server).plan,
		tag: "replicas", id: "Plan", summary: "Show what the controller would do after a change, and why. Nothing is changed.", in: api.PlanRequest{}, out: api.PlanResponse{}, errors: []int{http.StatusTooManyRequests}},
	{method: http.MethodPut, pattern: "/v1/evict", access: accessOperator, where: whereLeader, write: (*Server).evict,
		tag: "replicas", id: "Evict", summary: "Evict a replica, or all replicas of a model.", in: api.EvictRequest{}, out: api.EvictResponse{}},
	{method: http.MethodGet, pattern: "/v1/replicas", access: accessModels, where: whereRead, read: (*Server).listReplicas,
		tag: "replicas", id: "Replicas", summary: "List the replicas.", out: []api.Replica{}, errors: []int{http.StatusNotFound},
		params: []param{{name: "model", about: "Only those of this model."}}},
	{method: http.MethodGet, pattern: "/v1/replica/{replica}", access: accessModels, where: whereRead, read: (*Server).getReplica,
		tag: "replicas", id: "Replica", summary: "One replica, with its requests in flight.", out: api.Replica{}},
	{method: http.MethodPost, pattern: "/v1/replica/{replica}/failover", access: accessOperator, where: whereLeader, long: true, act: (*Server).failover,
		tag: "replicas", id: "Failover", summary: "Hand a failover pair over to its standby: the engine that serves finishes its requests and ends. The response comes once the standby serves. If requests still run after the timeout, or the client leaves before, the engine serves on.", out: api.Failover{}, errors: []int{http.StatusConflict},
		params: []param{{name: "drill", about: "End the engine at once, as a crash would. Its streams break."},
			{name: "timeout", about: "How long the engine may take to finish its requests, as \"30s\", the default; at most 5m."}}},
	{method: http.MethodGet, pattern: "/v1/nodes", access: accessRead, where: whereRead, read: (*Server).listNodes,
		tag: "nodes", id: "Nodes", summary: "List the nodes with GPUs.", out: []api.Node{},
		params: []param{{name: "filter", about: "Only nodes whose name contains this, or whose ID begins so."},
			{name: "limit", about: "How many, at most; none: all.", number: true}}},
	{method: http.MethodGet, pattern: "/v1/node/{node}", access: accessRead, where: whereRead, read: (*Server).getNode,
		tag: "nodes", id: "Node", summary: "A node with its replicas, by its ID, a prefix of the ID, or its name.", out: api.NodeStatus{}},
	{method: http.MethodPut, pattern: "/v1/node/{node}/cordon", access: accessOperator, where: whereLeader, write: (*Server).cordon,
		tag: "nodes", id: "Cordon", summary: "Cordon a GPU of a node, or all of them, or lift the cordon.", in: api.CordonRequest{}, out: api.Node{}},
	{method: http.MethodGet, pattern: "/v1/pools", access: accessRead, where: whereRead, read: (*Server).listPools,
		tag: "pools", id: "Pools", summary: "List the capacity pools, the own one first.", out: []api.Pool{}},

	{method: http.MethodGet, pattern: "/v1/pipelines", access: accessModels, where: whereRead, read: (*Server).listPipelines,
		tag: "pipelines", id: "Pipelines", summary: "List the pipelines.", out: []api.Pipeline{}},
	{method: http.MethodGet, pattern: "/v1/pipeline/{pipeline}", access: accessModels, where: whereRead, read: (*Server).getPipeline,
		tag: "pipelines", id: "Pipeline", summary: "Show a pipeline.", out: api.Pipeline{}},
	{method: http.MethodPut, pattern: "/v1/pipeline/{pipeline}", access: accessOperator, where: whereLeader, write: (*Server).applyPipeline,
		tag: "pipelines", id: "ApplyPipeline", summary: "Create or replace a pipeline.", in: api.PipelineRequest{}, out: api.PipelineResponse{}},
	{method: http.MethodDelete, pattern: "/v1/pipeline/{pipeline}", access: accessOperator, where: whereLeader, write: (*Server).deletePipeline,
		tag: "pipelines", id: "DeletePipeline", summary: "Delete a pipeline.",
		params: []param{{name: "cas", about: "The pipeline's ModifyIndex as the caller knows it; none: any.", number: true}}},

	{method: http.MethodGet, pattern: "/v1/keys", access: accessRead, where: whereRead, read: (*Server).listKeys,
		tag: "keys", id: "Keys", summary: "List the API keys of clients, without their secrets.", out: []api.Key{}},
	{method: http.MethodGet, pattern: "/v1/key/{key}", access: accessRead, where: whereRead, read: (*Server).getKey,
		tag: "keys", id: "Key", summary: "A key with what it has used today and this month.", out: api.KeyStatus{}},
	{method: http.MethodPut, pattern: "/v1/key/{key}", access: accessOperator, where: whereLeader, write: (*Server).setKey,
		tag: "keys", id: "SetKey", summary: "Create a key or change its limits. The response to a creation contains its secret.", in: api.KeyRequest{}, out: api.KeyResponse{}},
	{method: http.MethodPost, pattern: "/v1/key/{key}/rotate", access: accessOperator, where: whereLeader, write: (*Server).rotateKey,
		tag: "keys", id: "RotateKey", summary: "Make a new secret for a key, which the response contains.", in: api.RotateKeyRequest{}, out: api.KeyResponse{}},
	{method: http.MethodDelete, pattern: "/v1/key/{key}", access: accessOperator, where: whereLeader, write: (*Server).deleteKey,
		tag: "keys", id: "DeleteKey", summary: "Delete a key. Its usage is kept.",
		params: []param{{name: "cas", about: "The key's ModifyIndex as the caller knows it; none: any.", number: true}}},
	{method: http.MethodGet, pattern: "/v1/usage", access: accessRead, where: whereRead, read: (*Server).usage,
		tag: "keys", id: "Usage", summary: "The tokens that clients have used, by day (in UTC), key and model.", out: api.UsageReport{},
		params: []param{{name: "by", about: "Add the rows up by key, model or day; none: a row for each day, key and model."},
			{name: "days", about: "How many days until today.", number: true, min: 1, max: state.UsageDays, preset: defaultUsageDays},
			{name: "key", about: "Only the usage of this key."}, {name: "model", about: "Only the usage of this model."}}},

	{method: http.MethodGet, pattern: "/v1/dedicated", access: accessRead, where: whereRead, read: (*Server).getDedicated,
		tag: "dedicated", id: "Dedicated", summary: "The current dedicated set.", out: api.Dedicated{}},
	{method: http.MethodPut, pattern: "/v1/dedicated", access: accessOperator, where: whereLeader, write: (*Server).setDedicated,
		tag: "dedicated", id: "SetDedicated", summary: "Replace the dedicated set.", in: api.DedicatedRequest{}, out: api.Dedicated{}},
	{method: http.MethodDelete, pattern: "/v1/dedicated", access: accessOperator, where: whereLeader, write: (*Server).clearDedicated,
		tag: "dedicated", id: "ClearDedicated", summary: "Clear the dedicated set.", out: api.Dedicated{}},
	{method: http.MethodGet, pattern: "/v1/dedicated/schedule", access: accessRead, where: whereRead, read: (*Server).getSchedule,
		tag: "dedicated", id: "DedicatedSchedule", summary: "The calendar that changes the dedicated set by the time of day.", out: api.DedicatedSchedule{}},
	{method: http.MethodPut, pattern: "/v1/dedicated/schedule", access: accessOperator, where: whereLeader, write: (*Server).setSchedule,
		tag: "dedicated", id: "SetDedicatedSchedule", summary: "Set the calendar.", in: api.ScheduleRequest{}, out: api.DedicatedSchedule{}},
	{method: http.MethodDelete, pattern: "/v1/dedicated/schedule", access: accessOperator, where: whereLeader, write: (*Server).deleteSchedule,
		tag: "dedicated", id: "DeleteDedicatedSchedule", summary: "Delete the calendar. The dedicated set is unchanged."},

	{method: http.MethodGet, pattern: "/v1/switches", access: accessRead, where: whereRead, read: (*Server).listSwitches,
		tag: "switches", id: "Switches", summary: "List the switches that are set.", out: []api.Switch{}},
	{method: http.MethodPut, pattern: "/v1/switch/{switch}", access: accessOperator, where: whereLeader, write: (*Server).setSwitch,
		tag: "switches", id: "SetSwitch", summary: "Set a switch.", in: api.SwitchRequest{}, out: api.Switch{}},
	{method: http.MethodDelete, pattern: "/v1/switch/{switch}", access: accessOperator, where: whereLeader, write: (*Server).deleteSwitch,
		tag: "switches", id: "DeleteSwitch", summary: "Unset a switch. It is not an error if it is not set."},
	{method: http.MethodGet, pattern: "/v1/decisions", access: accessRead, where: whereRead, read: (*Server).listDecisions,
		tag: "decisions", id: "Decisions", summary: "List the latest decisions, newest first.", out: []api.Decision{},
		params: []param{{name: "model", about: "Only those about this model."}, {name: "replica", about: "Only those about this replica."},
			{name: "node", about: "Only those about the node of this ID or name, and about replicas that are on it."},
			{name: "limit", about: "How many, at most.", number: true, min: 1, max: state.DecisionLimit, preset: defaultDecisions}}},

	{method: http.MethodGet, pattern: "/v1/gateway/state", access: accessGateway, where: whereRead, read: (*Server).gatewayState,
		tag: "gateway", id: "GatewayState", summary: "The state that gateways follow.", out: api.GatewayState{}},
	{method: http.MethodGet, pattern: "/v1/queues", access: accessRead, where: whereLeader, once: true, read: (*Server).listQueues,
		tag: "gateway", id: "Queues", summary: "List the queues of all models: requests waiting and in flight at the gateways.", out: []api.Queue{}},
	{method: http.MethodGet, pattern: "/v1/queue/{model}", access: accessRead, where: whereLeader, once: true, read: (*Server).getQueue,
		tag: "gateway", id: "Queue", summary: "The queue of a model, with its requests.", out: api.QueueStatus{}},
	{method: http.MethodGet, pattern: "/v1/request/{id}", access: accessRead, where: whereLeader, once: true, read: (*Server).getRequest,
		tag: "gateway", id: "Request", summary: "Where the requests with an ID are, as reported by the gateways.", out: api.RequestStatus{}},
	{method: http.MethodPost, pattern: "/v1/request/{id}/kill", access: accessOperator, where: whereLeader, act: (*Server).killRequest,
		tag: "gateway", id: "KillRequest", summary: "Order the gateways to end the requests of an ID, waiting or in flight. The order is given although no gateway names such a request, because they name only some: Places is then empty. Without any gateway it is 404, and no order is given.", out: api.RequestStatus{}},
	{method: http.MethodGet, pattern: "/v1/gateways", access: accessRead, where: whereLeader, once: true, read: (*Server).listGateways,
		tag: "gateway", id: "Gateways", summary: "List the gateways that report to the leader.", out: []api.Gateway{}},
	{method: http.MethodGet, pattern: "/v1/autoscalers", access: accessRead, where: whereLeader, once: true, read: (*Server).listAutoscalers,
		tag: "models", id: "Autoscalers", summary: "List the autoscalers that asked the leader in the last hour.", out: []api.Autoscaler{}},
	{method: http.MethodPost, pattern: "/v1/gateway/{gateway}/drain", access: accessOperator, where: whereLeader, act: (*Server).drainGateway,
		tag: "gateway", id: "DrainGateway", summary: "Order a gateway to reject new requests, finish the running ones, and stop.", out: api.Gateway{}},
	{method: http.MethodPut, pattern: "/v1/gateway/report", access: accessGateway, where: whereLeader, large: true, act: (*Server).gatewayReport,
		tag: "gateway", id: "GatewayReport", summary: "Report a gateway's waiting and running requests. The response contains its orders.", in: api.GatewayReport{}, out: api.GatewayOrders{}},

	{method: http.MethodPut, pattern: "/v1/acl/bootstrap", access: accessAnyone, where: whereLeader, write: (*Server).bootstrapACL,
		tag: "acl", id: "BootstrapACL", summary: "Create the first token, for an operator. It works once.", out: api.Token{}, status: http.StatusCreated},
	{method: http.MethodGet, pattern: "/v1/acl/tokens", access: accessOperator, where: whereRead, read: (*Server).listTokens,
		tag: "acl", id: "Tokens", summary: "List the tokens, without their secrets.", out: []api.Token{}},
	{method: http.MethodPut, pattern: "/v1/acl/token", access: accessOperator, where: whereLeader, write: (*Server).createToken,
		tag: "acl", id: "CreateToken", summary: "Create a token. The response contains its secret.", in: api.TokenRequest{}, out: api.Token{}, status: http.StatusCreated},
	{method: http.MethodDelete, pattern: "/v1/acl/token/{accessor}", access: accessOperator, where: whereLeader, write: (*Server).deleteToken,
		tag: "acl", id: "DeleteToken", summary: "Delete a token."},
	{method: http.MethodGet, pattern: "/v1/acl/token/self", access: accessToken, where: whereRead, read: (*Server).selfToken,
		tag: "acl", id: "SelfToken", summary: "The token of the request.", out: api.Token{}, errors: []int{http.StatusNotFound}},

	{method: http.MethodGet, pattern: "/v1/operator/raft/configuration", access: accessRead, where: whereRead, once: true, read: (*Server).raftConfiguration,
		tag: "operator", id: "RaftConfiguration", summary: "The members of the cluster.", out: api.RaftConfiguration{}},
	{method: http.MethodDelete, pattern: "/v1/operator/raft/peer/{id}", access: accessOperator, where: whereLeader, act: (*Server).removePeer,
		tag: "operator", id: "RemovePeer", summary: "Remove a server from the cluster."},
	{method: http.MethodPut, pattern: "/v1/operator/raft/promote/{id}", access: accessOperator, where: whereLeader, act: (*Server).promotePeer,
		tag: "operator", id: "PromotePeer", summary: "Make a server a voter."},
	{method: http.MethodPut, pattern: "/v1/operator/raft/transfer-leader", access: accessOperator, where: whereLeader, act: (*Server).transferLeadership,
		tag: "operator", id: "TransferLeadership", summary: "Transfer leadership to another server.",
		params: []param{{name: "id", about: "The ID of the next leader; none: any server."}}},
	{method: http.MethodGet, pattern: "/v1/operator/snapshot", access: accessOperator, where: whereRead, once: true, long: true, read: (*Server).saveSnapshot,
		tag: "operator", id: "SaveSnapshot", summary: "A snapshot of the whole state. Its last bytes are a checksum, which is missing if it is truncated.", out: binary{}},
	{method: http.MethodPut, pattern: "/v1/operator/snapshot", access: accessOperator, where: whereLeader, long: true, act: (*Server).restoreSnapshot,
		tag: "operator", id: "RestoreSnapshot", summary: "Replace the state of the whole cluster with a snapshot.", in: binary{}, out: api.SnapshotInfo{}},

	{method: http.MethodGet, pattern: "/v1/status/leader", access: accessAnyone, where: whereLocal, serve: (*Server).leaderStatus,
		tag: "status", id: "Leader", summary: "The leader known to this server; empty if there is none.", out: api.LeaderStatus{}},
	{method: http.MethodGet, pattern: "/v1/agent/self", access: accessRead, where: whereLocal, serve: (*Server).agentSelf,
		tag: "status", id: "AgentSelf", summary: "Status of this server.", out: api.AgentSelf{}},
	{method: http.MethodGet, pattern: "/v1/agent/health", access: accessRead, where: whereLocal, serve: (*Server).agentHealth,
		tag: "status", id: "AgentHealth", summary: "Health of this server; 503 if it is not healthy.", out: api.AgentHealth{}},
	{method: http.MethodGet, pattern: "/v1/openapi.json", access: accessAnyone, where: whereLocal, serve: (*Server).openAPI,
		tag: "status", id: "OpenAPI", summary: "This description.", out: map[string]any{}},
	{method: http.MethodGet, pattern: "/metrics", access: accessRead, where: whereLocal, serve: (*Server).metricsText,
		tag: "status", id: "Metrics", summary: "Metrics of this server in the Prometheus text format.", out: text("")},
	{method: http.MethodGet, pattern: "/live", access: accessAnyone, where: whereLocal, serve: (*Server).live,
		tag: "status", id: "Live", summary: "Liveness of this server.", out: text("")},
	{method: http.MethodGet, pattern: "/ready", access: accessAnyone, where: whereLocal, serve: (*Server).ready,
		tag: "status", id: "Ready", summary: "Readiness of this server to answer for the cluster.", out: text("")},
}

// takes tells whether the route takes that query parameter.
func (rt *route) takes(name string) bool {
	if rt.where == whereRead {
		switch name {
		case paramIndex, paramWait:
			return !rt.once
		case paramStale:
			return true
		}
	}
	return slices.ContainsFunc(rt.params, func(p param) bool { return p.name == name })
}

// newMux serves the routes. Parameters are unescaped after a path was split, so that a
// model's name may hold a '/' as %2F.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, rt) })
	}
	pages := ui.New(s, s.cfg.GatewayCAs)
	for _, pattern := range []string{ui.Path, ui.Path + "/"} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.page(w, r, pages) })
	}
	mux.HandleFunc(noRoute, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, nil) })
	return mux
}

// page answers a request for the web page.
func (s *Server) page(w http.ResponseWriter, r *http.Request, pages http.Handler) {
	if rec, ok := w.(*recorder); ok {
		rec.label = ui.Path
	}
	if err := s.bound(w, r, nil); err != nil {
		s.log.Debug("web page: connection lost", "error", err)
		return
	}
	pages.ServeHTTP(w, r)
}

// noRoute is the pattern of requests that match no route.
const noRoute = "/"

// methodsOf returns the methods that the path of a request takes, none if no route has it.
func (s *Server) methodsOf(r *http.Request) []string {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete} {
		other := r.WithContext(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != noRoute && isClean(r.URL) {
			methods = append(methods, method)
		}
	}
	return methods
}

// isClean is false for a path that http.ServeMux would redirect, as one with an empty name.
func isClean(u *url.URL) bool { return path.Clean(u.EscapedPath()) == u.EscapedPath() }
