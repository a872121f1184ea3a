package dispatch

import "time"

const (
	// BeatEvery is how often Beat is called.
	BeatEvery = 100 * time.Millisecond
	// maxPause is how long the process may be stopped without a doubt about its shares. The controller gives
	// them to others 1.5 s after the last report (gatewayreport.ShareTTL), which was sent up to 0.4 s before the
	// pause.
	maxPause = 500 * time.Millisecond
)

// Beat notes that the process runs. After a longer pause than maxPause this gateway sends nothing to replicas that it
// shares with others until it has an answer to a report of later, or the controller is away.
func (d *Dispatcher) Beat() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.notePause(now)
	d.beatAt = now
}

// notePause finds out whether the process was stopped. It comes before every use of the shares, which may be
// earlier than the next Beat. mu is held.
func (d *Dispatcher) notePause(now time.Time) {
	if d.beatAt.IsZero() || elapsed(d.beatAt, now) <= maxPause {
		return
	}
	d.beatAt, d.wokeAt = now, now
	d.table.Suspend(true)
	d.wants.hurry()
}

// elapsed is by the monotonic clock, which may stand still with the machine, or the wall clock, which may be
// set: whichever has run further.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
