package gateway_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
)

func sha(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// accessLine is a line of the access log.
type accessLine struct {
	ID            string
	ClientID      string `json:"client_id"`
	TraceID       string `json:"trace_id"`
	Client, Key   string
	Method, Path  string
	Model         string
	Replica       string
	Status        int
	Code          string
	Queue         float64  `json:"queue_s"`
	FirstByte     *float64 `json:"first_byte_s"`
	Duration      float64  `json:"duration_s"`
	Attempts      int
	RequestBytes  int64 `json:"request_bytes"`
	ResponseBytes int64 `json:"response_bytes"`
	Stream        bool
	Continued     bool
	UserAgent     string `json:"user_agent"`
}

// accessLines reads an access log, by the client's ID of a request, or else the gateway's.
func accessLines(t *testing.T, path string) map[string]accessLine {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	out := map[string]accessLine{}
	for line := range strings.Lines(string(raw)) {
		var l accessLine
		require.NoError(t, json.Unmarshal([]byte(line), &l), line)
		id := cmp.Or(l.ClientID, l.ID)
		require.NotContains(t, out, id, "each request has one line")
		out[id] = l
	}
	return out
}

func TestAccessLogOfEachOutcome(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	s := newSimulated(t)
	f := goesOn(t, func(c *gateway.Config) {
		c.AccessLog.Path = path
		c.Queue.Length, c.Queue.Wait, c.Queue.Restart = 1, patience, patience
		c.NamedKeys = []gateway.Key{{Name: "team", SHA256: sha("secret"), KeyLimit: queue.KeyLimit{Weight: 1, Priority: 5, MaxPriority: 5, Rate: 0.001, Burst: 1}}}
	})
	ask := func(id, body string, header ...string) answer {
		return f.post(body, append(header, "X-Request-Id", id, "User-Agent", "test/1")...)
	}
	const unary = `{"model":"m"}`
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	ask("not-json", "{")
	ask("no-model", "{}")
	ask("unknown", `{"model":"other"}`)
	f.do(http.MethodGet, chat, "", "X-Request-Id", "method")
	ask("no-engine", unary, "X-Remuda-Timeout", "50ms")
	f.engines(newEngine(t, "a", answersWhole("b")))
	whole := ask("whole", unary, "Authorization", "Bearer secret", "Traceparent", parent)
	ask("limited", unary, "Authorization", "Bearer secret")
	stream := ask("stream", streamBody)
	f.engines(newEngine(t, "a", failsWith(http.StatusUnprocessableEntity, "application/json", `{"error":{}}`)))
	ask("refused", unary)
	f.engines(newEngine(t, "a", failsWith(http.StatusUnprocessableEntity, "application/json", `{"error":"bad"}`)))
	requireCode(t, ask("no-code", unary), "")
	f.engines(newEngine(t, "a", failsWith(http.StatusNotImplemented, "application/json", `{"error":"bad"}`)))
	requireCode(t, ask("no-code-5xx", unary), "")
	f.engines(newEngine(t, "a", failsWith(http.StatusUnprocessableEntity, "application/json", `{"error":{"code":"`+strings.Repeat("é", 10<<10)+`"}}`)))
	requireCode(t, ask("long-code", unary), strings.Repeat("é", 10<<10))
	f.engines(newRawEngine(t, "a", resets))
	ask("failed", unary)
	f.engines(newRawEngine(t, "a", saysNothing))
	ask("too-late", unary, "X-Remuda-Timeout", "5s") // a slow machine sends it to the engine before

	bad, good := &hitMeter{}, newEngine(t, "b", answersWhole("b"))
	f.engines(newRawEngine(t, "a", func(c net.Conn) { bad.hit(); resets(c) }), good)
	require.Equal(t, "2", ask("retried", unary).header.Get("X-Remuda-Attempts"), "the new one comes first")
	broken := newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		sse(w, "data: {\"choices\":[],\"error\":null}\n\n")
		panic(http.ErrAbortHandler)
	})
	f.engines(broken)
	ask("broken", `{"model":"m","stream":true,"n":2}`)
	f.engines(newBreaking(t, s, "a", once(1200), nil).Engine)
	ask("continued", continued[0].body)

	entered := make(chan struct{})
	held := newEngine(t, "a", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(entered)
		<-r.Context().Done()
	})
	held.Slots = 1
	f.engines(held)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(unary))
		req.Header.Set("X-Request-Id", "left")
		if resp, err := f.client.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	await(t, entered, "the engine has it")
	waited := make(chan answer, 1)
	go func() { waited <- ask("waited", unary, "X-Remuda-Timeout", "10s") }() // the next one comes before
	eventually(t, "it waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
	ask("full", unary)
	<-waited
	cancel()
	<-left
	f.wait()

	type outcome struct {
		status, attempts  int
		code, key         string
		model, replica    string
		stream, continued bool
	}
	want := map[string]outcome{
		"not-json":    {400, 0, "invalid_json", "anonymous", "", "", false, false},
		"no-model":    {400, 0, "missing_required_parameter", "anonymous", "", "", false, false},
		"unknown":     {404, 0, "model_not_found", "anonymous", "other", "", false, false},
		"method":      {405, 0, "method_not_allowed", "", "", "", false, false},
		"no-engine":   {503, 0, "model_unavailable", "anonymous", "m", "", false, false},
		"whole":       {200, 1, "", "team", "m", "m:v:a", false, false},
		"limited":     {429, 0, "rate_limit_exceeded", "team", "m", "", false, false},
		"stream":      {200, 1, "", "anonymous", "m", "m:v:a", true, false},
		"refused":     {422, 1, "engine_refused", "anonymous", "m", "m:v:a", false, false},
		"no-code":     {422, 1, "engine_refused", "anonymous", "m", "m:v:a", false, false},
		"no-code-5xx": {501, 1, "engine_error", "anonymous", "m", "m:v:a", false, false},
		"long-code":   {422, 1, strings.Repeat("é", 256) + "…", "anonymous", "m", "m:v:a", false, false},
		"failed":      {502, 3, "request_ends_engines", "anonymous", "m", "m:v:a", false, false},
		"too-late":    {504, 1, "deadline_exceeded", "anonymous", "m", "m:v:a", false, false},
		"retried":     {200, 2, "", "anonymous", "m", "m:v:b", false, false},
		"broken":      {200, 1, "engine_cut_off", "anonymous", "m", "m:v:a", true, false},
		"continued":   {200, 2, "", "anonymous", "m", "m:v:a", true, true},
		"waited":      {503, 0, "queue_timeout", "anonymous", "m", "", false, false},
		"full":        {429, 0, "queue_full", "anonymous", "m", "", false, false},
		"left":        {499, 1, "client_gone", "anonymous", "m", "m:v:a", false, false},
	}
	lines := accessLines(t, path)
	for id, w := range want {
		require.Contains(t, lines, id)
		l := lines[id]
		require.Equal(t, w, outcome{l.Status, l.Attempts, l.Code, l.Key, l.Model, l.Replica, l.Stream, l.Continued}, id)
		require.Equal(t, chat, l.Path)
		require.NotEmpty(t, l.Client)
		require.Positive(t, l.Duration)
		answered := l.Status == 200 || l.Status == 422
		require.Equal(t, answered, l.FirstByte != nil, id)
	}
	require.Len(t, lines, len(want))
	require.EqualValues(t, len(unary), lines["whole"].RequestBytes)
	require.EqualValues(t, len(whole.body), lines["whole"].ResponseBytes)
	require.EqualValues(t, len(stream.body), lines["stream"].ResponseBytes)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", lines["whole"].TraceID)
	require.Empty(t, lines["stream"].TraceID)
	require.Equal(t, "test/1", lines["whole"].UserAgent)
	require.Equal(t, "GET", lines["method"].Method)
	require.GreaterOrEqual(t, lines["waited"].Queue, 1.0)
	require.Less(t, lines["whole"].Queue, patience.Seconds(), "it waits for the share of a new engine at most")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "secret")
}

// requireCode checks the code of the error that the client got.
func requireCode(t *testing.T, a answer, code string) {
	t.Helper()
	var e struct{ Error apiError }
	require.NoError(t, json.Unmarshal([]byte(a.body), &e), a.body)
	require.Equal(t, code, deref(e.Error.Code))
}

// receiver takes spans by OTLP over HTTP.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracepb.Span
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	c := &receiver{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var m collectorpb.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &m)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("not OTLP: %s: %v", r.URL.Path, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range m.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// under returns the spans whose parent is this one, by name.
func (c *receiver) under(parent []byte) map[string][]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]*tracepb.Span{}
	for _, s := range c.spans {
		if string(s.ParentSpanId) == string(parent) {
			out[s.Name] = append(out[s.Name], s)
		}
	}
	return out
}

func (c *receiver) config(cfg *gateway.Config) { cfg.Tracing.Endpoint, cfg.Tracing.Ratio = c.URL, 1 }

func textAttribute(s *tracepb.Span, name string) string {
	for _, kv := range s.Attributes {
		if kv.Key == name {
			return kv.Value.GetStringValue()
		}
	}
	return ""
}

const (
	traceOf  = "0af7651916cd43dd8448eb211c80319c"
	spanOf   = "b7ad6b7169203331"
	parentOf = "00-" + traceOf + "-" + spanOf + "-01"
)

// TestSpans follows a request that waits, is failed by one engine and answered by another.
func TestSpans(t *testing.T) {
	t.Parallel()
	c := newReceiver(t)
	path := filepath.Join(t.TempDir(), "access.log")
	f := newGateway(t, retrying, c.config, func(cfg *gateway.Config) { cfg.AccessLog.Path = path })
	var mu sync.Mutex
	var parents []string
	note := func(r *http.Request) int {
		mu.Lock()
		defer mu.Unlock()
		parents = append(parents, r.Header.Get("Traceparent"))
		return len(parents)
	}
	h := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if note(r) == 1 {
			panic(http.ErrAbortHandler)
		}
		sse(w, "data: {\"said\":\"b\"}\n\n", "data: [DONE]\n\n")
	}
	down := engineAt("a", "127.0.0.1:1")
	down.Passing = false
	f.engines(down)
	got := make(chan answer, 1)
	go func() { got <- f.post(streamBody, "Traceparent", parentOf, "Tracestate", "v=1", "X-Request-Id", "one") }()
	eventually(t, "it waits", func() bool { return f.metric("remuda_gateway_queue_length", "model", "m") == 1 })
	f.engines(newEngine(t, "a", h), newEngine(t, "b", h))
	a := <-got
	require.Equal(t, wholeStream, a.body)
	require.Equal(t, "2", a.header.Get("X-Remuda-Attempts"))
	id, err := hex.DecodeString(spanOf)
	require.NoError(t, err)
	// A gateway that ends waits for the collector only for a short time.
	eventually(t, "the spans are exported", func() bool { return len(c.under(id)) > 0 })
	f.wait()
	require.Equal(t, traceOf, accessLines(t, path)["one"].TraceID)

	servers := c.under(id)["POST "+chat]
	require.Len(t, servers, 1)
	root := servers[0]
	require.Equal(t, tracepb.Span_SPAN_KIND_SERVER, root.Kind)
	require.Equal(t, "m", textAttribute(root, "gen_ai.request.model"))
	require.Equal(t, a.header.Get("X-Request-Id"), textAttribute(root, "remuda.request.id"))
	require.Equal(t, "one", textAttribute(root, "remuda.request.client_id"))
	children := c.under(root.SpanId)
	require.Len(t, children["queue"], 1)
	require.Len(t, children["attempt"], 2)
	require.GreaterOrEqual(t, children["attempt"][0].StartTimeUnixNano, children["queue"][0].EndTimeUnixNano)
	require.Len(t, parents, 2)
	replicas := map[string]bool{}
	for i, attempt := range children["attempt"] {
		require.Equal(t, traceOf, hex.EncodeToString(attempt.TraceId))
		require.Equal(t, "00-"+traceOf+"-"+hex.EncodeToString(attempt.SpanId)+"-01", parents[i], "the engine gets the attempt as its parent")
		replicas[textAttribute(attempt, "remuda.replica")] = true
		parts := c.under(attempt.SpanId)
		require.Len(t, parts["connect"], 1)
		require.Len(t, parts["first byte"], 1)
		require.GreaterOrEqual(t, parts["first byte"][0].StartTimeUnixNano, parts["connect"][0].StartTimeUnixNano)
	}
	require.Equal(t, map[string]bool{"m:v:a": true, "m:v:b": true}, replicas)
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, children["attempt"][0].Status.GetCode())
	require.NotEqual(t, tracepb.Status_STATUS_CODE_ERROR, children["attempt"][1].Status.GetCode())
	require.NotEqual(t, tracepb.Status_STATUS_CODE_ERROR, root.Status.GetCode(), "the client had its answer")
	require.Len(t, c.under(children["attempt"][1].SpanId)["stream"], 1)
}

func TestSpansOfAPipeline(t *testing.T) {
	t.Parallel()
	c := newReceiver(t)
	f, _ := composing(t, map[string]string{"support": supportSource}, c.config)
	f.engines(newModel(t, "small", classifier, nil), newModel(t, "tech-llm", nil, nil))
	a := f.post(asking("support", "it burns", false), "X-Request-Id", "p")
	a.spoken(t)
	id := a.header.Get("X-Request-Id")
	// A gateway that ends waits for the collector only for a short time.
	eventually(t, "the spans are exported", func() bool {
		roots := c.under(nil)["POST "+chat]
		return len(roots) > 0 && len(c.under(roots[0].SpanId)["POST "+chat]) >= 2
	})
	f.wait()
	roots := c.under(nil)["POST "+chat]
	require.Len(t, roots, 1, "one trace, whose root is the pipeline")
	require.Equal(t, id, textAttribute(roots[0], "remuda.request.id"))
	ids := map[string]bool{}
	for _, step := range c.under(roots[0].SpanId)["POST "+chat] {
		ids[textAttribute(step, "remuda.request.id")] = true
	}
	require.Equal(t, map[string]bool{id + ".classify": true, id + ".tech": true}, ids)
}

// TestTraceThatIsNotSampled is passed on, with a parent of ours, and exported nowhere.
func TestTraceThatIsNotSampled(t *testing.T) {
	t.Parallel()
	c := newReceiver(t)
	f := newGateway(t, c.config, patient)
	got := make(chan string, 1)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Traceparent")
		says("x")(w, r)
	}))
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`, "Traceparent", "00-"+traceOf+"-"+spanOf+"-00").status)
	require.Regexp(t, "^00-"+traceOf+"-[0-9a-f]{16}-00$", <-got)
	f.wait()
	require.Empty(t, c.spans)
}

func TestTraceHeadersWithoutTracing(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	got := make(chan http.Header, 1)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		says("x")(w, r)
	}))
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`, "Traceparent", parentOf, "Tracestate", "a=1,b=2").status)
	h := <-got
	require.Equal(t, []string{parentOf}, h.Values("Traceparent"))
	require.Equal(t, []string{"a=1,b=2"}, h.Values("Tracestate"))
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	require.Empty(t, (<-got).Values("Traceparent"), "nothing is made up")
}

// TestLongModelsInTheLog: a client's name for a model is as long as it likes, a line of the log is not.
func TestLongModelsInTheLog(t *testing.T) {
	t.Parallel()
	log := make(lines, 1000)
	f := newGateway(t, func(c *gateway.Config) {
		c.Logger = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Debug})
	})
	f.engines(newEngine(t, "a", says("x")))
	f.post(`{"model":"`+strings.Repeat("m", 1<<20)+`"}`).requireError(t, http.StatusNotFound, "model_not_found")
	for {
		select {
		case line := <-log:
			if strings.Contains(line, "request:") {
				require.Less(t, len(line), 1000)
				require.Contains(t, line, "mmm")
				return
			}
		case <-time.After(patience):
			t.Fatal("the request is not in the log")
		}
	}
}

// lines is a log.
type lines chan string

// Write passes a line on.
func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
