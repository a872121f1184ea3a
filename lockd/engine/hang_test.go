package engine_test

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// quick scales the times after which an engine is given up.
func quick(c *engine.Config) {
	c.HealthTimeout, c.HangTimeout = time.Second, 5*time.Second
}

// occupy sends a request that the engine does not finish by itself.
func (s *shim) occupy() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.engine+"/v1/completions", strings.NewReader("{}"))
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	s.await("the request", func() bool {
		_, body := call(s.t, http.MethodGet, s.engine+"/metrics")
		return strings.Contains(body, `num_requests_running{model_name="m",engine="0"} 1`)
	})
}

// TestEngineOfAPairThatHangs: whatever way it hangs, it is ended and its standby serves.
func TestEngineOfAPairThatHangs(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]struct {
		do  func(s *shim, st engine.Status)
		log string
	}{
		"it is stopped": {func(s *shim, st engine.Status) { kill(s.t, st.PID, syscall.SIGSTOP) }, "has failed its health checks for"},
		"it makes no token and answers for its health": {func(s *shim, _ engine.Status) {
			s.occupy()
			s.control("stall")
		}, "the engine hangs: it is active, has 1 requests and has made no token for"},
		"its health check hangs": {func(s *shim, _ engine.Status) { s.control("hang-health") }, "has failed its health checks for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, a := newLocks(t), consultest.New(t)
			primary := l.engine(replica.RolePrimary, a, quick)
			st := primary.awaitState(engine.Active)
			shadow := l.engine(replica.RoleShadow, a, quick)
			shadow.standby()
			hang.do(primary, st)
			require.Equal(t, token(4), shadow.awaitState(engine.Active).Token)
			require.True(t, gone(st.PID), "the engine was ended first")
			require.Equal(t, 1, exitCode(primary.exited()))
			require.Contains(t, primary.log.String(), hang.log)
			require.NotContains(t, primary.log.String(), `to=draining`, "there is nothing that it could finish")
			serves(t, a, replica.RoleShadow, "4")
		})
	}
}

// TestEngineThatHangsInItsWake: the wake has a deadline, and the next in the queue gets the lock.
func TestEngineThatHangsInItsWake(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	first := l.engine(replica.RolePrimary, a, nil)
	st := first.awaitState(engine.Active)
	second := l.engine(replica.RoleShadow, a, func(c *engine.Config) { c.WakeTimeout = 5 * time.Second })
	second.standby()
	second.control("hang-wake")
	kill(t, st.PID, syscall.SIGKILL)
	second.awaitState(engine.Waking)
	require.Equal(t, 1, exitCode(first.exited()))
	third := l.engine(replica.RolePrimary, a, nil)
	require.Equal(t, 1, exitCode(second.exited()))
	require.Contains(t, second.log.String(), "wake failed after ")
	require.Equal(t, token(6), third.awaitState(engine.Active).Token)
	serves(t, a, replica.RolePrimary, "6")
	for _, call := range a.Calls() {
		require.NotContains(t, call, "register m:v:r1:shadow", "it was never in Consul")
	}
}

// TestHangTimeout: a standby that waits takes over soon, and all others cost a load of the model.
func TestHangTimeout(t *testing.T) {
	for standby, want := range map[string]time.Duration{
		engine.StandbyWarm: 5 * time.Second,
		engine.StandbyCold: 30 * time.Second,
		engine.StandbyNone: 30 * time.Second,
	} {
		require.Equal(t, want, engine.HangTimeout(standby), standby)
	}
	require.Equal(t, 30*time.Second, engine.DefaultConfig().HangTimeout)
}

// TestEngineThatWorksIsNotEnded: a request may take as long as it takes, and an engine without
// requests makes no token.
func TestEngineThatWorksIsNotEnded(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{tune: func(c *engine.Config) { c.HangTimeout = 300 * time.Millisecond }})
	st := s.awaitState(engine.Active)
	time.Sleep(time.Second)
	s.occupy()
	time.Sleep(time.Second)
	now := s.awaitState(engine.Active)
	require.Equal(t, st.Since, now.Since)
	s.control("stall")
	require.Equal(t, 1, exitCode(s.exited()))
}

// TestStopOfAHungEngine does not wait for requests that the engine cannot finish.
func TestStopOfAHungEngine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		hangTimeout time.Duration
		hang        string
		log         string
	}{
		"known before the stop":     {time.Hour, "hang-health", "stopping the engine without a drain"},
		"found while it is drained": {3 * time.Second, "stall", "the engine failed while it drained"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startShim(t, settings{tune: func(c *engine.Config) {
				c.HealthTimeout, c.HangTimeout, c.DrainTimeout = 100*time.Millisecond, tc.hangTimeout, time.Hour
			}})
			s.awaitState(engine.Active)
			s.occupy()
			s.control(tc.hang)
			if tc.hang == "hang-health" {
				s.await("an unhealthy engine", func() bool { st, ok := s.status(); return ok && st.Unhealthy != "" })
			}
			kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
			require.Equal(t, 0, exitCode(s.exited()))
			require.Contains(t, s.log.String(), tc.log)
		})
	}
}
