package server

import (
	"net/http"
	"net/url"
	"path"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/state"
)

// where says which server answers.
type where int

const (
	whereLocal  where = iota + 1 // the one that was asked
	whereLeader                  // the leader, to which others pass it on
	whereRead                    // the leader, or with ?stale the one that was asked
)

// bodyKind says what a request's body is.
type bodyKind int

const (
	bodyNone   bodyKind = iota // it must be empty
	bodyJSON                   // at most Config.MaxBody
	bodyStream                 // at most Config.MaxSnapshot, and never in memory
)

// route is one method of one path. It has one of read, act and serve.
type route struct {
	method string
	// pattern's segments in braces are parameters.
	pattern string
	access  access
	where   where
	body    bodyKind
	// large: the body may be largeFactor times as long as others.
	large bool
	// long: it may take Config.SnapshotTimeout.
	long bool
	// once: a read that is not of the state, and so cannot wait for a change of it.
	once bool
	// params are the query parameters that it takes, beside those of reads.
	params []string
	// read answers from a view, and may be a blocking query: it adds to ws what it looks
	// at. It is called again whenever that has changed.
	read func(s *Server, rq *request, v *state.View, ws memdb.WatchSet) (answer, error)
	// act is called on the leader with a view that has seen all that was acknowledged.
	act func(s *Server, rq *request, v *state.View) (answer, error)
	// serve answers from this server alone.
	serve func(s *Server, rq *request) (answer, error)
}

// Parameters of every read.
const (
	paramIndex = "index"
	paramWait  = "wait"
	paramStale = "stale"
)

// routes is the whole API.
var routes = []*route{
	{method: http.MethodGet, pattern: "/v1/models", access: accessModels, where: whereRead, read: (*Server).listModels},
	{method: http.MethodPut, pattern: "/v1/models", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).applyModels},
	{method: http.MethodGet, pattern: "/v1/model/{model}", access: accessModels, where: whereRead, read: (*Server).getModel},
	{method: http.MethodGet, pattern: "/v1/model/{model}/file", access: accessRead, where: whereRead, read: (*Server).getModelFile},
	{method: http.MethodDelete, pattern: "/v1/model/{model}", access: accessOperator, where: whereLeader, params: []string{"cas"}, act: (*Server).deleteModel},
	{method: http.MethodPut, pattern: "/v1/model/{model}/stop", access: accessOperator, where: whereLeader, act: (*Server).stopModel},
	{method: http.MethodPut, pattern: "/v1/model/{model}/start", access: accessOperator, where: whereLeader, act: (*Server).startModel},
	{method: http.MethodPut, pattern: "/v1/model/{model}/scale", access: accessScale, where: whereLeader, body: bodyJSON, act: (*Server).scaleModel},
	{method: http.MethodPut, pattern: "/v1/model/{model}/pool/{pool}", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).expect},

	{method: http.MethodPut, pattern: "/v1/plan", access: accessRead, where: whereLeader, body: bodyJSON, act: (*Server).plan},
	{method: http.MethodPut, pattern: "/v1/evict", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).evict},
	{method: http.MethodGet, pattern: "/v1/replicas", access: accessModels, where: whereRead, params: []string{"model"}, read: (*Server).listReplicas},
	{method: http.MethodGet, pattern: "/v1/replica/{replica}", access: accessModels, where: whereRead, read: (*Server).getReplica},
	{method: http.MethodGet, pattern: "/v1/nodes", access: accessRead, where: whereRead, read: (*Server).listNodes},
	{method: http.MethodGet, pattern: "/v1/node/{node}", access: accessRead, where: whereRead, read: (*Server).getNode},
	{method: http.MethodPut, pattern: "/v1/node/{node}/cordon", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).cordon},
	{method: http.MethodGet, pattern: "/v1/pools", access: accessRead, where: whereRead, read: (*Server).listPools},

	{method: http.MethodGet, pattern: "/v1/pipelines", access: accessModels, where: whereRead, read: (*Server).listPipelines},
	{method: http.MethodGet, pattern: "/v1/pipeline/{pipeline}", access: accessModels, where: whereRead, read: (*Server).getPipeline},
	{method: http.MethodPut, pattern: "/v1/pipeline/{pipeline}", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).applyPipeline},
	{method: http.MethodDelete, pattern: "/v1/pipeline/{pipeline}", access: accessOperator, where: whereLeader, params: []string{"cas"}, act: (*Server).deletePipeline},

	{method: http.MethodGet, pattern: "/v1/scalers", access: accessRead, where: whereRead, read: (*Server).listScalers},
	{method: http.MethodGet, pattern: "/v1/scaler/{scaler}", access: accessRead, where: whereRead, read: (*Server).getScaler},
	{method: http.MethodPut, pattern: "/v1/scaler/{scaler}", access: accessScale, where: whereLeader, body: bodyJSON, act: (*Server).setScaler},
	{method: http.MethodDelete, pattern: "/v1/scaler/{scaler}", access: accessScale, where: whereLeader, params: []string{"cas"}, act: (*Server).deleteScaler},

	{method: http.MethodGet, pattern: "/v1/dedicated", access: accessRead, where: whereRead, read: (*Server).getDedicated},
	{method: http.MethodPut, pattern: "/v1/dedicated", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).setDedicated},
	{method: http.MethodDelete, pattern: "/v1/dedicated", access: accessOperator, where: whereLeader, act: (*Server).clearDedicated},
	{method: http.MethodGet, pattern: "/v1/dedicated/schedule", access: accessRead, where: whereRead, read: (*Server).getSchedule},
	{method: http.MethodPut, pattern: "/v1/dedicated/schedule", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).setSchedule},
	{method: http.MethodDelete, pattern: "/v1/dedicated/schedule", access: accessOperator, where: whereLeader, act: (*Server).deleteSchedule},

	{method: http.MethodGet, pattern: "/v1/switches", access: accessRead, where: whereRead, read: (*Server).listSwitches},
	{method: http.MethodPut, pattern: "/v1/switch/{switch}", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).setSwitch},
	{method: http.MethodDelete, pattern: "/v1/switch/{switch}", access: accessOperator, where: whereLeader, act: (*Server).deleteSwitch},
	{method: http.MethodGet, pattern: "/v1/decisions", access: accessRead, where: whereRead, params: []string{"model", "replica", "limit"}, read: (*Server).listDecisions},

	{method: http.MethodGet, pattern: "/v1/gateway/state", access: accessGateway, where: whereRead, read: (*Server).gatewayState},
	{method: http.MethodGet, pattern: "/v1/queues", access: accessRead, where: whereLeader, once: true, read: (*Server).listQueues},
	{method: http.MethodGet, pattern: "/v1/queue/{model}", access: accessRead, where: whereLeader, once: true, read: (*Server).getQueue},
	{method: http.MethodGet, pattern: "/v1/request/{id}", access: accessRead, where: whereLeader, once: true, read: (*Server).getRequest},
	{method: http.MethodPost, pattern: "/v1/request/{id}/kill", access: accessOperator, where: whereLeader, act: (*Server).killRequest},
	{method: http.MethodGet, pattern: "/v1/gateways", access: accessRead, where: whereLeader, once: true, read: (*Server).listGateways},
	{method: http.MethodPost, pattern: "/v1/gateway/{gateway}/drain", access: accessOperator, where: whereLeader, act: (*Server).drainGateway},
	{method: http.MethodPut, pattern: "/v1/gateway/report", access: accessGateway, where: whereLeader, body: bodyJSON, large: true, act: (*Server).gatewayReport},

	{method: http.MethodPut, pattern: "/v1/acl/bootstrap", access: accessAnyone, where: whereLeader, act: (*Server).bootstrapACL},
	{method: http.MethodGet, pattern: "/v1/acl/tokens", access: accessOperator, where: whereRead, read: (*Server).listTokens},
	{method: http.MethodPut, pattern: "/v1/acl/token", access: accessOperator, where: whereLeader, body: bodyJSON, act: (*Server).createToken},
	{method: http.MethodDelete, pattern: "/v1/acl/token/{accessor}", access: accessOperator, where: whereLeader, act: (*Server).deleteToken},
	{method: http.MethodGet, pattern: "/v1/acl/token/self", access: accessToken, where: whereRead, read: (*Server).selfToken},

	{method: http.MethodGet, pattern: "/v1/operator/raft/configuration", access: accessRead, where: whereRead, once: true, read: (*Server).raftConfiguration},
	{method: http.MethodDelete, pattern: "/v1/operator/raft/peer/{id}", access: accessOperator, where: whereLeader, act: (*Server).removePeer},
	{method: http.MethodPut, pattern: "/v1/operator/raft/promote/{id}", access: accessOperator, where: whereLeader, act: (*Server).promotePeer},
	{method: http.MethodPut, pattern: "/v1/operator/raft/transfer-leader", access: accessOperator, where: whereLeader, params: []string{"id"}, act: (*Server).transferLeadership},
	{method: http.MethodGet, pattern: "/v1/operator/snapshot", access: accessOperator, where: whereRead, once: true, long: true, read: (*Server).saveSnapshot},
	{method: http.MethodPut, pattern: "/v1/operator/snapshot", access: accessOperator, where: whereLeader, body: bodyStream, long: true, act: (*Server).restoreSnapshot},

	{method: http.MethodGet, pattern: "/v1/status/leader", access: accessAnyone, where: whereLocal, serve: (*Server).leaderStatus},
	{method: http.MethodGet, pattern: "/v1/agent/self", access: accessRead, where: whereLocal, serve: (*Server).agentSelf},
	{method: http.MethodGet, pattern: "/v1/agent/health", access: accessRead, where: whereLocal, serve: (*Server).agentHealth},
	{method: http.MethodGet, pattern: "/v1/openapi.json", access: accessAnyone, where: whereLocal, serve: (*Server).openAPI},
	{method: http.MethodGet, pattern: "/metrics", access: accessRead, where: whereLocal, serve: (*Server).metricsText},
	{method: http.MethodGet, pattern: "/live", access: accessAnyone, where: whereLocal, serve: (*Server).live},
	{method: http.MethodGet, pattern: "/ready", access: accessAnyone, where: whereLocal, serve: (*Server).ready},
}

// takes tells whether the route takes that query parameter.
func (rt *route) takes(param string) bool {
	if rt.where == whereRead {
		switch param {
		case paramIndex, paramWait:
			return !rt.once
		case paramStale:
			return true
		}
	}
	for _, p := range rt.params {
		if p == param {
			return true
		}
	}
	return false
}

// newMux serves the routes. Parameters are unescaped after a path was split, so that a
// model's name may hold a '/' as %2F.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, rt) })
	}
	mux.HandleFunc(noRoute, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, nil) })
	return mux
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
