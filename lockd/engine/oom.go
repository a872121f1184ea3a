package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// oomKills returns how many processes of this process's cgroup the kernel has killed because the cgroup was out
// of memory, 0 where that is unknown, as without cgroups of version 2. The root of the file system is "/".
func oomKills(root string) int {
	of, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(of)) {
		path, found := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !found {
			continue
		}
		events, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", path, "memory.events"))
		if err != nil {
			return 0
		}
		for event := range strings.Lines(string(events)) {
			if number, found := strings.CutPrefix(strings.TrimSpace(event), "oom_kill "); found {
				kills, _ := strconv.Atoi(number) // 0 if it is no number
				return kills
			}
		}
	}
	return 0
}
