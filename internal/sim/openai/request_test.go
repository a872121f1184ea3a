package openai_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

func TestDecodeChat(t *testing.T) {
	t.Parallel()
	r, e := openai.DecodeChat([]byte(`{"model":"m","messages":[
		{"role":"system","content":"Be brief."},
		{"role":"user","content":[{"type":"text","text":"One"},{"type":"text","text":"two"},"three"]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]},
		{"role":"tool","tool_call_id":"x"}],
		"max_tokens":5,"max_completion_tokens":7,"stop":"END","n":2,"temperature":0.5,"top_p":1,"seed":-5,"stream":true,
		"stream_options":{},"logit_bias":{"5":1},"tools":[],"whatever":{"a":[1]}}`))
	require.Nil(t, e)
	assert.Equal(t, "m", *r.Model)
	assert.Equal(t, 7, *r.MaxTokens, "the newer name wins")
	assert.Equal(t, openai.Texts{"END"}, r.Stop)
	final, continuous := r.Usage()
	assert.True(t, final, "stream_options mean usage unless they say otherwise")
	assert.False(t, continuous)
	assert.Equal(t, text.Render([]text.Message{
		{Role: "system", Content: "Be brief."}, {Role: "user", Content: "One\ntwo\nthree"}, {Role: "assistant"}, {Role: "tool"},
	}, true, false), prompt(r))
}

func TestDecodeChatContinuation(t *testing.T) {
	t.Parallel()
	r, e := openai.DecodeChat([]byte(`{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Well"}],
		"continue_final_message":true,"add_generation_prompt":false}`))
	require.Nil(t, e)
	assert.Equal(t, text.Render([]text.Message{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Well"}}, false, true), prompt(r))
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	chat := func(b []byte) *openai.Error { _, e := openai.DecodeChat(b); return e }
	completion := func(b []byte) *openai.Error { _, e := openai.DecodeCompletion(b); return e }
	embedding := func(b []byte) *openai.Error { _, e := openai.DecodeEmbedding(b); return e }
	tokenize := func(b []byte) *openai.Error { _, e := openai.DecodeTokenize(b); return e }
	detokenize := func(b []byte) *openai.Error { _, e := openai.DecodeDetokenize(b); return e }
	const hi = `"messages":[{"role":"user","content":"Hi"}]`
	tests := []struct {
		name   string
		decode func([]byte) *openai.Error
		body   string
		param  string
		want   string
	}{
		{"empty body", chat, ``, "", "no body"},
		{"blank body", chat, " \n", "", "no body"},
		{"not JSON", chat, `hello`, "", "not valid JSON"},
		{"cut off", chat, `{"model":"m"`, "", "not valid JSON"},
		{"two objects", chat, `{} {}`, "", "not valid JSON"},
		{"null", chat, `null`, "", "must be a JSON object"},
		{"list", chat, `[]`, "", "must be an object, got array"},
		{"no messages", chat, `{}`, "messages", "at least one message"},
		{"empty messages", chat, `{"messages":[]}`, "messages", "at least one message"},
		{"no role", chat, `{"messages":[{"content":"x"}]}`, "messages", "messages[0]: role is missing"},
		{"role not text", chat, `{"messages":[{"role":5,"content":"x"}]}`, "role", "messages.role: must be a string, got number"},
		{"content a number", chat, `{"messages":[{"role":"user","content":5}]}`, "", "a string or a list of parts"},
		{"image", chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "", "text parts only"},
		{"part without text", chat, `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, "", `"text" is missing`},
		{"model not text", chat, `{"model":5,` + hi + `}`, "model", "model: must be a string, got number"},
		{"n zero", chat, `{"n":0,` + hi + `}`, "n", "n must be at least 1"},
		{"n negative", chat, `{"n":-1,` + hi + `}`, "n", "n must be at least 1"},
		{"n huge", chat, `{"n":129,` + hi + `}`, "n", "at most 128, got 129"},
		{"n text", chat, `{"n":"2",` + hi + `}`, "n", "n: must be an integer, got string"},
		{"max_tokens zero", chat, `{"max_tokens":0,` + hi + `}`, "max_tokens", "at least 1, got 0"},
		{"max_completion_tokens negative", chat, `{"max_completion_tokens":-4,` + hi + `}`, "max_tokens", "at least 1, got -4"},
		{"max_tokens fraction", chat, `{"max_tokens":1.5,` + hi + `}`, "max_tokens", "must be an integer"},
		{"min above max", chat, `{"min_tokens":5,"max_tokens":4,` + hi + `}`, "min_tokens", "less than or equal to max_tokens=4"},
		{"min negative", chat, `{"min_tokens":-1,` + hi + `}`, "min_tokens", "greater than or equal to 0"},
		{"temperature negative", chat, `{"temperature":-0.1,` + hi + `}`, "temperature", "must be non-negative, got -0.1"},
		{"temperature text", chat, `{"temperature":"hot",` + hi + `}`, "temperature", "must be a number, got string"},
		{"top_p zero", chat, `{"top_p":0,` + hi + `}`, "top_p", "in (0, 1]"},
		{"top_p above one", chat, `{"top_p":1.1,` + hi + `}`, "top_p", "in (0, 1]"},
		{"presence_penalty", chat, `{"presence_penalty":2.5,` + hi + `}`, "presence_penalty", "in [-2, 2]"},
		{"frequency_penalty", chat, `{"frequency_penalty":-2.5,` + hi + `}`, "frequency_penalty", "in [-2, 2]"},
		{"repetition_penalty", chat, `{"repetition_penalty":0,` + hi + `}`, "repetition_penalty", "greater than zero"},
		{"min_p", chat, `{"min_p":2,` + hi + `}`, "min_p", "in [0, 1]"},
		{"top_k", chat, `{"top_k":-2,` + hi + `}`, "top_k", "at least 1, got -2"},
		{"empty stop", chat, `{"stop":["a",""],` + hi + `}`, "stop", "cannot contain an empty string"},
		{"stop a number", chat, `{"stop":5,` + hi + `}`, "stop", "got number"},
		{"stream text", chat, `{"stream":"yes",` + hi + `}`, "stream", "must be true or false"},
		{"stream options without a stream", chat, `{"stream_options":{"include_usage":true},` + hi + `}`, "stream_options", "only be defined when"},
		{"beam search", chat, `{"use_beam_search":true,` + hi + `}`, "use_beam_search", "not supported"},
		{"continue and add", chat, `{"continue_final_message":true,` + hi + `}`, "continue_final_message", "Cannot set both"},

		{"no prompt", completion, `{}`, "prompt", "prompt is missing"},
		{"null prompt", completion, `{"prompt":null}`, "prompt", "prompt is missing"},
		{"empty prompt", completion, `{"prompt":""}`, "prompt", "must not be empty"},
		{"no prompts", completion, `{"prompt":[]}`, "prompt", "must not be an empty list"},
		{"one empty prompt", completion, `{"prompt":["a",""]}`, "prompt", "must not be empty"},
		{"mixed prompts", completion, `{"prompt":["a",5]}`, "", "must be a string, a list of strings"},
		{"prompt an object", completion, `{"prompt":{}}`, "", "must be a string, a list of strings"},
		{"foreign token", completion, `{"prompt":[5,99999999]}`, "prompt", "out of vocabulary"},
		{"negative token", completion, `{"prompt":[-1]}`, "prompt", "out of vocabulary"},
		{"no tokens to generate", completion, `{"prompt":"a","max_tokens":0}`, "max_tokens", "at least 1, got 0"},
		{"negative echo", completion, `{"prompt":"a","max_tokens":-1,"echo":true}`, "max_tokens", "at least 0, got -1"},
		{"suffix", completion, `{"prompt":"a","suffix":"b"}`, "suffix", "not currently supported"},
		{"best_of", completion, `{"prompt":"a","best_of":4}`, "best_of", "not supported"},

		{"no input", embedding, `{}`, "input", "input is missing"},
		{"format", embedding, `{"input":"a","encoding_format":"hex"}`, "encoding_format", `got "hex"`},
		{"dimensions zero", embedding, `{"input":"a","dimensions":0}`, "dimensions", "at least 1"},
		{"dimensions too many", embedding, `{"input":"a","dimensions":5000}`, "dimensions", "at most 384"},

		{"nothing to tokenize", tokenize, `{}`, "prompt", "Either prompt or messages"},
		{"two things to tokenize", tokenize, `{"prompt":"a",` + hi + `}`, "prompt", "Either prompt or messages"},
		{"nothing to detokenize", detokenize, `{}`, "tokens", "tokens is missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := tt.decode([]byte(tt.body))
			require.NotNil(t, e)
			assert.Equal(t, http.StatusBadRequest, e.Status)
			assert.Equal(t, "BadRequestError", e.Type)
			assert.Equal(t, tt.param, e.Param)
			assert.Contains(t, e.Message, tt.want)
		})
	}
}

func TestInputForms(t *testing.T) {
	t.Parallel()
	hello := text.Encode("Hello there")
	ids, err := json.Marshal(hello)
	require.NoError(t, err)
	tests := map[string][]string{
		`"Hello there"`:                  {"Hello there"},
		`["Hello there","b"]`:            {"Hello there", "b"},
		string(ids):                      {"Hello there"},
		"[" + string(ids) + ",[97,98]]":  {"Hello there", "ab"},
		"[ " + string(ids) + " , [97] ]": {"Hello there", "a"},
	}
	for body, want := range tests {
		r, e := openai.DecodeCompletion([]byte(`{"prompt":` + body + `}`))
		require.Nil(t, e, body)
		assert.Equal(t, want, r.Prompt.Texts(), body)
		assert.Equal(t, text.Encode(want[0]), r.Prompt.Tokens()[0], body)
		assert.Equal(t, 16, *r.MaxTokens, "OpenAI's default")
	}
	r, e := openai.DecodeCompletion([]byte(`{"prompt":[97,98,99]}`))
	require.Nil(t, e)
	assert.Equal(t, [][]int{{97, 98, 99}}, r.Prompt.Tokens(), "tokens are as the client sent them")
}

func prompt(r *openai.ChatRequest) string {
	d := r.Dialog()
	return d.Prompt()
}

func TestErrorJSON(t *testing.T) {
	t.Parallel()
	assert.JSONEq(t, `{"error":{"message":"The model `+"`x`"+` does not exist.","type":"NotFoundError","param":"model","code":404}}`,
		string(openai.NotFound("x").JSON()))
	assert.JSONEq(t, `{"error":{"message":"Method Not Allowed","type":"Method Not Allowed","param":null,"code":405}}`,
		string(openai.HTTPError(405, "").JSON()))
}

// FuzzDecode checks that no body makes a decoder panic, and that what passes
// is sane.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stop":["a"],"n":2}`,
		`{"prompt":[[1,2],[3]],"max_tokens":0,"echo":true}`, `{"input":["a"],"dimensions":5}`, `{"prompt":["a",null]}`,
		`{"tokens":[1,2]}`, `null`, `{"messages":[null]}`, `{"messages":[{"content":[null]}]}`, `{"prompt":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, e := openai.DecodeChat(body); e == nil {
			require.NotEmpty(t, prompt(r))
			require.Positive(t, openai.Or(r.N, 1))
			require.Positive(t, openai.Or(r.MaxTokens, 1))
		}
		if r, e := openai.DecodeCompletion(body); e == nil {
			require.NotEmpty(t, r.Prompt.Texts())
			require.Len(t, r.Prompt.Tokens(), len(r.Prompt.Texts()))
			for _, ids := range r.Prompt.Tokens() {
				require.NotEmpty(t, ids)
			}
		}
		if r, e := openai.DecodeEmbedding(body); e == nil {
			require.NotEmpty(t, r.Input.Texts())
		}
		if r, e := openai.DecodeTokenize(body); e == nil {
			_ = r.Text()
		}
		_, _ = openai.DecodeDetokenize(body)
	})
}
