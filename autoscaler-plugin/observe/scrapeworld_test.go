package observe_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/autoscaler-plugin/observe"
	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute // for polls; reached only when a test fails

// fakeEngine is an HTTP server that answers with a metrics page.
type fakeEngine struct {
	server *httptest.Server
	page   atomic.Pointer[string]
	status atomic.Int64
	hang   atomic.Bool
	asked  atomic.Int64
	quit   chan struct{}
}

func page(model string, kv, waiting, running float64) string {
	return fmt.Sprintf(`# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name=%[1]q,engine="0"} %[4]g
vllm:num_requests_waiting{model_name=%[1]q,engine="0"} %[3]g
vllm:kv_cache_usage_perc{model_name=%[1]q,engine="0"} %[2]g
`, model, kv, waiting, running)
}

func newEngine(t testing.TB, text string) *fakeEngine {
	e := &fakeEngine{quit: make(chan struct{})}
	e.page.Store(&text)
	e.status.Store(http.StatusOK)
	e.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		if e.hang.Load() {
			select {
			case <-r.Context().Done():
			case <-e.quit:
			}
			return
		}
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(int(e.status.Load()))
		fmt.Fprint(w, *e.page.Load())
	}))
	t.Cleanup(func() {
		close(e.quit)
		e.server.Close()
	})
	return e
}

func (e *fakeEngine) show(text string) { e.page.Store(&text) }

// register puts an engine into Consul.
func register(t testing.TB, agent *consultest.Agent, address string, name replica.Name, role string, token int, status string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	client, err := consulapi.NewClient(&consulapi.Config{Address: agent.Addr(), Transport: &http.Transport{DisableKeepAlives: true}})
	require.NoError(t, err)
	require.NoError(t, client.Agent().ServiceRegister(&consulapi.AgentServiceRegistration{
		ID: name.ServiceID(role), Name: replica.ServiceName, Address: host, Port: number,
		Meta:  map[string]string{"model": name.Model, "variant": name.Variant, "replica": name.ID, "role": role, "token": "0." + strconv.Itoa(token), "slots": "16"},
		Check: &consulapi.AgentServiceCheck{CheckID: "service:" + name.ServiceID(role), TTL: "10m", Status: status},
	}))
}

func deregister(t testing.TB, agent *consultest.Agent, id string) {
	t.Helper()
	client, err := consulapi.NewClient(&consulapi.Config{Address: agent.Addr(), Transport: &http.Transport{DisableKeepAlives: true}})
	require.NoError(t, err)
	require.NoError(t, client.Agent().ServiceDeregister(id))
}

// scraper runs a scraper that watches agent until the test's end.
func scraper(t testing.TB, agent *consultest.Agent, change func(*observe.ScrapeConfig)) *observe.Scraper {
	t.Helper()
	watch := consul.DefaultWatcherConfig()
	watch.Address = consul.Address{Addr: agent.Addr()}
	watcher, err := consul.NewWatcher(watch)
	require.NoError(t, err)
	cfg := observe.DefaultScrapeConfig()
	cfg.Watcher, cfg.Interval = watcher, 5*time.Millisecond
	cfg.Timeout, cfg.FirstWait = time.Minute, time.Minute // the first report has numbers, however slow the machine is
	if change != nil {
		change(&cfg)
	}
	s, err := observe.NewScraper(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	return s
}

var askLlama = observe.Question{Model: "llama", Shown: "llama"}

func name(variant, id string) replica.Name {
	return replica.Name{Model: "llama", Variant: variant, ID: id}
}

func reportOf(t testing.TB, s *observe.Scraper, q observe.Question) observe.Report {
	t.Helper()
	r, err := s.Report(t.Context(), q)
	require.NoError(t, err)
	return r
}

// await asks until ok likes the report.
func await(t testing.TB, s *observe.Scraper, q observe.Question, what string, ok func(observe.Report) bool) observe.Report {
	t.Helper()
	var last observe.Report
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if last = reportOf(t, s, q); ok(last) {
			return last
		}
	}
	require.FailNow(t, what+" did not happen", "%+v", last)
	return last
}
