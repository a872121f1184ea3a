package sim_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.MaxModelLen, c.MaxBody = 100, 2<<20 })
	// 1 MiB of words is far beyond the context.
	mebibyte := strings.Repeat("The quiet horse rests. ", 1<<20/23)
	tests := []struct {
		name, method, path, body string
		status                   int
		typ, param, message      string
	}{
		{"unknown route", "GET", "/v1/nothing", "", 404, "Not Found", "", "Not Found"},
		{"trailing slash", "GET", "/v1/models/", "", 404, "Not Found", "", "Not Found"},
		{"wrong method", "GET", "/v1/chat/completions", "", 405, "Method Not Allowed", "", "Method Not Allowed"},
		{"wrong method on health", "PUT", "/health", "", 405, "Method Not Allowed", "", ""},
		{"get a sleep", "GET", "/sleep", "", 405, "Method Not Allowed", "", ""},
		{"not JSON", "POST", "/v1/chat/completions", "hello", 400, "BadRequestError", "", "not valid JSON"},
		{"unknown model", "POST", "/v1/chat/completions", `{"model":"other",` + hello + `}`, 404, "NotFoundError", "model", "The model `other` does not exist."},
		{"unknown model in a stream", "POST", "/v1/completions", `{"model":"other","prompt":"a","stream":true}`, 404, "NotFoundError", "model", ""},
		{"unknown model for an embedding", "POST", "/v1/embeddings", `{"model":"other","input":"a"}`, 404, "NotFoundError", "model", ""},
		{"bad parameter", "POST", "/v1/completions", `{"prompt":"a","temperature":-1}`, 400, "BadRequestError", "temperature", "non-negative"},
		{"prompt of 1 MiB", "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, mebibyte), 400, "BadRequestError", "input_tokens", "maximum context length is 100 tokens"},
		{"prompt and answer too long", "POST", "/v1/completions", `{"prompt":"a b","max_tokens":99}`, 400, "BadRequestError", "input_tokens", "a total of 101 tokens"},
		{"more tokens than a number holds", "POST", "/v1/completions", `{"prompt":"a b","max_tokens":9223372036854775807}`, 400, "BadRequestError", "input_tokens", "a total of 9223372036854775809 tokens"},
		{"several greedy answers", "POST", "/v1/completions", `{"prompt":"a","n":2,"temperature":0}`, 400, "BadRequestError", "n", "n must be 1 when using greedy sampling, got 2."},
		{"top_logprobs without logprobs", "POST", "/v1/chat/completions", `{"top_logprobs":2,` + hello + `}`, 400, "BadRequestError", "top_logprobs", "`logprobs` must be set to true"},
		{"too many logprobs", "POST", "/v1/completions", `{"prompt":"a","logprobs":21}`, 400, "BadRequestError", "logprobs", "at most 20, got 21"},
		{"foreign tool", "POST", "/v1/chat/completions", `{"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}},` + hello + `}`, 400, "BadRequestError", "tool_choice", `the tool "g"`},
		{"unknown tool choice", "POST", "/v1/chat/completions", `{"tool_choice":"any",` + hello + `}`, 400, "BadRequestError", "tool_choice", `got "any"`},
		{"required without tools", "POST", "/v1/chat/completions", `{"tool_choice":"required",` + hello + `}`, 400, "BadRequestError", "tool_choice", "no tools"},
		{"unknown format", "POST", "/v1/chat/completions", `{"response_format":{"type":"xml"},` + hello + `}`, 400, "BadRequestError", "response_format", `got "xml"`},
		{"bad schema", "POST", "/v1/chat/completions", `{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"any"}}},` + hello + `}`, 400, "BadRequestError", "response_format", `the type "any"`},
		{"wrong type", "POST", "/v1/completions", `{"prompt":"a","temperature":"x"}`, 400, "BadRequestError", "temperature", "temperature: must be a number, got string"},
		{"embedding too long", "POST", "/v1/embeddings", fmt.Sprintf(`{"input":%q}`, mebibyte), 400, "BadRequestError", "input", "maximum context length"},
		{"body too large", "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, mebibyte+mebibyte+mebibyte), 413, "Request Entity Too Large", "", "2097152 bytes"},
		{"too many answers", "POST", "/v1/completions", `{"prompt":["a"` + strings.Repeat(`,"a"`, 99) + `],"n":100}`, 400, "BadRequestError", "n", "10000 answers"},
		{"bad sleep level", "POST", "/sleep?level=3", "", 400, "BadRequestError", "level", "must be 1 or 2"},
		{"bad wake tag", "POST", "/wake_up?tags=everything", "", 400, "BadRequestError", "tags", `got "everything"`},
		{"bad fault", "POST", "/sim/faults", `{"slow":1}`, 400, "BadRequestError", "", "unknown field"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := s.in(t)
			e := s.refused(tt.method, tt.path, tt.body, tt.status)
			assert.Equal(t, tt.typ, e.Error.Type)
			assert.Equal(t, tt.param, orEmpty(e.Error.Param))
			assert.Contains(t, e.Error.Message, tt.message)
		})
	}
}

func TestContextIsUsedToTheLastToken(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.MaxModelLen = 100 })
	var r response
	s.ok("/v1/completions", `{"prompt":"a b","max_tokens":98,"ignore_eos":true}`, &r)
	assert.Equal(t, 100, r.Usage.Total)
	s.ok("/v1/chat/completions", `{"ignore_eos":true,`+hello+`}`, &r)
	assert.Equal(t, 100, r.Usage.Total, "without a limit a chat may use the whole context")
}

func TestAllowHeader(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	resp, err := s.http.Do(s.request(t.Context(), http.MethodPut, "/sim/faults", ""))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "DELETE, GET, POST", resp.Header.Get("Allow"))
}

func TestContentType(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for contentType, status := range map[string]int{
		"application/json": 200, "Application/JSON; charset=utf-8": 200,
		"": 400, "text/plain": 400, "application/x-www-form-urlencoded": 400,
	} {
		req := s.request(t.Context(), http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":1}`)
		req.Header.Set("Content-Type", contentType)
		resp, err := s.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, status, resp.StatusCode, contentType)
	}
}

func TestChunkedBodyIsLimitedToo(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.MaxBody = 1000 })
	req := s.request(t.Context(), http.MethodPost, "/v1/completions", "x")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", 1001))), -1
	resp, err := s.http.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
}

// TestSlowBody is a client that never finishes its request.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.BodyTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"pro")
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusRequestTimeout, resp.StatusCode)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	_, err = r.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the connection is closed")
}

// TestBodyTimeoutEndsWithTheBody checks that the deadline does not cut off an
// answer that takes longer than a body may.
func TestBodyTimeoutEndsWithTheBody(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) {
		c.BodyTimeout, c.Rates = 500*time.Millisecond, engine.Rates{Decode: 20}
	})
	events := s.stream(t.Context(), "/v1/completions", `{"prompt":"x","max_tokens":12,"ignore_eos":true,"stream":true}`).all()
	texts, _, _ := collect(t, events)
	assert.Equal(t, answers.Generate(modelName, "x", text.Params{MaxTokens: 12, IgnoreEOS: true}).Text, texts[0])
}

func TestInformation(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, path := range []string{"/health", "/ping"} {
		status, body := s.do(http.MethodGet, path, "")
		assert.Equal(t, http.StatusOK, status)
		assert.Empty(t, body)
	}
	_, body := s.do(http.MethodGet, "/version", "")
	assert.JSONEq(t, `{"version":"1.2.3"}`, body)
	_, body = s.do(http.MethodGet, "/v1/models", "")
	assert.Contains(t, body, `"id":"`+modelName+`"`)
	assert.Contains(t, body, `"max_model_len":8192`)
	_, body = s.do(http.MethodGet, "/is_sleeping", "")
	assert.JSONEq(t, `{"is_sleeping":false}`, body)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	_, body := s.do(http.MethodGet, "/metrics", "")
	for _, line := range []string{
		"# TYPE vllm:num_requests_running gauge",
		"# TYPE vllm:num_requests_waiting gauge",
		"# TYPE vllm:kv_cache_usage_perc gauge",
		"# TYPE vllm:engine_sleep_state gauge",
		"# TYPE vllm:cache_config_info gauge",
		"# TYPE vllm:num_preemptions_total counter",
		"# TYPE vllm:prompt_tokens_total counter",
		"# TYPE vllm:generation_tokens_total counter",
		"# TYPE vllm:request_success_total counter",
		"# TYPE vllm:time_to_first_token_seconds histogram",
		"# TYPE vllm:inter_token_latency_seconds histogram",
		"# TYPE vllm:e2e_request_latency_seconds histogram",
		"# TYPE vllm:request_queue_time_seconds histogram",
		"# TYPE vllm:request_prefill_time_seconds histogram",
		"# TYPE vllm:request_decode_time_seconds histogram",
		"# TYPE vllm:request_inference_time_seconds histogram",
		"# TYPE vllm:request_prompt_tokens histogram",
		"# TYPE vllm:request_generation_tokens histogram",
		"# TYPE vllm:iteration_tokens_total histogram",
		`vllm:num_requests_running{engine="0",model_name="org/tiny:1b"} 0`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="org/tiny:1b"} 0`,
		`vllm:request_prompt_tokens_bucket{engine="0",model_name="org/tiny:1b",le="5000"} 0`,
		`vllm:time_to_first_token_seconds_bucket{engine="0",model_name="org/tiny:1b",le="0.001"} 0`,
	} {
		assert.Contains(t, body, line+"\n")
	}
	assert.Regexp(t, `vllm:cache_config_info\{block_size="16",[^}]*num_gpu_blocks="4096"[^}]*\} 1`, body)
	assert.NotContains(t, body, `le="10000"`, "token buckets end at the context's length")

	var r response
	s.ok("/v1/completions", `{"prompt":"a b","max_tokens":5,"ignore_eos":true,"n":2}`, &r)
	m := s.metrics()
	for name, want := range map[string]float64{
		"vllm:prompt_tokens_total":                               4,
		"vllm:generation_tokens_total":                           10,
		"vllm:request_success_total{finished_reason=length}":     2,
		"vllm:request_success_total{finished_reason=stop}":       0,
		"vllm:time_to_first_token_seconds_count":                 2,
		"vllm:inter_token_latency_seconds_count":                 8,
		"vllm:e2e_request_latency_seconds_count":                 2,
		"vllm:request_time_per_output_token_seconds_count":       2,
		"vllm:request_prompt_tokens_sum":                         4,
		"vllm:request_generation_tokens_sum":                     10,
		"vllm:request_params_max_tokens_sum":                     10,
		"vllm:iteration_tokens_total_sum":                        14,
		"vllm:engine_sleep_state{sleep_state=awake}":             1,
		"vllm:engine_sleep_state{sleep_state=discard_all}":       0,
		"vllm:engine_sleep_state{sleep_state=weights_offloaded}": 0,
		"remuda_sim_faulty":                                      0,
	} {
		assert.InDelta(t, want, m[name], 0, name)
		assert.Contains(t, m, name)
	}
}

func TestNewNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, err := sim.New(sim.Config{InitDelay: -1})
	for _, field := range []string{
		"model is empty", "max model length", "init delay", "keep-alive timeout", "body timeout", "max body",
		"Exit and Logger", "max sequences", "blocks", "block size",
	} {
		require.ErrorContains(t, err, field)
	}
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Logger, cfg.Exit = "m", hclog.NewNullLogger(), func(int) {}
	_, err = sim.New(cfg)
	require.NoError(t, err, "the defaults are valid")
	cfg.NumGPUBlocks = 511
	_, err = sim.New(cfg)
	require.ErrorContains(t, err, "max model length is 8192 tokens, the KV cache holds 8176")
	cfg.NumGPUBlocks = 512
	cfg.Rates.Decode = -1
	_, err = sim.New(cfg)
	require.ErrorContains(t, err, "decode rate is -1")
}
