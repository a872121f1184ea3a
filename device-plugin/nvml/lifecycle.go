package nvml

import "time"

// phase is where a worker stands.
type phase int

// The phases.
const (
	// absent: there is no process, and none has failed.
	absent phase = iota
	// starting: a process was started and has not answered yet.
	starting
	// ready: the last request was answered.
	ready
	// faulted: the process hangs, or it ended and the next one has to wait for its turn.
	faulted
)

// String is the phase's name.
func (p phase) String() string { return [...]string{"absent", "starting", "ready", "faulted"}[p] }

// lifecycle decides when a worker may start and when it counts as failed. It is pure: its
// caller reports what happened and when.
type lifecycle struct {
	phase phase
	// failures is how many processes in a row ended without a complete answer.
	failures int
	// next is when the next process may start.
	next time.Time
	// retry and maxRetry bound the pause before a restart.
	retry, maxRetry time.Duration
}

// started: a process was started.
func (l *lifecycle) started() { l.phase = starting }

// answered: a request was answered in full.
func (l *lifecycle) answered() { l.phase, l.failures = ready, 0 }

// hangs: a call has not returned for too long. The process goes on.
func (l *lifecycle) hangs() { l.phase = faulted }

// ended: the process is gone, by itself or because it was given up. The first one is replaced at
// once, because the driver may just have been exchanged; each further one in a row waits twice as
// long as the one before, from retry to maxRetry.
func (l *lifecycle) ended(now time.Time) {
	l.phase = faulted
	l.failures++
	pause := time.Duration(0)
	if l.failures > 1 {
		pause = l.retry
		for i := 2; i < l.failures && pause < l.maxRetry; i++ {
			pause *= 2
		}
		pause = min(pause, l.maxRetry)
	}
	l.next = now.Add(pause)
}

// renewed: the process was ended on purpose, to initialise NVML anew.
func (l *lifecycle) renewed() { *l = lifecycle{retry: l.retry, maxRetry: l.maxRetry} }

// wait is how long to wait until the next process may start.
func (l *lifecycle) wait(now time.Time) time.Duration { return max(0, l.next.Sub(now)) }
