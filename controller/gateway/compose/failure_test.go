package compose_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/compose"
)

// refuse answers with an error of the gateway's.
func refuse(status int, code, message string, header ...string) func(http.ResponseWriter, *http.Request, request) {
	return func(w http.ResponseWriter, _ *http.Request, _ request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"message":%q,"type":"some_error","code":%q}}`, message, code)
	}
}

func raw(kind, body string) func(http.ResponseWriter, *http.Request, request) {
	return func(w http.ResponseWriter, _ *http.Request, _ request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// TestAStepFails before anything was sent: the answer is an error that names the step.
func TestAStepFails(t *testing.T) {
	const sse = "text/event-stream"
	for name, tt := range map[string]struct {
		special func(http.ResponseWriter, *http.Request, request)
		status  int
		code    string
		message string
		stream  bool // only there
	}{
		"busy":          {refuse(429, "queue_full", "the queue is full", "Retry-After", "7"), 429, "queue_full", "the queue is full", false},
		"fells engines": {refuse(502, "request_ends_engines", "3 engines ended", "X-Should-Retry", "false"), 502, "request_ends_engines", "3 engines ended", false},
		"no such model": {refuse(404, "model_not_found", "there is none"), 502, "model_not_found", "there is none", false},
		"an engine":     {refuse(500, "x", "it broke"), 502, "x", "it broke", false},
		"not JSON": {func(w http.ResponseWriter, _ *http.Request, _ request) {
			http.Error(w, "boo", http.StatusServiceUnavailable)
		}, 503, "step_failed", "the response has status 503", false},
		"nothing":             {func(http.ResponseWriter, *http.Request, request) {}, 502, "step_bad_answer", "no response", false},
		"aborted":             {func(http.ResponseWriter, *http.Request, request) { panic(http.ErrAbortHandler) }, 502, "step_bad_answer", "the response was cut off", false},
		"panicked":            {func(http.ResponseWriter, *http.Request, request) { panic("oh") }, 502, "step_bad_answer", "the gateway failed: its log has the reason", false},
		"garbage":             {raw("application/json", "{"), 502, "step_bad_answer", "invalid response: ", false},
		"no choice":           {raw("application/json", "{}"), 502, "step_bad_answer", "no choice", false},
		"an error, 200":       {raw("application/json", `{"error":"no"}`), 502, "step_bad_answer", ": no", false},
		"too long":            {raw("application/json", strings.Repeat(" ", 2000)), 502, "step_too_long", "longer than 1000 bytes", false},
		"an empty stream":     {raw(sse, "\n"), 502, "step_bad_answer", "ended without [DONE]", true},
		"an event of no JSON": {raw(sse, "data: {\n\n"), 502, "step_bad_answer", "invalid event in the response: ", true},
		"an error, streamed":  {raw(sse, "data: {\"error\":{\"message\":\"it died\",\"code\":\"engine_cut_off\"}}\n\n"), 502, "engine_cut_off", "it died", true},
		"a line without end":  {raw(sse, "data: "+strings.Repeat("x", 2000)), 502, "step_too_long", "longer than 1000 bytes", true},
	} {
		for _, body := range []string{chatBody, chatStream} {
			if tt.stream && body == chatBody {
				continue
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, two(), func(cfg *compose.Config) { cfg.MaxAnswer = 1000 })
				w.engines.special["b"] = tt.special
				a := w.post(chatPath, body)
				require.Equal(t, tt.status, a.status, a.body)
				require.Equal(t, "application/json", a.header.Get("Content-Type"))
				e := a.reply(t).Error
				require.Equal(t, tt.code, e.Code)
				require.True(t, strings.HasPrefix(e.Message, `pipeline "p": step "b": `), e.Message)
				require.Contains(t, e.Message, tt.message)
				require.Equal(t, tt.code == "request_ends_engines", a.header.Get("X-Should-Retry") == "false")
				if tt.status == 429 {
					require.Equal(t, "7", a.header.Get("Retry-After"))
					require.Equal(t, "some_error", e.Type)
				}
			})
		}
	}
}

// TestAStreamThatBreaks after its first byte ends with an error event, and the connection is
// cut.
func TestAStreamThatBreaks(t *testing.T) {
	const first = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\n"
	for name, tt := range map[string]struct {
		rest  string
		abort bool
		want  string
	}{
		"error event":  {"\n\ndata: {\"error\":{\"message\":\"it died\",\"type\":\"server_error\",\"code\":\"engine_cut_off\"}}\n\n", true, "it died"},
		"cut":          {"", true, "cut off"},
		"without DONE": {"", false, "without [DONE]"},
		"nonsense":     {"data: [1]\n\n", false, "invalid event in the response"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, two())
			w.engines.special["b"] = func(rw http.ResponseWriter, _ *http.Request, _ request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(rw, first+tt.rest)
				if tt.abort {
					panic(http.ErrAbortHandler)
				}
			}
			a := w.post(chatPath, chatStream)
			require.Equal(t, http.StatusOK, a.status)
			require.True(t, a.broken, "nobody takes it for whole")
			all, _, done := a.events(t)
			require.False(t, done)
			require.Len(t, all, 2, a.body)
			require.Equal(t, "one", text(all))
			require.Contains(t, all[1].Error.Message, `pipeline "p": step "b": `)
			require.Contains(t, all[1].Error.Message, tt.want)
		})
	}
}

// TestAfterAComment an error is an event: the status was sent.
func TestAfterAComment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBubble(t, two(), func(cfg *compose.Config) { cfg.CommentAfter, cfg.CommentEvery = time.Second, time.Hour })
		w.engines.special["a"] = func(rw http.ResponseWriter, r *http.Request, q request) {
			time.Sleep(time.Minute)
			refuse(503, "model_unavailable", "no engine")(rw, r, q)
		}
		a := w.call(chatPath, chatStream)
		require.True(t, a.broken)
		all, comments, _ := a.events(t)
		require.Equal(t, []string{": remuda pipeline=p running=a waited=1s"}, comments)
		require.Len(t, all, 1)
		require.Equal(t, "model_unavailable", all[0].Error.Code)
	})
}

// TestTimes: a pipeline ends exactly when the client's time, its own deadline or a step's
// is over, and each step gets what is left of the client's.
func TestTimes(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request, _ request) { <-r.Context().Done() }
	for name, tt := range map[string]struct {
		source, body, timeout string
		hangs                 string
		status                int
		code, message         string
		takes                 time.Duration
		left                  map[string]string
	}{
		"client's time":       {two(), chatBody, "10s", "b", 503, "pipeline_timeout", "X-Remuda-Timeout: 10s", 10 * time.Second, map[string]string{"a": "10s", "b": "7s"}},
		"deadline":            {strings.Replace(two(), "{", "{\ndeadline = \"5s\"", 1), chatBody, "", "a", 504, "pipeline_timeout", "the deadline has passed: 5s", 5 * time.Second, nil},
		"deadline of a step":  {two(`deadline = "5s"`), chatStream, "", "b", 504, "pipeline_timeout", `step "b": the deadline has passed: 5s`, 8 * time.Second, nil},
		"time without a unit": {two(), chatBody, "soon", "b", 400, "invalid_request", "must be a time with a unit", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newBubble(t, tt.source, func(cfg *compose.Config) { cfg.CommentAfter = time.Hour })
				w.engines.special["a"] = func(rw http.ResponseWriter, _ *http.Request, q request) {
					time.Sleep(3 * time.Second)
					say(rw, q, "done")
				}
				w.engines.special[tt.hangs] = hang
				var header []string
				if tt.timeout != "" {
					header = []string{"X-Remuda-Timeout", tt.timeout}
				}
				began := time.Now()
				a := w.call(chatPath, tt.body, header...)
				require.Equal(t, tt.takes, time.Since(began))
				require.Equal(t, tt.status, a.status, a.body)
				require.Equal(t, tt.code, a.reply(t).Error.Code)
				require.Contains(t, a.reply(t).Error.Message, tt.message)
				for model, left := range tt.left {
					require.Equal(t, left, w.engines.of(model).header.Get("X-Remuda-Timeout"), "what is left for %s", model)
				}
			})
		})
	}
}

func TestRequestsThatCannotBeUsed(t *testing.T) {
	w := newWorld(t, two())
	for name, tt := range map[string]struct{ path, body, want string }{
		"embeddings":  {"/v1/embeddings", `{}`, "pipelines support /v1/chat/completions"},
		"not JSON":    {chatPath, `{`, "not a JSON object"},
		"a list":      {chatPath, `[]`, "not a JSON object"},
		"null":        {chatPath, `null`, "not a JSON object"},
		"n":           {chatPath, `{"n":2,"messages":[{}]}`, "returns one choice"},
		"echo":        {completionPath, `{"echo":true,"prompt":"x"}`, `do not support "echo"`},
		"no messages": {chatPath, `{"messages":[]}`, `"messages" must be a list of at least one message`},
		"no prompt":   {completionPath, `{}`, `"prompt" must be one string`},
		"tokens":      {completionPath, `{"prompt":[1,2]}`, `"prompt" must be one string`},
		"options":     {chatPath, `{"stream_options":1,"messages":[{}]}`, "invalid request body"},
	} {
		a := w.post(tt.path, tt.body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", name, a.body)
		require.Contains(t, a.reply(t).Error.Message, tt.want, name)
		require.Equal(t, "invalid_request_error", a.reply(t).Error.Type)
	}
	require.Empty(t, w.engines.asked)

	// Values that an expression cannot take.
	w = newWorld(t, pipelineOf("step.a", step("a", "messages = input.messages")))
	a := w.post(chatPath, `{"messages":[{"role":"user","content":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`}]}`)
	require.Equal(t, http.StatusBadRequest, a.status, a.body)
	w = newWorld(t, pipelineOf("step.a", step("a", `prompt = "x"`, "max_tokens = input.params.none")))
	a = w.post(chatPath, chatBody)
	require.Equal(t, http.StatusInternalServerError, a.status, a.body)
	require.Equal(t, "pipeline_expression", a.reply(t).Error.Code)
}

// TestABadPipeline fails its own requests, and says what is wrong.
func TestABadPipeline(t *testing.T) {
	w := newWorld(t, "pipeline \"p\" {}")
	a := w.post(chatPath, chatBody)
	require.Equal(t, http.StatusInternalServerError, a.status)
	require.Contains(t, a.reply(t).Error.Message, "output is missing")
	w.c.Set([]api.GatewayPipeline{{Name: "p", Source: strings.Replace(two(), `"p"`, `"q"`, 1)}})
	require.Contains(t, w.post(chatPath, chatBody).reply(t).Error.Message, `its source defines pipeline "q"`)
	w.c.Set(nil)
	require.Equal(t, http.StatusNotFound, w.post(chatPath, chatBody).status)
}

// TestNoPipelineInAPipeline, also where the gateway has heard of one meanwhile.
func TestNoPipelineInAPipeline(t *testing.T) {
	var c *compose.Composer
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := compose.Inside(r.Context())
		require.True(t, ok)
		require.Equal(t, "p", name)
		handled, cut := c.Serve(w, r, "a", nil, memory(-1))
		require.Equal(t, []bool{true, false}, []bool{handled, cut})
	})
	c, err := compose.New(compose.Config{Next: next})
	require.NoError(t, err)
	c.Set([]api.GatewayPipeline{{Name: "p", Source: two()}, {Name: "a", Source: two()}})
	rec := httptest.NewRecorder()
	handled, cut := c.Serve(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, nil), "p", []byte(chatBody), memory(-1))
	require.Equal(t, []bool{true, false}, []bool{handled, cut})
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.Contains(t, rec.Body.String(), "pipeline_in_pipeline")
}

// TestStepWithoutMemory: a step whose answer has no memory fails, and its client is to come back.
func TestStepWithoutMemory(t *testing.T) {
	for _, body := range []string{chatBody, strings.Replace(chatBody, "{", `{"stream":true,`, 1)} {
		w := newWorld(t, two(), func(c *compose.Config) { c.RetryAfter = 1500 * time.Millisecond })
		w.memory = memory(1 << 10)
		a := w.post(chatPath, body)
		require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
		require.Equal(t, "2", a.header.Get("Retry-After"))
		require.Contains(t, a.body, "gateway_busy")
		w.memory = memory(64 << 10)
		require.Equal(t, http.StatusOK, w.post(chatPath, body).status)
	}
}
