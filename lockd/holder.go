package lockd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/lockd/cohort"
	"remuda/lockd/lock"
)

const (
	// scanEvery is how often lockd looks at the cohort of a living holder without a
	// cgroup of its own, so that a process that loses its parent later is known.
	scanEvery = time.Second
	// fenceSay is how often a fencing that does not end is logged. A process in
	// uninterruptible sleep holds its memory, so the lock stays shut.
	fenceSay = 5 * time.Second
)

// holder watches one local holder: the process that was granted a lock, and its
// cohort.
type holder struct {
	token   uint64
	id      cohort.Process
	process *cohort.Handle // nil where the process was gone before it was watched
	tracker *cohort.Tracker
	awake   *awake
	logger  hclog.Logger
	// cancel ends run.
	cancel context.CancelFunc
	// died and gone are told to the state machine.
	died, gone func()

	fence chan struct{}
	// ended has when the process ended, in clock ticks, at the latest.
	ended chan uint64
}

func newHolder(group string, token uint64, peer lock.Peer, awake *awake, logger hclog.Logger, cancel context.CancelFunc, died, gone func()) *holder {
	id := cohort.Process{PID: peer.Process.PID, Start: peer.Process.Start}
	return &holder{
		token: token, id: id, awake: awake, logger: logger.With("group", group, "token", token, "pid", id.PID), cancel: cancel,
		tracker: cohort.NewTracker(peer.Process.Cohort, id), died: died, gone: gone, fence: make(chan struct{}, 1), ended: make(chan uint64, 1),
	}
}

// run watches until ctx ends or the holder is fenced and gone.
func (h *holder) run(ctx context.Context) {
	if !h.open(ctx) {
		return
	}
	waiting, stop := context.WithCancel(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { h.waitForEnd(waiting) })
	if h.await(ctx) {
		h.end(ctx)
	}
	stop()
	wait.Wait()
	if h.process != nil {
		_ = h.process.Close()
	}
}

// open takes hold of the process, unless it is gone, also if its ID has another
// process now. While it cannot be told which, the lock stays shut.
func (h *holder) open(ctx context.Context) bool {
	for {
		process, err := cohort.Open(h.id)
		if err == nil || errors.Is(err, cohort.ErrGone) {
			h.process = process
			return true
		}
		h.logger.Error("cannot watch the holder: its lock is not granted until it can be watched", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(scanEvery):
		}
	}
}

// await returns true when the holder is to be fenced. It reports the holder's
// death meanwhile, and scans.
func (h *holder) await(ctx context.Context) bool {
	h.scan()
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		if h.tracker.OwnCgroup() {
			tick.Stop() // the cgroup has the list
		}
		select {
		case <-ctx.Done():
			return false
		case <-h.fence:
			return true
		case at := <-h.ended:
			h.ended <- at // for endOnce
			h.died()
			select {
			case <-h.fence:
				return true
			default: // its grant was taken back, so nobody will fence it
				return false
			}
		case <-tick.C:
			h.scan()
		}
	}
}

// waitForEnd waits for the end of the holder's process.
func (h *holder) waitForEnd(ctx context.Context) {
	if h.process == nil {
		h.ended <- 0
		return
	}
	for {
		err := h.process.AwaitEnd(ctx)
		if err == nil {
			h.ended <- h.awake.latest()
			return
		}
		if ctx.Err() != nil {
			return
		}
		h.logger.Error("cannot wait for the holder to exit: its lock is not granted until it can be waited for", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(scanEvery):
		}
	}
}

// endedAt is until when, at the latest, the holder lived, whose process is known to have ended.
func (h *holder) endedAt() uint64 {
	select {
	case at := <-h.ended:
		h.ended <- at // for the next try
		return at
	case <-time.After(awakeEvery): // it cannot be waited for
		return h.awake.latest()
	}
}

// awakeEvery is how often lockd notes that it runs.
const awakeEvery = 125 * time.Millisecond

// awake knows when lockd did run. A lockd that was stopped learns of a holder's death late, and
// the holder's next life, in the same cgroup, may have begun by then.
type awake struct {
	mu sync.Mutex
	// last and before are the last two times that were noted, in clock ticks.
	last, before uint64
}

func newAwake() *awake { return &awake{last: cohort.Now(), before: cohort.Now()} }

// run notes the time until ctx ends.
func (a *awake) run(ctx context.Context) {
	tick := time.NewTicker(awakeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.note()
	}
}

// note takes no time that is close to the last one: after a stop of lockd two ticks may follow each
// other at once.
func (a *awake) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := cohort.Now(); now-a.last >= uint64(awakeEvery/cohort.ClockTick/2) {
		a.before, a.last = a.last, now
	}
}

// latest is until when, at the latest, a process lived of whose death lockd has learned just now.
// After a stop of lockd the last note may be from after it, and that before is from before it.
func (a *awake) latest() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(cohort.Now(), a.before+uint64(3*awakeEvery/cohort.ClockTick)) // 2, and 1 for a late tick
}

func (h *holder) scan() {
	if _, err := h.tracker.Scan(); err != nil {
		h.logger.Warn("cannot scan for the holder's processes", "error", err)
	}
}

// end kills the holder and its cohort until nothing of them is left.
func (h *holder) end(ctx context.Context) {
	began := time.Now()
	for ctx.Err() == nil {
		round, cancel := context.WithTimeout(ctx, fenceSay)
		err := h.endOnce(round)
		cancel()
		if err == nil {
			h.logger.Info("holder is proven gone", "took", time.Since(began).String())
			h.gone()
			return
		}
		if ctx.Err() == nil {
			h.logger.Error("some processes of the holder may still run: its lock is not granted", "for", time.Since(began).Round(time.Second).String(), "error", err)
		}
	}
}

func (h *holder) endOnce(ctx context.Context) error {
	if h.process != nil {
		// What the holder has started is found while it still has children. A dead
		// one has none any more, and the next holder waits.
		ended, err := h.process.Wait(0)
		if err != nil || !ended {
			h.scan()
		}
		if err := h.process.Signal(unix.SIGKILL); err != nil {
			return err
		}
		for {
			gone, err := h.process.Wait(50)
			if err != nil {
				return err
			}
			if gone {
				h.tracker.RootEnded(h.endedAt())
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("the holder has not exited after SIGKILL: %w", ctx.Err())
			}
		}
	}
	return h.tracker.Kill(ctx)
}
