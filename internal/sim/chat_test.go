package sim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/text"
)

// weather is a tool with a schema.
const weather = `"tools":[{"type":"function","function":{"name":"get_weather","description":"Weather of a place","parameters":{
	"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["c","f"]}},"required":["city","unit"]}}},
	{"type":"function","function":{"name":"get_time"}}]`

// toolCall is a call in an answer, or a part of one in an event.
type toolCall struct {
	Index    int
	ID, Type string
	Function struct{ Name, Arguments string }
}

// chatAnswer is an answer or one event of a stream.
type chatAnswer struct {
	Choices []struct {
		Index   int
		Message struct {
			Content *string
			Calls   []toolCall `json:"tool_calls"`
		}
		Delta struct {
			Content *string
			Calls   []toolCall `json:"tool_calls"`
		}
		Logprobs *struct {
			Content []struct {
				Token   string
				Logprob float64
				Bytes   []int
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
		Finish *string `json:"finish_reason"`
	}
	Usage *usage
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// data are the objects of a stream's events, without [DONE].
func (s *sim1) data(path, body string) []string {
	s.t.Helper()
	status, all := s.do(http.MethodPost, path, body)
	require.Equal(s.t, http.StatusOK, status, all)
	var out []string
	for line := range strings.SplitSeq(all, "\n") {
		if d, ok := strings.CutPrefix(line, "data: "); ok && d != "[DONE]" {
			out = append(out, d)
		}
	}
	return out
}

// both asks for a chat's answer whole and streamed, which must say the same, and returns
// its text, its calls and its finish reason.
func (s *sim1) both(fields string) (content string, calls []toolCall, finish string) {
	s.t.Helper()
	var whole chatAnswer
	s.ok("/v1/chat/completions", "{"+fields+"}", &whole)
	var streamed []toolCall
	var said, reason string
	var final usage
	for _, d := range s.data("/v1/chat/completions", `{"stream":true,"stream_options":{"include_usage":true},`+fields+`}`) {
		var e chatAnswer
		require.NoError(s.t, json.Unmarshal([]byte(d), &e))
		if len(e.Choices) == 0 {
			final = *e.Usage
			continue
		}
		c := e.Choices[0]
		if c.Delta.Content != nil {
			said += *c.Delta.Content
		}
		for _, call := range c.Delta.Calls {
			if call.ID != "" {
				require.Len(s.t, streamed, call.Index)
				streamed = append(streamed, call)
				continue
			}
			streamed[call.Index].Function.Arguments += call.Function.Arguments
		}
		if c.Finish != nil {
			reason = *c.Finish
		}
	}
	c := whole.Choices[0]
	if c.Message.Content != nil {
		content = *c.Message.Content
	}
	require.Equal(s.t, content, said)
	require.Equal(s.t, *c.Finish, reason)
	require.Len(s.t, streamed, len(c.Message.Calls))
	for i, call := range c.Message.Calls {
		require.Equal(s.t, call.Function, streamed[i].Function)
		require.Equal(s.t, "function", streamed[i].Type)
		require.NotEqual(s.t, call.ID, streamed[i].ID, "ids are the requests'")
	}
	require.Equal(s.t, whole.Usage.Completion, final.Completion)
	require.Equal(s.t, whole.Usage.Prompt, final.Prompt)
	return content, c.Message.Calls, reason
}

func TestToolCalls(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const ask = `"messages":[{"role":"user","content":"Use get_weather and get_time."}],`
	content, calls, finish := s.both(ask + weather)
	require.Empty(t, content)
	require.Equal(t, "tool_calls", finish)
	require.Len(t, calls, 2)
	require.Equal(t, "get_weather", calls[0].Function.Name)
	var arguments struct{ City, Unit string }
	require.NoError(t, json.Unmarshal([]byte(calls[0].Function.Arguments), &arguments))
	require.NotEmpty(t, arguments.City)
	require.Contains(t, []string{"c", "f"}, arguments.Unit)
	require.Equal(t, "get_time", calls[1].Function.Name)
	require.Equal(t, "{}", calls[1].Function.Arguments)

	_, calls, _ = s.both(ask + `"parallel_tool_calls":false,` + weather)
	require.Len(t, calls, 1)
	content, calls, finish = s.both(ask + `"tool_choice":"none",` + weather)
	require.NotEmpty(t, content)
	require.Empty(t, calls)
	require.Equal(t, "stop", finish)
	content, calls, _ = s.both(hello + "," + weather)
	require.NotEmpty(t, content, "no tool is named")
	require.Empty(t, calls)
	_, calls, _ = s.both(hello + `,"tool_choice":"required",` + weather)
	require.Len(t, calls, 1)
	_, calls, _ = s.both(hello + `,"tool_choice":{"type":"function","function":{"name":"get_time"}},` + weather)
	require.Equal(t, "get_time", calls[0].Function.Name)

	content, calls, _ = s.both(`"messages":[{"role":"user","content":"Use get_weather."},
		{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"x","content":"It rains."}],` + weather)
	require.NotEmpty(t, content, "a result is answered in prose")
	require.Empty(t, calls)

	_, calls, finish = s.both(ask + `"max_tokens":3,` + weather)
	require.Equal(t, "length", finish)
	require.Len(t, calls, 1)
}

func TestResponseFormats(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	content, _, finish := s.both(hello + `,"response_format":{"type":"json_object"}`)
	require.Equal(t, "stop", finish)
	var object map[string]any
	require.NoError(t, json.Unmarshal([]byte(content), &object))

	const format = `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{
		"type":"object","properties":{"names":{"type":"array","items":{"type":"string"},"minItems":2},"kind":{"const":"é東"}},"required":["names","kind"]}}}`
	content, _, _ = s.both(hello + format)
	var v struct {
		Names []string
		Kind  string
	}
	require.NoError(t, json.Unmarshal([]byte(content), &v))
	require.GreaterOrEqual(t, len(v.Names), 2)
	require.Equal(t, "é東", v.Kind)

	// Another engine goes on from any place.
	pieces := text.Pieces(content)
	for cut := range pieces {
		begun, err := json.Marshal(strings.Join(pieces[:cut], ""))
		require.NoError(t, err)
		rest, _, _ := s.both(fmt.Sprintf(`"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":%s}],
			"continue_final_message":true,"add_generation_prompt":false`, begun) + format)
		require.Equal(t, content, strings.Join(pieces[:cut], "")+rest)
	}
}

func TestLogprobs(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var chat chatAnswer
	s.ok("/v1/chat/completions", `{"logprobs":true,"top_logprobs":3,"max_tokens":5,`+hello+`}`, &chat)
	list := chat.Choices[0].Logprobs.Content
	require.Len(t, list, 5)
	joined := ""
	for _, l := range list {
		require.Negative(t, l.Logprob)
		require.Len(t, l.Bytes, len(l.Token))
		require.Len(t, l.Top, 3)
		require.Equal(t, l.Token, l.Top[0].Token)
		joined += l.Token
	}
	require.Equal(t, *chat.Choices[0].Message.Content, joined)
	var streamed string
	for _, d := range s.data("/v1/chat/completions", `{"stream":true,"logprobs":true,"max_tokens":5,`+hello+`}`) {
		var e chatAnswer
		require.NoError(t, json.Unmarshal([]byte(d), &e))
		if e.Choices[0].Logprobs != nil {
			streamed += e.Choices[0].Logprobs.Content[0].Token
		}
	}
	require.Equal(t, joined, streamed)

	var completion struct {
		Choices []struct {
			Text     string
			Logprobs struct {
				Offset   []int                `json:"text_offset"`
				Logprobs []float64            `json:"token_logprobs"`
				Tokens   []string             `json:"tokens"`
				Top      []map[string]float64 `json:"top_logprobs"`
			}
		}
	}
	s.ok("/v1/completions", `{"prompt":"señor","echo":true,"logprobs":2,"max_tokens":4}`, &completion)
	c := completion.Choices[0]
	require.Equal(t, c.Text, "señor"+strings.Join(c.Logprobs.Tokens, ""))
	require.Len(t, c.Logprobs.Logprobs, 4)
	runes := []rune(c.Text)
	for i, at := range c.Logprobs.Offset {
		require.True(t, strings.HasPrefix(string(runes[at:]), c.Logprobs.Tokens[i]))
		require.Len(t, c.Logprobs.Top[i], 2)
	}
}

func TestCachedTokens(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	prompt := strings.Repeat("The quiet horse rests. ", 20)
	ask := func(prompt string) usage {
		var r struct{ Usage usage }
		s.ok("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":2}`, prompt), &r)
		return r.Usage
	}
	first := ask(prompt)
	require.Nil(t, first.Details)
	again := ask(prompt)
	require.Equal(t, (again.Prompt-1)/16*16, again.Details.Cached)
	require.Positive(t, ask(prompt+"And more.").Details.Cached)
	require.Nil(t, ask("Other: "+prompt).Details)
	require.InDelta(t, s.metrics()["vllm:prefix_cache_hits_total"], s.counters().Total.Cached, 0)
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/sleep"))
	require.Equal(t, http.StatusOK, s.status(http.MethodPost, "/wake_up"))
	require.Nil(t, ask(prompt).Details, "a sleep empties the cache")
}
