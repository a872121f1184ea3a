package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/proclog"
)

// chatGateway is a gateway whose model repeats the last message word by word.
type chatGateway struct {
	*httptest.Server
	mu   sync.Mutex
	asks []chatGatewayAsk
	// before is called before each word.
	before func(ctx context.Context, n int)
}

type chatGatewayAsk struct {
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
	MaxTokens int           `json:"max_tokens"`
	Stream    bool          `json:"stream"`
	key       string
}

func newChatGateway(t *testing.T) *chatGateway {
	g := &chatGateway{before: func(context.Context, int) {}}
	g.Server = httptest.NewServer(http.HandlerFunc(g.serve))
	t.Cleanup(g.Close)
	t.Setenv(envGateway, g.URL)
	t.Setenv(envAPIKey, "sk-1")
	return g
}

func (g *chatGateway) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"llama"},{"id":"qwen"}]}`)
		return
	}
	var ask chatGatewayAsk
	_ = json.NewDecoder(r.Body).Decode(&ask)
	ask.key = r.Header.Get("Authorization")
	g.mu.Lock()
	g.asks = append(g.asks, ask)
	g.mu.Unlock()
	switch ask.Model {
	case "llama":
	case "waits": // its first comment begins the stream
		fmt.Fprint(w, ": remuda state=DEPLOYING position=1 waited=2s\n\n")
		w.Header().Set(http.TrailerPrefix+headerReplica, "waits:v:2")
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"error":{"message":"the model %s does not exist","code":"model_not_found"}}`, ask.Model)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(headerReplica, "llama:v:1")
	text := ask.Messages[len(ask.Messages)-1].Content
	event := func(v any) {
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
	delta := func(name, text string) any {
		return map[string]any{"choices": []any{map[string]any{"delta": map[string]string{name: text}}}}
	}
	if text == "think" {
		event(delta("reasoning_content", "hm"))
	}
	all := strings.SplitAfter(text, " ")
	for i, word := range all {
		g.before(r.Context(), i)
		if word == "break " {
			return
		}
		if word == "fail " {
			event(map[string]any{"error": map[string]any{"message": "the engine ended", "code": 500}})
			return
		}
		event(delta("content", word))
	}
	event(map[string]any{"choices": []any{}, "usage": map[string]int{"completion_tokens": len(all)}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// chatting runs the verb with what is typed.
func chatting(t *testing.T, typed io.Reader, args ...string) result {
	t.Helper()
	var out, errout bytes.Buffer
	p := &program{ctx: t.Context(), stdin: typed, stdout: &out, stderr: &errout}
	return result{p.run(append([]string{"chat"}, args...)), out.String(), errout.String()}
}

func TestChatAnswersOneQuestion(t *testing.T) {
	g := newChatGateway(t)
	r := chatting(t, nil, "llama", "-m", "one two three", "-max-tokens", "9", "-system", "be brief")
	require.Equal(t, 0, r.code, r.errout)
	require.Equal(t, "one two three\n", r.out)
	require.Regexp(t, `^\[llama:v:1, 3 tokens, [0-9.]+ tokens/s, first after [0-9.]+ s, [0-9.]+ s\]\n$`, r.errout)
	require.Equal(t, []chatGatewayAsk{{Model: "llama", Messages: []chatMessage{{"system", "be brief"}, {"user", "one two three"}}, MaxTokens: 9, Stream: true, key: "Bearer sk-1"}}, g.asks)

	r = chatting(t, strings.NewReader("from a file"), "llama", "-m", "-")
	require.Equal(t, "from a file\n", r.out)
	r = chatting(t, nil, "waits", "-m", "hello")
	require.Contains(t, r.errout, "[waits:v:2, ", "the replica is in a trailer")
	r = chatting(t, nil, "llama", "-m", "think")
	require.Equal(t, "think\n", r.out, "thoughts are no part of the answer")
	require.Contains(t, r.errout, "hm\n")
}

func TestChatExplainsWhatFails(t *testing.T) {
	newChatGateway(t)
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no model":      {nil, 2, "expected MODEL, got 0 arguments"},
		"another model": {[]string{"lama", "-m", "x"}, 1, `the model lama does not exist (did you mean "llama"?)`},
		"broken off":    {[]string{"llama", "-m", "a break b"}, 1, "the answer broke off"},
		"an error":      {[]string{"llama", "-m", "a fail b"}, 1, "the engine ended"},
		"nobody":        {[]string{"llama", "-m", "x", "-gateway", "http://127.0.0.1:1"}, 1, `is "remuda gateway" running there? Set -gateway or REMUDA_GATEWAY`},
		"no URL":        {[]string{"llama", "-m", "x", "-gateway", "ftp://x"}, 2, `the gateway's address is "ftp://x"`},
		"no CA":         {[]string{"llama", "-m", "x", "-ca-cert", "none.pem"}, 2, "none.pem"},
		"no tokens":     {[]string{"llama", "-m", "x", "-max-tokens", "-1"}, 2, "-max-tokens is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := chatting(t, nil, tc.args...)
			require.Equal(t, tc.code, r.code, r.errout)
			require.Contains(t, r.errout, tc.want)
		})
	}
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	require.Contains(t, chatting(t, nil, "llama", "-m", "x", "-gateway", other.URL).errout, "is it a remuda gateway?")
}

// TestChatKeepsTheConversation also where Ctrl-C or an error ends an answer.
func TestChatKeepsTheConversation(t *testing.T) {
	g := newChatGateway(t)
	g.before = func(ctx context.Context, n int) {
		g.mu.Lock()
		second := len(g.asks) == 2
		g.mu.Unlock()
		if second && n == 1 {
			<-ctx.Done()
		}
	}
	typed, keyboard := io.Pipe()
	out, errout := &proclog.Buffer{}, &proclog.Buffer{}
	p := &program{ctx: t.Context(), stdin: typed, stdout: out, stderr: errout}
	done := make(chan int, 1)
	go func() { done <- p.run([]string{"chat", "llama"}) }()
	write := func(line string) {
		_, err := io.WriteString(keyboard, line+"\n")
		require.NoError(t, err)
	}
	write("first")
	write("second is long")
	require.Eventually(t, func() bool { return strings.HasSuffix(out.String(), "second ") }, patience, time.Millisecond)
	require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGINT))
	write("a fail b")
	write("")
	write("third")
	require.NoError(t, keyboard.Close())
	require.Equal(t, 0, <-done, errout)
	require.Equal(t, "first\nsecond \na \nthird\n", out.String())
	require.Contains(t, errout.String(), "[ended]\n")
	require.Contains(t, errout.String(), "remuda chat: the engine ended\n")
	require.Equal(t, []chatMessage{
		{"user", "first"}, {"assistant", "first"}, {"user", "second is long"}, {"assistant", "second "}, {"user", "a fail b"}, {"assistant", "a "}, {"user", "third"},
	}, g.asks[3].Messages)
}
