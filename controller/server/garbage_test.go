package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/server"
)

// garbage is values that no field takes, or that some take as they are.
var garbage = map[string]any{
	"null": nil, "a boolean": true, "a string": "x", "an empty string": "", "NUL": "a\x00b", "control characters": "\x1b[31m\r\n", "a long string": strings.Repeat("x", 1<<16),
	"-1": -1, "1.5": 1.5, "a huge number": json.Number("1e300"), "more than 64 bits": json.Number("18446744073709551616"), "the largest int": json.Number("9223372036854775807"),
	"a list": []any{}, "a list of lists": []any{[]any{[]any{}}}, "an object": map[string]any{}, "an object of objects": map[string]any{"x": map[string]any{"x": nil}},
	"names of garbage": map[string]any{"": 1, "a\x00b": 1, strings.Repeat("x", 1000): 1}, "a number below 0 by name": map[string]any{"m": -1},
}

// TestGarbage sends garbage to every route: in each field of a body, in the path and in the query.
// The answer is never a fault of the server. Whatever is refused has changed nothing, and the
// message names the field.
func TestGarbage(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{world: withPools})[0]
	m.applied("m")
	refusedCleanly := func(what, method, path, body string, names ...string) {
		t.Helper()
		before := m.store.View().TableIndex()
		resp, text := m.raw(method, path, "", body)
		require.Less(t, resp.StatusCode, http.StatusInternalServerError, "%s: %s %s %.200s: %s", what, method, path, body, text)
		if resp.StatusCode < http.StatusBadRequest {
			return
		}
		e := refused(t, text)
		require.NotEmpty(t, e.Message)
		require.NotContains(t, e.Message, "\x00", what)
		require.Less(t, len(e.Message), 8<<10, "%s: %s", what, path)
		for _, name := range names {
			require.Contains(t, e.Message, name, "%s: %s %s %.200s", what, method, path, body)
		}
		require.Equal(t, before, m.store.View().TableIndex(), "%s: %s %s was refused", what, method, path)
	}
	parameter := regexp.MustCompile(`\{[a-z]+\}`)
	for _, r := range server.Bodies() {
		if r.Pattern == "/v1/operator/snapshot" {
			continue // TestSnapshotsThatAreNoGood
		}
		path := r.Pattern
		for parameter, name := range map[string]string{"{model}": "m", "{pool}": "cloud", "{node}": "n1", "{switch}": "s", "{pipeline}": "p", "{replica}": "m:a:1"} {
			path = strings.ReplaceAll(path, parameter, name)
		}
		path = parameter.ReplaceAllString(path, "x")
		for _, what := range slices.Sorted(maps.Keys(garbage)) {
			for _, f := range r.Fields {
				raw, err := json.Marshal(map[string]any{f.Name: garbage[what]})
				require.NoError(t, err)
				var names []string
				if !takes(f.Type, garbage[what]) {
					names = []string{fmt.Sprintf("field %q", f.Name)}
				}
				refusedCleanly(what, r.Method, path, string(raw), names...)
			}
			raw, err := json.Marshal(garbage[what])
			require.NoError(t, err)
			refusedCleanly(what+" as the body", r.Method, path, string(raw))
		}
		refusedCleanly("bytes that are no UTF-8", r.Method, path, "{\"\xff\": \"\xff\"}")
		refusedCleanly("deep nesting", r.Method, path, strings.Repeat(`{"x":`, 20000))
	}
	for _, r := range server.Routes() {
		for what, name := range map[string]string{"NUL": "\x00", "a long name": strings.Repeat("x", 5000), "dots": "..", "spaces": " ", "line ends": "a\r\nb", "no UTF-8": "\xff", "a colon": "m:", "a slash": "m/a"} {
			if p := parameter.ReplaceAllString(r.Pattern, url.PathEscape(name)); p != r.Pattern {
				refusedCleanly(what, r.Method, p, "")
			}
		}
		for _, p := range r.Params {
			for _, value := range []string{"-1", "1.5", "x", "\x00", "18446744073709551616", strings.Repeat("9", 5000)} {
				refusedCleanly("parameter "+p, r.Method, path(r.Pattern)+"?"+url.Values{p: {value}}.Encode(), "")
			}
		}
	}
	_, _, err := m.client.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
}

// takes reports whether encoding/json may read a value into a type.
func takes(t reflect.Type, v any) bool {
	raw, err := json.Marshal(v)
	return err == nil && v != nil && json.Unmarshal(raw, reflect.New(t).Interface()) == nil
}
