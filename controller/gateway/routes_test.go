package gateway_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func TestModelsListsWhatCanServe(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	before := time.Now().Unix()
	f.do(http.MethodGet, "/v1/models", "").requireError(t, http.StatusServiceUnavailable, "gateway_starting")

	f.engines()
	a := f.do(http.MethodGet, "/v1/models", "")
	require.JSONEq(t, `{"object":"list","data":[]}`, a.body)

	up := engineAt("a", "127.0.0.1:1")
	slashed, down := up, up
	slashed.Name.Model = "meta-llama/Llama-3:8b"
	down.Name.Model, down.Passing = "down", false
	f.engines(up, slashed, down)

	a = f.do(http.MethodGet, "/v1/models", "")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	var got struct {
		Object string
		Data   []struct {
			ID, Object string
			Created    int64
			OwnedBy    string `json:"owned_by"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &got))
	require.Equal(t, "list", got.Object)
	require.Len(t, got.Data, 2)
	require.Equal(t, "m", got.Data[0].ID)
	require.Equal(t, "meta-llama/Llama-3:8b", got.Data[1].ID)
	require.Equal(t, "model", got.Data[0].Object)
	require.NotEmpty(t, got.Data[0].OwnedBy)
	require.GreaterOrEqual(t, got.Data[0].Created, before)

	for _, path := range []string{"/v1/models/meta-llama/Llama-3:8b", "/v1/models/meta-llama%2FLlama-3:8b"} {
		a = f.do(http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, a.status)
		require.Contains(t, a.body, `"id":"meta-llama/Llama-3:8b"`)
	}
	a = f.do(http.MethodHead, "/v1/models", "")
	require.Equal(t, http.StatusOK, a.status)
	require.Empty(t, a.body)
	f.do(http.MethodGet, "/v1/models/none", "").requireError(t, http.StatusNotFound, "model_not_found")
	a = f.do(http.MethodGet, "/v1/models/down", "")
	a.requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	require.Equal(t, "5", a.header.Get("Retry-After"))
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Limits.Body = 1000 })
	served := newEngine(t, "a", func(http.ResponseWriter, *http.Request) { t.Error("a bad request reached an engine") })
	down := served
	down.Name.Model, down.Passing = "down", false
	f.engines(served, down)
	long := make([]byte, 1001)
	cases := []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code, param              string
	}{
		{"not JSON", "POST", chat, `hello`, nil, 400, "invalid_json", ""},
		{"cut JSON", "POST", chat, `{"model":"m","messages":[`, nil, 400, "invalid_json", ""},
		{"empty body", "POST", chat, ``, nil, 400, "invalid_json", ""},
		{"array", "POST", chat, `["m"]`, nil, 400, "invalid_json", ""},
		{"no model", "POST", chat, `{"messages":[]}`, nil, 400, "missing_required_parameter", "model"},
		{"empty model", "POST", "/v1/completions", `{"model":""}`, nil, 400, "missing_required_parameter", "model"},
		{"model is a number", "POST", "/v1/embeddings", `{"model":7}`, nil, 400, "invalid_type", "model"},
		{"unknown model", "POST", chat, `{"model":"none"}`, nil, 404, "model_not_found", "model"},
		{"no active engine", "POST", chat, `{"model":"down"}`, nil, 503, "model_unavailable", "model"},
		{"too large", "POST", chat, string(long), nil, 413, "request_too_large", ""},
		{"gzip", "POST", chat, `{"model":"m"}`, []string{"Content-Encoding", "gzip"}, 415, "unsupported_content_encoding", ""},
		{"unknown path", "POST", "/v1/images", `{"model":"m"}`, nil, 404, "unknown_url", ""},
		{"engine's own route", "POST", "/sleep", ``, nil, 404, "unknown_url", ""},
		{"slash at the end", "POST", chat + "/", `{"model":"m"}`, nil, 404, "unknown_url", ""},
		{"root", "GET", "/", ``, nil, 404, "unknown_url", ""},
		{"GET chat", "GET", chat, ``, nil, 405, "method_not_allowed", ""},
		{"DELETE chat", "DELETE", chat, ``, nil, 405, "method_not_allowed", ""},
		{"POST models", "POST", "/v1/models", `{}`, nil, 405, "method_not_allowed", ""},
		{"DELETE one model", "DELETE", "/v1/models/m", ``, nil, 405, "method_not_allowed", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			a := f.do(c.method, c.path, c.body, c.header...)
			e := a.requireError(t, c.status, c.code)
			if c.param == "" {
				require.Nil(t, e.Param)
			} else {
				require.Equal(t, c.param, *e.Param)
			}
			switch c.status {
			case 405:
				want := "POST"
				if c.path != chat {
					want = "GET, HEAD"
				}
				require.Equal(t, want, a.header.Get("Allow"))
			case 503:
				require.Equal(t, "5", a.header.Get("Retry-After"))
			}
		})
	}
	f.t = t
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", "unknown", "code", "404"), "an unknown name is no label")
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", "down", "code", "503"))
	require.Zero(t, f.metric("remuda_gateway_requests_total", "model", "none"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "code", "413"))
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
}

func TestChunkedBodyTooLarge(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Limits.Body = 300 << 10 })
	f.engines(newEngine(t, "a", says("x")))
	// A reader of unknown type makes the client send chunks.
	req, err := http.NewRequest(http.MethodPost, f.url+chat, io.LimitReader(endless{}, 1<<20))
	require.NoError(t, err)
	resp, err := f.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	requireErrorBody(t, string(b), "request_too_large")
	eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestBufferedBytesAreBounded(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 2), make(chan struct{})
	f := newGateway(t, func(c *gateway.Config) { c.Limits.Body, c.Limits.Buffered = 4096, 4096 })
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says("x")(w, r)
	}))
	first := make(chan answer, 1)
	big := `{"model":"m","prompt":"` + strings.Repeat("x", 4000) + `"}`
	go func() { first <- f.post(big) }()
	<-entered
	require.InDelta(t, 4000, f.metric("remuda_gateway_buffered_bytes"), 96)
	full := f.post(big)
	full.requireError(t, http.StatusServiceUnavailable, "gateway_busy")
	require.Equal(t, "5", full.header.Get("Retry-After"))
	close(release)
	require.Equal(t, http.StatusOK, (<-first).status)
	require.Equal(t, http.StatusOK, f.post(big).status)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/live", "").status)
	require.Equal(t, http.StatusServiceUnavailable, f.do(http.MethodGet, "/ready", "").status)
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "gateway_starting")
	f.engines()
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/ready", "").status)
	require.Equal(t, http.StatusMethodNotAllowed, f.do(http.MethodPost, "/ready", "").status)
	f.post(`{"model":"m"}`).requireError(t, http.StatusNotFound, "model_not_found")
}

func TestRemovedModelIsUnavailableThenUnknown(t *testing.T) {
	t.Parallel()
	f := newGateway(t, func(c *gateway.Config) { c.Routing.Remember = 6 * time.Second })
	f.engines(newEngine(t, "a", says("x")))
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	f.engines()
	f.post(`{"model":"m"}`).requireError(t, http.StatusServiceUnavailable, "model_unavailable")
	// Without further requests to it: one that ends after the model is gone counts once more.
	eventually(t, "its series are gone", func() bool { return f.metric("remuda_gateway_requests_total", "model", "m") == 0 })
	f.post(`{"model":"m"}`).requireError(t, http.StatusNotFound, "model_not_found")
	require.Zero(t, f.metric("remuda_gateway_requests_total", "model", "m"))
}

func TestMetricsOfEngines(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	a := newEngine(t, "a", says("x"))
	old, down := a, a
	old.Role, old.Port = replica.RoleShadow, 1
	a.Token, old.Token = replica.Token{Counter: 2}, replica.Token{Counter: 1}
	down.Name.ID, down.Passing = "b", false
	f.engines(a, old, down)
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "active"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "fenced"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "not_passing"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_ready"))
	require.Zero(t, f.metric("remuda_gateway_in_flight", "model", "m"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_requests_total", "model", "m", "route", "chat", "code", "200"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_request_duration_seconds", "model", "m", "route", "chat"))
	require.Equal(t, 1.0, f.metric("remuda_gateway_time_to_first_byte_seconds", "model", "m", "route", "chat"))
	require.Equal(t, float64(len(`{"model":"m"}`)), f.metric("remuda_gateway_request_bytes_total", "model", "m"))
	require.Equal(t, float64(len(`{"said":"x"}`)), f.metric("remuda_gateway_response_bytes_total", "model", "m"))
}
