package engine_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd"
	"remuda/lockd/engine"
)

// locks is a lockd inside the test process; its holders are processes of their
// own.
type locks struct {
	t      *testing.T
	cfg    lockd.Config
	cancel context.CancelFunc
	done   chan error
	// dead removes registrations, once there is a Consul.
	dead atomic.Pointer[consul.Deregistrar]
}

// newLocks has a holder that lockd has lost sight of be waited for long enough to come back
// on any machine.
func newLocks(t *testing.T) *locks { return newLocksOf(t, patience) }

func newLocksOf(t *testing.T, reconnect time.Duration) *locks {
	t.Helper()
	dir, err := os.MkdirTemp("", "locks")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &locks{t: t, cfg: lockd.DefaultConfig()}
	l.cfg.Socket, l.cfg.State = filepath.Join(dir, "sock"), filepath.Join(dir, "state")
	l.cfg.Times.Reconnect, l.cfg.Logger = reconnect, hclog.NewNullLogger()
	l.cfg.OnEnd = func(group, cohort string) {
		if dead := l.dead.Load(); dead != nil {
			dead.Remove(group, cohort)
		}
	}
	l.start()
	t.Cleanup(l.stop)
	return l
}

func (l *locks) start() {
	l.t.Helper()
	server, err := lockd.New(l.cfg)
	require.NoError(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.done = cancel, make(chan error, 1)
	done := l.done
	go func() { done <- server.Run(ctx) }()
}

func (l *locks) stop() {
	l.t.Helper()
	if l.cancel != nil {
		l.cancel()
		require.NoError(l.t, <-l.done)
		l.cancel = nil
	}
}

// at has dead engines removed from this Consul.
func (l *locks) at(a *consultest.Agent) *locks {
	l.t.Helper()
	if l.dead.Load() == nil {
		dead, err := consul.NewDeregistrar(consul.Address{Addr: a.Addr()}, hclog.NewNullLogger())
		require.NoError(l.t, err)
		l.dead.Store(dead)
		l.t.Cleanup(func() {
			l.stop() // it may use dead until then
			dead.Close()
		})
	}
	return l
}

// single starts a shim of an engine that is the only one of its replica.
func (l *locks) single(a *consultest.Agent, tune func(*engine.Config)) *shim {
	l.t.Helper()
	l.at(a)
	return startShim(l.t, settings{consul: a.Addr(), tune: func(c *engine.Config) {
		c.Lock = l.cfg.Socket
		if tune != nil {
			tune(c)
		}
	}})
}

// engine starts a shim of the one failover pair. Each has a lock of its own, too, so that the
// pair's n-th grant has the token 2n as long as they die and start again in turn.
func (l *locks) engine(role string, a *consultest.Agent, tune func(*engine.Config)) *shim {
	l.t.Helper()
	l.at(a)
	return startShim(l.t, settings{role: role, consul: a.Addr(), tune: func(c *engine.Config) {
		c.Lock, c.Standby = l.cfg.Socket, engine.StandbyWarm
		if tune != nil {
			tune(c)
		}
	}})
}

// standby waits until the shim is in the queue.
func (s *shim) standby() {
	s.t.Helper()
	s.await("a place in the queue", func() bool {
		st, ok := s.status()
		return ok && st.State == engine.Standby && st.Lock.Position == 1
	})
}

// serves waits until Consul lists the role alone, with the token.
func serves(t *testing.T, a *consultest.Agent, role, token string) {
	t.Helper()
	a.Await(t, "the registration of "+role, func(all []consultest.Service) bool {
		return len(all) == 1 && all[0].Meta["role"] == role && all[0].Meta["token"] == "7."+token && all[0].Status == "passing"
	})
}

func TestGrantWakesAndDeathHandsOn(t *testing.T) {
	t.Parallel()
	for name, kill9 := range map[string]func(s *shim, st engine.Status) int{
		"the engine": func(_ *shim, st engine.Status) int { return st.PID },
		"the shim":   func(s *shim, _ engine.Status) int { return s.cmd.Process.Pid },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, a := newLocks(t), consultest.New(t)
			primary := l.engine(replica.RolePrimary, a, nil)
			st := primary.awaitState(engine.Active)
			require.Equal(t, token(2), st.Token)
			require.True(t, st.Lock.Held)
			serves(t, a, replica.RolePrimary, "2")

			shadow := l.engine(replica.RoleShadow, a, nil)
			shadow.standby()
			code, body := call(t, http.MethodGet, shadow.url+"/ready")
			require.Equal(t, http.StatusOK, code, body)
			code, body = call(t, http.MethodPost, shadow.url+"/v1/wake")
			require.Equal(t, http.StatusConflict, code, body)
			require.Contains(t, body, "waits for its lock")
			_, body = call(t, http.MethodGet, shadow.engine+"/is_sleeping")
			require.JSONEq(t, `{"is_sleeping":true}`, body)

			pids := primary.leave()
			// The process that lost its environment and then its parent is known to lockd only
			// after a scan in between.
			time.Sleep(afterScan)
			kill(t, kill9(primary, st), syscall.SIGKILL)
			now := shadow.awaitState(engine.Active)
			require.Equal(t, token(4), now.Token)
			primary.exited()
			primary.awaitGone(pids)
			serves(t, a, replica.RoleShadow, "4")

			again := l.engine(replica.RolePrimary, a, nil)
			again.standby()
			code, body = call(t, http.MethodGet, again.url+"/ready")
			require.Equal(t, http.StatusOK, code, "a restarted primary is the next shadow: %s", body)
			serves(t, a, replica.RoleShadow, "4")
		})
	}
}

// token is one of the generation of these tests.
func token(counter uint64) replica.Token { return replica.Token{Generation: 7, Counter: counter} }

// TestLostLockEndsTheEngine: a lockd that has lost its state gives the lock back to nobody.
func TestLostLockEndsTheEngine(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	s := l.engine(replica.RolePrimary, a, nil)
	s.awaitState(engine.Active)
	pids := s.leave()
	l.stop()
	require.NoError(t, os.RemoveAll(l.cfg.State))
	l.start()
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "lock lost")
	s.awaitGone(pids)
	require.Empty(t, a.Services())
}

// TestEngineServesOnWithoutLockd: nobody else can have its lock meanwhile.
func TestEngineServesOnWithoutLockd(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	s := l.engine(replica.RolePrimary, a, func(c *engine.Config) { c.LockHeartbeat = time.Second })
	st := s.awaitState(engine.Active)
	l.stop()
	time.Sleep(3 * time.Second)
	now := s.awaitState(engine.Active)
	require.Equal(t, []any{st.PID, st.Since}, []any{now.PID, now.Since})
	l.start()
	shadow := l.engine(replica.RoleShadow, a, nil)
	shadow.standby()
	kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
	require.Equal(t, token(4), shadow.awaitState(engine.Active).Token)
}

// TestNextLifeWaitsForTheEndOfTheOneBefore: an engine of the same name is not started while a
// process of its earlier life is left.
func TestNextLifeWaitsForTheEndOfTheOneBefore(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	first := l.single(a, nil)
	st := first.awaitState(engine.Active)
	require.Equal(t, token(1), st.Token, "a single engine has the token of its own lock")
	second := l.single(a, nil)
	var waiting engine.Status
	second.await("the earlier life", func() bool {
		waiting, _ = second.status()
		return strings.Contains(waiting.Waits, "an earlier life of the engine still runs")
	})
	require.Equal(t, []any{engine.Init, 0}, []any{waiting.State, waiting.PID})
	pids := first.leave()
	time.Sleep(afterScan)
	kill(t, first.cmd.Process.Pid, syscall.SIGKILL)
	now := second.awaitState(engine.Active)
	for _, pid := range pids {
		require.True(t, gone(pid), cmdline(pid))
	}
	require.Equal(t, token(2), now.Token)
	serves(t, a, replica.RolePrimary, "2")
}

// TestEngineWaitsForLockd: the shim says so.
func TestEngineWaitsForLockd(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	l.stop()
	s := l.single(a, nil)
	s.await("its state", func() bool { st, ok := s.status(); return ok && st.Waits == "no answer from lockd at "+l.cfg.Socket })
	l.start()
	require.Empty(t, s.awaitState(engine.Active).Waits)
}

func TestLockdThatComesBackCostsNothing(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	s := l.engine(replica.RolePrimary, a, nil)
	st := s.awaitState(engine.Active)
	for range 3 {
		l.stop()
		l.start()
	}
	shadow := l.engine(replica.RoleShadow, a, nil)
	shadow.standby()
	now, ok := s.status()
	require.True(t, ok)
	require.Equal(t, st.PID, now.PID)
	require.Equal(t, engine.Active, now.State)
	require.Equal(t, token(2), now.Token)
}

// TestStoppedShimIsFenced: the shim of the holder hangs over a restart of lockd.
func TestStoppedShimIsFenced(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	primary := l.engine(replica.RolePrimary, a, nil)
	st := primary.awaitState(engine.Active)
	pids := primary.leave()
	shadow := l.engine(replica.RoleShadow, a, nil)
	shadow.standby()
	kill(t, primary.cmd.Process.Pid, syscall.SIGSTOP)
	l.stop()
	l.cfg.Times.Reconnect = 5 * time.Second // for the shadow, which comes back
	l.start()
	now := shadow.awaitState(engine.Active)
	require.Equal(t, token(4), now.Token)
	require.True(t, gone(st.PID), "the engine of the holder was ended first")
	primary.awaitGone(pids)
	require.Error(t, primary.exited())
	serves(t, a, replica.RoleShadow, "4")
}

// TestHungShimIsFenced although its connection stands: it gives no sign of life.
func TestHungShimIsFenced(t *testing.T) {
	t.Parallel()
	l, a := newLocksOf(t, 8*time.Second), consultest.New(t)
	primary := l.engine(replica.RolePrimary, a, func(c *engine.Config) { c.LockHeartbeat = time.Second })
	st := primary.awaitState(engine.Active)
	shadow := l.engine(replica.RoleShadow, a, func(c *engine.Config) { c.LockHeartbeat = time.Second })
	shadow.standby()
	kill(t, primary.cmd.Process.Pid, syscall.SIGSTOP)
	now := shadow.awaitState(engine.Active)
	require.Equal(t, token(4), now.Token)
	require.True(t, gone(st.PID))
	require.Error(t, primary.exited())
	serves(t, a, replica.RoleShadow, "4")
}

// TestFailedWakeHandsTheLockOn: an engine that cannot wake is never registered, and
// the next one is granted the lock.
func TestFailedWakeHandsTheLockOn(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	first := l.engine(replica.RolePrimary, a, nil)
	st := first.awaitState(engine.Active)
	second := l.engine(replica.RoleShadow, a, nil)
	second.standby()
	second.control("fail-wake")
	kill(t, st.PID, syscall.SIGKILL)
	require.Equal(t, 1, exitCode(second.exited()))
	third := l.engine(replica.RolePrimary, a, nil)
	now := third.awaitState(engine.Active)
	require.Equal(t, token(6), now.Token)
	serves(t, a, replica.RolePrimary, "6")
	for _, call := range a.Calls() {
		require.NotContains(t, call, "register m:v:r1:shadow", "it was never in Consul")
	}
	require.Equal(t, 1, exitCode(first.exited()))
}

func TestEngineThatCannotSleepNeedsNoLock(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	s := startShim(t, settings{sleepless: true, tune: func(c *engine.Config) { c.Lock, c.Standby = l.cfg.Socket, engine.StandbyWarm }})
	require.Equal(t, 1, exitCode(s.exited()))
	require.Contains(t, s.log.String(), "engine cannot sleep")
	require.True(t, strings.Contains(s.log.String(), "--enable-sleep-mode"), s.log.String())
}

// TestStartupBudget is what a start-up probe is elsewhere.
func TestStartupBudget(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{loading: true})
	s.await("its HTTP", func() bool { st, ok := s.status(); return ok && st.State == engine.Init && st.PID != 0 })
	for query, want := range map[string]int{"": 503, "?startup=1h": 200, "?startup=1ns": 503, "?startup=soon": 400, "?startup=-1s": 400} {
		code, body := call(t, http.MethodGet, s.url+"/live"+query)
		require.Equal(t, want, code, "%s: %s", query, body)
	}
}

// TestWaitingShimStops at once, wherever lockd is.
func TestWaitingShimStops(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	l.stop()
	s := l.engine(replica.RolePrimary, a, nil)
	s.awaitState(engine.Init)
	kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(s.exited()))
	require.Empty(t, a.Services())
}
