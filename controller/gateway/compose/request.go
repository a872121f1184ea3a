package compose

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"

	"remuda/controller/pipeline"
)

// Paths of the two APIs that pipelines answer.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
)

// asked is a client's request to a pipeline.
type asked struct {
	// endpoint is the API by which the client came.
	endpoint pipeline.Endpoint
	stream   bool
	// usage: the stream shall end with its usage.
	usage bool
	input pipeline.Input
	// fields are what the client says beside the prompt.
	fields map[string]json.RawMessage
}

// reads are the fields of a request that the composer itself reads.
var reads = []string{"model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "echo", "suffix", "continue_final_message", "add_generation_prompt"}

// parse reads a client's request.
func parse(path string, body []byte) (asked, *failure) {
	a := asked{}
	switch path {
	case pathChat:
		a.endpoint = pipeline.Chat
	case pathCompletions:
		a.endpoint = pipeline.Completions
	default:
		return a, &failure{status: http.StatusBadRequest, typ: typeRequest, code: "pipeline_endpoint",
			message: "pipelines support " + pathChat + " and " + pathCompletions + ", not " + path}
	}
	if err := json.Unmarshal(body, &a.fields); err != nil || a.fields == nil {
		return a, badRequest("the request body is not a JSON object")
	}
	var v struct {
		Stream        any      `json:"stream"`
		N             *float64 `json:"n"`
		BestOf        *float64 `json:"best_of"`
		Echo          *bool    `json:"echo"`
		Suffix        *string  `json:"suffix"`
		StreamOptions *struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	// Unmarshal takes "Stream" for "stream" as well, and engines do not.
	if err := json.Unmarshal(mustJSON(only(a.fields, reads...)), &v); err != nil {
		return a, badRequest("invalid request body: %v", err)
	}
	switch {
	case v.N != nil && *v.N != 1, v.BestOf != nil && *v.BestOf != 1:
		return a, badRequest("a pipeline returns one choice: \"n\" and \"best_of\" must be 1 or absent")
	case v.Echo != nil && *v.Echo, v.Suffix != nil && *v.Suffix != "":
		return a, badRequest("pipelines do not support \"echo\" and \"suffix\"")
	}
	a.stream, _ = v.Stream.(bool)
	a.usage = v.StreamOptions != nil && v.StreamOptions.Usage
	if f := a.prompt(); f != nil {
		return a, f
	}
	for _, name := range reads {
		delete(a.fields, name)
	}
	a.input.Params = mustJSON(a.fields)
	return a, nil
}

// only has those fields of a map that are named.
func only(fields map[string]json.RawMessage, names ...string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, name := range names {
		if v, ok := fields[name]; ok {
			out[name] = v
		}
	}
	return out
}

// message is one of a chat.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// prompt reads what the model is asked.
func (a *asked) prompt() *failure {
	if a.endpoint == pipeline.Completions {
		raw := a.fields["prompt"]
		var list []string
		switch {
		case json.Unmarshal(raw, &a.input.Text) == nil && len(raw) > 0 && raw[0] == '"':
		case json.Unmarshal(raw, &list) == nil && len(list) == 1:
			a.input.Text = list[0]
		default:
			return badRequest("\"prompt\" must be one string")
		}
		a.input.Messages = mustJSON([]map[string]string{{"role": "user", "content": a.input.Text}})
		return nil
	}
	a.input.Messages = a.fields["messages"]
	var messages []message
	if err := json.Unmarshal(a.input.Messages, &messages); err != nil || len(messages) == 0 {
		return badRequest("\"messages\" must be a list of at least one message")
	}
	last := messages[len(messages)-1]
	for _, m := range messages {
		if m.Role == "user" {
			last = m
		}
	}
	// The user's own last message, whatever follows it.
	a.input.Text = contentText(last.Content)
	return nil
}

// contentText is the text of a message's content, which may be of several parts.
func contentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var texts []string
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// shared are the fields that both APIs know by the same name and meaning.
var shared = []string{
	"max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "presence_penalty",
	"frequency_penalty", "repetition_penalty", "logit_bias", "user",
}

// stepBody is the body of a call. A step whose answer may be the client's own is asked with
// what the client said of sampling, where the step does not say otherwise.
func (a *asked) stepBody(c pipeline.Call) []byte {
	fields := map[string]json.RawMessage{}
	if c.Output {
		if c.Endpoint == a.endpoint {
			maps.Copy(fields, a.fields)
		} else {
			fields = only(a.fields, shared...)
		}
	}
	if _, own := c.Params["max_tokens"]; own {
		delete(fields, "max_completion_tokens")
	}
	maps.Copy(fields, c.Params)
	fields["model"] = mustJSON(c.Model)
	if c.Endpoint == pipeline.Completions {
		fields["prompt"] = mustJSON(c.Prompt)
	} else {
		fields["messages"] = c.Messages
	}
	if c.Emit != nil {
		fields["stream"] = json.RawMessage("true")
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	return mustJSON(fields)
}
