package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const hpaScenario = `{"behavior":{"scale_up":{"stabilization_window_seconds":0,"select_policy":"Max","policies":[{"type":"Pods","value":4,"period_seconds":15}]},
             "scale_down":{"stabilization_window_seconds":300,"select_policy":"Max","policies":[{"type":"Percent","value":100,"period_seconds":15}]}},
 "min_replicas":1,"max_replicas":20,"initial_replicas":3,
 "steps":[{"t":0,"desired":7},{"t":15,"desired":7}]}
`

// TestHPAReplay replays a scale-up that the policies limit to 4 more replicas, from a file
// and from standard input.
func TestHPAReplay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scenario.json")
	require.NoError(t, os.WriteFile(path, []byte(hpaScenario), 0o600))
	want := result{out: `{"replicas":[7,7]}` + "\n"}
	require.Equal(t, want, remuda(t, "hpa", "replay", path))
	require.Equal(t, want, remuda(t, "hpa", "replay", "-json", path))
	require.Equal(t, want, remuda(t, "hpa", "replay", path, "-json"))

	var stdout, stderr bytes.Buffer
	faster := strings.Replace(hpaScenario, `"desired":7},{`, `"desired":99},{`, 1)
	p := &program{ctx: t.Context(), stdin: strings.NewReader(hpaScenario + faster), stdout: &stdout, stderr: &stderr}
	require.Equal(t, exitOK, p.run([]string{"hpa", "replay", "-"}), stderr.String())
	require.Equal(t, "{\"replicas\":[7,7]}\n{\"replicas\":[7,7]}\n", stdout.String())
}

func TestHPAReplayExplains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scenario.json")
	text := strings.Replace(hpaScenario, `{"t":0,"desired":7}`, `{"t":0,"desired":9},{"t":1.5,"desired":1}`, 1)
	require.NoError(t, os.WriteFile(path, []byte(text+hpaScenario), 0o600))
	r := remuda(t, "hpa", "replay", "-explain", path)
	require.Equal(t, exitOK, r.code, r.errout)
	require.Regexp(t, `(?m)^T +CURRENT +DESIRED +STABILIZED +REPLICAS +LIMITED BY +REASON$`, r.out)
	require.Regexp(t, `(?m)^0 +3 +9 +9 +7 +scale_up_policy +9 recommended, but the scale-up policies allow 7 now$`, r.out)
	require.Regexp(t, `(?m)^1\.5 +7 +1 +7 +7 +scale_down_window +1 recommended, but 9 was recommended within the last 5m0s$`, r.out)
	require.Regexp(t, `(?m)^15 +7 +7 +7 +7 +- +7 recommended: no limit applies$`, r.out)
	require.Equal(t, 2, strings.Count(r.out, "STABILIZED"), "a table for each object")

	r = remuda(t, "hpa", "replay", "-explain", "-json", path)
	require.Equal(t, exitOK, r.code, r.errout)
	require.Contains(t, r.out, `{"replicas":[7,7,7],"decisions":[{"replicas":7,"current":3,"desired":9,"stabilized":9,"limited_by":"scale_up_policy",`)
}

func TestHPAReplayMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, "scenario.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no file named": {nil, exitUsage, "remuda hpa replay: expected one FILE, or - for standard input, got 0 arguments"},
		"two files":     {[]string{"a", "b"}, exitUsage, "got 2 arguments"},
		"an odd flag":   {[]string{"-rules", "safe", "-"}, exitUsage, "-rules"},
		"no such file":  {[]string{filepath.Join(dir, "none")}, exitFailed, "no such file"},
		"empty input":   {[]string{"-"}, exitFailed, "standard input: the scenario is empty"},
		"a bad field":   {[]string{write(strings.Replace(hpaScenario, `"initial_replicas":3`, `"initial_replicas":"3"`, 1))}, exitFailed, "scenario.json: line 3: initial_replicas is a string"},
	} {
		t.Run(name, func(t *testing.T) {
			r := remuda(t, append([]string{"hpa", "replay"}, tc.args...)...)
			require.Equal(t, tc.code, r.code)
			require.Empty(t, r.out)
			require.Contains(t, r.errout, tc.want)
		})
	}
	require.Equal(t, exitUsage, remuda(t, "hpa").code)
}
