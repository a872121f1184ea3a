package openai_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/openai"
)

const (
	piece   = `data: {"id":"a","choices":[{"index":0,"delta":{"content":"x \"usage\":{} y"}}],"usage":null}` + "\n\n"
	totals  = `data: {"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":5}}}` + "\n\n"
	endMark = "data: [DONE]\n\n"
)

func TestEvents(t *testing.T) {
	all := ": hello\n\n" + piece + piece + totals + endMark
	for _, hide := range []bool{false, true} {
		e := openai.Events{Hide: hide}
		out, err := e.Take([]byte(all))
		require.NoError(t, err)
		want := all
		if hide {
			want = strings.Replace(all, totals, "", 1)
		}
		require.Equal(t, want, string(out))
		require.Equal(t, openai.Usage{Prompt: 7, Cached: 5, Completion: 2}, e.Usage)
		require.True(t, e.Counted)
		require.True(t, e.Ended)
		require.False(t, e.Failed)
		require.EqualValues(t, 2, e.Pieces)
	}
}

func TestEventsOfOtherAPIs(t *testing.T) {
	for name, tc := range map[string]struct {
		stream string
		want   openai.Events
	}{
		"messages": {
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":32,\"output_tokens\":1}}}\n\n" +
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"}}\n\n" +
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
			openai.Events{Usage: openai.Usage{Prompt: 42, Cached: 32, Completion: 5}, Counted: true, Pieces: 1, Begun: true, Ended: true},
		},
		"responses": {
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n" +
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":1,\"input_tokens_details\":{\"cached_tokens\":2}}}}\n\n",
			openai.Events{Usage: openai.Usage{Prompt: 3, Cached: 2, Completion: 1}, Counted: true, Pieces: 1, Begun: true, Ended: true},
		},
		"an error": {"data: {\"error\":{\"message\":\"x\"}}\n\n", openai.Events{Failed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var e openai.Events
			out, err := e.Take([]byte(tc.stream))
			require.NoError(t, err)
			require.Equal(t, tc.stream, string(out))
			require.Equal(t, tc.want, e)
		})
	}
}

// A stream has begun with its first content: not with the role, the end, or the events before the answer.
func TestEventsThatBegin(t *testing.T) {
	for event, want := range map[string]bool{
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`:                   false,
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`: false,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`:                           false,
		`{"choices":[{"index":0,"text":"","finish_reason":"length"}]}`:                          false,
		`{"choices":[{"delta":{"delta":{"content":"x"}}}]}`:                                     false,
		`{"choices":[],"usage":{"prompt_tokens":1}}`:                                            false,
		`{"choices":"x"}`: false,
		`{"type":"response.created","response":{"id":"r"}}`:                                 false,
		`{"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":1}}}`: false,
		`{"type":"ping"}`: false,
		`{"choices":[{"delta":{"role":"assistant","content":"x"}}]}`:                   true,
		`{"choices":[{"delta":{"reasoning_content":"x"}}]}`:                            true,
		`{"choices":[{"delta":{"reasoning":"x"}}]}`:                                    true,
		`{"choices":[{"delta":{"refusal":"x"}}]}`:                                      true,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`: true,
		`{"choices":[{"index":0,"text":"x"}]}`:                                         true,
		`{"choices":[{"delta":{"content":""}},{"delta":{"content":"x"}}]}`:             true,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`:      true,
		`{"type":"response.output_text.delta","delta":"x"}`:                            true,
	} {
		var e openai.Events
		_, err := e.Take([]byte("data: " + event + "\n\n"))
		require.NoError(t, err)
		require.Equal(t, want, e.Begun, event)
		_, err = e.Take([]byte(totals))
		require.NoError(t, err)
		require.Equal(t, want, e.Begun, "it stays as it is")
	}
}

func TestEventsStopAtWhatIsNone(t *testing.T) {
	for _, bad := range []string{"<html>\n", "data: {\"a\":\n", "data: {\"choices\":[{\"text\":\"x\"}],\n", "data: {\"type\":\"x.delta\",\n", "data: nonsense\n", "data: {\"a\":\"\xff\"}\n", "data: {} {}\n", "data: [1]\n"} {
		for _, before := range []string{piece, totals, totals + piece} {
			e := openai.Events{Hide: true}
			out, err := e.Take([]byte(before + bad + piece))
			require.Error(t, err, bad)
			require.Equal(t, strings.Contains(before, piece), e.Begun, bad)
			require.Equal(t, strings.ReplaceAll(before, totals, ""), string(out))
		}
	}
}

// However a stream is cut into calls, the client gets the same of it.
func TestEventsInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{piece, totals, ": c\n", "\n", "event: x\n", endMark}), 0, 12).Draw(t, "parts")
		all := strings.Join(parts, "")
		whole := openai.Events{Hide: true}
		want, err := whole.Take([]byte(all))
		require.NoError(t, err)
		var e openai.Events
		e.Hide = true
		got := ""
		for rest := strings.SplitAfter(all, "\n"); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "lines")
			out, err := e.Take([]byte(strings.Join(rest[:n], "")))
			require.NoError(t, err)
			got += string(out)
			rest = rest[n:]
		}
		require.Equal(t, string(want), got)
		require.Equal(t, whole.Usage, e.Usage)
		require.Equal(t, whole.Pieces, e.Pieces)
	})
}

func TestUsageOfAnswers(t *testing.T) {
	usage := openai.Usage{Prompt: 12, Completion: 3}
	answer := `{"choices":[{"text":"\"usage\":{\"prompt_tokens\":99}"}],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3},"x":{}}`
	got, ok := openai.UsageOf([]byte(answer))
	require.True(t, ok)
	require.Equal(t, usage, got)
	for from := range answer {
		got, ok := openai.UsageIn([]byte(answer[from:]))
		if from <= strings.Index(answer, `"usage":{"prompt`) {
			require.True(t, ok)
			require.Equal(t, usage, got)
		} else {
			require.False(t, ok, answer[from:])
		}
	}
	_, ok = openai.UsageOf([]byte(`{"usage":{"a":1}}`))
	require.False(t, ok)
	_, ok = openai.UsageIn([]byte(`"usage":{"prompt_tokens":1`))
	require.False(t, ok, "it is cut off")
}
