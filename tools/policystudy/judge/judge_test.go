package judge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/predictive"
	"remuda/tools/policystudy/judge"
)

// TestJudge: each line is answered, what is remembered lasts from line to line, and a line
// that is no snapshot is named.
func TestJudge(t *testing.T) {
	var in strings.Builder
	for i := range 10 {
		fmt.Fprintf(&in, `{"now_ns":%d,"running":40,"waiting":%d,"ready":2,"cold_start_seconds":110,"target_wait_seconds":2,"min":0,"max":20,"variants":[{"variant":"v","slots":8,"current":2}]}`+"\n", i*10_000_000_000, i)
	}
	var out bytes.Buffer
	require.NoError(t, judge.Run(predictive.DefaultConfig(), strings.NewReader(in.String()), &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 10)
	var d predictive.Decision
	require.NoError(t, json.Unmarshal([]byte(lines[9]), &d))
	require.GreaterOrEqual(t, d.Replicas, 5)
	require.Greater(t, d.Base, 40.0)
	require.ErrorContains(t, judge.Run(predictive.DefaultConfig(), strings.NewReader("x\n"), &out), "line 1")
	require.Error(t, judge.Run(predictive.Config{}, strings.NewReader(""), &out))
}
