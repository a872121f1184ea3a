package cohort

import (
	"fmt"
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

// cgroupOf says in which cgroups a process is, of all hierarchies; empty where it
// cannot be told.
func cgroupOf(pid int) string {
	raw, err := read(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return string(raw)
}

// RootEnded says when the root ended: it lived until then at the latest. Whoever
// is in the root's own cgroup and was started by then is a member; who was
// started later belongs to the next life, since Nomad restarts a task in the
// cgroup that it has. at is in clock ticks since boot (Now).
func (t *Tracker) RootEnded(at uint64) { t.ended = max(t.ended, at) }

// owns finds out whether the living root has its cgroup to itself: whoever is in
// it descends from the root or carries the mark. all is a scan of that time.
func (t *Tracker) owns(all []looked) {
	if t.own != "" || t.settled != nil {
		return
	}
	own := cgroupOf(t.root.PID)
	parent := make(map[int]int, len(all))
	for _, s := range all {
		parent[s.PID] = s.parent
	}
	if own == "" || cgroupOf(parent[t.root.PID]) == own {
		return
	}
	for _, s := range all {
		if s.kernel || s.gone() || s.mark == t.id && t.id != "" || t.known[s.Process] || cgroupOf(s.PID) != own {
			continue
		}
		pid := s.PID
		for pid != t.root.PID && pid > 1 {
			pid = parent[pid]
		}
		if pid != t.root.PID {
			return
		}
	}
	t.own = own
}
