package engine_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

func notify(c chan<- os.Signal) { signal.Notify(c, syscall.SIGTERM, syscall.SIGINT) }

func registered(all []consultest.Service) bool {
	return len(all) == 1 && all[0].Status == api.HealthPassing
}

func critical(all []consultest.Service) bool {
	return len(all) == 1 && all[0].Status == api.HealthCritical
}

func none(all []consultest.Service) bool { return len(all) == 0 }

func TestRegisteredOnlyOnceItServes(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr(), loading: true})
	s.awaitState(engine.Init)
	s.await("the engine's server", func() bool {
		resp, err := http.Get(s.engine + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	code, body := call(t, "GET", s.url+"/live")
	require.Equal(t, 503, code, body)
	require.Empty(t, a.Services(), "an engine that loads must not be discoverable")

	s.control("healthy")
	all := a.Await(t, "the registration", registered)
	require.Equal(t, replica.ServiceName, all[0].Name)
	require.Equal(t, "m:v:r1:primary", all[0].ID)
	require.Contains(t, all[0].Tags, "model=m")
	require.Equal(t, "4", all[0].Meta["slots"])
	require.Equal(t, s.engine, "http://"+net.JoinHostPort(all[0].Address, strconv.Itoa(all[0].Port)))
	st := s.awaitState(engine.Active)
	require.True(t, st.Consul.Registered)
	code, _ = call(t, "GET", s.url+"/live")
	require.Equal(t, 200, code)
	code, _ = call(t, "GET", s.url+"/ready")
	require.Equal(t, 200, code)
	_, metrics := call(t, "GET", s.url+"/metrics")
	require.Contains(t, metrics, `remuda_engine_state{model="m",replica="r1",role="primary",state="active",variant="v"} 1`)
}

// soon is thirty times the second within which a dead engine leaves Consul, for slow machines.
const soon = 30 * time.Second

// afterScan is time enough for lockd to scan, which it does about once a second.
const afterScan = 6 * time.Second

func TestKilledEngineTakesTheShimAndItsWorkersWithIt(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr()})
	st := s.awaitState(engine.Active)
	pids := s.leave()
	begin := time.Now()
	kill(t, st.PID, syscall.SIGKILL)
	a.Await(t, "the deregistration", none)
	require.Less(t, time.Since(begin), soon)
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "engine exited: signal: killed")
	s.awaitGone(pids)
}

func TestKilledShimTakesTheEngineWithIt(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	s := l.single(a, nil)
	s.awaitState(engine.Active)
	pids := s.leave()
	// lockd learns of orphans by a scan about once a second: the engine, its child, the daemon
	// and the nameless one.
	time.Sleep(afterScan)
	begin := time.Now()
	kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
	a.Await(t, "the deregistration", none)
	require.Less(t, time.Since(begin), soon)
	s.awaitGone(pids)
}

// TestKilledWhileLoading: also then lockd leaves no process behind.
func TestKilledWhileLoading(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	l.at(a)
	s := startShim(t, settings{loading: true, consul: a.Addr(), tune: func(c *engine.Config) { c.Lock = l.cfg.Socket }})
	s.await("an engine that loads", func() bool { st, ok := s.status(); return ok && st.State == engine.Init && st.PID != 0 })
	s.await("its HTTP", func() bool {
		resp, err := http.Get(s.engine + "/health")
		return err == nil && resp.Body.Close() == nil
	})
	pids := s.leave()
	time.Sleep(afterScan)
	kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
	s.awaitGone(pids)
}

func TestStopDrainsFirst(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr()})
	s.awaitState(engine.Active)
	pids := s.leave()
	answer := s.request()
	kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
	a.Await(t, "the deregistration", none)
	s.awaitState(engine.Draining)
	s.control("release")
	require.Equal(t, "200 OK", <-answer, "a request that runs is finished")
	require.Equal(t, 0, exitCode(s.exited()), s.log.String())
	s.awaitGone(pids)
}

func TestStopWhileLoadingIsQuick(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{loading: true})
	st := s.awaitState(engine.Init)
	kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(s.exited()))
	s.awaitGone([]int{st.PID})
}

func TestShadowSleepsUntilItIsWoken(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{role: replica.RoleShadow, consul: a.Addr()})
	s.awaitState(engine.Standby)
	_, body := call(t, "GET", s.engine+"/is_sleeping")
	require.JSONEq(t, `{"is_sleeping":true}`, body)
	code, _ := call(t, "GET", s.url+"/ready")
	require.Equal(t, 200, code, "a standing-by shadow does its job")
	require.Empty(t, a.Services())

	code, body = call(t, "POST", s.url+"/v1/wake")
	require.Equal(t, 200, code, body)
	require.True(t, registered(a.Services()), "woken means registered")
	require.Equal(t, replica.RoleShadow, a.Services()[0].Meta["role"])

	code, body = call(t, "POST", s.url+"/v1/sleep")
	require.Equal(t, 200, code, body)
	require.Empty(t, a.Services())
	s.awaitState(engine.Standby)
	code, body = call(t, "POST", s.url+"/v1/drain")
	require.Equal(t, 409, code, body)
	require.Contains(t, body, "engine is standby")
}

// TestRequestBeforeTheFirstSleep: it is waited for. Somebody asked the engine itself.
func TestRequestBeforeTheFirstSleep(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{role: replica.RoleShadow, loading: true})
	s.await("the engine", func() bool {
		resp, err := http.Get(s.engine + "/is_sleeping")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		resp, err := http.Post(s.engine+"/v1/completions", "application/json", strings.NewReader(`{}`))
		if err != nil {
			t.Errorf("the request was cut off: %v", err)
			return
		}
		_ = resp.Body.Close()
	}()
	s.await("the request", func() bool {
		_, body := call(t, http.MethodGet, s.engine+"/metrics")
		return strings.Contains(body, `num_requests_running{model_name="m",engine="0"} 1`)
	})
	s.control("healthy")
	s.await("the shim to wait", func() bool { return strings.Contains(s.log.String(), "before its first sleep") })
	s.control("release")
	<-answered
	s.awaitState(engine.Standby)
}

func TestFailedWakeIsFatalAndNeverRegistered(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{role: replica.RoleShadow, consul: a.Addr()})
	st := s.awaitState(engine.Standby)
	s.control("fail-wake")
	code, body := call(t, "POST", s.url+"/v1/wake")
	require.Equal(t, 500, code)
	require.Contains(t, body, "wake failed")
	require.Equal(t, 1, exitCode(s.exited()))
	s.awaitGone([]int{st.PID})
	for _, c := range a.Calls() {
		require.False(t, strings.HasPrefix(c, "register"), a.Calls())
	}
}

func TestDrainThatRunsOutOfTimeCanBeCalledOff(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr()})
	s.awaitState(engine.Active)
	go func() {
		if resp, err := http.Post(s.engine+"/v1/completions", "application/json", nil); err == nil {
			resp.Body.Close()
		}
	}()
	s.await("the request", func() bool {
		_, m := call(t, "GET", s.engine+"/metrics")
		return strings.Contains(m, `num_requests_running{model_name="m",engine="0"} 1`)
	})
	code, body := call(t, "POST", s.url+"/v1/sleep?timeout=100ms")
	require.Equal(t, 504, code)
	require.Contains(t, body, "1 requests running")
	require.Contains(t, body, `"state":"draining"`)
	require.Empty(t, a.Services())
	code, body = call(t, "POST", s.url+"/v1/wake")
	require.Equal(t, 200, code, body)
	require.True(t, registered(a.Services()))
	code, body = call(t, "POST", s.url+"/v1/drain?timeout=nonsense")
	require.Equal(t, 400, code)
	require.Contains(t, body, "nonsense")
	s.control("release")
}

func TestSickEngineLeavesRoutingAndComesBack(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr()})
	s.awaitState(engine.Active)
	s.control("unhealthy")
	a.Await(t, "a critical check", critical)
	code, body := call(t, "GET", s.url+"/live")
	require.Equal(t, 503, code)
	require.Contains(t, body, "cannot serve")
	s.control("healthy")
	a.Await(t, "a passing check", registered)
}

func TestHungEngineIsGivenUp(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr(), tune: func(c *engine.Config) {
		c.HealthTimeout, c.HangTimeout = 50*time.Millisecond, 300*time.Millisecond
	}})
	st := s.awaitState(engine.Active)
	kill(t, st.PID, syscall.SIGSTOP)
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "has failed its health checks for")
	s.awaitGone([]int{st.PID})
	require.Empty(t, a.Services())
}

// TestLogThatNobodyReads: with a full disk Nomad closes the pipe of a task's log. The shim serves
// on, and its engine does what it does by itself.
func TestLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	s := startShim(t, settings{stderr: write})
	st := s.awaitState(engine.Active)
	require.NoError(t, write.Close())
	require.NoError(t, read.Close())
	for range 3 { // each writes lines of log
		s.post("/v1/sleep", http.StatusOK)
		s.post("/v1/wake", http.StatusOK)
	}
	now := s.awaitState(engine.Active)
	require.Equal(t, st.PID, now.PID)

	// An engine that is not a Go program, which sets its own handler at the start.
	s = startShim(t, settings{command: []string{"sleep", "600"}})
	s.await("the engine's start with the signal ignored", func() bool {
		st, ok := s.status()
		if !ok || st.PID == 0 {
			return false
		}
		raw, _ := os.ReadFile("/proc/" + strconv.Itoa(st.PID) + "/status")
		_, after, _ := strings.Cut(string(raw), "SigIgn:\t")
		ignored, err := strconv.ParseUint(strings.SplitN(after, "\n", 2)[0], 16, 64)
		return err == nil && cmdline(st.PID) == "sleep 600" && ignored&(1<<(syscall.SIGPIPE-1)) != 0
	})
}

// TestConnectionsAreBounded: those that are too many wait, and silent ones make room for them.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{})
	s.awaitState(engine.Active)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/fd")
		require.NoError(t, err)
		return len(all)
	}
	before, most := descriptors(), 0
	for i := range 1500 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		defer c.Close()
		if i%4 > 0 { // the body of this one never comes
			_, err := io.WriteString(c, "GET /live HTTP/1.1\r\nHost: shim\r\nContent-Length: 10\r\n\r\n")
			require.NoError(t, err)
		}
		if i%50 == 49 {
			most = max(most, descriptors()-before)
		}
	}
	require.LessOrEqual(t, most, 1024+20)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := fresh.Get(s.url + "/state")
	require.NoError(t, err, "a connection behind all of them")
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

func TestConsulDownDoesNotStopTheEngine(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	addr := a.Addr()
	a.Stop()
	s := startShim(t, settings{consul: addr})
	st := s.awaitState(engine.Active)
	require.False(t, st.Consul.Registered)
	require.NotEmpty(t, st.Consul.LastError)
	a.Listen(t, addr)
	a.Await(t, "the late registration", registered)
	a.Forget()
	a.Await(t, "the registration after Consul forgot", registered)
}

func TestConsulThatRefusesIsFatal(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	a.Refuse(http.StatusForbidden)
	s := startShim(t, settings{consul: a.Addr()})
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "rejected by Consul")
}

func TestStaleRegistrationIsRemovedAtTheStart(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	first := startShim(t, settings{consul: a.Addr()})
	first.awaitState(engine.Active)
	// No lockd watches it, so nobody is left to deregister.
	kill(t, first.cmd.Process.Pid, syscall.SIGKILL)
	first.await("the end", func() bool { return gone(first.cmd.Process.Pid) })
	require.Len(t, a.Services(), 1)
	second := startShim(t, settings{consul: a.Addr(), loading: true})
	a.Await(t, "the removal of the stale registration", none)
	second.awaitState(engine.Init)
}

func TestForeignServerAtEngineURLIsAnError(t *testing.T) {
	t.Parallel()
	other := startShim(t, settings{})
	other.awaitState(engine.Active)
	s := startShim(t, settings{tune: func(c *engine.Config) { c.EngineURL = other.engine }})
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "engine-url "+other.engine+" is already in use")
}

func TestParentDeathEndsTheShim(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr(), parent: []string{"sh", "-c", `"$0" "$@" & wait`},
		tune: func(c *engine.Config) { c.WatchParent = true }})
	st := s.awaitState(engine.Active)
	kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
	a.Await(t, "the deregistration", none)
	s.awaitGone([]int{st.PID})
}

func TestCommandThatCannotStart(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{command: []string{"no-such-engine"}})
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), `exec: "no-such-engine": executable file not found in $PATH`)

	s = startShim(t, settings{command: []string{"false"}})
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "engine exited: exit status 1")
}

func TestConfigErrorsNameEveryField(t *testing.T) {
	t.Parallel()
	cfg := engine.Config{Role: "king", EngineURL: "ftp://x", Slots: -1}
	_, err := engine.New(cfg)
	for _, field := range []string{"command", `role is "king"`, "group", "engine-url", "slots is -1", "init-timeout", "wake-timeout",
		"drain-timeout", "stop-timeout", "health-interval", "health-timeout", "hang-timeout", "ttl", "unhealthy-after", "logger"} {
		require.ErrorContains(t, err, field)
	}
	for url, want := range map[string]string{
		"http://0.0.0.0:8000":    "clients cannot connect to that host",
		"http://127.0.0.1":       "must be http://host:port",
		"http://127.0.0.1:99999": "port must be 1 to 65535",
	} {
		cfg.EngineURL = url
		_, err := engine.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

// request sends a request that ends with control("release"), and returns once
// it runs. The channel gets its status or its error.
func (s *shim) request() <-chan string {
	s.t.Helper()
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post(s.engine+"/v1/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		answer <- resp.Status
	}()
	s.await("the request", func() bool {
		_, m := call(s.t, "GET", s.engine+"/metrics")
		return strings.Contains(m, `num_requests_running{model_name="m",engine="0"} 1`)
	})
	return answer
}

// TestStopSparesRequestsOfAnEngineThatDoesNotSay: what is unknown is not idle.
func TestStopSparesRequestsOfAnEngineThatDoesNotSay(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"bad-metrics", "no-gauges"} {
		s := startShim(t, settings{tune: func(c *engine.Config) { c.DrainTimeout = 3 * time.Second }})
		s.awaitState(engine.Active)
		answer := s.request()
		s.control(how)
		kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
		s.awaitState(engine.Draining)
		s.control("release")
		require.Equal(t, "200 OK", <-answer, how)
		require.Equal(t, 0, exitCode(s.exited()), s.log.String())
		require.Equal(t, how == "no-gauges", strings.Contains(s.log.String(), "engine does not report"), s.log.String())
	}
}

func TestDrainSaysThatItCannotTell(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{})
	s.awaitState(engine.Active)
	s.control("no-gauges")
	code, body := call(t, "POST", s.url+"/v1/drain?timeout=2s")
	require.Equal(t, http.StatusGatewayTimeout, code, body)
	require.Contains(t, body, "engine does not report")
}

func TestWakeGoesOnWithoutItsClient(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{role: replica.RoleShadow, consul: a.Addr()})
	s.awaitState(engine.Standby)
	s.control("slow-wake")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/wake", nil)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(req)
	require.Error(t, err)
	s.awaitState(engine.Active)
	require.Len(t, a.Services(), 1)
}

// TestFailedSleepIsFatal: the engine may be dead although its server answers
// (vllm#28714).
func TestFailedSleepIsFatal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"fail-sleep", "crash-sleep"} {
		a := consultest.New(t)
		s := startShim(t, settings{consul: a.Addr()})
		s.awaitState(engine.Active)
		s.control(how)
		code, body := call(t, "POST", s.url+"/v1/sleep")
		require.Equal(t, http.StatusInternalServerError, code, body)
		require.Equal(t, 1, exitCode(s.exited()))
		require.Empty(t, a.Services())
	}
}

func TestSickStandbyIsGivenUp(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{role: replica.RoleShadow, tune: func(c *engine.Config) { c.HangTimeout = 300 * time.Millisecond }})
	s.awaitState(engine.Standby)
	s.control("unhealthy")
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "it is standby and has failed its health checks")
}

// TestDrainIsCalledOffByAWake also where the engine fell asleep half way.
func TestDrainIsCalledOffByAWake(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{})
	s.awaitState(engine.Active)
	code, body := call(t, "POST", s.url+"/v1/drain")
	require.Equal(t, 200, code, body)
	code, body = call(t, "POST", s.engine+"/sleep")
	require.Equal(t, 200, code, body)
	code, body = call(t, "POST", s.url+"/v1/wake")
	require.Equal(t, 200, code, body)
	s.awaitState(engine.Active)
	_, body = call(t, "GET", s.engine+"/is_sleeping")
	require.JSONEq(t, `{"is_sleeping":false}`, body)
}

// TestSlowHealthChecksDoNotStarveTheHeartbeat: heartbeats go on, and say that all is well,
// while a check takes long.
func TestSlowHealthChecksDoNotStarveTheHeartbeat(t *testing.T) {
	t.Parallel()
	a := consultest.New(t)
	s := startShim(t, settings{consul: a.Addr(), tune: func(c *engine.Config) {
		c.TTL, c.HealthTimeout, c.HangTimeout = time.Second, 24*time.Hour, 24*time.Hour
	}})
	s.awaitState(engine.Active)
	s.control("hang-health")
	before := a.Updates()
	s.await("six heartbeats", func() bool { return a.Updates() >= before+6 })
	for _, c := range a.Calls() {
		require.NotContains(t, c, "critical")
	}
}

// TestDeregistrationIsRetried after Consul refused it for a moment, also by lockd, to which a
// shim leaves it.
func TestDeregistrationIsRetried(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]time.Duration{"the shim": 300 * time.Millisecond, "lockd": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, a := newLocks(t), consultest.New(t)
			s := l.single(a, nil)
			st := s.awaitState(engine.Active)
			a.Refuse(http.StatusInternalServerError)
			kill(t, st.PID, syscall.SIGKILL)
			again := time.AfterFunc(out, func() { a.Refuse(0) })
			defer again.Stop()
			a.Await(t, "the deregistration", none)
			require.Equal(t, 1, exitCode(s.exited()))
			require.Equal(t, name == "lockd", strings.Contains(s.log.String(), "lockd tries on"), s.log.String())
		})
	}
}
