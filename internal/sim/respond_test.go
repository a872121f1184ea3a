package sim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// event is one event of a stream with names.
type event struct {
	name string
	data map[string]any
}

// named reads a whole stream of events with names.
func (s *sim1) named(path, body string) (events []event) {
	s.t.Helper()
	status, all := s.do(http.MethodPost, path, body)
	require.Equal(s.t, http.StatusOK, status, all)
	for one := range strings.SplitSeq(strings.TrimSuffix(all, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(one, "\n")
		require.True(s.t, ok, one)
		e := event{name: strings.TrimPrefix(name, "event: ")}
		require.NoError(s.t, json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &e.data), one)
		require.Equal(s.t, e.name, e.data["type"])
		events = append(events, e)
	}
	return events
}

// names are the events' names, each run of one name once.
func names(events []event) (out []string) {
	for _, e := range events {
		if len(out) == 0 || out[len(out)-1] != e.name {
			out = append(out, e.name)
		}
	}
	return out
}

// responseObject is what the tests look at of a response.
type responseObject struct {
	ID, Object, Status string
	Output             []struct {
		ID, Type, Status, Name, Arguments string
		CallID                            string `json:"call_id"`
		Content                           []struct{ Type, Text string }
	}
	Incomplete *struct{ Reason string } `json:"incomplete_details"`
	Usage      *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
}

func (s *sim1) response(method, path, body string) (r responseObject) {
	s.t.Helper()
	status, answer := s.do(method, path, body)
	require.Equal(s.t, http.StatusOK, status, answer)
	require.NoError(s.t, json.Unmarshal([]byte(answer), &r))
	return r
}

func TestResponse(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	want := answers.Chat(modelName, helloChat, 0)
	r := s.response(http.MethodPost, "/v1/responses", `{"input":"Hello"}`)
	require.Equal(t, "completed", r.Status)
	require.Equal(t, want.Text, r.Output[0].Content[0].Text)
	require.Equal(t, want.Tokens, r.Usage.Output)
	require.Equal(t, text.Count(text.Render(helloChat, true, false)), r.Usage.Input)
	require.Equal(t, r, s.response(http.MethodGet, "/v1/responses/"+r.ID, ""))

	events := s.named("/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"Hello"}]}],"stream":true}`)
	require.Equal(t, []string{
		"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.done", "response.content_part.done",
		"response.output_item.done", "response.completed",
	}, names(events))
	said := ""
	for i, e := range events {
		require.InDelta(t, i, e.data["sequence_number"], 0)
		if e.name == "response.output_text.delta" {
			said += fmt.Sprint(e.data["delta"])
		}
	}
	require.Equal(t, want.Text, said)

	short := s.response(http.MethodPost, "/v1/responses", `{"input":"Hello","max_output_tokens":2}`)
	require.Equal(t, "incomplete", short.Status)
	require.Equal(t, "max_output_tokens", short.Incomplete.Reason)
	events = s.named("/v1/responses", `{"input":"Hello","max_output_tokens":2,"stream":true}`)
	require.Equal(t, "response.incomplete", events[len(events)-1].name)
}

func TestResponseCallsAndGoesOn(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const tools = `"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}},{"type":"function","name":"get_time"}]`
	events := s.named("/v1/responses", `{"input":"get_weather, get_time","stream":true,`+tools+`}`)
	call := []string{
		"response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done",
		"response.output_item.done",
	}
	want := append([]string{"response.created", "response.in_progress"}, call...)
	require.Equal(t, append(append(want, call...), "response.completed"), names(events))

	r := s.response(http.MethodPost, "/v1/responses", `{"input":"get_weather, get_time",`+tools+`}`)
	require.Len(t, r.Output, 2)
	require.Equal(t, "function_call", r.Output[0].Type)
	require.True(t, json.Valid([]byte(r.Output[0].Arguments)))
	next := s.response(http.MethodPost, "/v1/responses", fmt.Sprintf(
		`{"previous_response_id":%q,"input":[{"type":"function_call_output","call_id":%q,"output":"Rain."}],%s}`, r.ID, r.Output[0].CallID, tools))
	require.Equal(t, "message", next.Output[0].Type)
	require.Greater(t, next.Usage.Input, r.Usage.Input, "the earlier turns are in the prompt")

	again := s.response(http.MethodPost, "/v1/responses", fmt.Sprintf(`{"previous_response_id":%q,"input":"Hello"}`, next.ID))
	require.Greater(t, again.Usage.Input, next.Usage.Input/2)
	require.Contains(t, s.response(http.MethodPost, "/v1/responses",
		`{"input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"const":"mare"}}}}`).Output[0].Content[0].Text, `"mare"`)
}

func TestStoredResponses(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	r := s.response(http.MethodPost, "/v1/responses", `{"input":"Hello","store":false}`)
	s.refused(http.MethodGet, "/v1/responses/"+r.ID, "", http.StatusNotFound)
	r = s.response(http.MethodPost, "/v1/responses", `{"input":"Hello"}`)
	s.refused(http.MethodPost, "/v1/responses/"+r.ID+"/cancel", "", http.StatusBadRequest)
	status, body := s.do(http.MethodDelete, "/v1/responses/"+r.ID, "")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"id":"`+r.ID+`","object":"response","deleted":true}`, body)
	s.refused(http.MethodGet, "/v1/responses/"+r.ID, "", http.StatusNotFound)
	s.refused(http.MethodDelete, "/v1/responses/"+r.ID, "", http.StatusNotFound)
	s.refused(http.MethodGet, "/v1/responses/other", "", http.StatusBadRequest)
	s.refused(http.MethodPost, "/v1/responses", `{"input":"x","previous_response_id":"resp_0"}`, http.StatusNotFound)
	s.refused(http.MethodPut, "/v1/responses/"+r.ID, "", http.StatusMethodNotAllowed)
	s.refused(http.MethodPost, "/v1/responses", `{"input":"x","background":true,"store":false}`, http.StatusBadRequest)
}

func TestBackgroundResponse(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *sim.Config) { c.Rates = engine.Rates{Decode: 100} })
	r := s.response(http.MethodPost, "/v1/responses", `{"input":"Hello","background":true,"max_output_tokens":5}`)
	require.Equal(t, "queued", r.Status)
	get := func() responseObject { return s.response(http.MethodGet, "/v1/responses/"+r.ID, "") }
	require.Eventually(t, func() bool { return get().Status != "in_progress" }, patience, time.Millisecond)
	require.Equal(t, answers.Chat(modelName, helloChat, 5).Text, get().Output[0].Content[0].Text)
	require.EqualValues(t, 5, s.counters().Total.Completion)

	r = s.response(http.MethodPost, "/v1/responses", `{"input":"Hello, at length","background":true}`)
	require.Equal(t, "in_progress", get().Status)
	require.Equal(t, 1, s.counters().InFlight, "it still runs")
	require.Equal(t, "cancelled", s.response(http.MethodPost, "/v1/responses/"+r.ID+"/cancel", "").Status)
	s.idle()
	require.Eventually(t, func() bool { return s.counters().InFlight == 0 }, patience, time.Millisecond)
	require.Equal(t, "cancelled", get().Status)
}
