package pipeline

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// scope is what expressions see.
type scope map[string]cty.Value

// input is the value of "input". Parts that no expression looks at are left out.
func (p *Pipeline) input(in Input) (cty.Value, error) {
	parts := map[string]cty.Value{"text": cty.StringVal(in.Text), "messages": cty.EmptyTupleVal, "params": cty.EmptyObjectVal}
	for name, part := range map[string]struct {
		text json.RawMessage
		used bool
	}{"messages": {in.Messages, p.uses.messages}, "params": {in.Params, p.uses.params}} {
		if !part.used || len(part.text) == 0 {
			continue
		}
		v, err := fromJSON(part.text)
		if err != nil {
			return v, fmt.Errorf("%w: %s: %w", ErrInput, name, err)
		}
		parts[name] = v
	}
	return cty.ObjectVal(parts), nil
}

// scope has the input and steps that are done.
func (x *run) scope(deps []int) scope {
	steps := map[string]cty.Value{}
	for _, i := range deps {
		steps[x.p.Steps[i].Name] = x.steps[i].value
	}
	return scope{"input": x.input, "step": cty.ObjectVal(steps)}
}

// with adds a value of for_each.
func (s scope) with(key, value cty.Value) scope {
	return scope{"input": s["input"], "step": s["step"], "each": cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
}

// evaluate computes an expression. name is the attribute's, for errors.
func evaluate(name string, expr hcl.Expression, want wanted, s scope) (cty.Value, error) {
	v, diags := expr.Value(&hcl.EvalContext{Variables: s, Functions: functions})
	if diags.HasErrors() {
		var texts []string
		for _, d := range diags {
			if d.Severity == hcl.DiagError {
				texts = append(texts, at(d.Subject)+sentence(d))
			}
		}
		return v, fmt.Errorf("%s: %w: %s", name, ErrExpression, strings.Join(texts, "; "))
	}
	out, err := want.take(v)
	if err != nil {
		r := expr.Range()
		return v, fmt.Errorf("%w: %s%s %w", ErrExpression, at(&r), name, err)
	}
	return out, nil
}

func at(r *hcl.Range) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("line %d, column %d: ", r.Start.Line, r.Start.Column)
}

// request makes a call of a step.
func (s *Step) request(index int, scope scope) (Call, error) {
	c := Call{Step: s.Name, Index: index, Model: s.Model, Endpoint: s.Endpoint, Params: map[string]json.RawMessage{}}
	if s.params != nil {
		v, err := evaluate("params", s.params, wantParams, scope)
		if err != nil {
			return c, err
		}
		for it := v.ElementIterator(); it.Next(); {
			key, value := it.Element()
			if c.Params[key.AsString()], err = toJSON(value); err != nil {
				return c, fmt.Errorf("params: %w", err)
			}
		}
	}
	for name, field := range map[string]struct {
		expr hcl.Expression
		want wanted
	}{"max_tokens": {s.maxTokens, wantTokens}, "temperature": {s.temperature, wantNumber}} {
		if field.expr == nil {
			continue
		}
		v, err := evaluate(name, field.expr, field.want, scope)
		if err != nil {
			return c, err
		}
		if c.Params[name], err = toJSON(v); err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	var messages cty.Value
	if s.messages != nil {
		var err error
		if messages, err = evaluate("messages", s.messages, wantMessages, scope); err != nil {
			return c, err
		}
	} else {
		v, err := evaluate("prompt", s.prompt, wantText, scope)
		if err != nil {
			return c, err
		}
		if s.Endpoint == Completions {
			c.Prompt = v.AsString()
			if len(c.Prompt) > MaxPrompt {
				return c, fmt.Errorf("prompt: %d bytes: must be at most %d bytes", len(c.Prompt), MaxPrompt)
			}
			return c, nil
		}
		messages = cty.TupleVal([]cty.Value{cty.ObjectVal(map[string]cty.Value{"role": cty.StringVal("user"), "content": v})})
	}
	var err error
	if c.Messages, err = toJSON(messages); err != nil {
		return c, fmt.Errorf("messages: %w", err)
	}
	return c, nil
}
