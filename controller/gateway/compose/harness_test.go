package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/api"
	"remuda/controller/gateway/compose"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; none is expected to come near it.
const patience = time.Minute

// request is what an engine was asked.
type request struct {
	Model               string           `json:"model"`
	Messages            []map[string]any `json:"messages"`
	Prompt              string           `json:"prompt"`
	Stream              bool             `json:"stream"`
	MaxTokens           int              `json:"max_tokens"`
	MaxCompletionTokens int              `json:"max_completion_tokens"`
	Temperature         *float64         `json:"temperature"`
	Stop                any              `json:"stop"`
	Tools               any              `json:"tools"`
	StreamOptions       any              `json:"stream_options"`

	path   string
	header http.Header
}

func (r request) text() string {
	if r.path == "/v1/completions" {
		return r.Prompt
	}
	return fmt.Sprint(r.Messages[len(r.Messages)-1]["content"])
}

// engines stands for the gateway's own handler with its engines. Each model says
// "<model>: <prompt>", word by word, and counts 10 tokens of prompt and one of each word;
// models of the map do what they do there instead.
type engines struct {
	t        *testing.T
	mu       sync.Mutex
	asked    []request
	special  map[string]func(w http.ResponseWriter, r *http.Request, q request)
	now      int
	canceled int
}

func (e *engines) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	q := request{path: r.URL.Path, header: r.Header.Clone()}
	if err := json.Unmarshal(body, &q); err != nil || int64(len(body)) != r.ContentLength {
		e.t.Errorf("a step's body is %q: %v", body, err)
	}
	if rc := http.NewResponseController(w); rc.SetReadDeadline(time.Time{}) != nil || rc.SetWriteDeadline(time.Time{}) != nil {
		e.t.Error("the gateway sets deadlines")
	}
	e.mu.Lock()
	e.asked = append(e.asked, q)
	e.now++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.now--
		if r.Context().Err() != nil {
			e.canceled++
		}
	}()
	if f := e.special[q.Model]; f != nil {
		f(w, r, q)
		return
	}
	say(w, q, q.Model+": "+q.text())
}

// of returns the only request to a model.
func (e *engines) of(model string) request {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []request
	for _, q := range e.asked {
		if q.Model == model {
			found = append(found, q)
		}
	}
	require.Len(e.t, found, 1, model)
	return found[0]
}

// say answers as vLLM does.
func say(w http.ResponseWriter, q request, text string) {
	words := strings.SplitAfter(text, " ")
	usage := map[string]int{"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
	chat := q.path == "/v1/chat/completions"
	if !q.Stream {
		one := map[string]any{"index": 0, "finish_reason": "stop", "logprobs": nil}
		object := "text_completion"
		if chat {
			object = "chat.completion"
			one["message"] = map[string]any{"role": "assistant", "content": text, "reasoning_content": "hm"}
		} else {
			one["text"] = text
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "engine-1", "object": object, "created": 1, "model": q.Model, "choices": []any{one}, "usage": usage})
		return
	}
	piece := func(text string, first bool, reason any) {
		one := map[string]any{"index": 0, "finish_reason": reason, "logprobs": nil}
		object := "text_completion"
		if chat {
			object = "chat.completion.chunk"
			delta := map[string]any{"content": text}
			if first {
				delta["role"] = "assistant"
			}
			one["delta"] = delta
		} else {
			one["text"] = text
		}
		send(w, map[string]any{"id": "engine-1", "object": object, "created": 1, "model": q.Model, "choices": []any{one}, "usage": nil})
	}
	for i, word := range words {
		piece(word, i == 0, nil)
	}
	piece("", false, "stop")
	send(w, map[string]any{"id": "engine-1", "object": "x", "created": 1, "model": q.Model, "choices": []any{}, "usage": usage})
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// send sends one event.
func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", b)
	_ = http.NewResponseController(w).Flush()
}

// world is a server that answers by a composer.
type world struct {
	t       *testing.T
	url     string
	engines *engines
	c       *compose.Composer
	memory  compose.Memory
}

func newWorld(t *testing.T, source string, edit ...func(*compose.Config)) *world {
	t.Helper()
	w := newBubble(t, source, edit...)
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		switch handled, cut := w.c.Serve(rw, r, "p", body, w.memory); {
		case !handled:
			http.NotFound(rw, r)
		case cut:
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	w.url = s.URL
	return w
}

// newBubble is newWorld without a network, for the fake clock of synctest.
func newBubble(t *testing.T, source string, edit ...func(*compose.Config)) *world {
	t.Helper()
	e := &engines{t: t, special: map[string]func(http.ResponseWriter, *http.Request, request){}}
	cfg := compose.Config{Next: e}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := compose.New(cfg)
	require.NoError(t, err)
	c.Set([]api.GatewayPipeline{{Name: "p", Source: source}})
	return &world{t: t, engines: e, c: c, memory: memory(-1)}
}

// memory is so many bytes for each answer, or any number if it is negative.
type memory int

func (m memory) Take(n int) bool { return m < 0 || n <= int(m) }

// call is post without a network.
func (w *world) call(path, body string, header ...string) answer {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	handled, cut := w.c.Serve(rec, r, "p", []byte(body), w.memory)
	require.True(w.t, handled)
	return answer{status: rec.Code, header: rec.Header(), body: rec.Body.String(), broken: cut}
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	// broken: the connection was cut.
	broken bool
}

func (w *world) post(path, body string, header ...string) answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	return w.postIn(ctx, path, body, header...)
}

func (w *world) postIn(ctx context.Context, path, body string, header ...string) answer {
	w.t.Helper()
	resp := w.open(ctx, path, body, header...)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), broken: err != nil}
}

func (w *world) open(ctx context.Context, path, body string, header ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body))
	require.NoError(w.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	return resp
}

// reply is OpenAI's answer, or a piece of one.
type reply struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Created int64  `json:"created"`
	Choices []struct {
		Message struct {
			Role             string `json:"role"`
			Content          string `json:"content"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"message"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct{ Prompt_tokens, Completion_tokens, Total_tokens int } `json:"usage"` //nolint:revive // as in JSON
	Error *struct {
		Message, Type, Code string
	} `json:"error"`
}

func (a answer) reply(t *testing.T) reply {
	t.Helper()
	var r reply
	require.NoError(t, json.Unmarshal([]byte(a.body), &r), a.body)
	return r
}

// events are the replies of a stream, without its end, and its comment lines.
func (a answer) events(t *testing.T) (all []reply, comments []string, done bool) {
	t.Helper()
	require.Equal(t, "text/event-stream", a.header.Get("Content-Type"), a.body)
	for _, e := range strings.Split(a.body, "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		switch {
		case e == "":
		case !ok:
			comments = append(comments, e)
		case data == "[DONE]":
			done = true
		default:
			require.False(t, done, "nothing comes after [DONE]: %s", a.body)
			var r reply
			require.NoError(t, json.Unmarshal([]byte(data), &r), data)
			all = append(all, r)
		}
	}
	return all, comments, done
}

// text is that of a stream in either form.
func text(all []reply) string {
	var b strings.Builder
	for _, r := range all {
		for _, c := range r.Choices {
			b.WriteString(c.Delta.Content + c.Text)
		}
	}
	return b.String()
}

func step(name string, lines ...string) string {
	return "step \"" + name + "\" {\nmodel = \"" + name + "\"\n" + strings.Join(lines, "\n") + "\n}\n"
}

func pipelineOf(output string, blocks ...string) string {
	return "pipeline \"p\" {\n" + strings.Join(blocks, "") + "output = " + output + "\n}\n"
}
