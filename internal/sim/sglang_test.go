package sim_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/lockd/engine/dialect"
)

func sglang(c *sim.Config) { c.API = sim.APISGLang }

// speak returns the dialect of the shim for the engine.
func (s *sim1) speak() dialect.Dialect {
	s.t.Helper()
	d, err := dialect.New(dialect.SGLang, dialect.Config{URL: s.url, Model: modelName, Client: s.http})
	require.NoError(s.t, err)
	return d
}

// TestSGLang: the shim's dialect puts it to sleep and wakes it, and the memory goes and comes.
func TestSGLang(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { sglang(c); c.Weights = weightsFile(t); c.MaxNumSeqs = 7 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := s.speak()
	require.NoError(t, d.Load(ctx))
	require.NoError(t, d.Serving(ctx))
	slots, err := d.Slots(ctx)
	require.NoError(t, err)
	require.Equal(t, 7, slots)
	for range 2 {
		require.NoError(t, d.Sleep(ctx))
		s.refused(http.MethodPost, "/v1/completions", `{"prompt":"x"}`, http.StatusServiceUnavailable)
		require.NoError(t, d.Healthy(ctx))
		require.NoError(t, d.Wake(ctx))
		s.answers()
	}
	for _, path := range []string{"/sleep", "/wake_up", "/pooling", "/v1/images/generations"} {
		require.Equal(t, http.StatusNotFound, s.status(http.MethodPost, path), path)
	}
}

func TestSGLangWithRequests(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { sglang(c); c.Rates = engine.Rates{Decode: 20} })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := s.speak()
	require.NoError(t, d.Load(ctx))
	working, leave := context.WithCancel(ctx)
	defer leave()
	resp, err := s.http.Do(s.request(working, http.MethodPost, "/v1/completions", `{"prompt":"x","max_tokens":5000,"stream":true}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.ErrorIs(t, d.Sleep(ctx), dialect.ErrBusy)
	before, err := d.Usage(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, before.Running)
	require.Eventually(t, func() bool {
		now, err := d.Usage(ctx)
		return err == nil && now.Progress != before.Progress
	}, patience, 10*time.Millisecond, "its tokens are progress")
	require.Equal(t, http.StatusBadRequest, s.status(http.MethodPost, "/flush_cache"))

	// Whoever does not look makes it die.
	_, err = s.http.Do(s.request(ctx, http.MethodPost, "/release_memory_occupation", `{}`))
	require.Error(t, err)
	require.ErrorContains(t, s.result(), "requests in flight")
}

// What SGLang's scheduler dies of.
func TestSGLangDies(t *testing.T) {
	t.Parallel()
	for name, requests := range map[string][][2]string{
		"a second release":        {{"POST", "/release_memory_occupation"}, {"POST", "/release_memory_occupation"}},
		"a resume too many":       {{"POST", "/resume_memory_occupation"}},
		"a token without weights": {{"POST", "/release_memory_occupation"}, {"GET", "/health_generate"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, sglang)
			for i, r := range requests {
				body := `{"tags":["kv_cache","weights"]}`
				if r[0] == http.MethodGet {
					body = ""
				}
				resp, err := s.http.Do(s.request(t.Context(), r[0], r[1], body))
				if i < len(requests)-1 {
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					continue
				}
				require.Error(t, err)
			}
			require.Equal(t, sim.ExitCrash, <-s.exit)
		})
	}
}
