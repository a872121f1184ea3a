package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"remuda/internal/hclfault"
)

// The type of a step's value.
var (
	usageType  = cty.Object(map[string]cty.Type{"prompt_tokens": cty.Number, "completion_tokens": cty.Number, "total_tokens": cty.Number})
	answerType = cty.Object(map[string]cty.Type{"text": cty.String, "finish_reason": cty.String, "usage": usageType})
)

func (s *Step) valueType() cty.Type {
	if s.FanOut {
		return cty.List(answerType)
	}
	return answerType
}

// nothing is the value of a step that did not run.
func (s *Step) nothing() cty.Value {
	if s.FanOut {
		return cty.ListValEmpty(answerType)
	}
	return cty.NullVal(answerType)
}

// value is that of a step that ran.
func (s *Step) value(answers []Answer) cty.Value {
	values := make([]cty.Value, len(answers))
	for i, a := range answers {
		values[i] = cty.ObjectVal(map[string]cty.Value{
			"text": cty.StringVal(a.Text), "finish_reason": cty.StringVal(a.FinishReason),
			"usage": cty.ObjectVal(map[string]cty.Value{
				"prompt_tokens":     cty.NumberIntVal(a.Usage.Prompt),
				"completion_tokens": cty.NumberIntVal(a.Usage.Completion),
				"total_tokens":      cty.NumberIntVal(a.Usage.Total()),
			}),
		})
	}
	switch {
	case !s.FanOut:
		return values[0]
	case len(values) == 0:
		return s.nothing()
	}
	return cty.ListVal(values)
}

// maxDepth is how deep JSON of a request or an answer may nest: far more than messages do.
const maxDepth = 64

// fromJSON is a JSON text as a value. Lists become tuples and objects objects, as their
// elements differ in type.
func fromJSON(text []byte) (cty.Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil { // it bounds the depth, too
		return cty.NilVal, fmt.Errorf("not JSON: %w", err)
	}
	if d.More() {
		return cty.NilVal, errors.New("not JSON: unexpected data after its end")
	}
	return fromAny(v, 0)
}

func fromAny(v any, depth int) (cty.Value, error) {
	if depth > maxDepth {
		return cty.NilVal, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return cty.NullVal(cty.DynamicPseudoType), nil
	case bool:
		return cty.BoolVal(v), nil
	case string:
		return cty.StringVal(v), nil
	case json.Number:
		return number(v.String())
	case []any:
		list := make([]cty.Value, len(v))
		for i, one := range v {
			var err error
			if list[i], err = fromAny(one, depth+1); err != nil {
				return cty.NilVal, err
			}
		}
		return cty.TupleVal(list), nil
	case map[string]any:
		object := make(map[string]cty.Value, len(v))
		for key, one := range v {
			var err error
			if object[key], err = fromAny(one, depth+1); err != nil {
				return cty.NilVal, err
			}
		}
		return cty.ObjectVal(object), nil
	}
	return cty.NilVal, fmt.Errorf("unsupported type %T", v)
}

// longestNumber is how many characters a number may have. Of more nothing is left in the
// precision of an engine, and 1e999999999 would fill the memory when it is written out.
const longestNumber = 100

var numberRule = regexp.MustCompile(`^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// number reads a number as JSON writes it.
func number(text string) (cty.Value, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || len(text) > longestNumber || !numberRule.MatchString(text) {
		return cty.NilVal, fmt.Errorf("%q is not a supported number", hclfault.Clip(text))
	}
	if strings.ContainsAny(text, ".eE") {
		return cty.NumberFloatVal(f), nil
	}
	return cty.ParseNumberVal(text)
}

// take converts a value to what is wanted. The error continues "max_tokens …".
func (w wanted) take(v cty.Value) (cty.Value, error) {
	is := func() error { return fmt.Errorf("is %s: must be %s", hclfault.Show(v), w) }
	to := func(t cty.Type) (cty.Value, error) {
		if out, err := convert.Convert(v, t); err == nil && !out.IsNull() {
			return out, nil
		}
		return v, is()
	}
	if v.IsNull() {
		return v, is()
	}
	switch w {
	case wantBool:
		return to(cty.Bool)
	case wantText:
		return to(cty.String)
	case wantNumber:
		return to(cty.Number)
	case wantTokens:
		n, err := to(cty.Number)
		if err != nil {
			return n, err
		}
		if whole, exact := n.AsBigFloat().Int64(); exact != big.Exact || whole < 1 {
			return n, is()
		}
		return n, nil
	case wantCollection:
		if !v.CanIterateElements() {
			return v, is()
		}
		if n := v.LengthInt(); n > MaxFanOut {
			return v, fmt.Errorf("has %d values: must be at most %d", n, MaxFanOut)
		}
		return v, nil
	case wantMessages:
		return v, checkMessages(v, is)
	case wantParams:
		return v, checkParams(v, is)
	case wantOutput:
		if v.Type().Equals(answerType) {
			return v, nil
		}
		return to(cty.String)
	}
	return v, is()
}

func checkMessages(v cty.Value, is func() error) error {
	if !v.CanIterateElements() || !v.Type().IsTupleType() && !v.Type().IsListType() {
		return is()
	}
	if v.LengthInt() == 0 {
		return errors.New("is empty: at least one message is required")
	}
	for it := v.ElementIterator(); it.Next(); {
		at, m := it.Element()
		if m.IsNull() || !m.Type().IsObjectType() && !m.Type().IsMapType() {
			return fmt.Errorf("element %s is not a message: must be an object with role and content", hclfault.Show(at))
		}
		role, ok := m.AsValueMap()["role"]
		if !ok || role.IsNull() || role.Type() != cty.String {
			return fmt.Errorf("element %s has no role: must be \"user\", \"system\" or \"assistant\"", hclfault.Show(at))
		}
	}
	return nil
}

// notParams are fields of a request that are not allowed in params, with the reason or
// the replacement.
var notParams = map[string]string{
	"model": "set the step's model", "messages": "set the step's messages", "prompt": "set the step's prompt", "max_tokens": "set the step's max_tokens",
	"temperature": "set the step's temperature", "stream": "a step streams if it is the pipeline's output", "stream_options": "the client sets it",
	"n": "use for_each", "best_of": "use for_each", "echo": "the prompt is known",
}

func checkParams(v cty.Value, is func() error) error {
	if !v.CanIterateElements() || !v.Type().IsObjectType() && !v.Type().IsMapType() {
		return is()
	}
	for it := v.ElementIterator(); it.Next(); {
		key, _ := it.Element()
		if instead, ok := notParams[key.AsString()]; ok {
			return fmt.Errorf("has the field %s, which is not allowed: %s", hclfault.Show(key), instead)
		}
	}
	return nil
}

// toJSON is a value as JSON text, at most MaxPrompt long.
func toJSON(v cty.Value) (json.RawMessage, error) {
	b, err := ctyjson.Marshal(v, v.Type())
	if err != nil {
		return nil, err
	}
	if len(b) > MaxPrompt {
		return nil, fmt.Errorf("%d bytes: must be at most %d bytes", len(b), MaxPrompt)
	}
	return b, nil
}
