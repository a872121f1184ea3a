package dialog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"remuda/internal/sim/schema"
	"remuda/internal/sim/text"
)

// Roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// Tool is a function that the model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// Choice says whether the model calls a tool.
type Choice struct {
	Mode Mode
	// Name is the tool that is called under Named.
	Name string
}

// Mode is the kind of a Choice.
type Mode int

// The modes; the zero Mode leaves the choice to the model.
const (
	Auto Mode = iota
	None
	Required
	Named
)

// Conversation is what the model answers.
type Conversation struct {
	Messages []text.Message
	Tools    []Tool
	Choice   Choice
	// OneCall limits the answer to one call.
	OneCall bool
	// JSON asks for an answer that is a JSON object, or satisfies Schema if that is set.
	JSON   bool
	Schema json.RawMessage
	// Continue leaves the last message open, so that the answer goes on inside it;
	// otherwise NoPrompt leaves out the mark that opens the answer.
	Continue, NoPrompt bool
}

// Error is a conversation that has no answer.
type Error struct {
	// Field is "tools", "tool_choice" or "schema".
	Field string
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }

// Prompt is the conversation in the model's template.
func (c *Conversation) Prompt() string {
	return text.Render(c.messages(), !c.NoPrompt, c.Continue)
}

func (c *Conversation) messages() []text.Message {
	if len(c.Tools) == 0 {
		return c.Messages
	}
	var b strings.Builder
	b.WriteString("You may call these tools:")
	for _, t := range c.Tools {
		b.WriteByte('\n')
		b.WriteString(compact(t))
	}
	return append([]text.Message{{Role: System, Content: b.String()}}, c.Messages...)
}

// CallText is a call as the template shows it in the assistant's message.
func CallText(name, arguments string) string {
	return "<tool_call>\n" + compact(map[string]string{"name": name, "arguments": arguments}) + "\n</tool_call>"
}

func compact(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: the values were read from JSON
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Script is the answer where it is JSON or calls of tools; nil where it is prose.
func (c *Conversation) Script(model string) (text.Script, *Error) {
	for i, t := range c.Tools {
		if t.Name == "" {
			return nil, &Error{"tools", fmt.Errorf("tools[%d] has no name: want the name of a function", i)}
		}
	}
	begun := ""
	rest := *c
	if c.Continue && len(c.Messages) > 0 {
		begun = c.Messages[len(c.Messages)-1].Content
		rest.Messages, rest.Continue, rest.NoPrompt = c.Messages[:len(c.Messages)-1], false, false
	}
	from := text.NewState(model).Append(rest.Prompt())
	calls, err := rest.calls(from)
	if err != nil {
		return nil, err
	}
	if len(calls) > 0 {
		var script text.Script
		for _, t := range calls {
			arguments, err := t.arguments(from)
			if err != nil {
				return nil, &Error{"tools", fmt.Errorf("tool %q: %w", t.Name, err)}
			}
			script = append(script, text.Part{Call: t.Name, Text: arguments})
		}
		return script, nil
	}
	if !c.JSON {
		return nil, nil
	}
	wanted := c.Schema
	if wanted == nil {
		wanted = json.RawMessage(`{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}`)
	}
	value, verr := schema.Value(wanted, from)
	if verr != nil {
		return nil, &Error{"schema", verr}
	}
	return text.Script{{Text: value}}.After(begun), nil
}

func (t Tool) arguments(from text.State) (string, error) {
	if len(t.Parameters) == 0 || string(t.Parameters) == "null" {
		return "{}", nil
	}
	return schema.Value(t.Parameters, from.Append(t.Name))
}

// calls are the tools that the answer calls.
func (c *Conversation) calls(from text.State) ([]Tool, *Error) {
	switch c.Choice.Mode {
	case None:
		return nil, nil
	case Named:
		for _, t := range c.Tools {
			if t.Name == c.Choice.Name {
				return []Tool{t}, nil
			}
		}
		return nil, &Error{"tool_choice", fmt.Errorf("tool_choice names the tool %q: must be one of the request's tools", c.Choice.Name)}
	}
	if len(c.Tools) == 0 {
		if c.Choice.Mode == Required {
			return nil, &Error{"tool_choice", fmt.Errorf("tool_choice wants a call and the request has no tools: add some or leave it out")}
		}
		return nil, nil
	}
	var out []Tool
	if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == User {
		for _, t := range c.Tools {
			if strings.Contains(c.Messages[n-1].Content, t.Name) {
				out = append(out, t)
			}
		}
	}
	if len(out) == 0 && c.Choice.Mode == Required {
		out = append(out, c.Tools[from.Draw("tool", len(c.Tools))])
	}
	if c.OneCall && len(out) > 1 {
		out = out[:1]
	}
	return out, nil
}
