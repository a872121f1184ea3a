package sim_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/text"
	"remuda/internal/sim/weights"
	"remuda/internal/testkit/answers"
)

func (s *sim1) answers() {
	s.t.Helper()
	var r response
	s.ok("/v1/completions", `{"prompt":"x","max_tokens":9}`, &r)
	require.Equal(s.t, answers.Complete(modelName, "x", 9).Text, r.Choices[0].Text)
}

func (s *sim1) asleep() bool {
	s.t.Helper()
	_, body := s.do(http.MethodGet, "/is_sleeping", "")
	return body == `{"is_sleeping":true}`
}

func TestSleepAndWake(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	s := start(t, func(c *sim.Config) { c.Weights = weightsFile(t) })
	check := func(state string, device, host float64) {
		t.Helper()
		m := s.metrics()
		assert.InDelta(t, 1, m["vllm:engine_sleep_state{sleep_state="+state+"}"], 0, state)
		assert.InDelta(t, 1, m["vllm:engine_sleep_state{sleep_state=awake}"]+
			m["vllm:engine_sleep_state{sleep_state=weights_offloaded}"]+m["vllm:engine_sleep_state{sleep_state=discard_all}"], 0)
		assert.InDelta(t, device, m["remuda_sim_device_memory_bytes"], 0)
		assert.InDelta(t, host, m["remuda_sim_host_memory_bytes"], 0)
		assert.Equal(t, state != "awake", s.asleep())
		assert.Equal(t, http.StatusOK, s.status(http.MethodGet, "/health"), "a sleeping engine is healthy")
	}
	post := func(path string) {
		t.Helper()
		status, body := s.do(http.MethodPost, path, "")
		require.Equal(t, http.StatusOK, status, body)
		assert.Empty(t, body)
	}
	check("awake", mib, 0)
	post("/wake_up") // nothing to do
	post("/sleep")
	check("weights_offloaded", 0, mib)
	e := s.refused(http.MethodPost, "/v1/completions", `{"prompt":"x"}`, http.StatusServiceUnavailable)
	assert.Contains(t, e.Error.Message, "asleep")
	s.refused(http.MethodPost, "/v1/embeddings", `{"input":"x"}`, http.StatusServiceUnavailable)
	s.refused(http.MethodPost, "/v1/chat/completions", `{"stream":true,`+hello+`}`, http.StatusServiceUnavailable)
	post("/sleep?level=1") // again
	post("/sleep?level=2") // deeper
	check("discard_all", 0, 0)
	post("/sleep?level=1") // what is gone stays gone
	check("discard_all", 0, 0)
	post("/wake_up")
	check("awake", mib, 0)
	s.answers()

	post("/sleep?level=1")
	post("/wake_up?tags=weights")
	check("weights_offloaded", mib, 0)
	s.refused(http.MethodPost, "/v1/completions", `{"prompt":"x"}`, http.StatusServiceUnavailable)
	post("/wake_up?tags=kv_cache")
	check("awake", mib, 0)
	s.answers()
	post("/sleep?level=2")
	post("/wake_up?tags=kv_cache&tags=weights")
	check("awake", mib, 0)
	s.answers()
}

// TestSleepWithRequestsInFlight is vllm#28714 and #45520: 200, and then death.
func TestSleepWithRequestsInFlight(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.Weights, c.Rates = weightsFile(t), engine.Rates{Decode: 20} })
	st := s.stream(t.Context(), "/v1/completions", `{"prompt":"x","max_tokens":5000,"ignore_eos":true,"stream":true}`)
	_, ok := st.next()
	require.True(t, ok)
	status, _ := s.do(http.MethodPost, "/sleep?level=1", "")
	assert.Equal(t, http.StatusOK, status, "the misleading answer")
	events := st.all()
	assert.Equal(t, "abort", *events[len(events)-1].Choices[0].Finish)
	require.ErrorContains(t, s.result(), "sleep with 1 requests in flight")
}

func TestDamagedWeightsEndTheProcess(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"1", "2"} {
		s := start(t, func(c *sim.Config) { c.Weights = weightsFile(t) })
		require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep?level="+level))
		s.fault(`{"wake":"corrupt"}`)
		e := s.refused(http.MethodPost, "/wake_up", "", http.StatusInternalServerError)
		assert.Contains(t, e.Error.Message, "weights digest mismatch")
		require.ErrorIs(t, s.result(), weights.ErrDigest)
	}
}

func TestDamageOnDiskEndsTheProcess(t *testing.T) {
	t.Parallel()
	path := weightsFile(t)
	s := start(t, func(c *sim.Config) { c.Weights = path })
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep?level=2"))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	s.refused(http.MethodPost, "/wake_up", "", http.StatusInternalServerError)
	require.ErrorIs(t, s.result(), weights.ErrDigest)
}

func TestStartFailsWithoutSoundWeights(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(weightsFile(t))
	require.NoError(t, err)
	flipped := append([]byte(nil), whole...)
	flipped[len(flipped)/2] ^= 1
	path := func(content []byte) string {
		p := filepath.Join(t.TempDir(), "w")
		require.NoError(t, os.WriteFile(p, content, 0o600))
		return p
	}
	for name, tt := range map[string]struct {
		path string
		want error
	}{
		"missing":   {filepath.Join(t.TempDir(), "none"), os.ErrNotExist},
		"truncated": {path(whole[:len(whole)-1]), weights.ErrFormat},
		"damaged":   {path(flipped), weights.ErrDigest},
		"empty":     {path(nil), weights.ErrFormat},
		"directory": {t.TempDir(), weights.ErrFormat},
	} {
		s := launch(t, func(c *sim.Config) { c.Weights = tt.path })
		err := s.result()
		require.ErrorIs(t, err, tt.want, name)
		require.ErrorContains(t, err, tt.path, name)
	}
}

func TestInitDelay(t *testing.T) {
	t.Parallel()
	const delay = 6 * time.Second // the requests below come before
	begin := time.Now()
	s := launch(t, func(c *sim.Config) { c.InitDelay = delay })
	assert.Equal(t, http.StatusServiceUnavailable, s.status(http.MethodGet, "/health"))
	e := s.refused(http.MethodPost, "/v1/completions", `{"prompt":"x"}`, http.StatusServiceUnavailable)
	assert.Contains(t, e.Error.Message, "starting")
	s.refused(http.MethodPost, "/sleep", "", http.StatusServiceUnavailable)
	s.metrics() // answers at any time
	require.Eventually(t, func() bool { return s.status(http.MethodGet, "/health") == http.StatusOK }, patience, time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(begin), delay)
	s.answers()
}

func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	s := launch(t, func(c *sim.Config) { c.InitDelay = time.Hour })
	s.stop()
	require.NoError(t, s.result())
}

func TestStopLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.Rates, c.DrainTimeout = engine.Rates{Decode: 100}, patience })
	const body = `{"prompt":"x","max_tokens":30,"ignore_eos":true,"stream":true}`
	st := s.stream(t.Context(), "/v1/completions", body)
	first, ok := st.next()
	require.True(t, ok)
	s.stop()
	texts, reasons, _ := collect(t, append([]response{first}, st.all()...))
	assert.Equal(t, answers.Generate(modelName, "x", text.Params{MaxTokens: 30, IgnoreEOS: true}).Text, texts[0])
	assert.Equal(t, "length", reasons[0])
	require.NoError(t, s.result())
	_, err := s.http.Do(s.request(t.Context(), http.MethodGet, "/health", ""))
	require.Error(t, err, "nothing listens any more")
}

func TestStopCutsOffAtTheDrainTimeout(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) {
		c.Rates, c.DrainTimeout = engine.Rates{Decode: 1}, 50*time.Millisecond
	})
	st := s.stream(t.Context(), "/v1/completions", `{"prompt":"x","max_tokens":5000,"ignore_eos":true,"stream":true}`)
	_, ok := st.next()
	require.True(t, ok)
	s.stop()
	require.NoError(t, s.result())
	rest, err := io.ReadAll(st.r)
	require.Error(t, err, "the stream does not look complete")
	assert.NotContains(t, string(rest), "[DONE]")
}

// TestStopWithAnUnusedConnection: a probe that never sent a request is no
// request to wait for.
func TestStopWithAnUnusedConnection(t *testing.T) {
	t.Parallel()
	const within = 4 * time.Second // Shutdown alone waits for five
	took := within
	for try := 0; took >= within && try < 3; try++ { // a loaded machine may be slow by itself once
		s := start(t, func(c *sim.Config) { c.DrainTimeout = time.Hour })
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.Equal(t, http.StatusOK, s.status(http.MethodGet, "/health"), "the server has accepted both")
		begin := time.Now()
		s.stop()
		require.NoError(t, s.result())
		took = time.Since(begin)
	}
	assert.Less(t, took, within)
}

func TestStopWhileHanging(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.DrainTimeout = 50 * time.Millisecond })
	s.fault(`{"hang":"all"}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := make(chan error, 1)
	go func() {
		resp, err := s.http.Do(s.request(ctx, http.MethodGet, "/health", ""))
		if err == nil {
			_ = resp.Body.Close()
		}
		hung <- err
	}()
	s.stop()
	require.NoError(t, s.result())
	require.Error(t, <-hung)
}

// TestMoveToOtherGPUs: while it sleeps, and the next wake is there.
func TestMoveToOtherGPUs(t *testing.T) {
	t.Parallel()
	const from, to = "GPU-sim-move-from", "GPU-sim-move-to"
	s := start(t, func(c *sim.Config) { c.Weights, c.GPUs = weightsFile(t), []string{from} })
	on := func(gpu string) bool {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Contains(string(maps), "/memfd:remuda-sim-device:"+gpu+" ")
	}
	gpus := func() string {
		status, body := s.do(http.MethodGet, "/sim/gpus", "")
		require.Equal(t, http.StatusOK, status)
		return body
	}
	require.JSONEq(t, `{"gpus":["`+from+`"]}`, gpus())
	require.True(t, on(from))
	e := s.refused(http.MethodPost, "/sim/gpus", `{"gpus":["`+to+`"]}`, http.StatusConflict)
	assert.Contains(t, e.Error.Message, "the weights are on the device")
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep?level=1"))
	require.False(t, on(from))
	for _, bad := range []string{`{}`, `{"gpus":[]}`, `{"gpus":[""]}`, `[]`} {
		s.refused(http.MethodPost, "/sim/gpus", bad, http.StatusBadRequest)
	}
	status, body := s.do(http.MethodPost, "/sim/gpus", `{"gpus":["`+to+`"]}`)
	require.Equal(t, http.StatusOK, status, body)
	require.JSONEq(t, `{"gpus":["`+to+`"]}`, gpus())
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/wake_up"))
	require.True(t, on(to))
	require.False(t, on(from))
	s.answers()
}
