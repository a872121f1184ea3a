package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway"
	"remuda/controller/gateway/queue"
	"remuda/internal/replica"
)

// prompted is what a model was asked.
type prompted struct {
	Model    string
	Stream   bool
	Prompt   string
	Messages []struct{ Content string }
}

func (p prompted) text() string {
	if len(p.Messages) > 0 {
		return p.Messages[len(p.Messages)-1].Content
	}
	return p.Prompt
}

// newModel starts an engine of the model that says what say returns, word by word, and
// counts the words; a nil say says "<model>: <prompt>". word, where it is not nil, is called
// before each word of a stream.
func newModel(t *testing.T, model string, say func(prompted) string, word func(i int)) replica.Engine {
	t.Helper()
	e := newEngine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		var p prompted
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			t.Errorf("a step's body: %v", err)
			return
		}
		text := p.Model + ": " + p.text()
		if say != nil {
			text = say(p)
		}
		words := strings.SplitAfter(text, " ")
		chatting := r.URL.Path == chat
		piece := func(text string, whole bool) map[string]any {
			one := map[string]any{"index": 0, "text": text}
			if chatting {
				part := "delta"
				if whole {
					part = "message"
				}
				one = map[string]any{"index": 0, part: map[string]any{"role": "assistant", "content": text}}
			}
			return one
		}
		usage := map[string]int{"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
		if !p.Stream {
			one := piece(text, true)
			one["finish_reason"] = "stop"
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"id": "1", "object": "x", "model": p.Model, "choices": []any{one}, "usage": usage})
			return
		}
		send := func(v any) {
			b, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			sse(w, "data: "+string(b)+"\n\n")
		}
		for i, one := range words {
			if word != nil {
				word(i)
			}
			send(map[string]any{"id": "1", "object": "x", "model": p.Model, "choices": []any{piece(one, false)}})
		}
		last := piece("", false)
		last["finish_reason"] = "stop"
		send(map[string]any{"id": "1", "object": "x", "model": p.Model, "choices": []any{last}})
		send(map[string]any{"id": "1", "object": "x", "model": p.Model, "choices": []any{}, "usage": usage})
		sse(w, "data: [DONE]\n\n")
	})
	e.Name.Model = model
	return e
}

const supportSource = `
pipeline "support" {
  step "classify" {
    model  = "small"
    prompt = "Billing or technical? ${input.text}"
  }
  step "billing" {
    model  = "billing-llm"
    when   = strcontains(lower(step.classify.text), "billing")
    prompt = input.text
  }
  step "tech" {
    model    = "tech-llm"
    when     = !strcontains(lower(step.classify.text), "billing")
    messages = input.messages
  }
  output = coalesce(step.billing, step.tech)
}`

const fanSource = `
pipeline "fan" {
  step "ideas" {
    for_each = ["short", "long", "odd"]
    model    = "small"
    prompt   = "${each.value} ${input.text}"
  }
  output = join("|", step.ideas[*].text)
}`

// composing is a gateway with pipelines whose models the controller knows.
func composing(t *testing.T, sources map[string]string, change ...func(*gateway.Config)) (*fixture, *controller) {
	t.Helper()
	c := newController(t, 1)
	for _, m := range []string{"small", "billing-llm", "tech-llm"} {
		c.state.Models = append(c.state.Models, api.GatewayModel{Name: m})
	}
	for name, source := range sources {
		c.state.Pipelines = append(c.state.Pipelines, api.GatewayPipeline{Name: name, Source: source})
	}
	f := newGateway(t, append([]func(*gateway.Config){c.config, retrying}, change...)...)
	f.engines()
	f.follows(1)
	return f, c
}

// classifier says billing where it is asked of money.
func classifier(p prompted) string {
	if strings.Contains(p.text(), "money") {
		return "Billing."
	}
	return "Technical."
}

type spoken struct {
	ID, Model string
	Choices   []struct {
		Text         string
		Message      struct{ Content string }
		Delta        struct{ Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct{ Prompt_tokens, Completion_tokens int } //nolint:revive // as in JSON
}

func (a answer) spoken(t *testing.T) spoken {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, a.err)
	var s spoken
	require.NoError(t, json.Unmarshal([]byte(a.body), &s), a.body)
	require.Len(t, s.Choices, 1, a.body)
	return s
}

// heard joins what a stream of a pipeline says.
func (a answer) heard(t *testing.T) string {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, a.err)
	require.True(t, strings.HasSuffix(a.body, "data: [DONE]\n\n"), a.body)
	got := understand(t, a.body)
	require.Empty(t, got.failed)
	return got.Text
}

func asking(model, text string, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"stream":%t,"messages":[{"role":"user","content":%q}]}`, model, stream, text)
}

func TestPipelineThatBranches(t *testing.T) {
	t.Parallel()
	f, c := composing(t, map[string]string{"support": supportSource})
	f.engines(newModel(t, "small", classifier, nil), newModel(t, "billing-llm", nil, nil), newModel(t, "tech-llm", nil, nil))
	for ask, want := range map[string]string{"my money back": "billing-llm: my money back", "it burns": "tech-llm: it burns"} {
		got := f.post(asking("support", ask, false))
		s := got.spoken(t)
		require.Equal(t, want, s.Choices[0].Message.Content)
		require.Equal(t, "stop", *s.Choices[0].FinishReason)
		require.Equal(t, 20, s.Usage.Prompt_tokens, "of both steps that ran")
		require.NotEmpty(t, got.header.Get("X-Request-Id"))
		require.Equal(t, want, f.post(asking("support", ask, true)).heard(t))
		body := fmt.Sprintf(`{"model":"support","prompt":%q}`, ask)
		require.Equal(t, want, f.do(http.MethodPost, completions, body).spoken(t).Choices[0].Text)
	}
	require.Equal(t, 6.0, f.metric("remuda_gateway_requests_total", "model", "support", "code", "200"))
	require.Equal(t, 6.0, f.metric("remuda_gateway_requests_total", "model", "small", "code", "200"))
	require.Equal(t, 3.0, f.metric("remuda_gateway_requests_total", "model", "tech-llm", "code", "200"))
	require.Zero(t, f.metric("remuda_gateway_in_flight"))
	require.Zero(t, f.metric("remuda_gateway_buffered_bytes"))
	c.change(func() { c.index, c.state.Pipelines = 2, nil })
	f.follows(2)
	require.Zero(t, f.metric("remuda_gateway_requests_total", "model", "support"), "the series of what is gone are gone")
	require.Equal(t, 6.0, f.metric("remuda_gateway_requests_total", "model", "small", "code", "200"))
}

func TestPipelineThatFansOut(t *testing.T) {
	t.Parallel()
	f, _ := composing(t, map[string]string{"fan": fanSource})
	small := newModel(t, "small", func(p prompted) string { return "<" + p.text() + ">" }, nil)
	f.engines(small)
	const want = "<short a>|<long a>|<odd a>"
	require.Equal(t, want, f.post(asking("fan", "a", false)).spoken(t).Choices[0].Message.Content)
	require.Equal(t, want, f.post(asking("fan", "a", true)).heard(t))
	small.Slots = 1 // its steps wait for each other's slots
	f.engines(small)
	require.Equal(t, want, f.post(asking("fan", "a", false)).spoken(t).Choices[0].Message.Content)
}

// TestPipelineThatStreams: each word is with the client before the engine says the next one.
func TestPipelineThatStreams(t *testing.T) {
	t.Parallel()
	f, _ := composing(t, map[string]string{"support": supportSource})
	next := make(chan struct{})
	f.engines(newModel(t, "small", classifier, nil), newModel(t, "tech-llm", nil, func(i int) {
		if i > 0 {
			<-next
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := f.open(ctx, asking("support", "one two three", true))
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	words := []string{"tech-llm: ", "one ", "two ", "three"}
	for i, want := range words {
		if i > 0 {
			next <- struct{}{}
		}
		for found := false; !found; {
			require.True(t, lines.Scan(), "%v", lines.Err())
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var s spoken
			require.NoError(t, json.Unmarshal([]byte(data), &s), data)
			require.Equal(t, want, s.Choices[0].Delta.Content)
			found = true
		}
	}
	done := false
	for lines.Scan() {
		done = done || lines.Text() == "data: [DONE]"
	}
	require.NoError(t, lines.Err())
	require.True(t, done)
}

// TestStepThatWaits: the model of a step has no engine yet.
func TestStepThatWaits(t *testing.T) {
	t.Parallel()
	f, c := composing(t, map[string]string{"support": supportSource}, func(cfg *gateway.Config) {
		cfg.Queue.CommentAfter, cfg.Queue.CommentEvery = 20*time.Millisecond, 20*time.Millisecond
	})
	small := newModel(t, "small", classifier, nil)
	f.engines(small)
	unary := make(chan answer, 1)
	go func() { unary <- f.post(asking("support", "it burns", false)) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := f.open(ctx, asking("support", "it burns", true)) // the first comment line begins it
	defer resp.Body.Close()
	eventually(t, "both wait", func() bool { return f.metric("remuda_gateway_queue_length", "model", "tech-llm") == 2 })
	eventually(t, "the controller hears of it", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range c.reports {
			for m := range r.Demand {
				if m == "tech-llm" {
					return true
				}
			}
		}
		return false
	})
	f.engines(small, newModel(t, "tech-llm", nil, nil))
	require.Equal(t, "tech-llm: it burns", (<-unary).spoken(t).Choices[0].Message.Content)
	body, err := io.ReadAll(resp.Body)
	got := answer{resp.StatusCode, resp.Header, string(body), err}
	require.Equal(t, "tech-llm: it burns", got.heard(t))
	require.True(t, strings.HasPrefix(got.body, ": "), got.body)
}

func TestStepThatFails(t *testing.T) {
	t.Parallel()
	source := strings.Replace(supportSource, `"tech-llm"`, `"nowhere"`, 1)
	f, _ := composing(t, map[string]string{"support": source, "broken": "pipeline \"broken\" {"}, func(c *gateway.Config) {
		c.Queue.Wait = 2 * time.Second // of the model that does not come; those that do answer long before
	})
	f.engines(newModel(t, "small", classifier, nil))
	t.Run("unknown model", func(t *testing.T) {
		for _, stream := range []bool{false, true} {
			a := f.post(asking("support", "it burns", stream))
			e := a.requireError(t, http.StatusBadGateway, "model_not_found")
			require.Contains(t, e.Message, `"tech"`, "the step is named")
			require.Contains(t, e.Message, "nowhere")
		}
	})
	t.Run("model that does not come", func(t *testing.T) {
		a := f.post(asking("support", "money", false))
		e := a.requireError(t, http.StatusServiceUnavailable, "model_unavailable")
		require.Contains(t, e.Message, `"billing"`)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	})
	t.Run("the client's time is over", func(t *testing.T) {
		for _, limit := range []string{"50ms", "0.05"} {
			began := time.Now()
			a := f.post(asking("support", "money", false), "X-Remuda-Timeout", limit)
			require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}, a.status, a.body)
			require.GreaterOrEqual(t, time.Since(began), 45*time.Millisecond)
		}
	})
	t.Run("pipeline that cannot be read", func(t *testing.T) {
		f.post(asking("broken", "x", false)).requireError(t, http.StatusInternalServerError, "pipeline_invalid")
	})
	require.Zero(t, f.metric("remuda_gateway_queue_length"))
}

// TestPipelineOfAKeyThatMayDoOneThing: it is one request, whatever its steps do.
func TestPipelineOfAKeyThatMayDoOneThing(t *testing.T) {
	t.Parallel()
	sources := map[string]string{"support": supportSource, "fan": fanSource}
	f, _ := composing(t, sources, func(c *gateway.Config) {
		c.Keys.Required = true
		c.NamedKeys = []gateway.Key{{Name: "one", SHA256: sha("secret"), KeyLimit: queue.KeyLimit{Weight: 1, Priority: 5, MaxPriority: 5, Concurrency: 1}}}
	})
	hold := make(chan struct{})
	f.engines(newModel(t, "small", func(p prompted) string {
		if strings.Contains(p.text(), "hold") {
			<-hold
		}
		return classifier(p)
	}, nil), newModel(t, "tech-llm", nil, nil))
	f.post(asking("support", "x", false)).requireError(t, http.StatusUnauthorized, "missing_api_key")
	for range 3 {
		require.Equal(t, "tech-llm: x", f.post(asking("support", "x", false), "Authorization", "Bearer secret").spoken(t).Choices[0].Message.Content)
	}
	require.Equal(t, "Technical.|Technical.|Technical.",
		f.post(asking("fan", "x", false), "Authorization", "Bearer secret").spoken(t).Choices[0].Message.Content)

	// A second request beside it is one too many.
	first := make(chan answer, 1)
	go func() { first <- f.post(asking("support", "hold", false), "Authorization", "Bearer secret") }()
	eventually(t, "it runs", func() bool { return f.metric("remuda_gateway_in_flight", "model", "small") == 1 })
	f.post(asking("support", "x", false), "Authorization", "Bearer secret").requireError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	close(hold)
	(<-first).spoken(t)
	require.Equal(t, http.StatusOK, f.post(asking("support", "x", false), "Authorization", "Bearer secret").status)
}

func TestModelsListPipelines(t *testing.T) {
	t.Parallel()
	f, c := composing(t, map[string]string{"support": supportSource, "fan": fanSource})
	list := f.do(http.MethodGet, "/v1/models", "").body
	require.Contains(t, list, `"id":"support"`)
	require.Contains(t, list, `"id":"fan"`)
	require.Contains(t, list, `"id":"small"`)
	require.Equal(t, http.StatusOK, f.do(http.MethodGet, "/v1/models/support", "").status)
	c.change(func() { c.index, c.state.Pipelines = 2, nil })
	f.follows(2)
	require.NotContains(t, f.do(http.MethodGet, "/v1/models", "").body, "support")
	f.do(http.MethodGet, "/v1/models/support", "").requireError(t, http.StatusNotFound, "model_not_found")
	f.post(asking("support", "x", false)).requireError(t, http.StatusNotFound, "model_not_found")
}

func TestLogOfAPipeline(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	f, _ := composing(t, map[string]string{"support": supportSource}, func(c *gateway.Config) { c.AccessLog.Path = path })
	f.engines(newModel(t, "small", classifier, nil), newModel(t, "tech-llm", nil, nil))
	a := f.post(asking("support", "it burns", false), "X-Request-Id", "p-1")
	a.spoken(t)
	id := a.header.Get("X-Request-Id")
	f.wait()
	lines := accessLines(t, path)
	require.Len(t, lines, 3)
	whole := lines["p-1"]
	require.Equal(t, "support", whole.Model)
	require.Equal(t, 200, whole.Status)
	require.EqualValues(t, len(a.body), whole.ResponseBytes)
	require.Equal(t, "anonymous", whole.Key)
	require.Equal(t, "small", lines[id+".classify"].Model)
	require.Equal(t, "small:v:a", lines[id+".classify"].Replica)
	require.Equal(t, "tech-llm", lines[id+".tech"].Model)
}

// TestEndsOfPipelines: a pipeline that is ended early ends its steps, and whoever is there
// is told.
func TestEndsOfPipelines(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		status float64
	}{{"the client leaves", 499}, {"an operator kills it", 503}, {"the gateway stops", 503}}
	for _, c := range cases {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %t", c.name, stream), func(t *testing.T) {
				ctl := newController(t, 0)
				ctl.state.Models = []api.GatewayModel{{Name: "small"}}
				ctl.state.Pipelines = []api.GatewayPipeline{{Name: "fan", Source: fanSource}}
				var mu sync.Mutex
				var orders api.GatewayOrders
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut {
						mu.Lock()
						defer mu.Unlock()
						var report api.GatewayReport
						_ = json.NewDecoder(r.Body).Decode(&report)
						orders.Shares = sharesOf(report)
						_ = json.NewEncoder(w).Encode(orders)
						return
					}
					ctl.serve(0, w, r)
				}))
				t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
				path := filepath.Join(t.TempDir(), "access.log")
				f := newGateway(t, ctl.config, retrying, func(cfg *gateway.Config) {
					cfg.Controller.Addresses = []string{server.URL}
					cfg.Timeouts.Drain = 50 * time.Millisecond
					cfg.AccessLog.Path = path
				})
				entered, left := make(chan string, 9), make(chan struct{}, 9)
				e := newEngine(t, "a", func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					entered <- r.Header.Get("X-Request-Id")
					<-r.Context().Done()
					left <- struct{}{}
				})
				e.Name.Model = "small"
				f.engines(e)
				f.follows(1)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				got := make(chan answer, 1)
				go func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, f.url+chat, strings.NewReader(asking("fan", "x", stream)))
					req.Header.Set("X-Request-Id", "p-1")
					resp, err := f.client.Do(req)
					if err != nil {
						got <- answer{err: err}
						return
					}
					defer resp.Body.Close()
					b, err := io.ReadAll(resp.Body)
					got <- answer{resp.StatusCode, resp.Header, string(b), err}
				}()
				var id string
				for range 3 {
					id, _, _ = strings.Cut(<-entered, ".")
				}
				switch c.name {
				case "the client leaves":
					cancel()
				case "an operator kills it":
					mu.Lock()
					orders.Kill = []string{"p-1", id}
					mu.Unlock()
				default:
					f.stop()
				}
				a := <-got
				for range 3 {
					select {
					case <-left:
					case <-time.After(patience):
						t.Fatal("a step goes on")
					}
				}
				if c.status != 499 {
					require.NoError(t, a.err, "the client is told")
					require.EqualValues(t, c.status, a.status, a.body)
				}
				f.wait()
				require.EqualValues(t, c.status, accessLines(t, path)["p-1"].Status)
			})
		}
	}
}
