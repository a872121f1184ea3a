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

// Tracker finds the processes of a cohort and remembers them. A process is a member
// if its environment carries the cohort's ID, if it descends from a member or from the
// living root, or if it is in the root's cgroup, where the root has one to itself.
// Processes marked with another cohort's ID are excluded. A member once seen stays one,
// so a child that clears its environment and then loses its parent is still known if a
// scan came in between. A process that leaves the root's own cgroup, which takes the rights
// of root, is a member only if a scan has seen it or if it descends from one that was seen.
// Not safe for concurrent use.
type Tracker struct {
	id   string
	root Process
	// known has, of each process that was looked at, whether it is a member.
	known map[Process]bool
	// own is the root's cgroup where it has one to itself, and ended the last tick
	// in which a process of it was the root's.
	own   *cgroup
	ended uint64
	// inOwn are the processes that the last scan found in own.
	inOwn map[int]bool
}

// NewTracker follows the cohort id. Children of root are members too while root
// lives; root itself never is.
func NewTracker(id string, root Process) *Tracker {
	return &Tracker{id: id, root: root, known: map[Process]bool{}}
}

// RootEnded says when the root ended: it lived until then at the latest. A process in
// the root's own cgroup that was started by then is a member; one that was started
// later belongs to the next life, since Nomad restarts a task in the cgroup that it
// has. at is in clock ticks since boot (Now).
func (t *Tracker) RootEnded(at uint64) { t.ended = max(t.ended, at) }

// Scan looks for new members while the root lives, and returns the members that live.
// It reads the root's own cgroup, or the tree below the root and the members, and not
// the whole of /proc: its cost grows with the cohort and not with the machine.
func (t *Tracker) Scan() ([]Process, error) {
	if t.own == nil {
		t.own = ownCgroup(t.root, func(p Process) bool { return t.known[p] || t.id != "" && Mark(p) == t.id })
	}
	began := Now()
	alive, _, err := t.scan(t.near, func(Process) {})
	if err == nil && t.livingRoot() != -1 {
		t.ended = max(t.ended, began)
	}
	return alive, err
}

// OwnCgroup reports whether the last Scan found that the root has its cgroup to itself. The
// kernel keeps the list of members then, so that a scan in between tells nothing new.
func (t *Tracker) OwnCgroup() bool { return t.own != nil }

// scan looks at the processes that list returns, and returns the members that live. It
// also returns the processes of which it cannot be told now whether they are members:
// while there are any, no living member proves nothing. Members that are known or marked
// are passed to meet at first sight.
func (t *Tracker) scan(list func() ([]int, error), meet func(Process)) (alive []Process, unsure []int, err error) {
	all, err := t.lookAtAll(list, meet)
	if err != nil {
		return nil, nil, fmt.Errorf("scan processes: %w", err)
	}
	member, unsure := t.members(all, t.livingRoot())
	for _, s := range all {
		if member[s.PID] && !s.gone() {
			alive = append(alive, s.Process)
		}
	}
	return alive, unsure, nil
}

// near lists the processes in the root's own cgroup, or else those below the root, and
// the members that are known with those below them.
func (t *Tracker) near() ([]int, error) {
	var pids, roots []int
	for p, is := range t.known {
		if is {
			pids = append(pids, p.PID)
		}
	}
	if t.own != nil {
		in, err := t.own.pids()
		if err != nil {
			return nil, err
		}
		t.inOwn = make(map[int]bool, len(in))
		for _, pid := range in {
			t.inOwn[pid] = true
		}
		for _, pid := range pids {
			if !t.inOwn[pid] { // a member has left the cgroup: no list has what it started
				roots = append(roots, pid)
			}
		}
		pids = append(pids, in...)
	} else {
		roots = append(roots, pids...)
		if t.livingRoot() != -1 {
			roots = append(roots, t.root.PID)
		}
	}
	err := descend(roots, func(pid int) { pids = append(pids, pid) })
	return pids, err
}

// everything lists all processes.
func everything() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// looked is what one look at a process says.
type looked struct {
	stat
	// mark is the cohort's ID in its environment. It is read only where nothing is
	// known of the process, and where it lives.
	mark string
	// owned: it has no mark, and is in the root's own cgroup.
	owned bool
	// unsure: it lives, and what its mark is cannot be told now.
	unsure bool
}

// lookAtAll looks at every process of the list. One that starts another and ends before it
// is looked at tells nothing, and the other is not on the list: so the list is read again
// until it has no new process. Then every process of it that lives has been looked at.
func (t *Tracker) lookAtAll(list func() ([]int, error), meet func(Process)) ([]looked, error) {
	var all []looked
	done, gone := map[int]bool{}, map[int]bool{}
	for {
		pids, err := list()
		if err != nil {
			return nil, err
		}
		fresh := false
		for _, pid := range pids {
			if done[pid] {
				continue
			}
			l, err := t.lookAt(pid)
			switch {
			case err == nil:
				fresh = true
				done[pid] = true
				all = append(all, l)
				if t.known[l.Process] || l.mark == t.id && l.mark != "" {
					meet(l.Process)
				}
			case errors.Is(err, fs.ErrPermission):
				done[pid] = true // one that we may not look at (hidepid) is not ours
			case errors.Is(err, ErrGone): // not done: its ID may be used again
				fresh = fresh || !gone[pid]
				gone[pid] = true
			default:
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
	if _, seen := t.known[s.Process]; seen || s.kernel || s.gone() || s.Process == t.root {
		return l, nil
	}
	mark, told := markOf(pid)
	if told {
		l.mark, l.owned = mark, mark == "" && t.inOwn[pid]
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

// livingRoot is the root's ID, or -1 once that ID may belong to another process.
func (t *Tracker) livingRoot() int {
	if now, err := readStat(t.root.PID); err == nil && now.Process == t.root && !now.gone() {
		return t.root.PID
	}
	return -1
}

// members decides about every process that was looked at, and forgets the others. It
// returns those about which it cannot decide now, too.
func (t *Tracker) members(all []looked, root int) (map[int]bool, []int) {
	known := make(map[Process]bool, len(all))
	member, foreign, unsure := make(map[int]bool), make(map[int]bool), make(map[int]bool)
	for _, s := range all {
		if s.Process == t.root {
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
			if s.Process == t.root || member[s.PID] || foreign[s.PID] {
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

// Kill sends SIGKILL to every member until none is left, or ctx ends. Members that
// fork meanwhile are found by the next round; what fails in one round is tried again in
// the next. Where the root has no cgroup to itself, it reads the whole of /proc for the
// cohort's mark.
func (t *Tracker) Kill(ctx context.Context) error {
	list := everything
	if t.own != nil {
		list = t.near
	}
	pause := killRetryMin
	for {
		// At first sight, since a member may be about to start another and end.
		alive, unsure, err := t.scan(list, func(p Process) { _ = kill(p) })
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
