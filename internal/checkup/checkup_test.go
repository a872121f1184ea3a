package checkup_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/device-plugin/doctor"
	"remuda/internal/checkup"
)

// server answers paths with JSON, or with a status code.
type server map[string]any

func (s server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, known := s[r.URL.Path]
	if date, ok := s["date"].(time.Time); ok {
		w.Header().Set("Date", date.UTC().Format(http.TimeFormat))
	}
	status, refused := answer.(int)
	switch {
	case r.URL.Path == "/v1/internal/acl/authorize" && r.Method != http.MethodPost: // as Consul
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case r.URL.Path == "/v1/internal/acl/authorize" && refused:
		http.Error(w, "ACL support disabled", status)
	case !known:
		http.Error(w, "not found", http.StatusNotFound)
	case refused:
		http.Error(w, `{"error":{"code":"no_token","message":"missing ACL token"}}`, status)
	default:
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// world is an installation without a problem.
type world struct{ nomad, consul, controller, gateway server }

func sound(t *testing.T) world {
	raft, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { raft.Close() })
	node := nomadapi.NodeListStub{ID: "n1", Name: "gpu-1", Status: "ready", Drivers: map[string]*nomadapi.DriverInfo{"raw_exec": {Detected: true, Healthy: true}},
		NodeResources: &nomadapi.NodeResources{Devices: []*nomadapi.NodeDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []*nomadapi.NodeDevice{
			{ID: "GPU-aaaaaaaa-0000-4000-8000-000000000000#0", Healthy: true},
		}}}}}
	return world{
		nomad: server{
			"/v1/status/leader": "10.0.0.1:4647", "/v1/agent/self": map[string]any{"config": map[string]any{"Version": map[string]any{"Version": "1.11.3"}}},
			"/v1/nodes": []nomadapi.NodeListStub{node}, "/v1/jobs": []nomadapi.JobListStub{{ID: "remuda-node", Meta: map[string]string{"remuda_node_job": "true"}}},
			"/v1/job/remuda-doctor/plan":      nomadapi.JobPlanResponse{},
			"/v1/job/remuda-node/allocations": []nomadapi.AllocationListStub{{NodeID: "n1", ClientStatus: "running", TaskStates: map[string]*nomadapi.TaskState{"lockd": {State: "running"}}}},
		},
		consul: server{
			"/v1/status/leader": "10.0.0.1:8300", "/v1/agent/self": map[string]any{"Config": map[string]any{"Version": "1.22.2"}},
			"/v1/internal/acl/authorize": []map[string]any{{"Resource": "service", "Access": "write", "Segment": "remuda-engine", "Allow": true}},
		},
		controller: server{
			"/v1/status/leader": api.LeaderStatus{ID: "a"}, "/v1/agent/self": api.AgentSelf{Version: "1.0.0", ACL: api.ACLStatus{Enabled: true, Bootstrapped: true}},
			"/v1/agent/health": api.AgentHealth{Healthy: true}, "/v1/acl/token/self": api.Token{Role: "operator"}, "/v1/nodes": []api.Node{{ID: "n1", Name: "gpu-1"}},
			"/v1/operator/raft/configuration": api.RaftConfiguration{Servers: []api.RaftServer{
				{Address: raft.Addr().String(), Voter: true}, {Address: raft.Addr().String(), Voter: true}, {Address: raft.Addr().String(), Voter: true},
			}},
			"/v1/gateways": []api.Gateway{{Name: "g"}}, "/v1/models": []api.ModelSummary{{Name: "m", Target: 1, Counts: api.Counts{Hot: 1}}},
			"/v1/decisions": []api.Decision{{Kind: "scale", Reason: "the autoscaler asked for the replicas v=1"}},
		},
		gateway: server{"/ready": "ready"},
	}
}

// check runs the checks on a world, whose controller speaks TLS if secure is set.
func (w world) check(t *testing.T, secure bool) []doctor.Finding {
	t.Helper()
	start := func(s server) *httptest.Server {
		h := httptest.NewServer(s)
		t.Cleanup(h.Close)
		return h
	}
	nomad, consul, gateway := start(w.nomad), start(w.consul), start(w.gateway)
	controller := httptest.NewUnstartedServer(w.controller)
	if secure {
		controller.StartTLS()
	} else {
		controller.Start()
	}
	t.Cleanup(controller.Close)
	client, err := api.NewClient(api.Config{Addresses: []string{controller.URL}, HTTPClient: controller.Client()})
	require.NoError(t, err)
	return checkup.Run(t.Context(), checkup.Config{
		Nomad: &nomadapi.Config{Address: nomad.URL}, Consul: &consulapi.Config{Address: strings.TrimPrefix(consul.URL, "http://")},
		Controllers: []string{controller.URL}, Client: client, Gateway: gateway.URL, Version: "1.0.0", Now: time.Now,
	})
}

func TestSound(t *testing.T) {
	findings := sound(t).check(t, true)
	checks := map[string]bool{}
	for _, f := range findings {
		require.Equal(t, doctor.OK, f.Status, "%+v", f)
		checks[f.Check] = true
	}
	for _, want := range []string{"Nomad", "Nomad clock", "Nomad rights", "GPU nodes", "lockd and gms", "Consul", "Consul rights", "controller", "controller certificate", "token", "servers", "gateway", "models"} {
		require.True(t, checks[want], want)
	}
	require.Empty(t, checkup.Next(findings))
}

// TestEachStep breaks one step at a time: its finding says so, and it is what comes next.
func TestEachStep(t *testing.T) {
	node := func(w world) *nomadapi.NodeListStub { return &w.nomad["/v1/nodes"].([]nomadapi.NodeListStub)[0] }
	for name, c := range map[string]struct {
		spoil       func(world)
		status      doctor.Status
		check, next string
	}{
		"no Nomad": {func(w world) { clear(w.nomad) }, doctor.Problem, "Nomad", "NOMAD_ADDR"},
		"an old Nomad": {func(w world) {
			w.nomad["/v1/agent/self"] = map[string]any{"config": map[string]any{"Version": map[string]any{"Version": "1.10.5"}}}
		}, doctor.Problem, "Nomad", "upgrade Nomad"},
		"nodes not listed":     {func(w world) { w.nomad["/v1/nodes"] = 403 }, doctor.Problem, "Nomad rights", "jobs/acl/controller.nomad.hcl"},
		"no right to submit":   {func(w world) { w.nomad["/v1/job/remuda-doctor/plan"] = 403 }, doctor.Problem, "Nomad rights", "submit-job"},
		"no plugin":            {func(w world) { node(w).NodeResources = nil }, doctor.Problem, "GPU nodes", "install the plugin"},
		"NVIDIA's plugin":      {func(w world) { node(w).NodeResources.Devices[0].Instances[0].ID = "GPU-1" }, doctor.Problem, "GPU nodes", "remove nomad-device-nvidia"},
		"no raw_exec":          {func(w world) { node(w).Drivers = nil }, doctor.Problem, "raw_exec", "enable it"},
		"a sick seat":          {func(w world) { node(w).NodeResources.Devices[0].Instances[0].Healthy = false }, doctor.Warning, "GPU nodes", "remuda device doctor"},
		"no node job":          {func(w world) { w.nomad["/v1/jobs"] = []nomadapi.JobListStub{} }, doctor.Note, "lockd and gms", "jobs/node.nomad.hcl"},
		"a node without lockd": {func(w world) { w.nomad["/v1/job/remuda-node/allocations"] = []nomadapi.AllocationListStub{} }, doctor.Problem, "lockd and gms", "nomad job eval remuda-node"},
		"a clock":              {func(w world) { w.nomad["date"] = time.Now().Add(-time.Minute) }, doctor.Warning, "Nomad clock", "time service"},
		"an old Consul": {func(w world) {
			w.consul["/v1/agent/self"] = map[string]any{"Config": map[string]any{"Version": "1.14.9"}}
		}, doctor.Problem, "Consul", "upgrade Consul"},
		"no right at Consul": {func(w world) {
			w.consul["/v1/internal/acl/authorize"] = []map[string]any{{"Resource": "service", "Access": "write", "Segment": "remuda-engine"}}
		}, doctor.Problem, "Consul rights", "jobs/acl"},
		"Consul without ACLs": {func(w world) { w.consul["/v1/internal/acl/authorize"] = 401 }, doctor.Note, "Consul rights", ""},
		"no token":            {func(w world) { w.controller["/v1/agent/self"] = 401 }, doctor.Problem, "token", "REMUDA_TOKEN"},
		"another version": {func(w world) {
			w.controller["/v1/agent/self"] = api.AgentSelf{Version: "0.9.0", ACL: api.ACLStatus{Enabled: true}}
		}, doctor.Warning, "controller", "upgrade"},
		"no ACLs": {func(w world) { w.controller["/v1/agent/self"] = api.AgentSelf{Version: "1.0.0"} }, doctor.Warning, "token", "enabled = true"},
		"not healthy": {func(w world) {
			w.controller["/v1/agent/health"] = api.AgentHealth{Problems: []string{"cannot reach Consul"}}
		}, doctor.Problem, "controller", "read its log"},
		"another Nomad": {func(w world) { w.controller["/v1/nodes"] = []api.Node{} }, doctor.Problem, "controller", "two clusters"},
		"a closed Raft port": {func(w world) {
			w.controller["/v1/operator/raft/configuration"] = api.RaftConfiguration{Servers: []api.RaftServer{{Address: "127.0.0.1:1", Voter: true}}}
		}, doctor.Problem, "servers", "open its port"},
		"no gateway":            {func(w world) { w.controller["/v1/gateways"] = []api.Gateway{} }, doctor.Problem, "gateway", "start one"},
		"a gateway not reached": {func(w world) { clear(w.gateway) }, doctor.Problem, "gateway", "REMUDA_GATEWAY"},
		"no model":              {func(w world) { w.controller["/v1/models"] = []api.ModelSummary{} }, doctor.Note, "models", "remuda model init"},
		"a model without a place": {func(w world) {
			w.controller["/v1/models"] = []api.ModelSummary{{Name: "m", Target: 1, Unplaceable: "no GPU has 2 free seats"}}
		}, doctor.Problem, "models", "remuda model status m"},
	} {
		t.Run(name, func(t *testing.T) {
			w := sound(t)
			c.spoil(w)
			findings := w.check(t, false)
			found := map[string]doctor.Status{}
			for _, f := range findings {
				if f.Status != doctor.OK && found[f.Check] != doctor.Problem {
					found[f.Check] = f.Status
				}
			}
			require.Equal(t, c.status, found[c.check], "%v", fmt.Sprint(findings))
			require.Contains(t, checkup.Next(findings), c.next, "%v", maps.Clone(found))
		})
	}
}

// TestCertificateThatEnds: a certificate is reported before it ends.
func TestCertificateThatEnds(t *testing.T) {
	w := sound(t)
	h := httptest.NewTLSServer(w.controller)
	t.Cleanup(h.Close)
	end := h.Certificate().NotAfter
	for _, c := range []struct {
		at     time.Time
		status doctor.Status
	}{{end.Add(-31 * 24 * time.Hour), doctor.OK}, {end.Add(-29 * 24 * time.Hour), doctor.Warning}, {end.Add(time.Second), doctor.Problem}} {
		client, err := api.NewClient(api.Config{Addresses: []string{h.URL}, HTTPClient: h.Client()})
		require.NoError(t, err)
		findings := checkup.Run(t.Context(), checkup.Config{Nomad: &nomadapi.Config{Address: h.URL}, Consul: &consulapi.Config{Address: h.URL}, Controllers: []string{h.URL}, Client: client, Version: "1.0.0", Now: func() time.Time { return c.at }})
		var got []doctor.Status
		for _, f := range findings {
			if f.Check == "controller certificate" {
				got = append(got, f.Status)
			}
		}
		require.Equal(t, []doctor.Status{c.status}, got)
	}
}
