package server_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
	"remuda/controller/state"
)

// good has a request for every route that is answered with what it is for.
type good struct {
	path, body string
	// status, 0: 200.
	status int
}

// goodRequests gives a member with tokens some state, and returns a request for each route
// that is answered with what it is for, if they are sent in the order of the routes.
func goodRequests(t *testing.T, m *member) map[string]good {
	t.Helper()
	m.applied("m")
	running := m.place("m", "r1", 0, 0)
	m.move(running, state.EventStarted, state.EventServing)
	failed := m.place("m", "r2", 0, 1)
	m.move(failed, state.EventStarted, state.EventFailed)
	going := m.place("m", "r3", 1, 0)
	m.move(going, state.EventStarted, state.EventServing)
	changed := file("m", "10GiB", "11GiB")
	_, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(changed)})
	require.NoError(t, err)
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("empty"))})
	require.NoError(t, err)
	reported(t, m.client, api.GatewayReport{Gateway: "g", Index: 1, Replicas: []api.ReplicaLoad{
		{Name: running.String(), InFlight: 1, OldestAt: epoch, LastRequest: epoch, Requests: []api.Request{{ID: "x", Started: epoch}}},
	}})
	_, err = m.client.SetSwitch(t.Context(), "pause-reconcile", api.SwitchRequest{Value: "on"})
	require.NoError(t, err)
	_, err = m.client.ApplyPipeline(t.Context(), "there", api.PipelineRequest{File: pipelineFile("there", "m", "none")})
	require.NoError(t, err)
	_, err = m.client.SetKey(t.Context(), "team", api.KeyRequest{KeyLimits: limits()})
	require.NoError(t, err)
	var snapshot bytes.Buffer
	require.NoError(t, m.client.SaveSnapshot(t.Context(), &snapshot, api.QueryOptions{}))
	spare := token(t, m.client, "read-only")

	quoted := func(s string) string {
		b, err := json.Marshal(s)
		require.NoError(t, err)
		return string(b)
	}
	m.world.failover = func(replica string, _ api.FailoverRequest, _ string) (api.Failover, error) {
		return api.Failover{Replica: replica, From: "primary", To: "shadow"}, nil
	}
	return map[string]good{
		"GET /v1/models":                        {path: "/v1/models"},
		"PUT /v1/models":                        {path: "/v1/models", body: `{"Files":[{"Text":` + quoted(file("new")) + `}]}`},
		"GET /v1/model/{model}":                 {path: "/v1/model/m"},
		"GET /v1/model/{model}/file":            {path: "/v1/model/m/file?version=1"},
		"GET /v1/model/{model}/versions":        {path: "/v1/model/m/versions"},
		"PUT /v1/model/{model}/revert":          {path: "/v1/model/m/revert", body: `{"Version":1}`},
		"DELETE /v1/model/{model}":              {path: "/v1/model/empty"},
		"PUT /v1/model/{model}/stop":            {path: "/v1/model/m/stop"},
		"PUT /v1/model/{model}/start":           {path: "/v1/model/m/start"},
		"PUT /v1/model/{model}/scale":           {path: "/v1/model/m/scale", body: `{"Replicas":3,"Variant":"a"}`},
		"PUT /v1/model/{model}/pool/{pool}":     {path: "/v1/model/m/pool/cloud", body: `{"Replicas":1}`},
		"PUT /v1/plan":                          {path: "/v1/plan", body: `{"Scale":{"m":1},"Evict":{"Model":"m","To":"warm"}}`},
		"GET /v1/pools":                         {path: "/v1/pools"},
		"GET /v1/pipelines":                     {path: "/v1/pipelines"},
		"GET /v1/pipeline/{pipeline}":           {path: "/v1/pipeline/there"},
		"PUT /v1/pipeline/{pipeline}":           {path: "/v1/pipeline/fresh", body: `{"File":` + quoted(pipelineFile("fresh", "m")) + `}`},
		"DELETE /v1/pipeline/{pipeline}":        {path: "/v1/pipeline/there"},
		"GET /v1/keys":                          {path: "/v1/keys"},
		"GET /v1/key/{key}":                     {path: "/v1/key/team"},
		"PUT /v1/key/{key}":                     {path: "/v1/key/fresh", body: `{"Models":["m"],"Weight":1,"Priority":5,"MaxPriority":5,"TokensPerDay":1000}`},
		"POST /v1/key/{key}/rotate":             {path: "/v1/key/team/rotate", body: `{"Grace":"24h"}`},
		"DELETE /v1/key/{key}":                  {path: "/v1/key/team"},
		"GET /v1/usage":                         {path: "/v1/usage?by=key&days=30&model=m"},
		"GET /v1/dedicated":                     {path: "/v1/dedicated"},
		"PUT /v1/dedicated":                     {path: "/v1/dedicated", body: `{"Models":{"new":1}}`},
		"DELETE /v1/dedicated":                  {path: "/v1/dedicated"},
		"GET /v1/dedicated/schedule":            {path: "/v1/dedicated/schedule"},
		"PUT /v1/dedicated/schedule":            {path: "/v1/dedicated/schedule", body: `{"File":` + quoted(officeHours) + `}`},
		"DELETE /v1/dedicated/schedule":         {path: "/v1/dedicated/schedule"},
		"PUT /v1/evict":                         {path: "/v1/evict", body: `{"Replica":"` + going.String() + `","To":"cold"}`},
		"GET /v1/replicas":                      {path: "/v1/replicas?model=m"},
		"GET /v1/replica/{replica}":             {path: "/v1/replica/" + running.String()},
		"POST /v1/replica/{replica}/failover":   {path: "/v1/replica/" + running.String() + "/failover?drill&timeout=10s"},
		"GET /v1/nodes":                         {path: "/v1/nodes"},
		"GET /v1/node/{node}":                   {path: "/v1/node/node-one"},
		"PUT /v1/node/{node}/cordon":            {path: "/v1/node/n1/cordon", body: `{"GPU":"` + gpuOf("n1", 1) + `","On":true}`},
		"GET /v1/switches":                      {path: "/v1/switches"},
		"PUT /v1/switch/{switch}":               {path: "/v1/switch/pause-reconcile", body: `{"Value":"still"}`},
		"DELETE /v1/switch/{switch}":            {path: "/v1/switch/pause-reconcile"},
		"GET /v1/decisions":                     {path: "/v1/decisions?model=m&limit=5"},
		"GET /v1/gateway/state":                 {path: "/v1/gateway/state"},
		"GET /v1/queues":                        {path: "/v1/queues"},
		"GET /v1/overview":                      {path: "/v1/overview"},
		"GET /v1/queue/{model}":                 {path: "/v1/queue/m"},
		"GET /v1/request/{id}":                  {path: "/v1/request/x"},
		"POST /v1/request/{id}/kill":            {path: "/v1/request/x/kill"},
		"GET /v1/gateways":                      {path: "/v1/gateways"},
		"GET /v1/autoscalers":                   {path: "/v1/autoscalers"},
		"GET /v1/policies":                      {path: "/v1/policies"},
		"POST /v1/gateway/{gateway}/drain":      {path: "/v1/gateway/g/drain"},
		"PUT /v1/gateway/report":                {path: "/v1/gateway/report", body: `{"Gateway":"g","Index":1,"Replicas":[]}`},
		"PUT /v1/acl/bootstrap":                 {path: "/v1/acl/bootstrap", status: http.StatusConflict}, // its success is in bootstrapped
		"GET /v1/acl/tokens":                    {path: "/v1/acl/tokens"},
		"PUT /v1/acl/token":                     {path: "/v1/acl/token", body: `{"Name":"x","Role":"gateway"}`, status: http.StatusCreated},
		"DELETE /v1/acl/token/{accessor}":       {path: "/v1/acl/token/" + spare.Accessor},
		"GET /v1/acl/token/self":                {path: "/v1/acl/token/self"},
		"GET /v1/operator/raft/configuration":   {path: "/v1/operator/raft/configuration"},
		"DELETE /v1/operator/raft/peer/{id}":    {path: "/v1/operator/raft/peer/" + m.node.ID(), status: http.StatusConflict}, // success: TestTheClusterIsChanged
		"PUT /v1/operator/raft/promote/{id}":    {path: "/v1/operator/raft/promote/" + m.node.ID(), status: http.StatusConflict},
		"PUT /v1/operator/raft/transfer-leader": {path: "/v1/operator/raft/transfer-leader", status: http.StatusConflict}, // likewise
		"GET /v1/operator/snapshot":             {path: "/v1/operator/snapshot"},
		"PUT /v1/operator/snapshot":             {path: "/v1/operator/snapshot", body: snapshot.String()},
		"GET /v1/status/leader":                 {path: "/v1/status/leader"},
		"GET /v1/agent/self":                    {path: "/v1/agent/self"},
		"GET /v1/agent/health":                  {path: "/v1/agent/health"},
		"GET /v1/openapi.json":                  {path: "/v1/openapi.json"},
		"GET /metrics":                          {path: "/metrics"},
		"GET /live":                             {path: "/live"},
		"GET /ready":                            {path: "/ready"},
	}
}

// TestEveryRouteAnswersAsDescribed asks every route of the table for what it is for and
// for something that it refuses. The client's transport compares both with the
// description.
func TestEveryRouteAnswersAsDescribed(t *testing.T) {
	m, secrets := bootstrapped(t)
	requests := goodRequests(t, m)
	seen.Clear()
	for _, r := range server.Routes() {
		key := r.Method + " " + r.Pattern
		g, ok := requests[key]
		require.True(t, ok, "%s has no request in this test", key)
		g.status = cmp.Or(g.status, http.StatusOK)
		resp, body := m.raw(r.Method, g.path, secrets["operator"], g.body)
		require.Equal(t, g.status, resp.StatusCode, "%s: %s", key, body)
		_, ok = seen.Load(fmt.Sprintf("%s %d", key, g.status))
		require.True(t, ok, "%s was not compared with the description", key)

		// A query parameter that it does not know is refused by every route.
		sep := "?"
		if strings.Contains(g.path, "?") {
			sep = "&"
		}
		resp, body = m.raw(r.Method, g.path+sep+"nonsense=1", secrets["operator"], g.body)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%s: %s", key, body)
		require.Contains(t, refused(t, body).Message, `unknown parameter "nonsense" of `+key)
		_, ok = seen.Load(fmt.Sprintf("%s %d", key, http.StatusBadRequest))
		require.True(t, ok, key)
	}
	require.Len(t, requests, len(server.Routes()))
}

func TestPathsThatAreNot(t *testing.T) {
	m := one(t)
	for path, want := range map[string]string{
		"/":                     "unknown path",
		"/v1":                   "unknown path",
		"/v1/models/":           "unknown path",
		"/v1/model/":            "unknown path",
		"/v1//models":           "unknown path",
		"/v1/model/a/b/scale":   "encode a '/' in a name as %2F",
		"/v1/model/../models":   "unknown path",
		"/v1/model/%zz":         "",
		"/v1/replica/%2e%2e":    `replica ".." does not exist`,
		"/v1/model/meta%2Fl%3a": `model "meta/l:" does not exist`,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.url, nil)
		require.NoError(t, err)
		req.URL.Opaque = strings.TrimPrefix(m.url, "http:") + path
		resp, err := checked(t).Do(req)
		require.NoError(t, err)
		var e api.Error
		if want == "" { // net/http refuses what is no URL by itself.
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, path)
		} else {
			require.Equal(t, http.StatusNotFound, resp.StatusCode, path)
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&e), path)
			require.Contains(t, e.Message, want, path)
		}
		resp.Body.Close()
	}
	for path, methods := range map[string][]string{
		"/v1/models":         {"GET", "HEAD", "PUT"},
		"/v1/model/x/scale":  {"PUT"},
		"/v1/acl/token/self": {"DELETE", "GET", "HEAD"},
	} {
		resp, body := m.raw(http.MethodPost, path, "", "")
		require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
		require.Equal(t, api.CodeNoMethod, refused(t, body).Code)
		require.ElementsMatch(t, methods, resp.Header.Values("Allow"), path)
	}
	resp, body := m.raw(http.MethodHead, "/v1/models", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, body)
	require.NotEmpty(t, resp.Header.Get(api.HeaderIndex))
}
