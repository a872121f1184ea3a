package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
)

func TestRequestReachesTheEngineWhole(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	type seen struct {
		r    *http.Request
		body string
	}
	got := make(chan seen, 1)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r, string(b)}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("Via", "1.1 engine")
		w.Header().Set("X-Request-Id", "the engine's own")
		w.Header().Set("X-Engine", "yes")
		_, _ = io.WriteString(w, `{"id":"x"}`)
	}))
	for _, path := range []string{chat, "/v1/completions", "/v1/embeddings"} {
		body := ` {"messages":[{"content":"é\u00e9"}],"model":"m"} `
		a := f.do(http.MethodPost, path+"?api-version=1&x=%2F", body,
			"Content-Type", "application/json", "Authorization", "Bearer secret", "X-Request-Id", "client-1",
			"User-Agent", "agent/1", "X-Forwarded-For", "203.0.113.9", "Via", "1.0 proxy",
			"Connection", "X-Private, close", "X-Private", "1", "Te", "trailers", "Proxy-Authorization", "no",
			"Upgrade", "websocket", "Accept-Encoding", "gzip", "Openai-Organization", "org", "Idempotency-Key", "k")
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, `{"id":"x"}`, a.body)
		require.Equal(t, "application/json; charset=utf-8", a.header.Get("Content-Type"))
		require.Regexp(t, `^[0-9a-f]{32}$`, a.header.Get("X-Request-Id"))
		require.Equal(t, []string{"1.1 engine", "1.1 remuda"}, a.header.Values("Via"))
		require.Equal(t, "yes", a.header.Get("X-Engine"))
		require.Empty(t, a.header.Get("X-Hop"))
		require.Empty(t, a.header.Get("Keep-Alive"))

		s := <-got
		require.Equal(t, path, s.r.URL.Path)
		require.Equal(t, "api-version=1&x=%2F", s.r.URL.RawQuery)
		require.Equal(t, body, s.body)
		require.EqualValues(t, len(body), s.r.ContentLength)
		h := s.r.Header
		require.Equal(t, "Bearer secret", h.Get("Authorization"))
		require.Equal(t, "client-1", h.Get("X-Request-Id"))
		require.Equal(t, "agent/1", h.Get("User-Agent"))
		require.Equal(t, "203.0.113.9, 127.0.0.1", h.Get("X-Forwarded-For"))
		require.Equal(t, f.addr, h.Get("X-Forwarded-Host"))
		require.Equal(t, []string{"1.0 proxy", "1.1 remuda"}, h.Values("Via"))
		require.Equal(t, "org", h.Get("Openai-Organization"))
		require.Equal(t, "k", h.Get("Idempotency-Key"))
		require.Equal(t, "identity", h.Get("Accept-Encoding"))
		for _, name := range []string{"Connection", "X-Private", "Te", "Proxy-Authorization", "Upgrade", "X-Idempotency-Key"} {
			require.NotContains(t, h, name)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	got := make(chan http.Header, 1)
	f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		says("x")(w, r)
	}))
	ids := map[string]bool{}
	for _, sent := range []string{"", "", "has space", strings.Repeat("x", 129)} {
		a := f.do(http.MethodPost, chat, `{"model":"m"}`, "X-Request-Id", sent, "User-Agent", "")
		h := <-got
		id := a.header.Get("X-Request-Id")
		require.Regexp(t, `^[0-9a-f]{32}$`, id)
		require.Equal(t, id, h.Get("X-Request-Id"))
		require.Empty(t, h.Get("User-Agent"))
		require.NotContains(t, h, "X-Idempotency-Key")
		ids[id] = true
	}
	for range 2 {
		a := f.do(http.MethodPost, chat, `{"model":"m"}`, "X-Request-Id", "mine")
		require.Equal(t, "mine", (<-got).Get("X-Request-Id"), "the engine gets the client's")
		require.Regexp(t, `^[0-9a-f]{32}$`, a.header.Get("X-Request-Id"))
		ids[a.header.Get("X-Request-Id")] = true
	}
	require.Len(t, ids, 6)
	require.NotEmpty(t, f.do(http.MethodGet, "/nothing", "").header.Get("X-Request-Id"))
}

func TestLargePromptArrivesWhole(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1 << 10, 220 << 10, 1 << 20, 9 << 20} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, chunked %t", size, chunked), func(t *testing.T) {
				f := newGateway(t)
				f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
					b, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write(b) // an answer of the same size
				}))
				var body bytes.Buffer
				body.WriteString(`{"prompt":"`)
				for i := 0; body.Len() < size; i++ {
					fmt.Fprintf(&body, `line %d \"quoted\" \\ \n`, i)
				}
				body.WriteString(`","model":"m"}`)
				var src io.Reader = bytes.NewReader(body.Bytes())
				if chunked {
					src = io.MultiReader(src)
				}
				for range 2 { // the second round uses recycled memory
					resp, err := f.client.Post(f.url+chat, "application/json", src)
					require.NoError(t, err)
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					require.NoError(t, err)
					require.Equal(t, http.StatusOK, resp.StatusCode)
					require.True(t, bytes.Equal(body.Bytes(), b), "the echo differs")
					src = bytes.NewReader(body.Bytes())
				}
				eventually(t, "memory comes back", func() bool { return f.metric("remuda_gateway_buffered_bytes") == 0 })
			})
		}
	}
}

// TestEngineErrors: an engine's error has the form of the gateway's own, whatever form the engine gave it.
func TestEngineErrors(t *testing.T) {
	t.Parallel()
	const asJSON, request, server = "application/json", "invalid_request_error", "server_error"
	cases := []struct {
		name              string
		status            int
		contentType, body string
		want              int
		message, typ      string // message is a part of it
		param, code       string // empty: null
	}{
		{"OpenAI's", 400, asJSON, "{\"error\":{\"message\":\"bad\",\n\"type\":\"x\",\"param\":\"p\",\"code\":\"c\"}}", 400, "bad", "x", "p", "c"},
		{"a number as code", 400, asJSON, `{"error":{"message":"bad","type":"x","param":null,"code":400}}`, 400, "bad", "x", "", "400"},
		{"vLLM's and SGLang's flat form", 400, asJSON, `{"object":"error","message":"bad","type":"x","param":null,"code":400}`, 400, "bad", "x", "", "400"},
		{"Anthropic's", 400, asJSON, `{"type":"error","error":{"type":"x","message":"bad"}}`, 400, "bad", "x", "", ""},
		{"Ollama's", 404, asJSON, `{"error":"no such model"}`, 404, "no such model", request, "", ""},
		{"FastAPI's", 405, asJSON, `{"detail":"Method Not Allowed"}`, 405, "Method Not Allowed", request, "", ""},
		{"FastAPI's list", 422, asJSON, `{"detail":[{"type":"missing","loc":["body","messages",0],"msg":"Field required","input":1},{"loc":["body"],"msg":"bad"}]}`, 422, "body.messages.0: Field required; body: bad", request, "", ""},
		{"problem JSON", 503, "application/problem+json", `{"title":"x","detail":"overloaded","status":503}`, 503, "overloaded", server, "", ""},
		{"empty", 429, asJSON, `{"error":{}}`, 429, `an engine of model "m" responded 429 with "{\"error\":{}}"`, "rate_limit_error", "", "engine_refused"},
		{"empty 500", 500, asJSON, `{"error":{}}`, 502, `an engine of model "m" responded 500 with`, server, "", "engine_error"},
		{"detail of another form", 400, asJSON, `{"detail":{"reason":"no such adapter"}}`, 400, "no such adapter", request, "", "engine_refused"},
		{"error of another form", 400, asJSON, `{"error":{"msg":"no such adapter"}}`, 400, "no such adapter", request, "", "engine_refused"},
		{"no message", 400, asJSON, `{"error":{"type":"x","code":"c","reason":"no such adapter"}}`, 400, "no such adapter", "x", "", "c"},
		{"fields without a message", 422, asJSON, `{"error":[{"x":1}]}`, 422, `"m" responded 422 with`, request, "", "engine_refused"},
		{"a field without a message", 422, asJSON, `{"detail":[{"loc":["body"]},{"loc":["body","n"],"msg":"bad"}]}`, 422, "body.n: bad", request, "", ""},
		{"types that do not fit", 400, asJSON, `{"error":{"message":{},"type":7,"param":["a"],"code":{}}}`, 400, `"m" responded 400 with`, request, "", "engine_refused"},
		{"long", 400, asJSON, `{"error":{"message":"` + strings.Repeat("x", 20<<10) + `"}}`, 400, strings.Repeat("x", 20<<10), request, "", ""},
		{"too long", 400, asJSON, `{"error":{"message":"` + strings.Repeat("x", 33<<10) + `"}}`, 400, `"m" responded 400 with`, request, "", "engine_refused"},
		{"too long 500", 500, asJSON, `{"error":{"message":"` + strings.Repeat("x", 33<<10) + `"}}`, 502, `"m" responded 500 with`, server, "", "engine_error"},
		{"JSON of another form", 422, asJSON, `{"detail":[]}`, 422, `"m"`, request, "", "engine_refused"},
		{"JSON of another form, 500", 500, asJSON, `{}`, 502, `"m"`, server, "", "engine_error"},
		{"JSON that is no object", 404, asJSON, `"text"`, 404, `"m"`, request, "", "engine_refused"},
		{"JSON that is none", 404, asJSON, "", 404, `"m"`, request, "", "engine_refused"},
		{"problem JSON without detail", 503, "application/problem+json", `{"title":"x"}`, 502, `"m"`, server, "", "engine_error"},
		{"400 text", 400, "text/plain", "no \x80 good", 400, `"m"`, request, "", "engine_refused"},
		{"404 HTML", 404, "text/html", "<html>", 404, `"m"`, request, "", "engine_refused"},
		{"500 text", 500, "text/plain", "Internal Server Error", 502, `"m"`, server, "", "engine_error"},
		{"502 HTML", 502, "text/html", "<html>", 502, `"m"`, server, "", "engine_error"},
		{"503 empty", 503, "", "", 502, `"m"`, server, "", "engine_error"},
		{"200 HTML", 200, "text/html", "<html>", 502, `"m"`, server, "", "engine_bad_content"},
		{"200 text", 200, "text/plain", "{}", 502, `"m"`, server, "", "engine_bad_content"},
		{"200 JSON that is none", 200, asJSON, "<html>", 502, `"m"`, server, "", "engine_bad_content"},
		{"200 empty JSON", 200, asJSON, "", 502, `"m"`, server, "", "engine_bad_content"},
		{"204", 204, "", "", 502, `"m"`, server, "", "engine_bad_content"},
		{"redirect", 307, asJSON, "{}", 502, `"m"`, server, "", "engine_bad_content"},
		{"bytes for a chat", 200, "application/octet-stream", "\x00", 502, `"m"`, server, "", "engine_bad_content"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for path, start := range map[string]string{chat: `{"error":`, responsesPath: `{"error":`, "/v1/messages": `{"type":"error","error":`} {
				f := newGateway(t)
				f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
					w.Header()["Content-Type"] = []string{c.contentType}
					w.Header().Set("Retry-After", "7")
					w.Header().Set("Location", "http://elsewhere/")
					w.WriteHeader(c.status)
					if c.body != "" {
						_, _ = io.WriteString(w, c.body)
					}
				}))
				a := f.do(http.MethodPost, path, `{"model":"m"}`, "Content-Type", asJSON)
				object, ok := strings.CutPrefix(a.body, start)
				require.True(t, ok, a.body)
				e := requireEngineError(t, a, c.want, object, c.message, c.code)
				require.Equal(t, c.param, deref(e.Param))
				if path == "/v1/messages" {
					require.Regexp(t, "^(invalid_request_error|not_found_error|rate_limit_error|overloaded_error|api_error)$", e.Type)
				} else {
					require.Equal(t, c.typ, e.Type)
				}
				require.Empty(t, a.header.Get("Location"))
				if c.status >= 400 {
					require.Equal(t, "7", a.header.Get("Retry-After"))
				}
			}
		})
	}
}

// requireEngineError checks an answer that is an error. body is the answer's from the error object on.
func requireEngineError(t *testing.T, a answer, status int, body, message, code string) (e apiError) {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	body, ok := strings.CutSuffix(body, "}")
	require.True(t, ok, a.body)
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&e), a.body)
	require.Contains(t, e.Message, message)
	require.Equal(t, code, deref(e.Code))
	return e
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestUnusualAnswers(t *testing.T) {
	t.Parallel()
	t.Run("embeddings may be bytes", func(t *testing.T) {
		f := newGateway(t)
		f.engines(newEngine(t, "a", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write([]byte{0, 1, 2})
		}))
		a := f.do(http.MethodPost, "/v1/embeddings", `{"model":"m"}`)
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, "\x00\x01\x02", a.body)
	})
	t.Run("JSON for a stream", func(t *testing.T) {
		f := newGateway(t)
		f.engines(newEngine(t, "a", says("x")))
		a := f.post(`{"model":"m","stream":true}`)
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, `{"said":"x"}`, a.body)
	})
	t.Run("a compressed answer", func(t *testing.T) {
		f := newGateway(t)
		f.engines(newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			says("x")(w, r)
		}))
		f.post(`{"model":"m"}`).requireError(t, http.StatusBadGateway, "engine_bad_content")
	})
	t.Run("an answer that ends with the connection", func(t *testing.T) {
		f := newGateway(t)
		whole := `{"a":"` + strings.Repeat("x", 100<<10) + "\"}\n"
		for _, c := range []struct {
			body string
			ok   bool
		}{{whole, true}, {`{"a":1}`, true}, {whole[:90<<10], false}, {`{"a":`, false}} {
			f.engines(newRawEngine(t, "a", func(conn net.Conn) {
				_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n"+c.body)
			}))
			a := f.post(`{"model":"m"}`)
			switch {
			case c.ok:
				require.Equal(t, http.StatusOK, a.status)
				require.NoError(t, a.err)
				require.Equal(t, c.body, a.body)
			case a.status == http.StatusOK:
				require.Error(t, a.err, "a cut answer must not look whole")
			default:
				a.requireError(t, http.StatusBadGateway, "engine_cut_off")
			}
		}
	})
}

func TestHTTP10Client(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	f.engines(newEngine(t, "a", says("x")))
	c, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "POST "+chat+" HTTP/1.0\r\nContent-Length: 13\r\n\r\n"+`{"model":"m"}`)
	require.NoError(t, err)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Contains(t, string(b), " 200 OK\r\n")
	require.True(t, strings.HasSuffix(string(b), `{"said":"x"}`), string(b))
}

// TestStaleKeepAlive closes kept connections under the gateway, as an engine does whose own
// timeout is shorter: the request is tried again at once, and its client does not notice. The
// engine's breaker stays closed.
func TestStaleKeepAlive(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := newReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				served.Add(1)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
				// The worst case: the next request is read, and only then
				// the connection closes without an answer.
				if req, err = http.ReadRequest(br); err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
				}
			}()
		}
	}()
	defer func() { l.Close(); <-accepting }()
	f := newGateway(t, patient)
	f.engines(engineAt("a", l.Addr().String()))
	for range 20 {
		a := f.post(`{"model":"m"}`)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Equal(t, "{}", a.body)
	}
	require.EqualValues(t, 20, served.Load())
	require.Equal(t, 1.0, f.metric("remuda_gateway_engines", "model", "m", "state", "active"))
}

func TestIdleEngineConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	f := newGateway(t, func(c *gateway.Config) { c.Timeouts.EngineIdle = 50 * time.Millisecond })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer close(closed)
		defer c.Close()
		br := newReader(c)
		if req, err := http.ReadRequest(br); err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = br.ReadByte()
	}()
	f.engines(engineAt("a", l.Addr().String()))
	require.Equal(t, http.StatusOK, f.post(`{"model":"m"}`).status)
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("the idle connection stays open")
	}
}
