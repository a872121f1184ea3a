package sim_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/fault"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// raw sends a request and returns what arrived of the answer and the error
// that ended it.
func (s *sim1) raw(path, body string) (string, error) {
	s.t.Helper()
	resp, err := s.http.Do(s.request(s.t.Context(), http.MethodPost, path, body))
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// code waits for the engine's crash.
func (s *sim1) code() int {
	s.t.Helper()
	select {
	case c := <-s.exit:
		return c
	case <-time.After(patience):
		require.FailNow(s.t, "no crash")
		return 0
	}
}

const (
	whole20  = `{"prompt":"x","max_tokens":20,"ignore_eos":true}`
	stream20 = `{"prompt":"x","max_tokens":20,"ignore_eos":true,"stream":true}`
)

func want(tokens int) string {
	return answers.Generate(modelName, "x", text.Params{MaxTokens: tokens, IgnoreEOS: true}).Text
}

func TestFaultSwitches(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.Faults = fault.Set{FailHealth: false, SlowFactor: 1.5} })
	get := func() string { _, b := s.do(http.MethodGet, "/sim/faults", ""); return b }
	assert.JSONEq(t, `{"slow_factor":1.5}`, get(), "the configuration's")
	s.fault(`{"slow_latency":"1ms","fail_health":true}`)
	assert.JSONEq(t, `{"slow_factor":1.5,"slow_latency":"1ms","fail_health":true}`, get())
	assert.InDelta(t, 1, s.metrics()["remuda_sim_faulty"], 0)
	assert.Equal(t, http.StatusServiceUnavailable, s.status(http.MethodGet, "/health"))
	assert.Equal(t, http.StatusServiceUnavailable, s.status(http.MethodGet, "/ping"))
	s.answers()
	status, body := s.do(http.MethodDelete, "/sim/faults", "")
	assert.Equal(t, http.StatusOK, status)
	assert.JSONEq(t, `{}`, body)
	assert.JSONEq(t, `{}`, get())
	assert.Equal(t, http.StatusOK, s.status(http.MethodGet, "/health"))
	s.answers()
}

func TestError500(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"error500":true}`)
	for _, body := range []string{whole20, stream20} {
		e := s.refused(http.MethodPost, "/v1/completions", body, http.StatusInternalServerError)
		assert.Equal(t, "InternalServerError", e.Error.Type)
	}
	s.refused(http.MethodPost, "/v1/embeddings", `{"input":"x"}`, http.StatusInternalServerError)
	s.fault(`{"error500":false,"error500_every":3}`)
	for range 2 {
		s.answers()
		s.answers()
		s.refused(http.MethodPost, "/v1/completions", whole20, http.StatusInternalServerError)
	}
}

func TestDrop(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"drop_after_tokens":5}`)
	got, err := s.raw("/v1/completions", stream20)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, 5, strings.Count(got, "data: "))
	assert.NotContains(t, got, "[DONE]")
	got, err = s.raw("/v1/completions", whole20)
	require.Error(t, err)
	assert.Empty(t, got)
	s.idle()
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"garbage":"sse","garbage_after_tokens":3}`)
	got, err := s.raw("/v1/completions", stream20)
	require.NoError(t, err)
	assert.Equal(t, 3, strings.Count(got, "data: "))
	assert.Contains(t, got, "\xff\xfe\x00garbage")
	got, err = s.raw("/v1/completions", whole20)
	require.NoError(t, err)
	assert.Contains(t, got, "\xff\xfe\x00garbage")

	s.fault(`{"garbage":"json","garbage_after_tokens":2}`)
	got, err = s.raw("/v1/completions", stream20)
	require.NoError(t, err)
	assert.Equal(t, 3, strings.Count(got, "data: "), "the third is cut short")
	assert.NotContains(t, got, "[DONE]")
	events := strings.Split(strings.TrimSuffix(got, "\n\n"), "\n\n")
	assert.True(t, strings.HasSuffix(events[1], "}"))
	assert.False(t, strings.HasSuffix(events[2], "}"))
	got, err = s.raw("/v1/completions", whole20)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(got, "{") && !strings.HasSuffix(got, "}"))

	s.fault(`{"garbage":"http"}`)
	for _, body := range []string{whole20, stream20} {
		_, err = s.raw("/v1/completions", body)
		require.ErrorContains(t, err, "malformed HTTP")
	}
	s.idle()
}

func TestFirstTokenDelay(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"first_token_delay":"100ms"}`)
	for _, body := range []string{whole20, stream20} {
		begin := time.Now()
		got, err := s.raw("/v1/completions", body)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
		assert.NotEmpty(t, got)
	}
}

func TestHangGeneration(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"hang":"generation"}`)
	done := make(chan string, 1)
	go func() {
		got, _ := s.raw("/v1/completions", whole20)
		done <- got
	}()
	require.Eventually(t, func() bool { return s.metrics()["vllm:num_requests_waiting"] == 1 }, patience, time.Millisecond)
	assert.Equal(t, http.StatusOK, s.status(http.MethodGet, "/health"), "a stuck engine looks healthy")
	select {
	case got := <-done:
		t.Fatalf("an answer came: %s", got)
	default:
	}
	s.fault(`{"hang":null}`)
	assert.Contains(t, <-done, `"finish_reason":"length"`)
}

func TestHangAll(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"hang":"all"}`)
	for _, path := range []string{"/health", "/metrics", "/v1/models", "/is_sleeping"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := s.http.Do(s.request(ctx, http.MethodGet, path, ""))
		require.ErrorIs(t, err, context.DeadlineExceeded, path)
		cancel()
	}
	for _, path := range []string{"/v1/completions", "/wake_up"} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := s.http.Do(s.request(ctx, http.MethodPost, path, whole20))
		require.ErrorIs(t, err, context.DeadlineExceeded, path)
		cancel()
	}
	status, _ := s.do(http.MethodDelete, "/sim/faults", "")
	assert.Equal(t, http.StatusOK, status)
	s.answers()
}

func TestCrash(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"crash":true}`)
	assert.Equal(t, sim.ExitCrash, s.code())
}

func TestCrashAfterTokens(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.answers()
	s.fault(`{"crash_after_tokens":6}`)
	st := s.stream(t.Context(), "/v1/completions", stream20)
	var got string
	for range 6 {
		e, ok := st.next()
		require.True(t, ok)
		got += e.Choices[0].Text
	}
	assert.Equal(t, want(6), got, "what was generated reached the wire")
	assert.Equal(t, sim.ExitCrash, s.code())
	_ = st.resp.Body.Close()
}

func TestFailingWake(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.Weights = weightsFile(t) })
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	s.fault(`{"wake":"error"}`)
	s.refused(http.MethodPost, "/wake_up", "", http.StatusInternalServerError)
	assert.True(t, s.asleep())

	s.fault(`{"wake":"hang"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	_, err := s.http.Do(s.request(ctx, http.MethodPost, "/wake_up", ""))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancel()
	assert.True(t, s.asleep())
	done := make(chan int, 1)
	go func() { done <- s.status(http.MethodPost, "/wake_up") }()
	assert.True(t, s.asleep(), "is_sleeping answers meanwhile")
	s.fault(`{"wake":""}`)
	assert.Equal(t, http.StatusOK, <-done)
	assert.False(t, s.asleep())
	s.answers()

	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	s.fault(`{"wake":"crash"}`)
	_, err = s.http.Do(s.request(t.Context(), http.MethodPost, "/wake_up", ""))
	require.Error(t, err, "a crash does not answer")
	assert.Equal(t, sim.ExitCrash, s.code())
}

func TestLeak(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	s := start(t, func(c *sim.Config) { c.Weights, c.Faults = weightsFile(t), fault.Set{LeakBytes: 3 * mib} })
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	assert.InDelta(t, 3*mib, s.metrics()["remuda_sim_device_memory_bytes"], 0)
	s.fault(`{"leak_bytes":0}`)
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/wake_up"))
	assert.InDelta(t, 4*mib, s.metrics()["remuda_sim_device_memory_bytes"], 0, "what leaked stays")
	s.answers()
}

// TestFaultsOfEmbeddings: what holds for any answer holds for these.
func TestFaultsOfEmbeddings(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const body = `{"input":"x"}`
	whole, err := s.raw("/v1/embeddings", body)
	require.NoError(t, err)
	s.fault(`{"garbage":"json"}`)
	got, err := s.raw("/v1/embeddings", body)
	require.NoError(t, err)
	assert.Len(t, got, len(whole)/2)
	s.fault(`{"garbage":"","drop_after_tokens":1}`)
	_, err = s.raw("/v1/embeddings", body)
	require.Error(t, err)
	s.fault(`{"drop_after_tokens":0,"first_token_delay":"100ms"}`)
	begin := time.Now()
	_, err = s.raw("/v1/embeddings", body)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
}

func TestFaultsAtTheLastToken(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.fault(`{"drop_after_tokens":20}`)
	got, err := s.raw("/v1/completions", stream20)
	require.Error(t, err)
	assert.NotContains(t, got, "[DONE]")
	s.fault(`{"drop_after_tokens":0,"garbage":"sse","garbage_after_tokens":20}`)
	got, err = s.raw("/v1/completions", stream20)
	require.NoError(t, err)
	assert.Contains(t, got, "garbage")
	assert.NotContains(t, got, "[DONE]")
}

func TestCrashByConfiguration(t *testing.T) {
	t.Parallel()
	s := launch(t, func(c *sim.Config) { c.Faults.Crash = true })
	assert.Equal(t, sim.ExitCrash, s.code())
}

// TestHangingWakeThatFailsInTheEnd: the switch counts at the end of the hang.
func TestHangingWakeThatFailsInTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	s.fault(`{"wake":"hang"}`)
	woken := make(chan int, 1)
	go func() {
		resp, err := s.http.Post(s.url+"/wake_up", "", nil)
		if err != nil {
			woken <- 0
			return
		}
		_ = resp.Body.Close()
		woken <- resp.StatusCode
	}()
	// It hangs once nothing else gets its turn to sleep or wake.
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := s.http.Do(s.request(ctx, http.MethodPost, "/sleep", ""))
		if err == nil {
			_ = resp.Body.Close()
		}
		return errors.Is(err, context.DeadlineExceeded)
	}, patience, time.Millisecond)
	require.Empty(t, woken)
	s.fault(`{"wake":"error"}`)
	assert.Equal(t, http.StatusInternalServerError, <-woken)
	assert.True(t, s.asleep())
}

// TestWakeThatIsGivenUp: a client that leaves is noticed although nobody reads
// its body.
func TestWakeThatIsGivenUp(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	s.fault(`{"wake":"hang"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.http.Do(s.request(ctx, http.MethodPost, "/wake_up", "{}"))
	require.Error(t, err)
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"), "the slot is free again")
	s.fault(`{"wake":""}`)
	assert.True(t, s.asleep(), "nobody wakes it any more")
}
