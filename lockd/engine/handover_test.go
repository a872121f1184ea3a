package engine_test

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/client"
	"remuda/lockd/engine"
	"remuda/lockd/wire"
)

// awaitNoWaiter waits until lockd knows that no engine waits for the group's lock.
func (l *locks) awaitNoWaiter(group string) {
	l.t.Helper()
	cfg := client.DefaultConfig()
	cfg.Addr = l.cfg.Socket
	require.Eventually(l.t, func() bool {
		groups, err := client.Status(l.t.Context(), cfg)
		return err == nil && !slices.ContainsFunc(groups, func(g wire.Group) bool { return g.Group == group && g.Waiting > 0 })
	}, patience, 5*time.Millisecond)
}

// TestHandOverIsRejected: each rejection names the state and what to do, and changes nothing.
func TestHandOverIsRejected(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	dir := filepath.Join(t.TempDir(), "record")
	primary, shadow := l.pair(a, dir, nil)
	st := primary.awaitState(engine.Active)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/v1/failover?drill=perhaps":              {http.StatusBadRequest, `drill is \"perhaps\": must be empty, true or false`},
		"/v1/failover?timeout=0s":                 {http.StatusBadRequest, "must be a duration above 0"},
		"/v1/failover?since=2026-01-02T03:04:05Z": {http.StatusPreconditionFailed, "the engine's state has changed"},
	} {
		require.Contains(t, primary.post(path, want.code), want.text)
	}
	require.Contains(t, shadow.post("/v1/failover", http.StatusConflict), "engine is standby: only the engine of a pair that serves can hand over")

	kill(t, shadow.cmd.Process.Pid, syscall.SIGKILL)
	shadow.exited()
	l.awaitNoWaiter("m:v:r1")
	for _, path := range []string{"/v1/failover", "/v1/failover?drill"} {
		require.Contains(t, primary.post(path, http.StatusConflict), "no standby: no engine waits for the lock of m:v:r1: wait until the pair's other engine has started")
	}
	now, _ := primary.status()
	require.Equal(t, st.Since, now.Since, "nothing was done")

	single := l.single(consultest.New(t), func(c *engine.Config) { c.Name.ID = "r2" })
	single.awaitState(engine.Active)
	require.Contains(t, single.post("/v1/failover", http.StatusConflict), "the only one of its replica")
}

// TestHandOverWithRequests: it waits for them, and the engine serves on if they take too long, if
// the client leaves, or if the standby dies.
func TestHandOverWithRequests(t *testing.T) {
	t.Parallel()
	l, a := newLocks(t), consultest.New(t)
	dir := filepath.Join(t.TempDir(), "record")
	primary, shadow := l.pair(a, dir, nil)
	st := primary.awaitState(engine.Active)
	primary.occupy()
	body := primary.post("/v1/failover?timeout=200ms&since="+url.QueryEscape(st.Since.Format(time.RFC3339Nano)), http.StatusGatewayTimeout)
	require.Contains(t, body, "the engine serves on: not drained within 200ms: 1 requests running, 0 waiting")
	require.Contains(t, body, `"state":"active"`)
	serves(t, a, replica.RolePrimary, "2")

	order := func(ctx context.Context) <-chan int {
		code := make(chan int, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, primary.url+"/v1/failover?timeout=1h", nil)
			if err != nil {
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				code <- 0
				return
			}
			_ = resp.Body.Close()
			code <- resp.StatusCode
		}()
		return code
	}
	ctx, leave := context.WithCancel(t.Context())
	left := order(ctx)
	primary.awaitState(engine.Draining)
	require.Contains(t, primary.post("/v1/failover", http.StatusConflict), "engine is draining: a failover, a sleep or a stop is under way")
	require.Contains(t, primary.post("/v1/failover?drill", http.StatusConflict), "engine is draining")
	leave()
	require.Zero(t, <-left)
	primary.awaitState(engine.Active)
	serves(t, a, replica.RolePrimary, "2")

	answered := order(t.Context())
	primary.awaitState(engine.Draining)
	kill(t, shadow.cmd.Process.Pid, syscall.SIGKILL)
	shadow.exited()
	l.awaitNoWaiter("m:v:r1")
	primary.control("release")
	require.Equal(t, http.StatusConflict, <-answered, "the standby died during the drain")
	now := primary.awaitState(engine.Active)
	require.Equal(t, st.PID, now.PID)
	serves(t, a, replica.RolePrimary, "2")

	shadow = l.engine(replica.RoleShadow, a, func(c *engine.Config) { c.Record = dir })
	shadow.standby()
	primary.occupy()
	answered = order(t.Context())
	primary.awaitState(engine.Draining)
	primary.control("release")
	require.Equal(t, http.StatusOK, <-answered)
	require.Equal(t, engine.CauseHandOver, shadow.awaitTakeover().Takeover.Cause)
	require.Equal(t, 1, exitCode(primary.exited()), "its task starts again")
	require.NotContains(t, primary.log.String(), "after a failure")
	again := l.engine(replica.RolePrimary, a, func(c *engine.Config) { c.Record = dir })
	again.standby()
}

// TestEngineThatDiesWhileItDrains: an order that waits for requests ends with the engine that has them, so
// that its standby takes over.
func TestEngineThatDiesWhileItDrains(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"drain", "sleep", "failover"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			l, a := newLocks(t), consultest.New(t)
			dir := filepath.Join(t.TempDir(), "record")
			primary, _ := l.pair(a, dir, nil)
			st := primary.awaitState(engine.Active)
			primary.occupy()
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if resp, err := http.Post(primary.url+"/v1/"+order+"?timeout=1h", "", nil); err == nil {
					_ = resp.Body.Close()
				}
			}()
			drains := primary.awaitState(engine.Draining)
			primary.await("a round of the shim's work", func() bool { return time.Since(drains.Since) > 500*time.Millisecond })
			kill(t, st.PID, syscall.SIGKILL)
			require.Equal(t, 1, exitCode(primary.exited()))
			<-answered
			serves(t, a, replica.RoleShadow, "4")
		})
	}
}
