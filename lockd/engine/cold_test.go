package engine_test

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// cold starts a shim of an engine without sleep mode, which is started only once
// it has the lock.
func (l *locks) cold(role string, a *consultest.Agent, command ...string) *shim {
	l.t.Helper()
	l.at(a)
	return startShim(l.t, settings{role: role, sleepless: true, consul: a.Addr(), command: command, tune: func(c *engine.Config) {
		c.Lock, c.Standby = l.cfg.Socket, engine.StandbyCold
	}})
}

// env is a variable of a process's environment.
func env(t *testing.T, pid int, name string) string {
	t.Helper()
	var raw []byte
	// Within execve, of which its parent is told before the end, it has none.
	require.Eventually(t, func() bool {
		var err error
		raw, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		return err != nil || len(raw) > 0
	}, 10*time.Second, time.Millisecond)
	for kv := range strings.SplitSeq(string(raw), "\x00") {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// TestColdStandby: an engine that cannot sleep holds nothing
// while another has the lock.
func TestColdStandby(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	primary := l.cold(replica.RolePrimary, a)
	st := primary.awaitState(engine.Active)
	require.False(t, st.CanSleep)
	serves(t, a, replica.RolePrimary, "2")

	shadow := l.cold(replica.RoleShadow, a)
	shadow.standby()
	// Longer than several health checks: that no engine answers is as it must be.
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		now, ok := shadow.status()
		require.True(t, ok)
		require.Equal(t, []any{engine.Standby, 0}, []any{now.State, now.PID}, "no process of an engine")
	}
	for _, path := range []string{"/live", "/ready"} {
		code, body := call(t, http.MethodGet, shadow.url+path)
		require.Equal(t, http.StatusOK, code, body)
	}
	pids := primary.leave()
	time.Sleep(afterScan)
	kill(t, st.PID, syscall.SIGKILL)
	now := shadow.awaitState(engine.Active)
	require.Equal(t, token(4), now.Token)
	primary.awaitGone(pids)
	serves(t, a, replica.RoleShadow, "4")
	kill(t, shadow.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(shadow.exited()))
	shadow.awaitGone([]int{now.PID})
}

func TestColdStandbyStops(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	l.cold(replica.RolePrimary, a).awaitState(engine.Active)
	shadow := l.cold(replica.RoleShadow, a)
	shadow.standby()
	kill(t, shadow.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(shadow.exited()))
	require.NotContains(t, shadow.log.String(), "engine started")
}

// TestColdEngineThatDoesNotStart: its shim ends, and the lock goes on.
func TestColdEngineThatDoesNotStart(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	primary := l.cold(replica.RolePrimary, a, "sh", "-c", "exit 7")
	require.Equal(t, 1, exitCode(primary.exited()))
	require.Contains(t, primary.log.String(), "exit status 7")
	shadow := l.cold(replica.RoleShadow, a)
	require.Equal(t, token(4), shadow.awaitState(engine.Active).Token)
}

// TestColdStandbyDoesNotLoadToSleep: its engines are started once they serve, so there is nothing to put to sleep.
func TestColdStandbyDoesNotLoadToSleep(t *testing.T) {
	t.Parallel()
	lock, l, a := newLocks(t), newLot(t), consultest.New(t)
	primary := lock.engine(replica.RolePrimary, a, l.tune(startWarm, func(c *engine.Config) { c.Standby = engine.StandbyCold }))
	primary.await("the lock", func() bool { st, _ := primary.status(); return st.Lock != nil && st.Lock.Held })
	st, ok := primary.status()
	require.True(t, ok)
	require.Equal(t, []any{engine.Standby, 0, false}, []any{st.State, st.PID, st.CanSleep})
	require.Contains(t, primary.post("/v1/sleep", http.StatusConflict), "no engine is loaded")
	require.True(t, l.record().Loads)
	primary.post("/v1/wake", http.StatusOK)
	require.True(t, primary.awaitState(engine.Active).CanSleep)
}
