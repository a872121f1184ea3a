// Package consultest is a small Consul agent for tests: services with a TTL
// check, or an HTTP or TCP check (which it stores and never makes), and blocking health
// queries, over the HTTP API that the real client library speaks. TTLs run on
// the real clock.
package consultest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"remuda/internal/testkit/loopback"
)

// nodeName is the node of the agent and its services.
const nodeName = "test"

type service struct {
	reg    api.AgentServiceRegistration
	status string
	output string
	ttl    time.Duration
	timer  *time.Timer
}

// Agent is a running agent. Its methods are safe for concurrent use.
type Agent struct {
	srv  *http.Server
	addr string
	done chan struct{}

	mu       sync.Mutex
	index    uint64
	changed  chan struct{}
	services map[string]*service
	refuse   int
	serf     string
	node     string // empty: nodeName
	noIndex  bool
	queries  int
	updates  int
	calls    []string
}

// New starts an agent that the test's end stops.
func New(t testing.TB) *Agent {
	t.Helper()
	a := &Agent{index: 1, changed: make(chan struct{}), services: map[string]*service{}, serf: api.HealthPassing}
	a.Listen(t, loopback.Free(t)) // it is left and taken again by Stop and Listen
	t.Cleanup(a.Stop)
	return a
}

// Listen serves on addr, after Stop on the address of before, say.
func (a *Agent) Listen(t testing.TB, addr string) {
	t.Helper()
	ln := loopback.Listen(t, addr)
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/agent/service/register", a.register)
	mux.HandleFunc("PUT /v1/agent/service/deregister/{id...}", a.deregister)
	mux.HandleFunc("PUT /v1/agent/check/update/{id...}", a.update)
	mux.HandleFunc("GET /v1/agent/service/{id...}", a.agentService)
	mux.HandleFunc("GET /v1/agent/self", a.agentSelf)
	mux.HandleFunc("GET /v1/health/service/{name}", a.health)
	srv, done := &http.Server{Handler: a.gate(mux)}, make(chan struct{})
	a.mu.Lock()
	a.srv, a.done, a.addr = srv, done, ln.Addr().String()
	a.mu.Unlock()
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
}

// Stop stops answering, as a killed agent does. What it knows stays.
func (a *Agent) Stop() {
	a.mu.Lock()
	srv, done := a.srv, a.done
	a.mu.Unlock()
	_ = srv.Close()
	<-done
}

// Addr is the agent's address as host:port.
func (a *Agent) Addr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addr
}

// Forget loses all services, as an agent without a data directory does.
func (a *Agent) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.services {
		a.remove(id)
	}
	a.bump()
}

// NodeStatus sets the health of the node itself, which every service shares.
func (a *Agent) NodeStatus(status string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serf = status
	a.bump()
}

// HideIndex leaves X-Consul-Index out of answers, as some proxies do.
func (a *Agent) HideIndex(hide bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noIndex = hide
	a.bump()
}

// Rename has the agent say that it is on another node than its services, as one that is asked for those
// of others.
func (a *Agent) Rename(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = node
}

// agentSelf answers with the name of the agent's node.
func (a *Agent) agentSelf(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var self struct{ Config struct{ NodeName string } }
	self.Config.NodeName = cmp.Or(a.node, nodeName)
	_ = json.NewEncoder(w).Encode(self) // a client that is gone needs no answer
}

// Refuse makes every call fail with the HTTP status code; 0 ends that.
func (a *Agent) Refuse(code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = code
}

// Service is a registration and the state of its check.
type Service struct {
	api.AgentServiceRegistration
	Status string
	Output string
}

// Services lists what is registered, sorted by ID.
func (a *Agent) Services() []Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []Service
	for _, s := range a.services {
		all = append(all, Service{s.reg, s.status, s.output})
	}
	slices.SortFunc(all, func(x, y Service) int { return strings.Compare(x.ID, y.ID) })
	return all
}

// Updates counts the updates of checks: heartbeats, for the most part.
func (a *Agent) Updates() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.updates
}

// Queries counts the health queries that were answered.
func (a *Agent) Queries() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.queries
}

// Calls lists the calls that changed something, as "register ID".
func (a *Agent) Calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// Await waits until ok accepts the services, at most for the test's patience.
func (a *Agent) Await(t testing.TB, what string, ok func([]Service) bool) []Service {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		all := a.Services()
		if ok(all) {
			return all
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("consultest: %s did not happen; services: %+v", what, all)
		}
	}
}

func (a *Agent) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		code := a.refuse
		a.mu.Unlock()
		if code != 0 {
			http.Error(w, "refused by the test", code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bump moves the index on and wakes blocking queries. mu is held.
func (a *Agent) bump() {
	a.index++
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *Agent) remove(id string) {
	if timer := a.services[id].timer; timer != nil {
		timer.Stop()
	}
	delete(a.services, id)
}

func (a *Agent) register(w http.ResponseWriter, r *http.Request) {
	var reg api.AgentServiceRegistration
	if err := json.NewDecoder(r.Body).Decode(&reg); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var ttl time.Duration
	if reg.Check.HTTP == "" && reg.Check.TCP == "" {
		var err error
		if ttl, err = time.ParseDuration(reg.Check.TTL); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.services[reg.ID]; ok {
		a.remove(reg.ID)
	}
	s := &service{reg: reg, status: cmp.Or(reg.Check.Status, api.HealthCritical), ttl: ttl}
	if ttl > 0 {
		s.timer = time.AfterFunc(ttl, func() { a.expire(s) })
	}
	a.services[reg.ID] = s
	a.calls = append(a.calls, "register "+reg.ID)
	a.bump()
}

func (a *Agent) expire(s *service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.services[s.reg.ID] == s {
		s.status, s.output = api.HealthCritical, "TTL expired"
		a.bump()
	}
}

func (a *Agent) deregister(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.services[id]; !ok {
		http.Error(w, "Unknown service ID "+strconv.Quote(id), http.StatusNotFound)
		return
	}
	a.remove(id)
	a.calls = append(a.calls, "deregister "+id)
	a.bump()
}

func (a *Agent) update(w http.ResponseWriter, r *http.Request) {
	var body struct{ Status, Output string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := strings.TrimPrefix(r.PathValue("id"), "service:")
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.services[id]
	if !ok || s.timer == nil {
		http.Error(w, "Unknown check ID "+strconv.Quote(r.PathValue("id")), http.StatusNotFound)
		return
	}
	a.updates++
	s.timer.Reset(s.ttl)
	if s.status != body.Status {
		s.status, s.output = body.Status, body.Output
		a.calls = append(a.calls, body.Status+" "+id)
		a.bump()
	}
}

func (a *Agent) agentService(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.services[r.PathValue("id")]
	if !ok {
		http.Error(w, "unknown service ID", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(api.AgentService{ID: s.reg.ID, Service: s.reg.Name, Meta: s.reg.Meta})
}

func (a *Agent) health(w http.ResponseWriter, r *http.Request) {
	index, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	for {
		a.mu.Lock()
		now, changed := a.index, a.changed
		a.mu.Unlock()
		if now != index {
			break
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		break
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	entries := []*api.ServiceEntry{}
	for _, s := range a.services {
		if s.reg.Name != r.PathValue("name") {
			continue
		}
		entries = append(entries, &api.ServiceEntry{
			Node:    &api.Node{Node: nodeName, Address: "127.0.0.1"},
			Service: &api.AgentService{ID: s.reg.ID, Service: s.reg.Name, Tags: s.reg.Tags, Meta: s.reg.Meta, Address: s.reg.Address, Port: s.reg.Port},
			Checks: api.HealthChecks{
				{CheckID: s.reg.Check.CheckID, ServiceID: s.reg.ID, Status: s.status, Output: s.output},
				{CheckID: "serfHealth", Status: a.serf},
			},
		})
	}
	if !a.noIndex {
		w.Header().Set("X-Consul-Index", strconv.FormatUint(a.index, 10))
	}
	a.queries++
	_ = json.NewEncoder(w).Encode(entries)
}
