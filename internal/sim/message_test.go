package sim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

type messageObject struct {
	Type, Role, Model string
	Content           []struct {
		Type, Text, Name string
		Input            map[string]any
	}
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
	Usage        struct {
		Input  int `json:"input_tokens"`
		Cached int `json:"cache_read_input_tokens"`
		Output int `json:"output_tokens"`
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	want := answers.Chat(modelName, helloChat, 1000)
	require.Equal(t, "stop", want.Finish)
	var m messageObject
	s.ok("/v1/messages", `{"max_tokens":1000,`+hello+`}`, &m)
	require.Equal(t, want.Text, m.Content[0].Text)
	require.Equal(t, "end_turn", *m.StopReason)
	require.Equal(t, want.Tokens, m.Usage.Output)
	require.Equal(t, text.Count(text.Render(helloChat, true, false)), m.Usage.Input)

	events := s.named("/v1/messages", `{"max_tokens":1000,"stream":true,`+hello+`}`)
	require.Equal(t, []string{
		"message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
	}, names(events))
	said := ""
	for _, e := range events {
		if d, ok := e.data["delta"].(map[string]any); ok && d["type"] == "text_delta" {
			said += fmt.Sprint(d["text"])
		}
	}
	require.Equal(t, want.Text, said)
	last, err := json.Marshal(events[len(events)-2].data)
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},
		"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":%d}}`,
		m.Usage.Input, m.Usage.Output), string(last))

	s.ok("/v1/messages", `{"max_tokens":2,`+hello+`}`, &m)
	require.Equal(t, "max_tokens", *m.StopReason)
	stop := want.Pieces[3]
	s.ok("/v1/messages", fmt.Sprintf(`{"max_tokens":1000,"stop_sequences":[%q],`+hello+`}`, stop), &m)
	require.Equal(t, []string{"stop_sequence", stop}, []string{*m.StopReason, *m.StopSequence})

	// A last message of the assistant begins the answer.
	begun := strings.Join(want.Pieces[:4], "")
	s.ok("/v1/messages", fmt.Sprintf(`{"max_tokens":996,"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":%q}]}`, begun), &m)
	require.Equal(t, want.Text, begun+m.Content[0].Text)
}

func TestMessageWithTools(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const tools = `"max_tokens":100,"tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}]`
	const ask = `"messages":[{"role":"user","content":[{"type":"text","text":"Please get_weather."}]}`
	var m messageObject
	s.ok("/v1/messages", `{`+tools+`,`+ask+`]}`, &m)
	require.Equal(t, "tool_use", *m.StopReason)
	require.Equal(t, "get_weather", m.Content[0].Name)
	require.IsType(t, "", m.Content[0].Input["city"])
	arguments := ""
	events := s.named("/v1/messages", `{"stream":true,`+tools+`,`+ask+`]}`)
	for _, e := range events {
		if d, ok := e.data["delta"].(map[string]any); ok && d["type"] == "input_json_delta" {
			arguments += fmt.Sprint(d["partial_json"])
		}
	}
	var streamed map[string]any
	require.NoError(t, json.Unmarshal([]byte(arguments), &streamed))
	require.Equal(t, m.Content[0].Input, streamed)

	s.ok("/v1/messages", `{`+tools+`,`+ask+`,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"get_weather","input":{"city":"x"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"Rain."}]}]}`, &m)
	require.Equal(t, "text", m.Content[0].Type)
	s.ok("/v1/messages", `{"tool_choice":{"type":"tool","name":"get_weather"},`+tools+`,`+hello+`}`, &m)
	require.Equal(t, "tool_use", *m.StopReason)
	s.ok("/v1/messages", `{"tool_choice":{"type":"none"},`+tools+`,`+ask+`]}`, &m)
	require.Equal(t, "text", m.Content[0].Type)
}

func TestCountTokens(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var count struct {
		Input int `json:"input_tokens"`
	}
	const body = `"system":[{"type":"text","text":"Be brief."}],` + hello
	s.ok("/v1/messages/count_tokens", `{`+body+`}`, &count)
	var m messageObject
	s.ok("/v1/messages", `{"max_tokens":1,`+body+`}`, &m)
	require.Equal(t, m.Usage.Input+m.Usage.Cached, count.Input)
}

func TestMessageErrors(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.MaxModelLen = 100 })
	for body, want := range map[string]string{
		`{` + hello + `}`:                                                            "max_tokens: Field required",
		`{"max_tokens":0,` + hello + `}`:                                             "at least 1, got 0",
		`{"max_tokens":5,"messages":[]}`:                                             "at least one message",
		`{"max_tokens":5,"messages":[{"role":"x","content":"a"}]}`:                   `messages.0.role: must be \"user\" or \"assistant\"`,
		`{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image"}]}]}`: `type \"image\"`,
		`{"max_tokens":500,` + hello + `}`:                                           "maximum context length is 100",
		`{"max_tokens":5,"temperature":-1,` + hello + `}`:                            "temperature",
		`{"max_tokens":5,"tool_choice":{"type":"x"},` + hello + `}`:                  "tool_choice.type",
	} {
		status, answer := s.do(http.MethodPost, "/v1/messages", body)
		require.Equal(t, http.StatusBadRequest, status, body)
		require.Contains(t, answer, `"type":"invalid_request_error"`)
		require.Contains(t, answer, want)
	}
}
