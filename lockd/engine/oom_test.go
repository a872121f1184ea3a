package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOOMKills(t *testing.T) {
	t.Parallel()
	const own = "/nomad.slice/share.slice/primary.scope"
	for name, tc := range map[string]struct {
		cgroup, events, control string // memory.events of version 2, memory.oom_control of version 1
		want                    int
	}{
		"killed":          {"0::" + own + "\n", "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\noom_group_kill 0\n", "", 2},
		"none":            {"0::" + own + "\n", "oom 0\noom_kill 0\n", "", 0},
		"both versions":   {"12:pids:/elsewhere\n0::" + own + "\n", "oom_kill 1\n", "", 1},
		"version 1":       {"0::/\n12:cpu,memory:" + own + "\n", "", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3},
		"version 1, last": {"12:memory:" + own + "\n0::/\n", "", "oom_kill 1\n", 1},
		"another":         {"12:memory_like:" + own + "\n", "", "oom_kill 1\n", 0},
		"garbage":         {"0::" + own + "\n", "oom_kill many\n", "", 0},
		"no file":         {"", "", "", 0},
	} {
		root := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/self"), 0o700))
		for path, text := range map[string]string{
			"proc/self/cgroup":                                   tc.cgroup,
			"sys/fs/cgroup" + own + "/memory.events":             tc.events,
			"sys/fs/cgroup/memory" + own + "/memory.oom_control": tc.control,
		} {
			if text != "" {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
			}
		}
		require.Equal(t, tc.want, oomKills(root), name)
	}
}
