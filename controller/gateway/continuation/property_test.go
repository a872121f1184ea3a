package continuation_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/continuation"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// drawBody draws a request, with stop strings that are in its answer or nearly so.
func drawBody(t *rapid.T, chat bool) map[string]any {
	prompt := rapid.OneOf(
		rapid.SampledFrom([]string{"Hello", "The end.", "a,", "東京 \"quoted\"\n", "Why?", `back\slash`}),
		// A space at the end would be a token of its own here, and in a longer text a
		// part of the next.
		rapid.Map(rapid.StringN(1, 40, -1), func(s string) string { return strings.TrimRight(s, " ") + "." }),
	).Draw(t, "prompt")
	maxTokens := rapid.IntRange(1, 80).Draw(t, "max_tokens")
	body := map[string]any{"model": model, "stream": true, "ignore_eos": rapid.Bool().Draw(t, "ignore_eos")}
	rendered := prompt
	switch {
	case !chat && rapid.Bool().Draw(t, "list"):
		body["prompt"] = []string{prompt}
	case !chat:
		body["prompt"] = prompt
	default:
		messages := []map[string]any{{"role": "user", "content": prompt}}
		rendered = text.Render([]text.Message{{Role: "user", Content: prompt}}, true, false)
		if rapid.Bool().Draw(t, "client continues") {
			begun := rapid.SampledFrom([]string{"", "Well", "The"}).Draw(t, "begun")
			var content any = begun
			if rapid.Bool().Draw(t, "parts") {
				content = []map[string]any{{"type": "text", "text": begun}}
			}
			messages = append(messages, map[string]any{"role": "assistant", "content": content})
			body["continue_final_message"], body["add_generation_prompt"] = true, false
			rendered += begun
		}
		body["messages"] = messages
	}
	switch limit := rapid.IntRange(0, 3).Draw(t, "limit"); {
	case chat && limit == 0:
		body["max_completion_tokens"] = maxTokens
	case chat && limit == 1:
		body["max_completion_tokens"], body["max_tokens"] = maxTokens, 1000
	case !chat && limit == 0:
		maxTokens = 16 // the default
	default:
		body["max_tokens"] = maxTokens
	}
	if rapid.Bool().Draw(t, "with min_tokens") {
		body["min_tokens"] = rapid.IntRange(0, maxTokens).Draw(t, "min_tokens")
	}
	free := answers.Generate(model, rendered, text.Params{MaxTokens: 80, IgnoreEOS: true}).Text
	var stops []string
	for range rapid.IntRange(0, 3).Draw(t, "stops") {
		from := rapid.IntRange(0, len(free)-1).Draw(t, "from")
		stop := strings.ToValidUTF8(free[from:rapid.IntRange(from+1, min(len(free), from+25)).Draw(t, "to")], "")
		if stop == "" || rapid.Bool().Draw(t, "near miss") {
			stop += "§"
		}
		stops = append(stops, stop)
	}
	if stops != nil {
		body["stop"] = stops
	}
	switch rapid.IntRange(0, 2).Draw(t, "usage") {
	case 1:
		body["stream_options"] = map[string]any{"include_usage": true}
	case 2:
		body["stream_options"] = map[string]any{"include_usage": true, "continuous_usage_stats": true}
	}
	return body
}

// relay passes a stream's lines on as a gateway does, until it breaks off.
func relay(t *rapid.T, lines []string, pass func(string)) {
	for len(lines) > 0 {
		n := rapid.IntRange(1, len(lines)).Draw(t, "lines")
		p := strings.Join(lines[:n], "")
		whole, err := continuation.Check([]byte(p))
		require.NoError(t, err)
		require.Equal(t, len(p), whole)
		pass(p)
		lines = lines[n:]
	}
}

// TestNoClientSeesTheSeam breaks streams of a real (simulated) engine off at any line, up to
// three times, and compares what the client got with the uninterrupted stream.
func TestNoClientSeesTheSeam(t *testing.T) {
	e := startEngine(t)
	rapid.Check(t, func(t *rapid.T) {
		chat := rapid.Bool().Draw(t, "chat")
		body, err := json.Marshal(drawBody(t, chat))
		require.NoError(t, err)
		whole := e.stream(t, chat, body)
		want := read(t, strings.Join(whole, ""))
		require.True(t, want.Done)

		rec, err := continuation.NewRecorder(chat, body)
		require.NoError(t, err)
		var client strings.Builder
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		relay(t, whole[:cut], func(p string) {
			client.WriteString(p)
			rec.Feed([]byte(p))
		})
		for breaks := rapid.IntRange(1, 3).Draw(t, "breaks"); breaks > 0; breaks-- {
			require.NoError(t, rec.Err())
			next, err := rec.Request()
			if errors.Is(err, continuation.ErrComplete) {
				client.Write(rec.Tail())
				break
			}
			require.NoError(t, err)
			rest := e.stream(t, chat, next)
			if breaks > 1 {
				rest = rest[:rapid.IntRange(0, len(rest)).Draw(t, "cut again")]
			}
			relay(t, rest, func(p string) {
				// Lines may come in parts.
				n := rapid.IntRange(0, len(p)).Draw(t, "part")
				client.Write(rec.Splice([]byte(p[:n])))
				client.Write(rec.Splice([]byte(p[n:])))
			})
		}
		got := read(t, client.String())
		require.Len(t, got.IDs, 1, "one id, model and kind")
		got.IDs, want.IDs = nil, nil
		assert.Equal(t, want, got, "body %s\nstream %s", body, client.String())
	})
}

// TestTheCountIsRight: what the recorder has counted is what the engine generated.
func TestTheCountIsRight(t *testing.T) {
	e := startEngine(t)
	for _, limit := range []int{1, 2, 9, 40} {
		want := answers.Generate(model, "Hello", text.Params{MaxTokens: limit, IgnoreEOS: true})
		body := fmt.Appendf(nil, `{"model":%q,"stream":true,"prompt":"Hello","max_tokens":%d,"ignore_eos":true}`, model, limit)
		rec, err := continuation.NewRecorder(false, body)
		require.NoError(t, err)
		rec.Feed([]byte(strings.Join(e.stream(t, false, body), "")))
		require.NoError(t, rec.Err())
		require.Equal(t, want.Tokens, rec.Tokens())
		_, err = rec.Request()
		require.ErrorIs(t, err, continuation.ErrComplete)
		require.Empty(t, rec.Tail(), "the client has it all")
	}
}
