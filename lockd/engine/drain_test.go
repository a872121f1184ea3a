package engine_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// TestDrainThatNothingFollows: one stray request must not take an engine out of service.
func TestDrainThatNothingFollows(t *testing.T) {
	t.Parallel()
	hold := func(d time.Duration) func(*engine.Config) { return func(c *engine.Config) { c.DrainHold = d } }
	t.Run("it ends by itself", func(t *testing.T) {
		t.Parallel()
		a := consultest.New(t)
		s := startShim(t, settings{consul: a.Addr(), tune: hold(3 * time.Second)})
		st := s.awaitState(engine.Active)
		s.post("/v1/drain", http.StatusOK)
		require.Empty(t, a.Services())
		a.Await(t, "the registration", registered)
		now := s.awaitState(engine.Active)
		require.Equal(t, st.PID, now.PID)
	})
	t.Run("also one that was not complete in time", func(t *testing.T) {
		t.Parallel()
		s := startShim(t, settings{tune: hold(300 * time.Millisecond)})
		s.awaitState(engine.Active)
		s.occupy()
		s.post("/v1/drain?timeout=50ms", http.StatusGatewayTimeout)
		s.awaitState(engine.Active)
	})
	t.Run("its client leaves", func(t *testing.T) {
		t.Parallel()
		s := startShim(t, settings{tune: hold(time.Hour)})
		s.awaitState(engine.Active)
		s.occupy()
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/drain?timeout=1h", nil)
			if err != nil {
				return
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		s.awaitState(engine.Draining)
		leave()
		<-left
		s.awaitState(engine.Active)
	})
	t.Run("a sleep follows", func(t *testing.T) {
		t.Parallel()
		s := startShim(t, settings{tune: hold(300 * time.Millisecond)})
		s.awaitState(engine.Active)
		s.post("/v1/drain", http.StatusOK)
		s.post("/v1/sleep", http.StatusOK)
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			st, ok := s.status()
			require.True(t, ok)
			require.Equal(t, engine.Standby, st.State)
		}
	})
}

// TestSecretOfATask: the shim takes it from the environment or from the task's directory of
// secrets, and its engine never sees it.
func TestSecretOfATask(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "remuda-shim"), []byte("open sesame\n"), 0o600))
	for name, env1 := range map[string]string{
		"the environment": "REMUDA_SHIM_SECRET=open sesame", "a file": "NOMAD_SECRETS_DIR=" + dir,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startShim(t, settings{env: []string{env1}})
			st := s.awaitState(engine.Active)
			require.Empty(t, env(t, st.PID, "REMUDA_SHIM_SECRET"))
			for _, path := range []string{"/v1/drain", "/v1/sleep", "/v1/wake", "/v1/failover"} {
				require.Contains(t, s.post(path, http.StatusUnauthorized), "missing secret")
			}
			code, body := call(t, http.MethodGet, s.url+"/v1/takeover")
			require.Equal(t, http.StatusUnauthorized, code, body)
			require.Equal(t, st.Since, s.awaitState(engine.Active).Since, "nothing was done")
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/sleep", nil)
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer open sesame")
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			s.awaitState(engine.Standby)
			require.NotContains(t, s.log.String(), "sesame")
		})
	}
	t.Run("an empty file", func(t *testing.T) {
		t.Parallel()
		empty := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(empty, "remuda-shim"), []byte("\n"), 0o600))
		s := startShim(t, settings{env: []string{"NOMAD_SECRETS_DIR=" + empty}})
		require.Equal(t, 1, exitCode(s.exited()))
		require.Contains(t, s.log.String(), "remuda-shim is empty")
	})
	t.Run("a key that is none", func(t *testing.T) {
		t.Parallel()
		s := startShim(t, settings{env: []string{"REMUDA_CONTROLLER_KEY=abc"}})
		require.Equal(t, 1, exitCode(s.exited()))
		require.Contains(t, s.log.String(), `$REMUDA_CONTROLLER_KEY is "abc": must be an Ed25519 public key`)
	})
}
