package cohort

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// children returns the processes whose parent is pid, none for a process that has
// ended. The kernel lists them by the thread that started them. Orphans that a
// subreaper inherits are in the list of its first thread (find_new_reaper of the
// kernel's exit.c), so that one is read last.
func children(pid int) ([]int, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	threads, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil && !errors.Is(err, unix.ESRCH) && !os.IsNotExist(err) {
		return nil, err
	}
	first := fmt.Sprint(pid)
	var pids []int
	add := func(thread string) error {
		path := fmt.Sprintf("/proc/%d/task/%s/", pid, thread)
		raw, err := read(path + "children")
		if os.IsNotExist(err) {
			if _, there := os.Stat(path + "stat"); there == nil {
				if raw, err = read(path + "children"); os.IsNotExist(err) {
					return fmt.Errorf("%w: the kernel must be built with CONFIG_PROC_CHILDREN", err)
				}
			}
		}
		if err != nil && !os.IsNotExist(err) && !errors.Is(err, unix.ESRCH) {
			return err
		}
		pids = append(pids, parsePIDs(raw)...)
		return nil
	}
	for _, thread := range threads {
		if thread != first {
			if err := add(thread); err != nil {
				return nil, err
			}
		}
	}
	return pids, add(first)
}

// descend calls visit for every descendant of the given processes, themselves
// excluded. One that starts or loses its parent meanwhile may be missed.
func descend(roots []int, visit func(pid int)) error {
	seen := make(map[int]bool, len(roots))
	for _, pid := range roots {
		seen[pid] = true
	}
	for queue := roots; len(queue) > 0; queue = queue[1:] {
		below, err := children(queue[0])
		if err != nil {
			return err
		}
		for _, pid := range below {
			if !seen[pid] {
				seen[pid] = true
				visit(pid)
				queue = append(queue, pid)
			}
		}
	}
	return nil
}

// KillDescendants kills everything that descends from this process, which must be a
// subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), and returns once nothing of it is
// left, or ctx ends. It collects the exit status of every child but awaited, whose
// status the caller collects; 0 for none.
func KillDescendants(ctx context.Context, awaited int) error {
	self, pause := os.Getpid(), killRetryMin
	for {
		// Every descendant of a subreaper whose parents have ended is its child. So
		// there is none when it has no child.
		own, err := children(self)
		left := 0
		for _, pid := range own {
			if s, err := readStat(pid); err == nil && !s.gone() {
				left++
			}
		}
		if err == nil && left == 0 {
			collect(own, awaited)
			if own, err = children(self); err == nil && len(without(own, awaited)) == 0 {
				return nil
			}
		}
		var failed []error
		lost := descend([]int{self}, func(pid int) {
			if s, err := readStat(pid); err == nil && !s.gone() {
				failed = append(failed, kill(s.Process))
			}
		})
		failed = append(failed, lost)
		collect(own, awaited)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d child processes are still alive: %w", left, errors.Join(append(failed, err, ctx.Err())...))
		case <-time.After(pause):
			pause = min(2*pause, killRetryMax)
		}
	}
}

// Reap collects the exit status of the children that were orphaned to this process,
// a subreaper: of all that have ended but awaited, whose status the caller collects.
func Reap(awaited int) error {
	own, err := children(os.Getpid())
	collect(own, awaited)
	return err
}

func collect(pids []int, awaited int) {
	for _, pid := range without(pids, awaited) {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

func without(pids []int, pid int) []int {
	var rest []int
	for _, p := range pids {
		if p != pid {
			rest = append(rest, p)
		}
	}
	return rest
}
