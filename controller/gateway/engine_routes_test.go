package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
)

// engineRequest is a request to a route of the engines.
type engineRequest struct {
	name, path, media, body string
	// kind is the type of the answer.
	kind string
	// cut is after how many tokens the engine breaks off: enough that the client has a part of a stream, or of
	// a sound, by then.
	cut int
}

func engineRequests(t *testing.T) []engineRequest {
	const (
		object, events = "application/json", "text/event-stream"
		hello          = `"messages":[{"role":"user","content":"Tell me about the quiet horse."}]`
		speech         = `"input":"The quiet horse and the quiet mare went down to the sea.","voice":"alloy"`
		m              = `{"model":"m",`
	)
	form := func(fields ...string) (media, body string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for i := 0; i < len(fields); i += 2 {
			require.NoError(t, w.WriteField(fields[i], fields[i+1]))
		}
		f, err := w.CreateFormFile("file", "a.mp3")
		require.NoError(t, err)
		_, err = f.Write(bytes.Repeat([]byte("neigh!"), 40_000))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return w.FormDataContentType(), b.String()
	}
	out := []engineRequest{
		{"chat", "/v1/chat/completions", object, m + hello + `}`, object, 3},
		{"chat, streamed", "/v1/chat/completions", object, m + `"stream":true,` + hello + `}`, events, 3},
		{"chat, streamed with usage", "/v1/chat/completions", object, m + `"stream":true,"stream_options":{"include_usage":true},` + hello + `}`, events, 3},
		{"completion", "/v1/completions", object, m + `"prompt":"The horse"}`, object, 3},
		{"completion, streamed", "/v1/completions", object, m + `"stream":true,"prompt":"The horse"}`, events, 3},
		{"response", "/v1/responses", object, m + `"input":"Hello"}`, object, 3},
		{"response, streamed", "/v1/responses", object, m + `"stream":true,"input":"Hello"}`, events, 3},
		{"message", "/v1/messages", object, m + `"max_tokens":20,` + hello + `}`, object, 3},
		{"message, streamed", "/v1/messages", object, m + `"stream":true,"max_tokens":20,` + hello + `}`, events, 3},
		{"tokens of a message", "/v1/messages/count_tokens", object, m + hello + `}`, object, 0},
		{"embedding", "/v1/embeddings", object, m + `"input":"The horse"}`, object, 1},
		{"rerank", "/rerank", object, m + `"query":"horse","documents":["cow","horse"]}`, object, 1},
		{"rerank v1", "/v1/rerank", object, m + `"query":"horse","documents":["cow","horse"]}`, object, 1},
		{"rerank v2", "/v2/rerank", object, m + `"query":"horse","documents":["cow","horse"]}`, object, 1},
		{"score", "/score", object, m + `"text_1":"horse","text_2":["cow","horse"]}`, object, 1},
		{"score v1", "/v1/score", object, m + `"text_1":"horse","text_2":"cow"}`, object, 1},
		{"classify", "/classify", object, m + `"input":["horse","cow"]}`, object, 1},
		{"pooling", "/pooling", object, m + `"input":"horse cow"}`, object, 1},
		{"moderation", "/v1/moderations", object, m + `"input":"hate"}`, object, 1},
		{"tokenize", "/tokenize", object, m + `"prompt":"x y"}`, object, 0},
		{"detokenize", "/detokenize", object, m + `"tokens":[97,98]}`, object, 0},
		{"speech", "/v1/audio/speech", object, m + speech + `}`, "audio/wav", 10},
		{"speech, PCM", "/v1/audio/speech", object, m + `"response_format":"pcm",` + speech + `}`, "audio/pcm", 10},
		{"speech, events", "/v1/audio/speech", object, m + `"stream_format":"sse",` + speech + `}`, events, 3},
		{"image", "/v1/images/generations", object, m + `"prompt":"A horse","n":2,"size":"64x32"}`, object, 3},
	}
	for _, task := range []string{"transcriptions", "translations"} {
		for _, more := range []struct {
			field, value, kind string
		}{
			{"language", "en", object}, {"response_format", "text", "text/plain"},
			{"response_format", "verbose_json", object}, {"stream", "true", events},
		} {
			media, body := form("model", "m", more.field, more.value)
			out = append(out, engineRequest{task + ", " + more.field + " " + more.value, "/v1/audio/" + task, media, body, more.kind, 3})
		}
	}
	return out
}

// changes are what differs between two answers of an engine to one request: times, and the event of a stream
// that has the fingerprint. That is the one with the usage where there is one, which the gateway asks for.
var changes = regexp.MustCompile(`"(created|created_at|completed_at)":[0-9.]+|,"system_fingerprint":"[^"]*"`)

// TestEngineRoutes sends a request to each route. The client gets, byte for byte, what the engine itself
// answers. If the engine breaks off, an answer that is whole or nothing becomes an error in the form of the
// route, a stream ends with an error event in that form and a cut, and a sound is cut off.
func TestEngineRoutes(t *testing.T) {
	t.Parallel()
	f := newGateway(t)
	direct, behind := newSim(t, "a"), newSim(t, "b")
	f.engines(behind.Engine)
	missing := gateway.EngineRoutes()
	for _, c := range engineRequests(t) {
		delete(missing, c.path)
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			ask := func(at string) answer {
				a := f.ask(at, http.MethodPost, c.path, c.body, "Content-Type", c.media, "X-Request-Id", "fixed")
				a.body = changes.ReplaceAllString(a.body, "")
				return a
			}
			want := ask("http://" + direct.HostPort())
			require.Equal(t, http.StatusOK, want.status, want.body)
			got := ask(f.url)
			require.NoError(t, got.err)
			require.Equal(t, http.StatusOK, got.status, got.body)
			require.Equal(t, want.header["Content-Type"], got.header["Content-Type"])
			require.True(t, strings.HasPrefix(got.header.Get("Content-Type"), c.kind), got.header.Get("Content-Type"))
			require.Equal(t, want.body, got.body)
			if c.cut == 0 { // it makes no tokens
				return
			}

			faults := "http://" + behind.HostPort() + "/sim/faults"
			set := f.ask(faults, http.MethodPost, "", fmt.Sprintf(`{"drop_after_tokens":%d}`, c.cut), "Content-Type", "application/json")
			require.Equal(t, http.StatusOK, set.status, set.body)
			defer f.ask(faults, http.MethodDelete, "", "")
			got = ask(f.url)
			switch {
			case c.kind == "text/event-stream":
				require.Error(t, got.err, "the connection must be cut")
				lead := "\n\n" + eventOf(c.path)
				at := strings.LastIndex(got.body, lead)
				require.Positive(t, at, got.body)
				require.True(t, strings.HasPrefix(want.body, got.body[:at]), "%q is not the beginning of %q", got.body[:at], want.body)
				event, ok := strings.CutSuffix(got.body[at+len(lead):], "\n\n")
				require.True(t, ok, got.body)
				requireErrorOf(t, c.path, event, "engine_cut_off")
			case strings.HasPrefix(c.kind, "audio/"):
				require.Error(t, got.err, "the connection must be cut")
				require.NotEmpty(t, got.body)
				require.Less(t, len(got.body), len(want.body))
				require.True(t, strings.HasPrefix(want.body, got.body), "a part of the sound and nothing else")
			default:
				require.NoError(t, got.err)
				require.Equal(t, http.StatusBadGateway, got.status, got.body)
				requireErrorOf(t, c.path, got.body, "engine_gone")
			}
		})
	}
	require.Empty(t, missing, "routes without a case")
}

// eventOf is how an event with an error begins.
func eventOf(path string) string {
	if path == "/v1/messages" || path == responsesPath {
		return "event: error\ndata: "
	}
	return "data: "
}

// requireErrorOf checks an error in the form of a route.
func requireErrorOf(t *testing.T, path, body, code string) {
	t.Helper()
	if !strings.HasPrefix(path, "/v1/messages") {
		var v struct{ Type string }
		require.NoError(t, json.Unmarshal([]byte(body), &v), body)
		if path == responsesPath && v.Type == "error" { // an event of a stream
			require.Contains(t, body, `"code":"`+code+`"`)
			return
		}
		requireErrorBody(t, body, code)
		return
	}
	var v struct {
		Type  string
		Error struct{ Type, Code, Message string }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	require.Equal(t, "error", v.Type)
	require.Equal(t, code, v.Error.Code)
	require.NotEmpty(t, v.Error.Message)
	kind := "api_error"
	if code == "route_not_supported" {
		kind = "not_found_error"
	}
	require.Equal(t, kind, v.Error.Type, body)
}

// TestRoutesThatEnginesLack: the error has the form of the route.
func TestRoutesThatEnginesLack(t *testing.T) {
	t.Parallel()
	c := newController(t, 1)
	c.state.Models = []api.GatewayModel{{Name: "m", Engines: []string{"ollama"}}}
	f := newGateway(t, c.config)
	f.engines(newEngine(t, "a", func(_ http.ResponseWriter, r *http.Request) { t.Error("an engine got", r.URL.Path) }))
	for _, path := range []string{"/v1/messages/count_tokens", "/classify", "/v1/images/generations"} {
		a := f.do(http.MethodPost, path, `{"model":"m"}`)
		require.Equal(t, http.StatusNotFound, a.status, a.body)
		require.Equal(t, "application/json", a.header.Get("Content-Type"))
		requireErrorOf(t, path, a.body, "route_not_supported")
	}
}
