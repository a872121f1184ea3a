package cohort

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killRetry is the pause between two rounds of Kill: the kernel tears a
// process with gigabytes of memory down in tens of milliseconds.
const killRetry = 2 * time.Millisecond

// Tracker remembers a cohort's members. Members are found by two marks: their
// environment carries the cohort's ID, or they descend from a member (unless
// their environment carries another cohort's ID). A member
// once seen stays one, so a child that clears its environment and then loses
// its parent is still known if a scan came in between. Not safe for concurrent
// use.
type Tracker struct {
	id   string
	root Process
	// spared are never members: the shim and its guard.
	spared map[int]bool
	// awaited are children of root that somebody waits for.
	awaited map[int]bool
	// known says of each process that was looked at whether it is a member.
	known map[Process]bool
}

// NewTracker follows the cohort id. Children of root are members too while
// root lives, except for spared ones; root itself never is.
func NewTracker(id string, root Process, spared ...int) *Tracker {
	t := &Tracker{id: id, root: root, spared: map[int]bool{root.PID: true}, awaited: map[int]bool{}, known: map[Process]bool{}}
	t.Spare(spared...)
	return t
}

// Awaited says that somebody else collects the exit status of pid.
func (t *Tracker) Awaited(pid int) { t.awaited[pid] = true }

// Spare takes processes out of the cohort.
func (t *Tracker) Spare(pids ...int) {
	for _, pid := range pids {
		t.spared[pid] = true
	}
}

// Scan reads /proc and returns the members that live, and the zombies whose
// parent is root (for a root that reaps what was orphaned to it).
func (t *Tracker) Scan() (alive []Process, zombies []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, nil, fmt.Errorf("scan processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("scan processes: %w", err)
	}
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		if err != nil {
			// A process that we may not look at (hidepid) is not ours.
			if errors.Is(err, ErrGone) || errors.Is(err, fs.ErrPermission) {
				continue
			}
			return nil, nil, err
		}
		all = append(all, s)
	}
	root := t.livingRoot(all)
	member := t.members(all, root)
	for _, s := range all {
		switch {
		case s.gone():
			if s.parent == root && !t.spared[s.PID] && !t.awaited[s.PID] {
				zombies = append(zombies, s.PID)
			}
		case member[s.PID]:
			alive = append(alive, s.Process)
		}
	}
	return alive, zombies, nil
}

// livingRoot is the root's ID, or -1 once that ID may belong to a stranger.
func (t *Tracker) livingRoot(all []stat) int {
	for _, s := range all {
		if s.Process == t.root {
			return t.root.PID
		}
	}
	return -1
}

// members decides about every process and forgets those that are gone.
func (t *Tracker) members(all []stat, root int) map[int]bool {
	known := make(map[Process]bool, len(all))
	member, foreign := make(map[int]bool), make(map[int]bool)
	for _, s := range all {
		if t.spared[s.PID] {
			continue
		}
		is, seen := t.known[s.Process]
		if !seen && !s.gone() {
			switch id := markOf(s.PID); id {
			case "":
			case t.id:
				is = true
			default:
				foreign[s.PID] = true
				continue
			}
		}
		known[s.Process] = is
		if is {
			member[s.PID] = true
		}
	}
	// Children of members are members; repeat until nothing changes, since
	// /proc gives no order.
	for changed := true; changed; {
		changed = false
		for _, s := range all {
			if t.spared[s.PID] || member[s.PID] || foreign[s.PID] {
				continue
			}
			if member[s.parent] || s.parent == root {
				member[s.PID], known[s.Process], changed = true, true, true
			}
		}
	}
	t.known = known
	return member
}

// markOf is the cohort's ID in the environment that pid was started with, empty
// for none.
func markOf(pid int) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for _, kv := range bytes.Split(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte(EnvVar+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// Mark is the cohort's ID that p was started with, empty for none.
func Mark(p Process) string {
	id := markOf(p.PID)
	if now, err := Lookup(p.PID); err != nil || now != p {
		return "" // somebody else's
	}
	return id
}

// Signal sends sig to every member that lives.
func (t *Tracker) Signal(sig unix.Signal) error {
	alive, _, err := t.Scan()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range alive {
		h, err := Open(p)
		if err != nil {
			if !errors.Is(err, ErrGone) {
				errs = append(errs, err)
			}
			continue
		}
		errs = append(errs, h.Signal(sig), h.Close())
	}
	return errors.Join(errs...)
}

// Kill sends SIGKILL to every member until none is left, or ctx ends. Members
// that fork meanwhile are found by the next round; what fails in one round is
// tried again in the next.
func (t *Tracker) Kill(ctx context.Context) error {
	for {
		failed := t.Signal(unix.SIGKILL)
		alive, zombies, err := t.Scan()
		if t.root.PID == os.Getpid() {
			Reap(zombies)
		}
		if err == nil && len(alive) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("cohort %s cannot be looked for: %w", t.id, errors.Join(err, ctx.Err()))
			}
			return fmt.Errorf("%d processes of cohort %s are still alive, the first is %d: %w",
				len(alive), t.id, alive[0].PID, errors.Join(failed, ctx.Err()))
		case <-time.After(killRetry):
		}
	}
}

// Reap collects zombies that were orphaned to this process.
func Reap(zombies []int) {
	for _, pid := range zombies {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}
