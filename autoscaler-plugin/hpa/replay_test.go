package hpa_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/hpa"
)

// example grows from 3 to 7 in one period, which is all that its policy allows.
const example = `{"behavior":{"scale_up":{"stabilization_window_seconds":0,"select_policy":"Max","policies":[{"type":"Pods","value":4,"period_seconds":15}]},
             "scale_down":{"stabilization_window_seconds":300,"select_policy":"Max","policies":[{"type":"Percent","value":100,"period_seconds":15}]}},
 "min_replicas":1,"max_replicas":20,"initial_replicas":3,
 "steps":[{"t":0,"desired":7},{"t":15,"desired":7}]}`

// replay answers each of the scenarios.
func replay(r io.Reader) ([]hpa.Replayed, error) {
	scenarios, err := hpa.Decode(r)
	var all []hpa.Replayed
	for i := range scenarios {
		all = append(all, scenarios[i].Run())
	}
	return all, err
}

func TestReplay(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want string
	}{
		"a growth of one period": {example, `[{"replicas":[7,7]}]`},
		"several objects":        {example + "\n\n" + example + example, `[{"replicas":[7,7]},{"replicas":[7,7]},{"replicas":[7,7]}]`},
		"the defaults":           {`{"max_replicas":90,"initial_replicas":3,"steps":[{"t":0,"desired":90},{"t":15,"desired":90},{"t":16,"desired":0},{"t":315,"desired":0}]}`, `[{"replicas":[7,14,14,1]}]`},
		"part of the defaults": {`{"behavior":{"scale_up":{"policies":[{"type":"Pods","value":1,"period_seconds":60}]},"scale_down":{"stabilization_window_seconds":5}},
			"max_replicas":90,"initial_replicas":3,"steps":[{"t":0,"desired":90},{"t":30,"desired":90},{"t":34.999,"desired":1},{"t":35,"desired":1}]}`, `[{"replicas":[4,4,4,1]}]`},
		"null is left out":        {`{"behavior":{"scale_up":null,"scale_down":{"policies":null}},"min_replicas":null,"max_replicas":90,"initial_replicas":3,"steps":[{"t":0,"desired":5,"current":null}]}`, `[{"replicas":[5]}]`},
		"no steps":                {`{"max_replicas":1,"initial_replicas":0,"steps":[]}`, `[{"replicas":[]}]`},
		"someone else scales":     {`{"max_replicas":90,"initial_replicas":3,"steps":[{"t":0,"desired":3},{"t":9,"desired":90,"current":20}]}`, `[{"replicas":[3,40]}]`},
		"decimals are exact":      {`{"max_replicas":90,"initial_replicas":3,"steps":[{"t":0.1,"desired":90},{"t":15.099999999,"desired":90},{"t":151e-1,"desired":90}]}`, `[{"replicas":[7,7,14]}]`},
		"the clock goes back":     {`{"max_replicas":90,"initial_replicas":3,"steps":[{"t":1e9,"desired":90},{"t":0,"desired":90},{"t":15,"desired":90}]}`, `[{"replicas":[7,7,14]}]`},
		"a recorded gap is a gap": {`{"max_replicas":90,"initial_replicas":9,"steps":[{"t":0,"desired":9},{"t":86400,"desired":2}]}`, `[{"replicas":[9,2]}]`},
		"unless it is limited":    {`{"behavior":{"max_gap_seconds":60},"max_replicas":90,"initial_replicas":9,"steps":[{"t":0,"desired":9},{"t":86400,"desired":2}]}`, `[{"replicas":[9,9]}]`},
		"an initial 0":            {`{"min_replicas":2,"max_replicas":90,"initial_replicas":0,"steps":[{"t":0,"desired":9}]}`, `[{"replicas":[0]}]`},
		"an initial 0 to be left": {`{"behavior":{"from_zero":true},"min_replicas":0,"max_replicas":90,"initial_replicas":0,"steps":[{"t":0,"desired":9}]}`, `[{"replicas":[4]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := replay(strings.NewReader(tc.in))
			require.NoError(t, err)
			raw, err := json.Marshal(got)
			require.NoError(t, err)
			require.Equal(t, tc.want, string(raw))
		})
	}
}

func TestReplayMistakes(t *testing.T) {
	change := func(old, by string) string {
		require.Equal(t, 1, strings.Count(example, old), old)
		return strings.Replace(example, old, by, 1)
	}
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"nothing":           {" \n", []string{"the scenario is empty"}},
		"cut off":           {example[:len(example)-3], []string{"line 4: invalid JSON: unexpected EOF"}},
		"no JSON":           {"{\"behavior\":\n}", []string{"line 2: invalid JSON: invalid character '}'"}},
		"more after it":     {example + "\n\n]", []string{"line 6: invalid JSON"}},
		"a list":            {"\n[]", []string{"line 2: the scenario is an array: must be an object"}},
		"a word":            {change(`"max_replicas":20`, `"max_replicas":"20"`), []string{"line 3: max_replicas is a string: must be a whole number"}},
		"a fraction":        {change(`{"t":15,"desired":7}`, "\n{\"t\":15,\"desired\":7.5}"), []string{"line 5: steps", "desired is a number 7.5: must be a whole number"}},
		"a time in words":   {change(`"t":15`, `"t":"soon"`), []string{"the object at line 1: steps[1].t is \"soon\": must be seconds from -8589934592"}},
		"an unknown field":  {change(`"select_policy":"Max","policies":[{"type":"Percent"`, `"selectPolicy":"Max","policies":[{"type":"Percent"`), []string{`line 2: unknown field "selectPolicy"`}},
		"the second object": {example + "\n" + change(`"min_replicas":1`, `"min_replicas":{}`), []string{"line 7: min_replicas is an object: must be a whole number"}},
		"everything at once": {`{"behavior":{"scale_up":{"stabilization_window_seconds":-1,"select_policy":"max","policies":[]},
			"scale_down":{"policies":[{"type":"Pods","value":1,"period_seconds":1},{"type":"pods","value":0,"period_seconds":-4}]},"max_gap_seconds":604801},
			"min_replicas":-1,"max_replicas":0,"steps":[{"desired":1},{"t":1e10},{"t":0.0000000001,"desired":-1,"current":-2}]}`, []string{
			"the object at line 1: ",
			"behavior.scale_up.stabilization_window_seconds is -1: must be 0 to 604800",
			`behavior.scale_up.select_policy is "max": must be Max, Min or Disabled`,
			"behavior.scale_up.policies is empty",
			`behavior.scale_down.policies[1].type is "pods": must be Pods or Percent`,
			"behavior.scale_down.policies[1].value is 0: must be 1 to",
			"behavior.scale_down.policies[1].period_seconds is -4",
			"behavior.max_gap_seconds is 604801",
			"min_replicas is -1", "max_replicas is 0: must be 1 to", "initial_replicas is missing",
			"steps[0].t is missing", "steps[1].t is 1e10", "steps[1].desired is missing", "steps[2].t is 0.0000000001", "steps[2].desired is -1", "steps[2].current is -2"}},
		"min above max":                {change(`"min_replicas":1`, `"min_replicas":21`), []string{"min_replicas is 21 and max_replicas is 20: min_replicas must be at most max_replicas"}},
		"no steps":                     {`{"max_replicas":1,"initial_replicas":0}`, []string{"steps is missing"}},
		"a time without end":           {change(`"t":15`, `"t":1e-999999999`), []string{"steps[1].t is 1e-999999999"}},
		"a time with no end of digits": {change(`"t":15`, `"t":0.`+strings.Repeat("1", 99)), []string{"at most 64 characters"}},
		"a quoted time":                {change(`"t":15`, `"t":"15"`), []string{`steps[1].t is "15"`}},
		"and at the other end":         {change(`"t":15`, `"t":1e999999999`), []string{"steps[1].t is 1e999999999"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := replay(strings.NewReader(tc.in))
			require.Error(t, err)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	_, err := replay(iotest.ErrReader(bytes.ErrTooLarge))
	require.ErrorIs(t, err, bytes.ErrTooLarge)
	_, err = replay(endless{})
	require.ErrorContains(t, err, "larger than 64 MiB")
}

// endless is an input that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestParseBehavior(t *testing.T) {
	b, err := hpa.ParseBehavior([]byte(`{"scale_up":{"select_policy":"Min"},"max_gap_seconds":30}`))
	require.NoError(t, err)
	want := hpa.DefaultBehavior()
	want.ScaleUp.SelectPolicy, want.MaxGapSeconds = "Min", 30
	require.Equal(t, want, b)
	b, err = hpa.ParseBehavior([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, hpa.DefaultBehavior(), b)
	raw, err := json.Marshal(want)
	require.NoError(t, err)
	b, err = hpa.ParseBehavior(raw)
	require.NoError(t, err)
	require.Equal(t, want, b)
	for in, msg := range map[string]string{`{"up":1}`: "unknown field", `{} {}`: "unexpected data after", `{"scale_up":{"policies":[]}}`: "policies is empty", ``: "EOF"} {
		_, err := hpa.ParseBehavior([]byte(in))
		require.ErrorContains(t, err, msg, in)
	}
}

// TestReplayIsTheRules sends random scenarios through JSON and compares with the reference.
func TestReplayIsTheRules(t *testing.T) {
	type step struct {
		T       float64 `json:"t"`
		Desired int     `json:"desired"`
	}
	rapid.Check(t, func(t *rapid.T) {
		b := drawBehavior(t)
		low := rapid.IntRange(0, 5).Draw(t, "min")
		high := rapid.IntRange(max(low, 1), 40).Draw(t, "max")
		initial := rapid.IntRange(0, 45).Draw(t, "initial")
		ref := newReference(b)
		var steps []step
		want := make([]int, 0)
		seconds, current := 0, initial
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			seconds += rapid.IntRange(0, 20).Draw(t, "t")
			s := step{float64(seconds), rapid.IntRange(0, 50).Draw(t, "desired")}
			steps = append(steps, s)
			current = ref.next(time.Duration(seconds)*second, current, s.Desired, low, high)
			want = append(want, current)
		}
		if steps == nil {
			steps = []step{}
		}
		raw, err := json.Marshal(map[string]any{"behavior": b, "min_replicas": low, "max_replicas": high, "initial_replicas": initial, "steps": steps})
		require.NoError(t, err)
		got, err := replay(bytes.NewReader(raw))
		require.NoError(t, err, "%s", raw)
		require.Equal(t, []hpa.Replayed{{Replicas: want}}, got, "%s", raw)
	})
}

// FuzzReplay: whatever is read, nothing panics, the answers are within what was asked for,
// and a second reading gives the same.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"behavior":{"scale_up":{"select_policy":"Disabled"},"max_gap_seconds":1,"from_zero":true},"min_replicas":0,"max_replicas":2147483647,"initial_replicas":2147483647,"steps":[{"t":-8e9,"desired":0},{"t":8e9,"desired":2147483647,"current":1}]}`))
	f.Add([]byte(`{"max_replicas":9,"initial_replicas":1,"steps":[{"t":1e-9,"desired":3}]} {"behavior":{"scale_down":{"policies":[{"type":"Pods","value":2147483647,"period_seconds":604800}]}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		scenarios, err := hpa.Decode(bytes.NewReader(in))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		for _, s := range scenarios {
			decisions := s.Decisions()
			require.Len(t, decisions, len(s.Steps))
			for i, d := range decisions {
				require.NotEmpty(t, d.Reason)
				require.Equal(t, s.Steps[i].Desired, d.Desired)
				if d.LimitedBy == hpa.LimitZero {
					require.Zero(t, d.Replicas)
					continue
				}
				require.LessOrEqual(t, d.Replicas, s.MaxReplicas)
				require.GreaterOrEqual(t, d.Replicas, s.MinReplicas)
			}
			require.Equal(t, decisions, s.Decisions())
		}
		again, err := replay(bytes.NewReader(in))
		require.NoError(t, err)
		require.Len(t, again, len(scenarios))
		for i := range scenarios {
			require.Equal(t, scenarios[i].Run(), again[i])
		}
	})
}
