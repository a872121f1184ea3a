package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/capacity"
)

// explaining runs the verb with a text on standard input.
func explaining(t *testing.T, text string, args ...string) result {
	t.Helper()
	var out, errout bytes.Buffer
	p := &program{ctx: t.Context(), stdin: strings.NewReader(text), stdout: &out, stderr: &errout}
	return result{p.run(append([]string{"capacity", "explain"}, args...)), out.String(), errout.String()}
}

// saturated is 4 current replicas of which one reports, saturated, and another variant.
const saturated = `{"model":"llama-70b","namespace":"prod",
 "replicas":[{"replica":"v1-0","variant":"v1","cost":5,"kv_cache_usage":0.95,"queue_length":9},
             {"replica":"v2-0","variant":"v2","cost":20,"kv_cache_usage":75,"queue_length":1}],
 "variants":[{"variant":"v1","current":4},{"variant":"v2","current":1}],
 "model_based_targets":{"v1":3}}
`

const idle = `{"model":"small","replicas":[{"replica":"a","variant":"v","kv_cache_usage":0,"queue_length":0}],"variants":[{"variant":"v","current":1}]}`

func TestCapacityExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "input.json")
	require.NoError(t, os.WriteFile(path, []byte(saturated+idle), 0o600))
	for _, args := range [][]string{{path, "-json"}, {"-json", "-rules", "safe", "-"}} {
		r := explaining(t, saturated+idle, args...)
		require.Equal(t, exitOK, r.code, r.errout)
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		require.Len(t, lines, 2)
		var answers [2]capacity.Answer
		for i, line := range lines {
			d := json.NewDecoder(strings.NewReader(line))
			d.DisallowUnknownFields()
			require.NoError(t, d.Decode(&answers[i]))
		}
		require.Equal(t, map[string]int{"v1": 4, "v2": 1}, answers[0].CapacityTargets)
		require.True(t, answers[0].ScaleUp)
		require.Equal(t, 4, answers[0].UnknownReplicas)
		require.True(t, answers[0].Decisions["v1"].SafetyOverride)
		require.Equal(t, 1, answers[1].Decisions["v"].Target)
	}

	r := explaining(t, saturated, "-", "-rules=wva", "-json")
	require.Equal(t, exitOK, r.code, r.errout)
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out), &fields))
	require.Len(t, fields, 6, "the documented fields and nothing else: %v", fields)
	require.Equal(t, 2.0, fields["total_replicas"])
	require.Equal(t, 0.0, fields["non_saturated"])

	r = explaining(t, saturated+idle, "-")
	require.Equal(t, exitOK, r.code, r.errout)
	for _, want := range []string{
		`(?m)^Model += llama-70b$`, `(?m)^Rules += safe$`,
		`2 reported, 0 not saturated, load of 4 replicas unknown`,
		`(?m)^Needs more += yes: spare KV cache is 0.000, below 0.1 and spare queue is 0.0, below 3$`,
		`(?m)^May shrink += no: the model needs more replicas: `,
		`(?m)^v1 +4 +4 +3 +4 +no-change +yes$`, `(?m)^v2 +1 +1 +- +1 +no-change +no$`,
		`(?m)^  safety block: the model-based target is 3: `,
		`(?m)^v2 +v2-0 +impossible +KV usage is 75: must be 0 to 1 \(divide a percentage`,
		`(?m)^Model += small$`, `1 of 1 replica not saturated: must be at least 2`,
	} {
		require.Regexp(t, want, r.out)
	}
}

// TestCapacityExplainNotes: -rules wva accepts the example of the autoscaler's own guide, whose
// queue trigger is above its threshold, and says what comes of it; -rules safe rejects it.
func TestCapacityExplainNotes(t *testing.T) {
	const text = `{"model":"granite-13b","namespace":"production",
 "config":{"kv_cache_threshold":0.7,"queue_length_threshold":3,"kv_spare_trigger":0.2,"queue_spare_trigger":5},
 "replicas":[{"replica":"v-0","variant":"v","kv_cache_usage":0.1,"queue_length":0},
             {"replica":"v-1","variant":"v","kv_cache_usage":0.1,"queue_length":0}],
 "variants":[{"variant":"v","current":2}]}`
	r := explaining(t, text, "-", "-rules", "wva")
	require.Equal(t, exitOK, r.code, r.errout)
	require.Regexp(t, `(?m)^v +2 +3 +- +3 +scale-up +no$`, r.out)
	require.Contains(t, r.out, `
Values that the rules safe reject
  config.queue_spare_trigger is 5: must be 0 to queue_length_threshold, which is
  3. Here even an empty queue has less to spare: the model needs more whenever a
  replica reports, and no removal is safe.
`)
	r = explaining(t, text, "-", "-rules", "wva", "-json")
	require.Equal(t, exitOK, r.code, r.errout)
	var answer capacity.Answer
	require.NoError(t, json.Unmarshal([]byte(r.out), &answer))
	require.Equal(t, map[string]int{"v": 3}, answer.CapacityTargets)
	require.Len(t, answer.Notes, 1)
	require.Equal(t, "config.queue_spare_trigger", answer.Notes[0].Field)

	r = explaining(t, text, "-")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.errout, "line 2: config.queue_spare_trigger is 5: must be 0 to queue_length_threshold, which is 3")
	require.Empty(t, r.out)
}

func TestCapacityExplainMistakes(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		args []string
		code int
		want string
	}{
		"no file":          {"", nil, exitUsage, "expected FILE, got 0 arguments"},
		"two files":        {"", []string{"a", "b"}, exitUsage, "expected FILE, got 2 arguments"},
		"other rules":      {"", []string{"-", "-rules", "hpa"}, exitUsage, `-rules is "hpa": must be safe or wva`},
		"no such file":     {"", []string{filepath.Join(t.TempDir(), "none")}, exitFailed, "read the input: open "},
		"nothing":          {"\n", []string{"-"}, exitFailed, "empty: must be a JSON object for each model"},
		"a bad field":      {"{\"config\":{},\n\"variants\":[{\"variant\":\"v\",\"current\":-1}]}", []string{"-"}, exitFailed, "line 2: variants[0].current is -1: must be 0 to 1000000 replicas"},
		"a bad bound":      {`{"variants":[{"variant":"v","current":1,"min":2,"max":1}]}`, []string{"-", "-rules", "wva"}, exitFailed, "line 1: variants[0].min is 2 and max is 1: min must be at most max"},
		"an unknown field": {"\n{\"models\":\"m\"}", []string{"-json", "-"}, exitFailed, "line 2: models is an unknown field: must be one of config, model, "},
		"no JSON":          {"x", []string{"-"}, exitFailed, "line 1: invalid character 'x'"},
	} {
		t.Run(name, func(t *testing.T) {
			r := explaining(t, tc.text, tc.args...)
			require.Equal(t, tc.code, r.code, r.errout)
			require.Contains(t, r.errout, tc.want)
			require.Empty(t, r.out)
		})
	}
	// What comes before a mistake is answered.
	r := explaining(t, idle+"\n{", "-", "-json")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, `"total_replicas":1`)
	require.Contains(t, r.errout, "line 2: the JSON is incomplete")
}
