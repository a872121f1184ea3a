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
		cgroup, events string
		want           int
	}{
		"killed":        {"0::" + own + "\n", "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\noom_group_kill 0\n", 2},
		"none":          {"0::" + own + "\n", "oom 0\noom_kill 0\n", 0},
		"both versions": {"12:memory:/elsewhere\n0::" + own + "\n", "oom_kill 1\n", 1},
		"version 1":     {"12:memory:" + own + "\n", "oom_kill 1\n", 0},
		"garbage":       {"0::" + own + "\n", "oom_kill many\n", 0},
		"no file":       {"", "", 0},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "sys/fs/cgroup", own)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/self"), 0o700))
		if tc.cgroup != "" {
			require.NoError(t, os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte(tc.cgroup), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.events"), []byte(tc.events), 0o600))
		}
		require.Equal(t, tc.want, oomKills(root), name)
	}
}
