package cohort

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The pause between two rounds of Kill: a small process ends, and an execve is
// over, in microseconds; the kernel tears a process with gigabytes of memory down
// in tens of milliseconds.
const (
	killRetryMin = 200 * time.Microsecond
	killRetryMax = 2 * time.Millisecond
)

// Tracker remembers a cohort's members. Members are found by three marks: their
// environment carries the cohort's ID, they descend from a member, or they are in
// the root's cgroup, where the root has one to itself. Whoever carries another
// cohort's ID is none. A member once seen stays one, so a child that clears its
// environment and then loses its parent is still known if a scan came in between.
// Not safe for concurrent use.
type Tracker struct {
	id   string
	root Process
	// spared are never members: the shim and its guard.
	spared map[int]bool
	// awaited are children of root that somebody waits for.
	awaited map[int]bool
	// known says of each process that was looked at whether it is a member.
	known map[Process]bool
	// settled has the IDs of those that the last whole scan found to be none, and
	// forks how many processes the machine had started by then (settled.go).
	settled map[int]bool
	forks   uint64
	// own is the root's cgroup where it has one to itself, and ended the last tick
	// in which a process of it was the root's (cgroup.go).
	own   string
	ended uint64
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
	t.settled = nil // a whole scan
	alive, zombies, _, err = t.scan(func(Process) {})
	return alive, zombies, err
}

// scan also returns the processes of which it cannot be told now whether they
// are members: while there are any, no living member proves nothing. Members that
// are known or marked are passed to meet at first sight.
func (t *Tracker) scan(meet func(Process)) (alive []Process, zombies, unsure []int, err error) {
	if !t.settledStill() {
		t.settled = nil
	}
	forks, began := forksSinceBoot(), Now()
	all, err := t.lookAtAll(meet)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("scan processes: %w", err)
	}
	root := t.livingRoot(all)
	if root != -1 {
		t.owns(all)
		t.ended = max(t.ended, began)
	}
	member, unsure := t.members(all, root)
	if t.settled == nil {
		t.settle(all, member, unsure, forks)
	}
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
	return alive, zombies, unsure, nil
}

// looked is what one look at a process says.
type looked struct {
	stat
	// mark is the cohort's ID in its environment. It is asked for only where
	// nothing is known of the process, and where it lives.
	mark string
	// owned: it has no mark, and is in the root's own cgroup.
	owned bool
	// unsure: it lives, and what its mark is cannot be told now.
	unsure bool
}

// lookAtAll looks at every process. One that starts another and ends before it is
// looked at tells nothing, and the other is not on the list: so the list is read
// again until it has nobody new. Then whoever lives has been looked at.
func (t *Tracker) lookAtAll(meet func(Process)) ([]looked, error) {
	var all []looked
	done := map[string]bool{}
	for {
		dir, err := os.Open("/proc")
		if err != nil {
			return nil, err
		}
		names, err := dir.Readdirnames(-1)
		_ = dir.Close()
		if err != nil {
			return nil, err
		}
		fresh := false
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || done[name] || t.settled[pid] {
				continue
			}
			fresh = true
			l, err := t.lookAt(pid)
			switch {
			case err == nil:
				done[name] = true
				all = append(all, l)
				if t.known[l.Process] || l.mark == t.id && l.mark != "" {
					meet(l.Process)
				}
			case errors.Is(err, fs.ErrPermission):
				done[name] = true // one that we may not look at (hidepid) is not ours
			case !errors.Is(err, ErrGone): // the ID of one that is gone may be used again
				return nil, err
			}
		}
		if !fresh {
			return all, nil
		}
	}
}

func (t *Tracker) lookAt(pid int) (looked, error) {
	s, err := readStat(pid)
	if err != nil {
		return looked{}, err
	}
	l := looked{stat: s}
	if _, seen := t.known[s.Process]; seen || s.kernel || s.gone() || t.spared[pid] {
		return l, nil
	}
	mark, told := markOf(pid)
	if told {
		l.mark = mark
		l.owned = mark == "" && t.own != "" && cgroupOf(pid) == t.own
		return l, nil
	}
	if s.Start < t.root.Start {
		return l, nil // it is older than the cohort
	}
	l.unsure = true
	if l.stat, err = readStat(pid); err != nil {
		return looked{}, err
	}
	if l.Process != s.Process { // the ID is another's by now
		return looked{}, ErrGone
	}
	return l, nil
}

// livingRoot is the root's ID, or -1 once that ID may belong to a stranger.
// Whoever was looked at lived in the root's time where it is there.
func (t *Tracker) livingRoot(all []looked) int {
	for _, s := range all {
		if s.Process == t.root {
			if now, err := readStat(t.root.PID); err == nil && now.Process == t.root && !now.gone() {
				return t.root.PID
			}
		}
	}
	return -1
}

// members decides about every process and, in a whole scan, forgets those that
// are gone. It returns those about which it cannot decide now, too.
func (t *Tracker) members(all []looked, root int) (map[int]bool, []int) {
	known := t.known
	if t.settled == nil {
		known = make(map[Process]bool, len(all))
	}
	member, foreign, unsure := make(map[int]bool), make(map[int]bool), make(map[int]bool)
	for _, s := range all {
		if t.spared[s.PID] {
			continue
		}
		is, seen := t.known[s.Process]
		if !seen && !s.gone() {
			switch {
			case s.unsure:
				unsure[s.PID] = true
				continue
			case s.mark == "":
				is = s.owned && (root != -1 || s.Start <= t.ended)
			case s.mark == t.id:
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
				delete(unsure, s.PID)
			}
		}
	}
	t.known = known
	return member, slices.Sorted(maps.Keys(unsure))
}

// markOf is the cohort's ID in the environment that pid was started with, empty
// for none. It cannot be told of a process that is gone, that is in the middle of
// execve, or that ends and has given back its memory but not yet its files: none
// of them has an environment, which is an empty file or, by kernel, ESRCH.
func markOf(pid int) (id string, told bool) {
	paths := []string{fmt.Sprintf("/proc/%d/environ", pid)}
	for i := 0; i < len(paths); i++ {
		env, err := read(paths[i])
		if errors.Is(err, fs.ErrPermission) {
			return "", true
		}
		if len(env) > 0 {
			return parseMark(env), true
		}
		if i == 0 {
			// A process whose first thread has ended has its memory all the same.
			others, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/environ", pid))
			paths = append(paths, others...)
		}
	}
	return "", startedWithout(pid)
}

func parseMark(env []byte) string {
	for _, kv := range bytes.Split(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte(EnvVar+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// Mark is the cohort's ID that p was started with, empty for none.
func Mark(p Process) string {
	id, told := markOf(p.PID)
	for wait := time.Millisecond; !told && wait < 100*time.Millisecond; wait *= 2 {
		time.Sleep(wait)
		id, told = markOf(p.PID)
	}
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
		errs = append(errs, signal(p, sig))
	}
	return errors.Join(errs...)
}

// signal sends sig; a process that is gone is no error.
func signal(p Process, sig unix.Signal) error {
	h, err := Open(p)
	if err != nil {
		if errors.Is(err, ErrGone) {
			return nil
		}
		return err
	}
	return errors.Join(h.Signal(sig), h.Close())
}

func kill(p Process) error { return signal(p, unix.SIGKILL) }

// Kill sends SIGKILL to every member until none is left, or ctx ends. Members
// that fork meanwhile are found by the next round; what fails in one round is
// tried again in the next.
func (t *Tracker) Kill(ctx context.Context) error {
	pause := killRetryMin
	for {
		// At first sight, since a member may be about to start another and end.
		alive, zombies, unsure, err := t.scan(func(p Process) { _ = kill(p) })
		if t.root.PID == os.Getpid() {
			Reap(zombies)
		}
		if err == nil && len(alive)+len(unsure) == 0 {
			return nil
		}
		var failed []error
		for _, p := range alive {
			failed = append(failed, kill(p))
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("cannot scan for cohort %s: %w", t.id, errors.Join(err, ctx.Err()))
			}
			if len(alive) == 0 {
				return fmt.Errorf("cannot classify %d processes for cohort %s (first: %d): environment unreadable (exiting or in execve): %w",
					len(unsure), t.id, unsure[0], ctx.Err())
			}
			return fmt.Errorf("%d processes of cohort %s are still alive (first: %d): %w",
				len(alive), t.id, alive[0].PID, errors.Join(append(failed, ctx.Err())...))
		case <-time.After(pause):
			pause = min(2*pause, killRetryMax)
		}
	}
}

// Reap collects zombies that were orphaned to this process.
func Reap(zombies []int) {
	for _, pid := range zombies {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}
