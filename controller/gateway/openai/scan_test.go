package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/gateway/openai"
)

func TestScanFinds(t *testing.T) {
	cases := []struct {
		name, body, model string
		stream            bool
	}{
		{"plain", `{"model":"m"}`, "m", false},
		{"stream", `{"stream":true,"model":"m"}`, "m", true},
		{"stream false", `{"stream":false,"model":"m"}`, "m", false},
		{"stream null", `{"stream":null,"model":"m"}`, "m", false},
		{"last of two streams", `{"stream":true,"model":"m","stream":false}`, "m", false},
		{"space everywhere", " \r\n\t{ \"model\" \n:\t\"m\" , \"x\" : 1 } \n", "m", false},
		{"slashes and colons", `{"model":"meta-llama/Llama-3:8b"}`, "meta-llama/Llama-3:8b", false},
		{"last duplicate wins", `{"model":"a","model":"b"}`, "b", false},
		{"last duplicate wins over a number", `{"model":1,"model":"b"}`, "b", false},
		{"nested model ignored", `{"metadata":{"model":"no"},"model":"yes"}`, "yes", false},
		{"nested after", `{"model":"yes","a":[{"model":"no"},[["model"]]]}`, "yes", false},
		{"model in a string", `{"prompt":"\"model\":\"no\"","model":"yes"}`, "yes", false},
		{"model as a value", `{"x":"model","model":"yes"}`, "yes", false},
		{"string ends in backslashes", `{"p":"a\\\\","model":"yes"}`, "yes", false},
		{"string ends in an escaped quote", `{"p":"a\\\"","model":"yes"}`, "yes", false},
		{"escaped key", `{"\u006dod\u0065l":"m"}`, "m", false},
		{"escaped stream key", `{"\u0073\u0074\u0072\u0065\u0061\u006d":true,"model":"m"}`, "m", true},
		{"escaped value", `{"model":"a\/b\u00e9\ud83d\ude00\n"}`, "a/bé😀\n", false},
		{"utf-8 value", `{"model":"é😀"}`, "é😀", false},
		{"numbers", `{"a":-0.5e+10,"b":0,"c":12E3,"d":1.5,"model":"m"}`, "m", false},
		{"brackets in strings", `{"a":["}]","{["],"model":"m"}`, "m", false},
		{"bracket kinds", `{"a":[{"b":[{}]},[],{}],"model":"m"}`, "m", false},
		{"deep fault is the engine's business", `{"a":[1,,tru],"model":"m"}`, "m", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			head, err := openai.Scan([]byte(c.body))
			require.NoError(t, err)
			require.Equal(t, c.model, head.Model)
			require.Equal(t, c.stream, head.Stream)
		})
	}
}

func TestScanRefuses(t *testing.T) {
	syntax := func(problem string) string { return problem }
	cases := []struct{ name, body, want string }{
		{"empty", ``, syntax("the text is empty")},
		{"space only", " \n", syntax("the text is empty")},
		{"text", `hello`, syntax(`found 'h', expected a JSON object`)},
		{"array", `[{"model":"m"}]`, syntax(`found '[', expected a JSON object`)},
		{"byte order mark", "\ufeff{\"model\":\"m\"}", syntax("expected a JSON object")},
		{"form", `model=m`, syntax("expected a JSON object")},
		{"cut after brace", `{`, syntax("expected a key")},
		{"cut in key", `{"mod`, syntax("the end of a string")},
		{"cut after key", `{"model"`, syntax("expected ':'")},
		{"cut after colon", `{"model":`, syntax("expected a value")},
		{"cut in value", `{"model":"m`, syntax("the end of a string")},
		{"cut after value", `{"model":"m"`, syntax("expected ',' or '}'")},
		{"cut after comma", `{"model":"m",`, syntax("expected a key")},
		{"cut in nested", `{"model":"m","a":[{"b":1}`, syntax("the end of an object or array")},
		{"trailing comma", `{"model":"m",}`, syntax("expected a key in double quotes")},
		{"no comma", `{"model":"m" "a":1}`, syntax("expected ',' or '}'")},
		{"no colon", `{"model" "m"}`, syntax("expected ':'")},
		{"bare key", `{model:"m"}`, syntax("expected a key in double quotes")},
		{"single quotes", `{'model':'m'}`, syntax("expected a key in double quotes")},
		{"rest after object", `{"model":"m"}{}`, syntax("expected the end")},
		{"NUL after object", "{\"model\":\"m\"}\x00", syntax("expected the end")},
		{"bad literal", `{"model":"m","a":True}`, syntax("expected a value")},
		{"misspelt literal", `{"model":"m","a":trve}`, syntax("expected true")},
		{"leading zero", `{"model":"m","a":01}`, syntax("expected ',' or '}'")},
		{"bare minus", `{"model":"m","a":-}`, syntax("expected a number")},
		{"no fraction", `{"model":"m","a":1.}`, syntax("expected a number")},
		{"no exponent", `{"model":"m","a":1e+}`, syntax("expected a number")},
		{"NaN", `{"model":"m","a":NaN}`, syntax("expected a value")},
		{"mismatched", `{"model":"m","a":[1}`, syntax("does not match")},
		{"bad escape in model", `{"model":"\x"}`, syntax("invalid escape")},
		{"control character in model", "{\"model\":\"a\nb\"}", syntax("control character")},
		{"too deep", `{"model":"m","a":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`, "nest deeper"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := openai.Scan([]byte(c.body))
			var syntax *openai.SyntaxError
			require.ErrorAs(t, err, &syntax)
			require.Contains(t, err.Error(), c.want)
		})
	}
	for name, c := range map[string]struct {
		body string
		want error
	}{
		"no model":        {`{}`, openai.ErrNoModel},
		"empty model":     {`{"model":""}`, openai.ErrNoModel},
		"only nested":     {`{"a":{"model":"m"}}`, openai.ErrNoModel},
		"number":          {`{"model":1}`, openai.ErrModelType},
		"null":            {`{"model":null}`, openai.ErrModelType},
		"object":          {`{"model":{"model":"m"}}`, openai.ErrModelType},
		"number is last":  {`{"model":"m","model":1}`, openai.ErrModelType},
		"boolean":         {`{"model":true}`, openai.ErrModelType},
		"array of models": {`{"model":["m"]}`, openai.ErrModelType},
		"another case":    {`{"model":"m","Model":"n"}`, openai.ErrModelCase},
		"escaped case":    {`{"model":"m","\u004dodel":"n"}`, openai.ErrModelCase},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openai.Scan([]byte(c.body))
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestScanDepthLimitIsThatOfEncodingJSON(t *testing.T) {
	body := []byte(`{"model":"m","a":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`)
	require.True(t, json.Valid(body))
	head, err := openai.Scan(body)
	require.NoError(t, err)
	require.Equal(t, "m", head.Model)
}

// reference is what encoding/json finds in a valid object.
func reference(body []byte) (want openai.Head, err error) {
	members := map[string]json.RawMessage{}
	newest := "max_completion_tokens"
	dec := json.NewDecoder(bytes.NewReader(body))
	if _, err := dec.Token(); err != nil {
		return want, err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return want, err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return want, err
		}
		members[key.(string)] = raw
		switch key {
		case "stream_options":
			end := int(dec.InputOffset())
			want.Options = openai.Span{From: end - len(raw), To: end}
		case "previous_response_id":
			want.Previous = ""
			_ = json.Unmarshal(raw, &want.Previous) // not a string: none
		case "max_completion_tokens", "max_output_tokens":
			newest = key.(string)
		case "messages", "prompt", "input":
			if end := int(dec.InputOffset()); string(raw) != "null" {
				want.Prompt = openai.Span{From: end - len(raw), To: end}
			}
		}
	}
	number := func(key string) int {
		var n json.Number
		if raw := members[key]; len(raw) == 0 || raw[0] == '"' || json.Unmarshal(raw, &n) != nil || n == "" {
			return 0
		}
		f, _ := n.Float64() // infinite where it is out of range
		return int(math.Trunc(math.Min(math.Max(f, 0), 1<<31-1)))
	}
	if want.MaxTokens = number(newest); want.MaxTokens == 0 {
		want.MaxTokens = number("max_tokens")
	}
	want.N = number("n")
	want.Stream = string(members["stream"]) == "true"
	want.End = bytes.LastIndexByte(body, '}')
	raw, there := members["model"]
	for key := range members {
		if key != "model" && strings.EqualFold(key, "model") {
			return want, openai.ErrModelCase
		}
	}
	switch {
	case !there:
		return want, openai.ErrNoModel
	case raw[0] != '"':
		return want, openai.ErrModelType
	}
	if err := json.Unmarshal(raw, &want.Model); err != nil {
		return want, err
	}
	if want.Model == "" {
		return want, openai.ErrNoModel
	}
	return want, nil
}

// agree checks the package's promise against encoding/json.
func agree(body []byte) error {
	head, err := openai.Scan(body)
	var members map[string]json.RawMessage
	valid := json.Unmarshal(body, &members) == nil && members != nil
	var syntax *openai.SyntaxError
	if errors.As(err, &syntax) {
		if valid {
			return fmt.Errorf("scan refuses a valid object: %v", err)
		}
		if syntax.Offset < 0 || syntax.Offset > len(body) {
			return fmt.Errorf("offset %d is outside of the body", syntax.Offset)
		}
		return nil
	}
	if err == nil {
		p := head.Prompt
		if p.From < 0 || p.From > p.To || p.To > len(body) || head.Cost(body, true) < 1 || (head.Prefix(body) != 0) != (p.Len() >= 256) {
			return fmt.Errorf("a prompt at %v of %d bytes, cost %d, prefix %d", p, len(body), head.Cost(body, true), head.Prefix(body))
		}
	}
	if !valid {
		return nil
	}
	want, wantErr := reference(body)
	if !errors.Is(err, wantErr) {
		return fmt.Errorf("scan says %v, encoding/json %v", err, wantErr)
	}
	if err == nil && head != want {
		return fmt.Errorf("scan finds %+v, encoding/json %+v", head, want)
	}
	return nil
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"model":"m"}`, `{"stream":true,"model":"a\\","x":[{"y":"\""}]}`, `{"\u006dodel":"\ud800"}`,
		`{"model":1.5e-3,"model":"b"}`, "{\"model\":\"\xff\"}", `{"a":[}`, `[]`, `{}`, `{"model":null}`, `{"a":-0}`, "null",
		`{"model":"m","max_tokens":7,"max_completion_tokens":null,"n":2.9}`, `{"model":"m","max_tokens":1e400,"n":-1}`,
		`{"model":"m","messages":[{"a":"b"}] ,"prompt": null,"logprobs":false,"tools":[]}`, `{"model":"m","input":"x","\u006e":3e1}`,
		`{"model":"m","max_tokens":9007199254740993,"n":0.9999999999999999999}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if err := agree(body); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

func TestScanAgreesOnGeneratedObjects(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		`"model"`, `"stream"`, `"mod\u0065l"`, `"x"`, `:`, `,`, `{`, `}`, `[`, `]`, `"\\"`, `"\""`, `true`, `false`,
		`null`, `1`, `-2.5e3`, ` `, `"m"`, `""`, `"a\u00e9"`, `01`, `"model":"z"`, `,"stream":true`,
		`"n":3,`, `"max_tokens":17,`, `"max_completion_tokens" :`, `"messages":[{}],`, `"prompt":"p" ,`, `"input":`, `"tools":`,
		`"stream_options":{},`, `"previous_response_id":"r",`, `"Model":1,`, `"max_output_tokens":3,`, `"model":"m",`,
	})
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(piece, 0, 14).Draw(t, "parts")
		body := "{" + strings.Join(parts, "") + "}"
		if err := agree([]byte(body)); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

// prompt is a chat request with a prompt of size bytes that looks like text
// with code in it: a line break or a quote about every 40 bytes.
func prompt(size int) []byte {
	var text bytes.Buffer
	for text.Len() < size {
		text.WriteString("a line of some forty bytes with \"code\" \n")
	}
	quoted, _ := json.Marshal(text.String()[:size])
	return fmt.Appendf(nil, `{"messages":[{"role":"user","content":%s}],"stream":true,"model":"m"}`, quoted)
}

func TestScanAllocatesOnlyTheModel(t *testing.T) {
	body := prompt(220 << 10)
	n := testing.AllocsPerRun(100, func() {
		if _, err := openai.Scan(body); err != nil {
			t.Fatal(err)
		}
	})
	require.LessOrEqual(t, n, 1.0)

	body = []byte(`{"model":"a-model-with-a-name-that-is-longer-than-the-stack's-buffer-for-strings","n":2,"max_tokens":1000,"max_completion_tokens":1e3,` +
		`"a_key_that_is_longer_than_any_that_is_wanted_and_than_32_bytes":1,"tools":[],"prompt":"p","logprobs":null}`)
	n = testing.AllocsPerRun(100, func() {
		if head, err := openai.Scan(body); err != nil || head.MaxTokens != 1000 || head.Prefix(body) != 0 {
			t.Fatal(head, err)
		}
	})
	require.LessOrEqual(t, n, 1.0)
}

func BenchmarkScan220KB(b *testing.B) {
	body := prompt(220 << 10)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openai.Scan(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopy220KB(b *testing.B) {
	body := prompt(220 << 10)
	dst := make([]byte, len(body))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		copy(dst, body)
	}
}

func BenchmarkDecode220KB(b *testing.B) {
	body := prompt(220 << 10)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		var v struct {
			Model string `json:"model"`
		}
		if err := json.Unmarshal(body, &v); err != nil {
			b.Fatal(err)
		}
	}
}
