package engine_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// takeover is the one that the shim shows to those who may see its log.
func (s *shim) takeover() engine.Takeover {
	s.t.Helper()
	code, body := call(s.t, http.MethodGet, s.url+"/v1/takeover")
	require.Equal(s.t, http.StatusOK, code, body)
	var st engine.Status
	require.NoError(s.t, json.Unmarshal([]byte(body), &st))
	return *st.Takeover
}

// TestTakeoverHasTheLastLines: the engine that takes over shows what the other one's task printed last, by
// Nomad's logs: no more than 20 short lines of its newest files, of both streams.
func TestTakeoverHasTheLastLines(t *testing.T) {
	t.Parallel()
	many := func(word string, from, to int) string {
		var b strings.Builder
		for i := from; i <= to; i++ {
			fmt.Fprintln(&b, word, i)
		}
		return b.String()
	}
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":          {nil, ""},
		"both streams":     {map[string]string{"primary.stdout.0": many("out", 1, 30), "primary.stderr.0": many("err", 1, 5)}, many("out", 16, 30) + many("err", 1, 5)},
		"much of both":     {map[string]string{"primary.stdout.0": many("out", 1, 30), "primary.stderr.0": many("err", 1, 30)}, many("out", 21, 30) + many("err", 21, 30)},
		"the newest files": {map[string]string{"primary.stderr.9": "old\n", "primary.stderr.10": "new\n", "primary.stdout.x": "no log\n", "shadow.stderr.11": "another's\n"}, "new\n"},
		"odd lines":        {map[string]string{"primary.stderr.0": "\n\x1b[2Jred\n" + strings.Repeat("x", 300) + "\n\xff\nno end"}, "?[2Jred\n" + strings.Repeat("x", 200) + "…\n?\nno end\n"},
		"a pipe":           {map[string]string{"primary.stderr.0": "old\n"}, ""},
		"a huge line":      {map[string]string{"primary.stderr.0": strings.Repeat("x", 1<<20) + "\nlast\n"}, "last\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, logs := filepath.Join(t.TempDir(), "record"), t.TempDir()
			for file, text := range tc.files {
				require.NoError(t, os.WriteFile(filepath.Join(logs, file), []byte(text), 0o600))
			}
			if name == "a pipe" {
				require.NoError(t, syscall.Mkfifo(filepath.Join(logs, "primary.stderr.1"), 0o600))
			}
			l, a := newLocks(t), consultest.New(t)
			in := func(task string) func(*engine.Config) {
				return func(c *engine.Config) { c.Record, c.Logs, c.Task = dir, logs, task }
			}
			primary := l.engine(replica.RolePrimary, a, in("primary"))
			primary.awaitState(engine.Active)
			shadow := l.engine(replica.RoleShadow, a, in("shadow"))
			shadow.standby()
			primary.await("its record", func() bool { return recordOf(t, dir).Leader.Task == "primary" })
			primary.kill9("the engine")
			require.Empty(t, shadow.awaitTakeover().Takeover.Log, "whoever may see the state may not see the log")
			if tc.want != "" {
				shadow.await("the last lines", func() bool { return shadow.takeover().Log != "" })
			}
			require.Equal(t, strings.TrimSuffix(tc.want, "\n"), shadow.takeover().Log)
			require.Contains(t, shadow.takeover().Reason, "signal: killed")

			// A shim that serves after its own earlier life shows the end of that one.
			if name != "both streams" {
				return
			}
			require.NoError(t, os.WriteFile(filepath.Join(logs, "shadow.stderr.0"), []byte("the shadow's last\n"), 0o600))
			shadow.kill9("the shim")
			shadow = l.engine(replica.RoleShadow, a, in("shadow"))
			shadow.awaitTakeover()
			require.Equal(t, "the shadow's last", shadow.takeover().Log)
		})
	}
}
