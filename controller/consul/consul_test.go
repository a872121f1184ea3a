package consul_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/proclog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testEngine() replica.Engine {
	return replica.Engine{
		Name: replica.Name{Model: "meta-llama/Llama-3:8b", Variant: "h100", ID: "7f3a"}, Role: replica.RolePrimary,
		Address: "127.0.0.1", Port: 8000, Token: replica.Token{Generation: 1<<63 + 7, Counter: 3}, Slots: 16, Offer: "offer", Passing: true, Near: true,
	}
}

func newRegistrar(t *testing.T, a *consultest.Agent, cohort string) *consul.Registrar {
	t.Helper()
	cfg := consul.DefaultRegistrarConfig()
	cfg.Address, cfg.Cohort = consul.Address{Addr: a.Addr()}, cohort
	r, err := consul.NewRegistrar(cfg)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// watch starts a watcher and returns its updates.
type update struct {
	engines     []replica.Engine
	afterOutage bool
}

func watch(t *testing.T, a *consultest.Agent) <-chan update {
	t.Helper()
	return watchLogged(t, a, hclog.NewNullLogger())
}

// signalOn is a log output that closes a channel at the first line that
// contains text.
type signalOn struct {
	text string
	once sync.Once
	seen chan struct{}
}

func (s *signalOn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.text) {
		s.once.Do(func() { close(s.seen) })
	}
	return len(p), nil
}

func watchLogged(t *testing.T, a *consultest.Agent, logger hclog.Logger) <-chan update {
	t.Helper()
	cfg := consul.DefaultWatcherConfig()
	cfg.Address, cfg.Logger = consul.Address{Addr: a.Addr()}, logger
	w, err := consul.NewWatcher(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	updates, done := make(chan update, 100), make(chan struct{})
	go func() {
		defer close(done)
		err := w.Watch(ctx, func(engines []replica.Engine, afterOutage bool) { updates <- update{engines, afterOutage} }, func() {})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return updates
}

func receive(t *testing.T, updates <-chan update) update {
	t.Helper()
	select {
	case u := <-updates:
		return u
	case <-time.After(15 * time.Second):
		t.Fatal("no update within 15 s")
		return update{}
	}
}

func TestRegistrationTravelsUnchanged(t *testing.T) {
	a := consultest.New(t)
	updates := watch(t, a)
	require.Empty(t, receive(t, updates).engines, "the first list comes at once, also when it is empty")

	r, e := newRegistrar(t, a, "c1"), testEngine()
	require.NoError(t, r.Register(t.Context(), e))
	require.Equal(t, []replica.Engine{e}, receive(t, updates).engines)
	require.True(t, r.Status().Registered)

	require.NoError(t, r.Push(t.Context(), e, api.HealthCritical, "engine hangs"))
	e.Passing = false
	require.Equal(t, []replica.Engine{e}, receive(t, updates).engines)

	require.NoError(t, r.Deregister(t.Context(), e))
	require.Empty(t, receive(t, updates).engines)
	require.NoError(t, r.Deregister(t.Context(), e), "a service that is gone counts as removed")
	require.False(t, r.Status().Registered)
}

func TestPushRegistersAgainAfterConsulForgot(t *testing.T) {
	a := consultest.New(t)
	r, e := newRegistrar(t, a, "c1"), testEngine()
	require.NoError(t, r.Register(t.Context(), e))
	a.Forget()
	require.NoError(t, r.Push(t.Context(), e, api.HealthCritical, "sick"))
	all := a.Services()
	require.Len(t, all, 1)
	require.Equal(t, api.HealthCritical, all[0].Status, "a push that registers anew must not make a sick engine healthy")
}

func TestRefusalIsToldFromAbsence(t *testing.T) {
	a := consultest.New(t)
	r, e := newRegistrar(t, a, "c1"), testEngine()
	a.Refuse(http.StatusForbidden)
	require.ErrorIs(t, r.Register(t.Context(), e), consul.ErrRefused)
	require.NotEmpty(t, r.Status().LastError)
	a.Refuse(0)
	a.Stop()
	err := r.Register(t.Context(), e)
	require.Error(t, err)
	require.NotErrorIs(t, err, consul.ErrRefused)
	require.EqualValues(t, 2, r.Status().Failures)
}

func TestDeregistrarSparesANewerLife(t *testing.T) {
	a := consultest.New(t)
	e := testEngine()
	older, newer := newRegistrar(t, a, "old"), newRegistrar(t, a, "new")
	require.NoError(t, older.Register(t.Context(), e))
	require.NoError(t, newer.Register(t.Context(), e))
	var log proclog.Buffer
	d, err := consul.NewDeregistrar(consul.Address{Addr: a.Addr()}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	require.NoError(t, err)
	defer d.Close()
	d.Remove(e.ID(), "new")
	d.Wait()
	require.Empty(t, a.Services())
	require.NoError(t, newer.Register(t.Context(), e))
	d.Remove(e.ID(), "old")
	d.Remove("another", "old")
	d.Wait()
	d.Remove(e.ID(), "") // a holder without a cohort's mark
	d.Wait()
	require.Len(t, a.Services(), 1, "the newer life's registration must stand")
}

// TestATaskOfNomadMustNameItsConsul: that at Consul's usual port may be of another cluster.
func TestATaskOfNomadMustNameItsConsul(t *testing.T) {
	t.Setenv("NOMAD_ALLOC_ID", "a")
	t.Setenv("CONSUL_HTTP_ADDR", "")
	_, err := consul.NewDeregistrar(consul.Address{}, hclog.NewNullLogger())
	require.ErrorContains(t, err, "no address of a Consul agent: set the job's variable consul")
	t.Setenv("CONSUL_HTTP_ADDR", "127.0.0.1:1")
	_, err = consul.NewDeregistrar(consul.Address{}, hclog.NewNullLogger())
	require.NoError(t, err)
}

// TestDeregistrarOutlastsAConsulThatIsAway: it tries again until it succeeds.
func TestDeregistrarOutlastsAConsulThatIsAway(t *testing.T) {
	a := consultest.New(t)
	e := testEngine()
	require.NoError(t, newRegistrar(t, a, "c1").Register(t.Context(), e))
	var log proclog.Buffer
	d, err := consul.NewDeregistrar(consul.Address{Addr: a.Addr()}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	require.NoError(t, err)
	defer d.Close()
	a.Refuse(http.StatusInternalServerError)
	d.Remove(e.ID(), "c1")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "retrying") }, 10*time.Second, time.Millisecond)
	require.Len(t, a.Services(), 1)
	a.Refuse(0)
	a.Await(t, "the removal", func(all []consultest.Service) bool { return len(all) == 0 })
}

func TestTTLExpiryReachesTheWatcher(t *testing.T) {
	a := consultest.New(t)
	cfg := consul.DefaultRegistrarConfig()
	cfg.Address, cfg.Cohort, cfg.TTL = consul.Address{Addr: a.Addr()}, "c1", 5*time.Second
	r, err := consul.NewRegistrar(cfg)
	require.NoError(t, err)
	defer r.Close()
	updates := watch(t, a)
	receive(t, updates)
	require.NoError(t, r.Register(t.Context(), testEngine()))
	require.True(t, receive(t, updates).engines[0].Passing)
	require.False(t, receive(t, updates).engines[0].Passing, "without pushes the check turns critical")
}

func TestWatchSurvivesAnOutage(t *testing.T) {
	a := consultest.New(t)
	r, e := newRegistrar(t, a, "c1"), testEngine()
	require.NoError(t, r.Register(t.Context(), e))
	down := &signalOn{text: "cannot reach Consul", seen: make(chan struct{})}
	updates := watchLogged(t, a, hclog.New(&hclog.LoggerOptions{Output: down}))
	first := receive(t, updates)
	require.Len(t, first.engines, 1)
	require.False(t, first.afterOutage)
	addr := a.Addr()
	a.Stop()
	require.Error(t, r.Push(t.Context(), e, api.HealthPassing, ""), "the agent is down")
	// An agent that is back before anybody noticed was never out.
	<-down.seen
	a.Listen(t, addr)
	second := receive(t, updates)
	require.True(t, second.afterOutage, "the first list after an outage says so, even if it is the same")
	require.Equal(t, first.engines, second.engines)
}

func TestWatchSkipsMalformedRegistrations(t *testing.T) {
	a := consultest.New(t)
	r, good := newRegistrar(t, a, "c1"), testEngine()
	require.NoError(t, r.Register(t.Context(), good))
	for name, spoil := range map[string]func(*replica.Engine){
		"no slots": func(e *replica.Engine) { e.Slots = 0 },
		"bad role": func(e *replica.Engine) { e.Role = "king" },
		"bad port": func(e *replica.Engine) { e.Port = 0 },
		"no model": func(e *replica.Engine) { e.Name.Model = "" },
	} {
		bad := testEngine()
		bad.Name.ID = strings.ReplaceAll(name, " ", "-")
		spoil(&bad)
		require.NoError(t, r.Register(t.Context(), bad), name)
	}
	require.Equal(t, []replica.Engine{good}, receive(t, watch(t, a)).engines)
}

func TestConfigErrorsNameEveryField(t *testing.T) {
	_, err := consul.NewRegistrar(consul.RegistrarConfig{TTL: time.Millisecond})
	for _, field := range []string{"cohort", "ttl is 1ms", "reap-after", "request timeout", "logger"} {
		require.ErrorContains(t, err, field)
	}
	_, err = consul.NewWatcher(consul.WatcherConfig{})
	require.ErrorContains(t, err, "wait is 0s")
	cfg := consul.DefaultWatcherConfig()
	cfg.Address = consul.Address{Addr: "http://"}
	_, err = consul.NewWatcher(cfg)
	require.ErrorContains(t, err, `consul address "http://"`)
}

func TestNodeHealthIsToldFromTheEngines(t *testing.T) {
	a := consultest.New(t)
	r, e := newRegistrar(t, a, "c1"), testEngine()
	require.NoError(t, r.Register(t.Context(), e))
	updates := watch(t, a)
	require.Equal(t, []replica.Engine{e}, receive(t, updates).engines)
	a.NodeStatus(api.HealthCritical) // its agent died: the engine's check stays as it was
	e.Passing, e.NodeDown = false, true
	require.Equal(t, []replica.Engine{e}, receive(t, updates).engines)
	require.NoError(t, r.Push(t.Context(), e, api.HealthCritical, ""))
	e.NodeDown = false
	require.Equal(t, []replica.Engine{e}, receive(t, updates).engines, "an engine that is sick itself is no mystery")
}

// TestEngineOfAnotherNode is not near, nor is one of a node that the agent does not tell.
func TestEngineOfAnotherNode(t *testing.T) {
	a := consultest.New(t)
	a.Rename("gateways")
	e := testEngine()
	require.NoError(t, newRegistrar(t, a, "c1").Register(t.Context(), e))
	e.Near = false
	require.Equal(t, []replica.Engine{e}, receive(t, watch(t, a)).engines)
}

func TestAnswerWithoutIndexIsNoConsul(t *testing.T) {
	a := consultest.New(t)
	a.HideIndex(true)
	log := &signalOn{text: "no X-Consul-Index", seen: make(chan struct{})}
	updates := watchLogged(t, a, hclog.New(&hclog.LoggerOptions{Output: log}))
	<-log.seen
	time.Sleep(300 * time.Millisecond) // long enough for thousands of queries
	require.Less(t, a.Queries(), 20)
	a.HideIndex(false)
	require.Empty(t, receive(t, updates).engines)
}

func TestWatchTellsOfAnOutageOnce(t *testing.T) {
	a := consultest.New(t)
	require.NoError(t, newRegistrar(t, a, "c1").Register(t.Context(), testEngine()))
	w, err := consul.NewWatcher(func() consul.WatcherConfig {
		cfg := consul.DefaultWatcherConfig()
		cfg.Address = consul.Address{Addr: a.Addr()}
		return cfg
	}())
	require.NoError(t, err)
	events := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Watch(ctx, func([]replica.Engine, bool) { events <- "list" }, func() { events <- "lost" })
	}()
	t.Cleanup(func() { cancel(); <-done })
	require.Equal(t, "list", <-events)
	a.Refuse(http.StatusForbidden)
	a.Forget() // wakes the blocking query
	first := <-events
	if first == "list" { // the query that was open was still answered
		first = <-events
	}
	require.Equal(t, "lost", first)
	a.Refuse(0)
	require.Equal(t, "list", <-events, "lost is said once")
}
