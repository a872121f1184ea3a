package compose_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/gateway/compose"
)

// two steps, of which the second is the answer.
func two(lines ...string) string {
	return pipelineOf("step.b", step("a", `prompt = input.text`), step("b", append([]string{`prompt = "so ${step.a.text}"`}, lines...)...))
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	chatBody       = `{"model":"p","messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]}`
	chatStream     = `{"model":"p","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
)

// TestBothFormsOfBoth: a client's API and a step's go together in any way, whole and
// streamed, and the tokens are those of all steps.
func TestBothFormsOfBoth(t *testing.T) {
	const want = "b: so a: hi" // 3 words, and 4
	for _, endpoint := range []string{"chat", "completions"} {
		w := newWorld(t, two(`endpoint = "`+endpoint+`"`))
		for path, body := range map[string]string{
			chatPath:       `{"model":"p","messages":[{"role":"user","content":"hi"}]}`,
			completionPath: `{"model":"p","prompt":["hi"]}`,
		} {
			a := w.post(path, body, "X-Request-Id", "r1")
			require.Equal(t, http.StatusOK, a.status, a.body)
			r := a.reply(t)
			require.Equal(t, "p", r.Model)
			require.Greater(t, r.Created, int64(1000))
			require.Equal(t, 20, r.Usage.Prompt_tokens)
			require.Equal(t, 6, r.Usage.Completion_tokens)
			require.Equal(t, 26, r.Usage.Total_tokens)
			require.Equal(t, "stop", *r.Choices[0].FinishReason)
			require.Equal(t, "r1", a.header.Get("X-Request-Id"))
			if path == chatPath {
				require.Equal(t, "chat.completion", r.Object)
				require.Equal(t, "chatcmpl-r1", r.ID)
				require.Equal(t, "assistant", r.Choices[0].Message.Role)
				require.Equal(t, want, r.Choices[0].Message.Content)
				if endpoint == "chat" {
					require.Equal(t, "hm", r.Choices[0].Message.ReasoningContent, "what else the engine says is passed on")
				}
			} else {
				require.Equal(t, "text_completion", r.Object)
				require.Equal(t, "cmpl-r1", r.ID)
				require.Equal(t, want, r.Choices[0].Text)
			}

			a = w.post(path, strings.Replace(body, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1))
			require.False(t, a.broken)
			all, _, done := a.events(t)
			require.True(t, done)
			require.Equal(t, want, text(all))
			require.Len(t, all, 6, "four words, the end and the usage: %s", a.body)
			last := all[len(all)-1]
			require.Empty(t, last.Choices)
			require.Equal(t, 26, last.Usage.Total_tokens)
			for i, r := range all[:len(all)-1] {
				require.Nil(t, r.Usage)
				require.Equal(t, all[0].ID, r.ID)
				require.Equal(t, "p", r.Model)
				require.Equal(t, path == chatPath && i == 0, r.Choices[0].Delta.Role == "assistant", a.body)
				require.Equal(t, i == len(all)-2, r.Choices[0].FinishReason != nil)
			}
			a = w.post(path, strings.Replace(body, "{", `{"stream":true,`, 1))
			all, _, _ = a.events(t)
			require.Len(t, all, 5, "nobody asked for the usage")
		}
	}
}

func TestComputedOutput(t *testing.T) {
	w := newWorld(t, pipelineOf(`join("|", step.a[*].text)`, step("a", `for_each = ["x", "y"]`, `prompt = each.value`)))
	r := w.post(chatPath, chatBody).reply(t)
	require.Equal(t, "a: x|a: y", r.Choices[0].Message.Content)
	require.Equal(t, 24, r.Usage.Total_tokens)
	all, _, done := w.post(chatPath, chatStream).events(t)
	require.True(t, done)
	require.Equal(t, "a: x|a: y", text(all))
	require.Equal(t, "assistant", all[0].Choices[0].Delta.Role)
	require.Equal(t, "stop", *all[1].Choices[0].FinishReason)
	require.Equal(t, 24, all[2].Usage.Total_tokens)
	require.Equal(t, "a: x|a: y", w.post(completionPath, `{"prompt":"hi"}`).reply(t).Choices[0].Text)
}

// TestWhatStepsAreAsked: who the client is, and what it said of sampling where the answer is
// its own.
func TestWhatStepsAreAsked(t *testing.T) {
	w := newWorld(t, two("max_tokens = 7"))
	a := w.post(chatPath, `{"model":"p","temperature":0.5,"max_completion_tokens":99,"stop":["x"],"tools":[{"a":1}],"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]}`,
		"Authorization", "Bearer k", "X-Remuda-Priority", "7", "Traceparent", "00-a-b-01", "Tracestate", "s=1", "Cookie", "secret", "X-Request-Id", "id")
	require.Equal(t, http.StatusOK, a.status, a.body)
	for _, model := range []string{"a", "b"} {
		q := w.engines.of(model)
		require.Equal(t, "id."+model, q.header.Get("X-Request-Id"))
		require.Equal(t, "Bearer k", q.header.Get("Authorization"))
		require.Equal(t, "7", q.header.Get("X-Remuda-Priority"))
		require.Equal(t, "00-a-b-01", q.header.Get("Traceparent"))
		require.Equal(t, "s=1", q.header.Get("Tracestate"))
		require.Empty(t, q.header.Get("Cookie"))
		require.False(t, q.Stream)
	}
	first, last := w.engines.of("a"), w.engines.of("b")
	require.Equal(t, "one\ntwo", first.text())
	require.Nil(t, first.Temperature)
	require.Nil(t, first.Tools)
	require.InDelta(t, 0.5, *last.Temperature, 0)
	require.Equal(t, []any{"x"}, last.Stop)
	require.NotNil(t, last.Tools)
	require.Equal(t, 7, last.MaxTokens, "the pipeline's own word counts")
	require.Zero(t, last.MaxCompletionTokens)

	// An ID that leaves no room is cut.
	w = newWorld(t, two())
	w.post(chatPath, chatBody, "X-Request-Id", strings.Repeat("x", 128))
	require.Equal(t, strings.Repeat("x", 126)+".a", w.engines.of("a").header.Get("X-Request-Id"))
}

// TestTheStreamComesAsItIsMade: a piece is there before the next one is made.
func TestTheStreamComesAsItIsMade(t *testing.T) {
	w := newWorld(t, two())
	goOn := make(chan struct{})
	w.engines.special["b"] = func(rw http.ResponseWriter, r *http.Request, _ request) {
		send(rw, map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"content": "first"}}}})
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		send(rw, map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"content": " last"}, "finish_reason": "length"}}})
		_, _ = io.WriteString(rw, "data: [DONE]")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := w.open(ctx, chatPath, chatStream)
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	n, err := resp.Body.Read(buf)
	require.NoError(t, err)
	require.Contains(t, string(buf[:n]), `"first"`)
	close(goOn)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(rest), `" last"`)
	require.Contains(t, string(rest), `"length"`)
	require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"))
}

// TestComments: who waits for a stream is told what runs, until the answer begins.
func TestComments(t *testing.T) {
	w := newWorld(t, two(), func(cfg *compose.Config) { cfg.CommentAfter, cfg.CommentEvery = time.Millisecond, time.Millisecond })
	waited := make(chan struct{})
	w.engines.special["a"] = func(rw http.ResponseWriter, r *http.Request, q request) {
		select {
		case <-waited:
		case <-r.Context().Done():
		}
		say(rw, q, "done")
	}
	w.engines.special["b"] = func(rw http.ResponseWriter, _ *http.Request, q request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, ": remuda state=DEPLOYING position=3 waited=12s\n\n")
		say(rw, q, "done")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := w.open(ctx, chatPath, chatStream)
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	for line := ""; !strings.HasPrefix(line, ": remuda pipeline=p running=a waited="); {
		var err error
		line, err = stream.ReadString('\n')
		require.NoError(t, err)
		require.Regexp(t, `^: remuda pipeline=p running=a? waited=\d+s\n$`, line, "no step runs until a has begun")
		end, err := stream.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "\n", end)
	}
	close(waited)
	rest, err := io.ReadAll(stream)
	require.NoError(t, err)
	all, comments, done := answer{body: string(rest), header: resp.Header}.events(t)
	require.True(t, done)
	require.Equal(t, "done", text(all))
	require.Contains(t, comments, ": remuda state=DEPLOYING position=3 waited=12s")
}

// TestAClientThatLeaves ends all steps, and Serve waits for that.
func TestAClientThatLeaves(t *testing.T) {
	for _, body := range []string{chatBody, chatStream} {
		w := newWorld(t, pipelineOf(`"${step.a.text}${step.b[0].text}"`, step("a", `prompt = "x"`), step("b", `for_each = [1, 2, 3]`, `prompt = "x"`)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hang := func(_ http.ResponseWriter, r *http.Request, _ request) {
			w.engines.mu.Lock()
			all := w.engines.now == 4
			w.engines.mu.Unlock()
			if all {
				cancel()
			}
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		w.engines.special["a"], w.engines.special["b"] = hang, hang
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+chatPath, strings.NewReader(body))
		require.NoError(t, err)
		_, err = http.DefaultClient.Do(req) //nolint:bodyclose // there is no answer
		require.ErrorIs(t, err, context.Canceled)
		require.Eventually(t, func() bool {
			w.engines.mu.Lock()
			defer w.engines.mu.Unlock()
			return w.engines.canceled == 4 && w.engines.now == 0
		}, patience, time.Millisecond)
	}
}

func TestSet(t *testing.T) {
	e := &engines{t: t}
	c, err := compose.New(compose.Config{Next: e})
	require.NoError(t, err)
	source := pipelineOf("step.a", step("a", `prompt = "x"`))
	c.Set([]api.GatewayPipeline{{Name: "p", Source: source}, {Name: "broken", Source: "{"}, {Name: "other", Source: source}})
	require.Equal(t, []string{"broken", "other", "p"}, c.Names())
	require.True(t, c.Has("p"))
	require.False(t, c.Has("q"))
	c.Set(nil)
	require.Empty(t, c.Names())

	_, err = compose.New(compose.Config{MaxAnswer: -1, CommentAfter: -1})
	require.ErrorContains(t, err, "next is nil")
	require.ErrorContains(t, err, "max answer is -1")
	require.ErrorContains(t, err, "comment after is -1ns")
}
