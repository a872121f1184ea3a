package cohort

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

// A takeover waits for a scan, and a look at a process costs about 20 us. So a
// scan passes over those that the whole scan before, at most about a second ago,
// has found to be none. A process never becomes a member later, and IDs are
// handed out in turn, so none of theirs can have a new owner before the machine
// has started as many processes and threads as there are IDs. (A process that
// chooses its ID, as CRIU does, is found by the next whole scan only.)

// settle remembers who is none after a whole scan that began when the machine
// had started forks processes.
func (t *Tracker) settle(all []looked, member map[int]bool, unsure []int, forks uint64) {
	t.settled, t.forks = make(map[int]bool, len(all)), forks
	for _, s := range all {
		if !member[s.PID] && s.PID != t.root.PID && !s.gone() {
			t.settled[s.PID] = true
		}
	}
	for _, pid := range unsure {
		delete(t.settled, pid)
	}
}

// settledStill tells whether no ID of those can have a new owner.
func (t *Tracker) settledStill() bool {
	if t.settled == nil {
		return false
	}
	now := forksSinceBoot()
	return t.forks != 0 && now >= t.forks && now-t.forks < maxPID()/2
}

// forksSinceBoot is how many processes and threads the machine has started, 0 if
// it cannot be read.
func forksSinceBoot() uint64 {
	raw, err := read("/proc/stat")
	if err != nil {
		return 0
	}
	_, after, found := bytes.Cut(raw, []byte("\nprocesses "))
	line, _, ended := bytes.Cut(after, []byte("\n"))
	n, err := strconv.ParseUint(string(line), 10, 64)
	if !found || !ended || err != nil {
		return 0
	}
	return n
}

// maxPID is how many IDs there are, 0 if it cannot be read.
var maxPID = sync.OnceValue(func() uint64 {
	raw, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64)
	return n
})
