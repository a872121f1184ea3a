package schema_test

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/schema"
	"remuda/internal/sim/text"
)

func value(t *testing.T, s string) any {
	t.Helper()
	from := text.NewState("m").Append("prompt")
	got, err := schema.Value(json.RawMessage(s), from)
	require.NoError(t, err)
	again, err := schema.Value(json.RawMessage(s), from)
	require.NoError(t, err)
	require.Equal(t, got, again)
	var v any
	require.NoError(t, json.Unmarshal([]byte(got), &v), got)
	return v
}

func TestScalars(t *testing.T) {
	t.Parallel()
	number := func(s string) float64 {
		v, ok := value(t, s).(float64)
		require.True(t, ok, s)
		return v
	}
	require.InDelta(t, 7, number(`{"const":7}`), 0)
	require.Contains(t, []any{"a", "b"}, value(t, `{"enum":["a","b"]}`))
	require.Nil(t, value(t, `{"type":"null"}`))
	require.IsType(t, true, value(t, `{"type":"boolean"}`))
	require.IsType(t, "", value(t, `{"type":["string","null"]}`))
	require.IsType(t, "", value(t, `true`))
	n := number(`{"type":"integer","minimum":3,"exclusiveMaximum":5}`)
	require.Contains(t, []float64{3, 4}, n)
	require.InDelta(t, 0.25, number(`{"minimum":0.1,"maximum":0.4,"type":"number"}`), 0)
	require.Zero(t, int(number(`{"type":"integer","minimum":1,"multipleOf":7}`))%7)
	require.Negative(t, number(`{"type":"number","exclusiveMaximum":0}`))
	require.Len(t, value(t, `{"type":"string","minLength":30,"maxLength":30}`), 30)
	require.Equal(t, "2026-01-02", value(t, `{"type":"string","format":"date"}`))
	for _, pattern := range []string{`^[a-z]{2,4}-\d+$`, `^(cat|dog)s?$`, `.+x`} {
		s, err := json.Marshal(map[string]string{"type": "string", "pattern": pattern})
		require.NoError(t, err)
		require.Regexp(t, regexp.MustCompile(pattern), value(t, string(s)))
	}
}

func TestStructures(t *testing.T) {
	t.Parallel()
	got := value(t, `{
		"type":"object","required":["a","free"],
		"properties":{
			"a":{"type":"array","items":{"$ref":"#/$defs/point"},"minItems":3,"maxItems":3},
			"b":{"anyOf":[{"type":"boolean"},{"type":"string"}]},
			"c":{"allOf":[{"properties":{"x":{"const":1}}},{"properties":{"y":{"const":2}},"required":["y"]}]},
			"d":{"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":2},
			"e":{"type":"array","prefixItems":[{"const":"p"}],"items":false}
		},
		"$defs":{"point":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}
	}`)
	o, ok := got.(map[string]any)
	require.True(t, ok)
	require.Len(t, o, 6)
	points, ok := o["a"].([]any)
	require.True(t, ok)
	require.Len(t, points, 3)
	for _, p := range points {
		require.Contains(t, p, "x")
	}
	require.IsType(t, true, o["b"])
	require.Equal(t, map[string]any{"x": 1., "y": 2.}, o["c"])
	require.ElementsMatch(t, []any{1., 2.}, o["d"])
	require.Equal(t, []any{"p"}, o["e"])
	require.Contains(t, o, "free")
}

func TestRecursionEnds(t *testing.T) {
	t.Parallel()
	value(t, `{"type":"object","properties":{"next":{"$ref":"#"},"all":{"type":"array","items":{"$ref":"#"}}}}`)
}

func TestSchemasWithoutAValue(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		`{`:                     "not valid JSON",
		`5`:                     "must be an object or true",
		`false`:                 "must be an object or true",
		`{"type":"any"}`:        `the type "any"`,
		`{"enum":[]}`:           "empty enum",
		`{"$ref":"#"}`:          "without an end",
		`{"$ref":"#/$defs/x"}`:  "no such place",
		`{"$ref":"other.json"}`: "a place in the same schema",
		`{"minItems":2,"maxItems":1,"type":"array"}`:                                                        "at least 2 items",
		`{"type":"integer","minimum":2,"maximum":1}`:                                                        "no number satisfies",
		`{"type":"string","minLength":9000}`:                                                                "at least 9000 characters",
		`{"type":"number","minimum":1e308}`:                                                                 "beyond what this engine counts to",
		`{"type":"number","minimum":1,"multipleOf":1e-300}`:                                                 "beyond what this engine counts to",
		`{"type":"array","minItems":1000,"items":{"type":"array","minItems":1000,"items":{"type":"null"}}}`: "more than 20000 values",
		`{"type":"string","pattern":"("}`:                                                                   `the pattern "("`,
		`{"type":"array","minItems":3,"uniqueItems":true,"items":{"type":"boolean"}}`:                       "too few values",
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`:                                "deeper than 32",
	} {
		_, err := schema.Value(json.RawMessage(s), text.NewState("m"))
		require.ErrorContains(t, err, want, s)
	}
}

// FuzzValue checks that any schema has a value that is JSON, or an error.
func FuzzValue(f *testing.F) {
	for _, seed := range []string{
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a","b"]}`, `{"anyOf":[{"type":"integer","multipleOf":3}]}`,
		`{"type":"array","minItems":9,"uniqueItems":true,"items":{"enum":[1,2]}}`, `{"allOf":[true,{"pattern":"^a{2,}[^b]$"}]}`,
		`{"type":"number","minimum":1e300,"exclusiveMaximum":-1}`, `{"$ref":"#/a/0","a":[{}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		if v, err := schema.Value(s, text.NewState("m")); err == nil {
			require.True(t, json.Valid([]byte(v)), v)
		}
	})
}
