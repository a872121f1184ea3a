package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// data returns the JSON of an event.
func data(t require.TestingT, event []byte) string {
	s, ok := strings.CutPrefix(string(event), "data: ")
	require.True(t, ok)
	s, ok = strings.CutSuffix(s, "\n\n")
	require.True(t, ok)
	require.NotContains(t, s, "\n", "an event is one line")
	return s
}

func TestEvents(t *testing.T) {
	t.Parallel()
	const usage = `,"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}`
	u := &openai.Usage{Prompt: 3, Completion: 2}
	chat := openai.NewWriter(openai.Chat, "chatcmpl-1", "m", 7, "")
	completion := openai.NewWriter(openai.Completion, "cmpl-1", "m", 7, "")
	stamped := openai.NewWriter(openai.Chat, "chatcmpl-1", "m", 7, "42")
	const stamp = `,"system_fingerprint":"remuda-sim-42"`
	const chatHead = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[`
	const textHead = `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[`
	const fingerprint = `,"system_fingerprint":"remuda-sim"`
	tests := []struct {
		name  string
		event []byte
		want  string
	}{
		{"role", chat.Role(nil, 1, nil), chatHead + `{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`},
		{"stamped role", stamped.Role(nil, 1, nil), chatHead + `{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]` + stamp + `}`},
		{"stamped token", stamped.Token(nil, 0, openai.Choice{Text: " a"}, nil, true), chatHead + `{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]` + stamp + `}`},
		{"chat token", chat.Token(nil, 0, openai.Choice{Text: " a"}, nil, true), chatHead + `{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]}`},
		{
			"chat end", chat.Token(nil, 0, openai.Choice{Finish: "stop"}, nil, true),
			chatHead + `{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null}]` + fingerprint + `}`,
		},
		{
			"stop string", completion.Token(nil, 2, openai.Choice{Text: "x", Finish: "stop", StopReason: "\n"}, u, false),
			textHead + `{"index":2,"text":"x","logprobs":null,"finish_reason":"stop","stop_reason":"\n"}]` + usage + `}`,
		},
		{"usage", completion.FinalUsage(nil, *u), textHead + `]` + fingerprint + usage + `}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.JSONEq(t, tt.want, data(t, tt.event))
		})
	}
	assert.Equal(t, "data: [DONE]\n\n", string(openai.Done(nil)))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	u := openai.Usage{Prompt: 3, Completion: 2}
	const tail = `"service_tier":null,"system_fingerprint":"remuda-sim",
		"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}`
	assert.JSONEq(t, `{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[
		{"index":0,"message":{"role":"assistant","content":"a","refusal":null,"tool_calls":[]},"logprobs":null,"finish_reason":"stop","stop_reason":null}],`+tail,
		string(openai.NewWriter(openai.Chat, "chatcmpl-1", "m", 7, "").Answer([]openai.Choice{{Text: "a", Finish: "stop"}}, u)))
	assert.JSONEq(t, `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[
		{"index":0,"text":"a","logprobs":null,"finish_reason":"length","stop_reason":null},
		{"index":1,"text":"b","logprobs":null,"finish_reason":"stop","stop_reason":"!"}],`+tail,
		string(openai.NewWriter(openai.Completion, "cmpl-1", "m", 7, "").Answer(
			[]openai.Choice{{Text: "a", Finish: "length"}, {Text: "b", Finish: "stop", StopReason: "!"}}, u)))
}

func TestAnyTextIsValidJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`)).Draw(t, "text")
		w := openai.NewWriter(openai.Chat, s, s, 1, "")
		var got struct {
			ID, Model string
			Choices   []struct{ Delta struct{ Content string } }
		}
		require.NoError(t, json.Unmarshal([]byte(data(t, w.Token(nil, 0, openai.Choice{Text: s}, nil, false))), &got))
		assert.Equal(t, s, got.ID)
		assert.Equal(t, s, got.Model)
		assert.Equal(t, s, got.Choices[0].Delta.Content)
	})
}

func TestEmbeddingsAndModels(t *testing.T) {
	t.Parallel()
	got := openai.Embeddings("embd-1", "m", 7, [][]float32{{1, -0.5}, {0, 2}}, false, openai.Usage{Prompt: 4})
	const head, tail = `{"id":"embd-1","object":"list","created":7,"model":"m","data":[`,
		`],"usage":{"prompt_tokens":4,"total_tokens":4,"completion_tokens":0,"prompt_tokens_details":null}}`
	assert.JSONEq(t, head+`{"index":0,"object":"embedding","embedding":[1,-0.5]},{"index":1,"object":"embedding","embedding":[0,2]}`+tail, string(got))
	got = openai.Embeddings("embd-1", "m", 7, [][]float32{{1, -0.5}}, true, openai.Usage{Prompt: 4})
	assert.JSONEq(t, head+`{"index":0,"object":"embedding","embedding":"AACAPwAAAL8="}`+tail, string(got))
	assert.JSONEq(t, `{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"remuda-sim","root":"m","parent":null,
		"max_model_len":100,"permission":[{"id":"modelperm-m","object":"model_permission","created":7,"allow_create_engine":false,
		"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,
		"organization":"*","group":null,"is_blocking":false}]}]}`, string(openai.Models("m", 7, 100)))
}

func BenchmarkToken(b *testing.B) {
	a := &openai.Answer{Writer: openai.NewWriter(openai.Chat, "chatcmpl-1", "m", 7, ""), Sampling: &openai.Sampling{}}
	buf := a.Open(nil, make([]openai.Usage, 1))
	b.ReportAllocs()
	for b.Loop() {
		buf = a.Token(buf[:0], 0, text.Piece{Text: " horse", Token: " horse"}, openai.Usage{})
	}
}
