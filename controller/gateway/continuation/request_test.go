package continuation_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/continuation"
)

// said is an event that adds text.
func said(chat bool, text string) string {
	quoted, _ := json.Marshal(text)
	if chat {
		return fmt.Sprintf(`data: {"id":"1","created":7,"model":"m","choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}`, quoted) + "\n\n"
	}
	return fmt.Sprintf(`data: {"id":"1","created":7,"model":"m","choices":[{"index":0,"text":%s,"finish_reason":null}]}`, quoted) + "\n\n"
}

func TestRequests(t *testing.T) {
	t.Parallel()
	const hi = `"messages":[{"role":"user","content":"hi ]}"}]`
	const more = `"messages":[{"role":"user","content":"hi ]}"},{"role":"assistant","content":"A \"b\"\n"}],"continue_final_message":true,"add_generation_prompt":false`
	tests := []struct {
		name string
		chat bool
		body string
		want string
	}{
		{"chat", true, `{"stream":true,` + hi + `}`, `{"stream":true,` + more + `}`},
		{"spaces", true, "\n{ \"stream\" : true ,\t" + hi + " } \n", `{"stream":true,` + more + `}`},
		{"max_tokens", true, `{"stream":true,"max_tokens":10,` + hi + `}`, `{"stream":true,"max_tokens":8,` + more + `}`},
		{"both limits", true, `{"max_completion_tokens":10,"stream":true,"max_tokens":2,` + hi + `}`, `{"max_completion_tokens":8,"stream":true,"max_tokens":1,` + more + `}`},
		{"null limits", true, `{"max_completion_tokens":null,"stream":true,"max_tokens":null,` + hi + `}`, `{"max_completion_tokens":null,"stream":true,"max_tokens":null,` + more + `}`},
		{"min_tokens", true, `{"stream":true,"min_tokens":3,` + hi + `}`, `{"stream":true,"min_tokens":1,` + more + `}`},
		{"min_tokens reached", true, `{"stream":true,"min_tokens":1,` + hi + `}`, `{"stream":true,"min_tokens":0,` + more + `}`},
		{"min_tokens null", true, `{"stream":true,"min_tokens":null,` + hi + `}`, `{"stream":true,"min_tokens":null,` + more + `}`},
		{
			"the fields are there", true, `{"continue_final_message":false,"stream":true,"add_generation_prompt":true,` + hi + `,"x":{"n":3}}`,
			`{"continue_final_message":true,"stream":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"hi ]}"},{"role":"assistant","content":"A \"b\"\n"}],"x":{"n":3}}`,
		},
		{"a key twice", true, `{"n":2,"stream":false,"max_tokens":3,"stream":true,"max_tokens":10,"n":1,` + hi + `}`, `{"n":1,"stream":true,"max_tokens":8,` + more + `}`},
		{"an escaped key", true, `{"stre\u0061m":true,"max\u005ftokens":10,` + hi + `}`, `{"stream":true,"max_tokens":8,` + more + `}`},
		{
			"harmless fields", true,
			`{"stream":true,"n":1,"best_of":null,"tools":[],"logprobs":false,"top_logprobs":0,"response_format":{"type":"text"},"echo":false,"stop":"x","include_stop_str_in_output":false,"modalities":["text"],` + hi + `}`,
			`{"stream":true,"n":1,"best_of":null,"tools":[],"logprobs":false,"top_logprobs":0,"response_format":{"type":"text"},"echo":false,"stop":"x","include_stop_str_in_output":false,"modalities":["text"],` + more + `}`,
		},
		{
			"the client continues a text", true, `{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"q"},{"content":"So \\","role":"assistant"}]}`,
			`{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"q"},{"content":"So \\A \"b\"\n","role":"assistant"}]}`,
		},
		{
			"the client continues null", true, `{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"content":null,"role":"assistant"}]}`,
			`{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"content":"A \"b\"\n","role":"assistant"}]}`,
		},
		{
			"the client continues nothing", true, `{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant"}]}`,
			`{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":"A \"b\"\n"}]}`,
		},
		{
			"the client continues parts", true, `{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":[{"type":"text","text":"x"},{"text":"y","type":"text"}]}]}`,
			`{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":[{"type":"text","text":"x"},{"text":"yA \"b\"\n","type":"text"}]}]}`,
		},
		{
			"the client continues a bare part", true, `{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":["y"]}]}`,
			`{"stream":true,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":["yA \"b\"\n"]}]}`,
		},
		{"prompt", false, `{"stream":true,"prompt":"p\\","max_tokens":10}`, `{"stream":true,"prompt":"p\\A \"b\"\n","max_tokens":8}`},
		{"a list of one prompt", false, `{"stream":true,"prompt":["p"],"max_tokens":10}`, `{"stream":true,"prompt":["pA \"b\"\n"],"max_tokens":8}`},
		{"max_tokens left out", false, `{"stream":true,"prompt":"p"}`, `{"stream":true,"prompt":"pA \"b\"\n","max_tokens":14}`},
		{"messages of a completion", false, `{"stream":true,"prompt":"p","max_tokens":10,"messages":0,"max_completion_tokens":1}`, `{"stream":true,"prompt":"pA \"b\"\n","max_tokens":8,"messages":0,"max_completion_tokens":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := continuation.NewRecorder(tt.chat, []byte(tt.body))
			require.NoError(t, err)
			again, err := r.Request()
			require.NoError(t, err)
			assert.Equal(t, tt.body, string(again), "nothing was said yet")
			r.Feed([]byte(said(tt.chat, "A \"")))
			r.Feed([]byte(said(tt.chat, "b\"\n")))
			for range 2 {
				got, err := r.Request()
				require.NoError(t, err)
				assert.JSONEq(t, tt.want, string(got), string(got))
			}
		})
	}
}

func TestWhatCannotGoOn(t *testing.T) {
	t.Parallel()
	const chat, text = `"stream":true,"messages":[{"role":"user","content":"hi"}]`, `"stream":true,"prompt":"hi"`
	tests := []struct {
		chat       bool
		body, want string
	}{
		{true, ``, "not a JSON object"},
		{true, `[]`, "not a JSON object"},
		{true, `{"stream":true`, "not a JSON object"},
		{true, `{"stream":true "n":1}`, "not a JSON object"},
		{true, `{"stream":true,}`, "not a JSON object"},
		{true, `{"stream" true}`, "not a JSON object"},
		{true, `{"stream":}`, "not a JSON object"},
		{true, `{"stream":{"a":"}`, "not a JSON object"},
		{true, `{"messages":[{"role":"user","content":"hi"}]}`, "stream is not true"},
		{true, `{"stream":false,"messages":[]}`, "stream is not true"},
		{true, `{"stream":true}`, "messages is not a list"},
		{true, `{"stream":true,"messages":{}}`, "messages is not a list"},
		{true, `{"stream":true,"messages":[ ]}`, "messages is empty"},
		{true, `{"n":2,` + chat + `}`, "n is 2"},
		{true, `{"tools":[{"type":"function"}],` + chat + `}`, "tools is [{"},
		{true, `{"functions":[{}],` + chat + `}`, "functions is"},
		{true, `{"response_format":{"type":"json_object"},` + chat + `}`, `response_format is {"type":"json_object"}`},
		{true, `{"response_format":{},` + chat + `}`, `response_format is {}`},
		{true, `{"structured_outputs":{"regex":"a"},` + chat + `}`, "structured_outputs is"},
		{true, `{"guided_json":"{}",` + chat + `}`, "guided_json is"},
		{true, `{"logprobs":true,` + chat + `}`, "logprobs is true"},
		{true, `{"top_logprobs":2,` + chat + `}`, "top_logprobs is 2"},
		{true, `{"use_beam_search":true,` + chat + `}`, "use_beam_search is true"},
		{true, `{"modalities":["text","audio"],` + chat + `}`, "modalities contains audio"},
		{true, `{"include_stop_str_in_output":true,"stop":["x"],` + chat + `}`, "include_stop_str_in_output is true"},
		{true, `{"add_generation_prompt":false,` + chat + `}`, "add_generation_prompt is false"},
		{true, `{"max_tokens":1.5,` + chat + `}`, "max_tokens is 1.5: must be a whole number"},
		{true, `{"max_tokens":-1,` + chat + `}`, "max_tokens is -1: must be a whole number"},
		{true, `{"max_tokens":0,` + chat + `}`, "max_tokens is 0: must be a whole number"},
		{true, `{"max_completion_tokens":"7",` + chat + `}`, `max_completion_tokens is "7": must be a whole number`},
		{true, `{"min_tokens":1e3,` + chat + `}`, "min_tokens is 1e3: must be a whole number"},
		{true, `{"max_tokens":1111111111111111,` + chat + `}`, "must be a whole number"},
		{true, `{"stream":true,"continue_final_message":true,"messages":[]}`, "has no message to continue"},
		{true, `{"stream":true,"continue_final_message":true,"messages":["x"]}`, "the message to continue is not an object"},
		{true, `{"stream":true,"continue_final_message":true,"messages":[{}]}`, "the message to continue is not an object"},
		{true, `{"stream":true,"continue_final_message":true,"messages":[{"content":[]}]}`, "does not end with text"},
		{true, `{"stream":true,"continue_final_message":true,"messages":[{"content":[{"type":"image_url"}]}]}`, "does not end with text"},
		{true, `{"stream":true,"continue_final_message":true,"messages":[{"content":7}]}`, "does not end with text"},
		{false, `{"stream":true}`, "prompt is not a string"},
		{false, `{"stream":true,"prompt":null}`, "prompt is not a string"},
		{false, `{"stream":true,"prompt":[1,2]}`, "prompt is a list of several strings or of token IDs"},
		{false, `{"stream":true,"prompt":[1]}`, "prompt is not a string"},
		{false, `{"stream":true,"prompt":["a","b"]}`, "prompt is a list of several strings"},
		{false, `{"stream":true,"prompt":[]}`, "prompt is a list of several strings"},
		{false, `{"echo":true,` + text + `}`, "echo is true"},
		{false, `{"best_of":2,` + text + `}`, "best_of is 2"},
		{false, `{"logprobs":0,` + text + `}`, "logprobs is 0"},
		{false, `{"suffix":"x",` + text + `}`, `suffix is "x"`},
		{false, `{"max_tokens":null,` + text + `}`, "max_tokens is null"},
	}
	for _, tt := range tests {
		t.Run(tt.body, func(t *testing.T) {
			t.Parallel()
			r, err := continuation.NewRecorder(tt.chat, []byte(tt.body))
			require.ErrorIs(t, err, continuation.ErrNot)
			assert.ErrorContains(t, err, tt.want)
			assert.Nil(t, r)
		})
	}
}

// FuzzRequest compares the body of a continuation with what decoding the request,
// changing it and encoding it would give.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":5}`,
		`{"stream":true,"messages":[{"content":"\\\""}],"continue_final_message":true,"x":[1,{"}":"]"}]}`,
		`{"stream":true,"messages":[{"content":null}],"continue_final_message":true,"add_generation_prompt":false}`,
		`{"prompt":"x","stream":true,"min_tokens":3}`, `{"prompt":["x"],"stream":true,"max_tokens":16}`, ` { "stream" : true } `,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		r, err := continuation.NewRecorder(chat, body)
		if err != nil || !json.Valid(body) {
			return
		}
		r.Feed([]byte(said(chat, "so far")))
		got, err := r.Request()
		if err != nil {
			return // it wanted one token
		}
		var was, is map[string]any
		if json.Unmarshal(body, &was) != nil {
			return
		}
		if err := json.Unmarshal(got, &is); err != nil {
			t.Fatalf("%s\nbecame %s\n%v", body, got, err)
		}
		for _, k := range []string{"messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "continue_final_message", "add_generation_prompt"} {
			before, after := was[k], is[k]
			delete(was, k)
			delete(is, k)
			a, isNumber := after.(float64)
			if b, ok := before.(float64); ok && isNumber && a != b && a != max(b-1, 1) && a != b-1 {
				t.Fatalf("%s: %v became %v", k, before, after)
			}
		}
		if !reflect.DeepEqual(was, is) {
			t.Fatalf("%s\nbecame %s", body, got)
		}
		if !strings.Contains(string(got), "so far") {
			t.Fatalf("%s\nbecame %s", body, got)
		}
	})
}

func BenchmarkNewRecorder(b *testing.B) {
	for _, size := range []int{1 << 10, 220 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body := fmt.Appendf(nil, `{"model":"m","stream":true,"messages":[{"role":"user","content":%q}],"max_tokens":100}`, strings.Repeat("horse ", size/6))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := continuation.NewRecorder(true, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
