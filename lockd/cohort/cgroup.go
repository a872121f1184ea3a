package cohort

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ClockTick is the unit of start times in /proc (USER_HZ, 100 wherever Go runs).
const ClockTick = 10 * time.Millisecond

// Now is the time since boot in clock ticks, as in Process.Start.
func Now() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano() / int64(ClockTick))
}

// cgroupsOf returns the cgroup of a process in each hierarchy, by the hierarchy's
// controllers, which are empty for version 2. It is nil where they cannot be read.
func cgroupsOf(pid int) map[string]string {
	raw, err := read(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil
	}
	groups := map[string]string{}
	for line := range bytes.Lines(raw) { // "ID:controllers:/path"
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) == 3 {
			groups[parts[1]] = parts[2]
		}
	}
	return groups
}

// hierarchy is where a cgroup hierarchy is mounted.
type hierarchy struct {
	controllers string
	// root is the cgroup that is mounted at point.
	root, point string
}

// hierarchies are those that this process can read, version 2 first.
var hierarchies = sync.OnceValue(func() []hierarchy {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseHierarchies(raw, slices.Collect(maps.Keys(cgroupsOf(os.Getpid()))))
})

// parseHierarchies reads /proc/PID/mountinfo (proc(5)): "ID parent dev root point
// options [fields] - type source superoptions". controllers are the names of the
// hierarchies in /proc/PID/cgroup.
func parseHierarchies(mountinfo []byte, controllers []string) []hierarchy {
	var v2, v1 []hierarchy
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		before, after, found := strings.Cut(lines.Text(), " - ")
		at, super := strings.Fields(before), strings.Fields(after)
		if !found || len(at) < 5 || len(super) < 3 {
			continue
		}
		switch super[0] {
		case "cgroup2":
			v2 = append(v2, hierarchy{"", at[3], at[4]})
		case "cgroup":
			options := strings.Split(super[2], ",")
			for _, c := range controllers {
				if c != "" && !slices.ContainsFunc(strings.Split(c, ","), func(name string) bool { return !slices.Contains(options, name) }) {
					v1 = append(v1, hierarchy{c, at[3], at[4]})
				}
			}
		}
	}
	return append(v2, v1...)
}

// cgroup is one that belongs to a cohort alone.
type cgroup struct{ dir string }

// ownCgroup returns the cgroup of root, if root has one to itself: its parent is in
// another one, and every process in it is root, a descendant of root or a member.
// It is nil otherwise.
func ownCgroup(root Process, member func(Process) bool) *cgroup {
	s, err := readStat(root.PID)
	if err != nil || s.Process != root || s.gone() {
		return nil
	}
	own, parents := cgroupsOf(root.PID), cgroupsOf(s.parent)
	for _, h := range hierarchies() {
		path, in := own[h.controllers]
		if !in || path == "/" || path == parents[h.controllers] {
			continue
		}
		below, err := filepath.Rel(h.root, path)
		if err != nil || below == ".." || strings.HasPrefix(below, "../") {
			continue
		}
		g := &cgroup{filepath.Join(h.point, below)}
		pids, err := g.pids()
		if err != nil || !slices.Contains(pids, root.PID) {
			continue
		}
		if !slices.ContainsFunc(pids, func(pid int) bool { return !belongs(pid, root, member) }) {
			return g
		}
	}
	return nil
}

// belongs reports whether a process is root, a member, a descendant of them, or has
// ended.
func belongs(pid int, root Process, member func(Process) bool) bool {
	for pid > 1 {
		s, err := readStat(pid)
		if err != nil || s.gone() {
			return err == nil || pid != root.PID
		}
		if s.Process == root || member(s.Process) {
			return true
		}
		pid = s.parent
	}
	return false
}

// pids returns the processes in the cgroup and in those below it. A cgroup that was
// removed has none.
func (g *cgroup) pids() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		}
		raw, err := read(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		pids = append(pids, parsePIDs(raw)...)
		return nil
	})
	return pids, err
}

// parsePIDs reads process IDs between white space. An ID of 0 is a process of
// another PID namespace.
func parsePIDs(raw []byte) []int {
	var pids []int
	for _, field := range bytes.Fields(raw) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
