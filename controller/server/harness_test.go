package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gatewayreport"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/server"
	"remuda/controller/state"
	"remuda/controller/usage"
	"remuda/internal/replica"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/parallel"
)

func TestMain(m *testing.M) {
	if addresses := os.Getenv(envViewer); addresses != "" {
		view(strings.Fields(addresses))
	}
	parallel.Raise("8")
	os.Exit(m.Run())
}

// patience is how long a cluster may take for anything.
const patience = 60 * time.Second

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// checker is Nomad's part.
type checker struct {
	mu    sync.Mutex
	calls int
	check func(m state.Model, v state.Variant) (string, error)
}

func (c *checker) Check(_ context.Context, m state.Model, v state.Variant) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.check != nil {
		return c.check(m, v)
	}
	return "", nil
}

// member is one server of a cluster, all of it in this process.
type member struct {
	t       testing.TB
	store   *state.Store
	node    *raft.Node
	server  *server.Server
	url     string
	nomad   *checker
	loads   *gatewayreport.Store
	usage   *usage.Recorder
	world   *world
	metrics *prometheus.Registry
	client  *api.Client

	// counting is Run of usage.
	counting sync.WaitGroup
	listener net.Listener
	stop     context.CancelFunc
	done     chan error
}

// world is a reconciler as a test wants it.
type world struct {
	status      api.ReconcileStatus
	pools       []api.Pool
	unplaceable func(model string) map[string]string
	notServing  map[string]string
	pairs       map[string]api.Pair
	preview     func(change func(*state.Store) error) (planner.Foresight, error)
	failover    func(replica string, order api.FailoverRequest, by string) (api.Failover, error)
}

func (w *world) Status() api.ReconcileStatus { return w.status }
func (w *world) Pools() []api.Pool           { return w.pools }

func (w *world) Unplaceable(model string) map[string]string {
	if w.unplaceable == nil {
		return nil
	}
	return w.unplaceable(model)
}

func (w *world) Pair(replica string) api.Pair     { return w.pairs[replica] }
func (w *world) NotServing(replica string) string { return w.notServing[replica] }

func (w *world) Preview(_ context.Context, change func(*state.Store) error) (planner.Foresight, error) {
	return w.preview(change)
}

func (w *world) Failover(_ context.Context, replica string, order api.FailoverRequest, by string) (api.Failover, error) {
	return w.failover(replica, order, by)
}

// settings change how members are started.
type settings struct {
	acl    bool
	raft   func(*raft.Config)
	server func(*server.Config)
	world  func(*world)
	// tls serves HTTPS.
	tls *tls.Config
	// free makes no comparison of answers with the description, for benchmarks.
	free bool
}

// cluster starts n members and waits for a leader.
func cluster(t testing.TB, n int, set settings) []*member {
	t.Helper()
	ms := make([]*member, n)
	addresses := make([]string, n)
	for i := range ms {
		addresses[i] = loopback.Free(t)
	}
	for i := range ms {
		ms[i] = startMember(t, addresses, i, set)
	}
	leaderOf(t, ms)
	return ms
}

func startMember(t testing.TB, addresses []string, i int, set settings) *member {
	t.Helper()
	m := &member{t: t, nomad: &checker{}, done: make(chan error, 1), metrics: prometheus.NewRegistry()}
	var err error
	m.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m.url = "http://" + m.listener.Addr().String()
	if set.tls != nil {
		m.listener, m.url = tls.NewListener(m.listener, set.tls), "https://"+m.listener.Addr().String()
	}
	m.store, err = state.New()
	require.NoError(t, err)

	rc := raft.DefaultConfig()
	rc.DataDir, rc.Bind, rc.Store, rc.API = t.TempDir(), addresses[i], m.store, m.url
	rc.BootstrapExpect, rc.RetryInterval = len(addresses), 50*time.Millisecond
	if len(addresses) > 1 {
		rc.Join = addresses
	}
	// A leader stays one on a machine that lets it run every other second.
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = 2*time.Second, 2*time.Second, 2*time.Second
	if len(addresses) == 1 {
		// One that is alone has nobody to wait for, and cannot lose an election.
		rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	}
	logger := hclog.NewNullLogger()
	if os.Getenv("REMUDA_TEST_LOG") != "" {
		logger = hclog.New(&hclog.LoggerOptions{Name: fmt.Sprint("s", i), Level: hclog.Debug})
	}
	rc.Logger = logger
	if set.raft != nil {
		set.raft(&rc)
	}
	m.node, err = raft.Open(rc)
	require.NoError(t, err)

	m.loads = gatewayreport.New(time.Minute, time.Now)
	m.world = &world{pools: []api.Pool{{Management: "full", Price: 1, Known: true, LastContactAt: epoch}}, preview: planning(m.store, nil)}
	uc := usage.DefaultConfig()
	uc.Raft, uc.Interval, uc.MaxInterval, uc.Logger = m.node, 20*time.Millisecond, 20*time.Millisecond, logger
	m.usage, err = usage.New(uc)
	require.NoError(t, err)
	sc := server.DefaultConfig()
	sc.Raft, sc.Nomad, sc.Loads, sc.Reconciler, sc.ACL, sc.Logger = m.node, m.nomad, m.loads, m.world, set.acl, logger
	sc.Usage = m.usage
	sc.Registerer, sc.Gatherer = m.metrics, m.metrics
	sc.LeaderWait = patience / 2
	if set.world != nil {
		set.world(m.world)
	}
	if set.server != nil {
		set.server(&sc)
	}
	m.usage = sc.Usage.(*usage.Recorder) // one recorder: another clock would forget the rows of this one
	m.server, err = server.New(sc)
	require.NoError(t, err)
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	go func() { m.done <- m.server.Run(ctx, m.listener) }()
	m.counting.Go(func() { m.usage.Run(ctx) })
	m.client = m.as("")
	if set.free {
		m.client = newClient(t, nil, "", m.url)
	}
	t.Cleanup(m.close)
	return m
}

// close stops a member; the others see that it is gone.
func (m *member) close() {
	if m.node == nil {
		return
	}
	m.stop()
	if err := <-m.done; err != nil {
		m.t.Errorf("server: %v", err)
	}
	m.counting.Wait()
	if err := m.node.Close(); err != nil {
		m.t.Errorf("raft: %v", err)
	}
	m.node = nil
}

// as is a client with a token, whose answers are compared with the description.
func (m *member) as(token string) *api.Client {
	return newClient(m.t, checked(m.t), token, m.url)
}

func newClient(t testing.TB, h *http.Client, token string, urls ...string) *api.Client {
	t.Helper()
	if h == nil {
		h = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	}
	c, err := api.NewClient(api.Config{Addresses: urls, Token: token, HTTPClient: h})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 10*time.Millisecond, what)
}

// leaderOf waits for the one member that leads, which all that run know.
func leaderOf(t testing.TB, ms []*member) *member {
	t.Helper()
	var leader *member
	eventually(t, "a leader that all know", func() bool {
		leader = nil
		for _, m := range ms {
			if m.node == nil {
				continue
			}
			if now, _ := m.node.Leadership(); now.Leader && m.node.Verify(t.Context()) == nil {
				leader = m
			}
		}
		if leader == nil {
			return false
		}
		for _, m := range ms {
			if m.node != nil && m.node.Leader().ID != leader.node.ID() {
				return false
			}
		}
		return true
	})
	return leader
}

func followersOf(t testing.TB, ms []*member) []*member {
	leader := leaderOf(t, ms)
	var out []*member
	for _, m := range ms {
		if m != leader && m.node != nil {
			out = append(out, m)
		}
	}
	return out
}

// one is a single member that asks for no tokens.
func one(t testing.TB) *member {
	t.Helper()
	return cluster(t, 1, settings{})[0]
}

func (m *member) apply(cs ...state.Command) {
	m.t.Helper()
	for _, c := range cs {
		_, err := m.node.Apply(m.t.Context(), c)
		require.NoError(m.t, err, "%T", c)
	}
}

// raw sends a request as it is, and returns the answer with its body.
func (m *member) raw(method, path, token, body string, header ...string) (*http.Response, string) {
	m.t.Helper()
	return m.send(method, path, token, strings.NewReader(body), header...)
}

func (m *member) send(method, path, token string, body io.Reader, header ...string) (*http.Response, string) {
	m.t.Helper()
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.url+path, body)
	require.NoError(m.t, err)
	if token != "" {
		req.Header.Set(api.HeaderToken, token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := checked(m.t).Do(req)
	require.NoError(m.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(m.t, err)
	return resp, string(b)
}

// refused is the error of an answer.
func refused(t testing.TB, body string) api.Error {
	t.Helper()
	var e api.Error
	require.NoError(t, json.Unmarshal([]byte(body), &e), body)
	return e
}

// requireError checks that a call was refused so.
func requireError(t testing.TB, err error, status int, code, text string) *api.Error {
	t.Helper()
	var e *api.Error
	require.True(t, errors.As(err, &e), "want an *api.Error, have %v", err)
	require.Equal(t, status, e.Status, e.Message)
	require.Equal(t, code, e.Code, e.Message)
	require.Contains(t, e.Message, text)
	return e
}

// file is a model file with one model and two variants.
func file(name string, edit ...string) string {
	text := `model "NAME" {
  min        = 0
  max        = 4
  replicas   = 2
  management = "full"

  variant "a" {
    gpu {
      count = 1
    }
    memory      = "10GiB"
    host_memory = "10GiB"
    cost   = 1.5
    slots  = 8
    job    = <<-EOT
      job "engine" {
        group "replica" {}
      }
    EOT
  }

  variant "b" {
    gpu {
      count = 1
    }
    memory      = "20GiB"
    host_memory = "20GiB"
    cost   = 3
    job    = <<-EOT
      job "engine" {
        group "replica" {}
      }
    EOT
  }
}
`
	return strings.NewReplacer(append([]string{"NAME", name}, edit...)...).Replace(text)
}

const gib = int64(1 << 30)

// node has GPUs of two seats and 40 GiB each.
func node(id, name string, gpus int) state.Node {
	n := state.Node{ID: id, Name: name, Datacenter: "dc1", Pool: "default", Ready: true, HostMemory: 100 * gib, CPU: 1000}
	for g := range gpus {
		u := gpuOf(id, g)
		n.GPUs = append(n.GPUs, state.GPU{UUID: u, Model: "H100", Memory: 40 * gib, Seats: []string{u + "#0", u + "#1"}, Healthy: true})
	}
	return n
}

func gpuOf(node string, g int) string { return fmt.Sprintf("GPU-%s-%d", node, g) }

// modelFile is a request's model files with this one.
func modelFile(text string) []api.SourceFile { return []api.SourceFile{{Text: text}} }

// applied puts the model of file onto a member, and the node "n1" (named "node-one").
func (m *member) applied(model string) {
	m.t.Helper()
	_, err := m.client.ApplyModels(m.t.Context(), api.ApplyRequest{Files: modelFile(file(model))})
	require.NoError(m.t, err)
	m.apply(&state.UpsertNodes{Nodes: []state.Node{node("n1", "node-one", 2)}})
}

// place places a replica of variant a on a seat of n1.
func (m *member) place(model, id string, gpu, seat int) replica.Name {
	m.t.Helper()
	p := m.placement(model, id, gpu, seat)
	m.apply(&state.Plan{ID: "p", Index: m.store.View().Index(), Time: epoch, Place: []state.Place{p}})
	return p.Name
}

// placement is of the present definition of the model's variant a.
func (m *member) placement(model, id string, gpu, seat int) state.Place {
	u := gpuOf("n1", gpu)
	return state.Place{
		Name: replica.Name{Model: model, Variant: "a", ID: id}, Version: m.store.View().Model(nil, model).Version,
		Placement: state.Placement{Node: "n1", Seats: []string{fmt.Sprintf("%s#%d", u, seat)}, Memory: map[string]int64{u: 10 * gib}, HostMemory: gib},
	}
}

// move takes a replica through events; one that is drained or stopped is deleted then.
func (m *member) move(name replica.Name, events ...state.Event) {
	m.t.Helper()
	for _, event := range events {
		r := m.store.View().Replica(nil, name.String())
		require.NotNil(m.t, r)
		c := &state.Move{Replica: name.String(), ModifyIndex: r.ModifyIndex, Event: event, Time: epoch}
		if event == state.EventDrain || event == state.EventStop {
			c.Goal = state.GoalGone
		}
		m.apply(c)
	}
}

// token makes a token of a role with an operator's client.
func token(t testing.TB, c *api.Client, role string) api.Token {
	t.Helper()
	tok, err := c.CreateToken(t.Context(), api.TokenRequest{Name: "a " + role, Role: role})
	require.NoError(t, err)
	return tok
}

// bootstrapped is a single member that asks for tokens, with a token of each role.
func bootstrapped(t testing.TB, edit ...func(*server.Config)) (*member, map[string]string) {
	t.Helper()
	m := cluster(t, 1, settings{acl: true, world: withPools, server: func(c *server.Config) {
		for _, e := range edit {
			e(c)
		}
	}})[0]
	first, err := m.client.BootstrapACL(t.Context())
	require.NoError(t, err)
	m.client = m.as(first.SecretID)
	secrets := map[string]string{"operator": first.SecretID}
	for _, role := range []string{"gateway", "autoscaler", "read-only"} {
		secrets[role] = token(t, m.client, role).SecretID
	}
	return m, secrets
}

// reported sends a gateway's report and returns what the gateway has to do, without the term,
// which every answer has.
func reported(t testing.TB, c *api.Client, r api.GatewayReport) api.GatewayOrders {
	t.Helper()
	orders, err := c.GatewayReport(t.Context(), r)
	require.NoError(t, err)
	require.NotZero(t, orders.UsageTerm)
	orders.UsageTerm = 0
	return orders
}

func ptr[T any](v T) *T { return &v }
