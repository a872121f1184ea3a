package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// oomKills returns how many processes of this process's cgroup the kernel has killed because the cgroup was out
// of memory, 0 where that is unknown. The root of the file system is "/".
func oomKills(root string) int {
	of, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(of)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		file := ""
		switch {
		case number == "0" && controllers == "": // cgroups of version 2
			file = filepath.Join(path, "memory.events")
		case slices.Contains(strings.Split(controllers, ","), "memory"): // of version 1
			file = filepath.Join("memory", path, "memory.oom_control")
		default:
			continue
		}
		events, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", file))
		if err != nil {
			continue // of version 2 where version 1 counts the memory
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
