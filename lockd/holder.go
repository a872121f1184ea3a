package lockd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/lockd/cohort"
	"remuda/lockd/lock"
)

const (
	// scanEvery is how often a living holder's cohort is looked at, so that who
	// loses its parent later is known (DESIGN section 5).
	scanEvery = time.Second
	// fenceSay is how often a fencing that does not end is logged. A process in
	// uninterruptible sleep holds its memory, so the lock stays shut.
	fenceSay = 5 * time.Second
)

// holder watches one local holder: the process that was granted a lock, and its
// cohort.
type holder struct {
	group   string
	token   uint64
	process *cohort.Handle // nil where the process was gone before it was watched
	tracker *cohort.Tracker
	logger  hclog.Logger
	// died and gone are told to the state machine.
	died, gone func()

	fence chan struct{}
}

// watchHolder takes hold of a process. One that is gone, or whose ID has another
// process now, has died.
func watchHolder(group string, token uint64, peer lock.Peer, logger hclog.Logger, died, gone func()) (*holder, error) {
	p := peer.Process
	process := cohort.Process{PID: p.PID, Start: p.Start}
	h := &holder{
		group: group, token: token, logger: logger.With("group", group, "token", token, "pid", p.PID),
		tracker: cohort.NewTracker(p.Cohort, process), died: died, gone: gone, fence: make(chan struct{}, 1),
	}
	handle, err := cohort.Open(process)
	switch {
	case err == nil:
		h.process = handle
	case !errors.Is(err, cohort.ErrGone):
		return nil, fmt.Errorf("watch the holder of %q: %w", group, err)
	}
	return h, nil
}

// run watches until ctx ends or the holder is fenced and gone.
func (h *holder) run(ctx context.Context) {
	if h.process != nil {
		defer h.process.Close()
	}
	if !h.await(ctx) {
		return
	}
	h.end(ctx)
}

// await returns true when the holder is to be fenced. It reports the holder's
// death meanwhile, and scans.
func (h *holder) await(ctx context.Context) bool {
	ended := make(chan struct{})
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for waiting.Err() == nil {
			if h.process == nil {
				close(ended)
				return
			}
			// The wait is bounded so that the goroutine ends with its holder.
			gone, err := h.process.Wait(250)
			if err != nil {
				h.logger.Error("cannot wait for the holder", "error", err)
				return
			}
			if gone {
				close(ended)
				return
			}
		}
	}()
	defer func() { <-finished }()
	defer stop()
	h.scan()
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-h.fence:
			return true
		case <-ended:
			ended = nil
			h.died()
		case <-tick.C:
			h.scan()
		}
	}
}

func (h *holder) scan() {
	if _, _, err := h.tracker.Scan(); err != nil {
		h.logger.Warn("cannot look for the holder's processes", "error", err)
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
			h.logger.Error("holder is not proven gone: its lock stays shut", "for", time.Since(began).Round(time.Second).String(), "error", err)
		}
	}
}

func (h *holder) endOnce(ctx context.Context) error {
	if h.process != nil {
		// What the holder has started is found while it still has children.
		h.scan()
		if err := h.process.Signal(unix.SIGKILL); err != nil {
			return err
		}
		for {
			gone, err := h.process.Wait(50)
			if err != nil {
				return err
			}
			if gone {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("the holder was sent SIGKILL and has not ended: %w", ctx.Err())
			}
		}
	}
	return h.tracker.Kill(ctx)
}
