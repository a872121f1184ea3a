package reconcile

import (
	"context"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/replica"
)

// askers is how many jobs one Nomad is asked about at once.
const askers = 4

// why asks Nomad why it does not place a job, of those that wait for longer than
// PlaceTimeout, each again after WhyInterval.
type why struct {
	ask             func(ctx context.Context, pool string, name replica.Name) (string, error)
	patience, again time.Duration
	now             func() time.Time
	told            func(name string, err error) // after each answer

	mu      sync.Mutex // guards what follows
	pending map[string]*pending
	asking  map[string]int // by pool
}

type pending struct {
	index  uint64 // the job's
	since  time.Time
	asked  time.Time
	asking bool
	reason string
}

// reason is what Nomad said of this version of the job.
func (w *why) reason(name string, index uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[name]; p != nil && p.index == index {
		return p.reason
	}
	return ""
}

// look begins to ask about the jobs that have waited for long enough, where their Nomad is
// known to answer. run starts a goroutine.
func (w *why) look(ctx context.Context, view *state.View, jobs map[string]job, known func(pool string) bool, run func(func()), next *schedule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for id := range w.pending {
		if j, there := jobs[id]; !there || !waits(view, j.Job) {
			delete(w.pending, id)
		}
	}
	for id, j := range jobs {
		if !waits(view, j.Job) || !known(j.pool) {
			continue
		}
		p := w.pending[id]
		if p == nil || p.index != j.Index {
			p = &pending{index: j.Index, since: now}
			if r := view.Replica(nil, id); r.Status == state.StatusStarting && r.Since.Before(now) {
				p.since = r.Since // as an earlier leader has seen it
			}
			w.pending[id] = p
		}
		due := p.since.Add(w.patience)
		if !p.asked.IsZero() {
			due = p.asked.Add(w.again)
		}
		switch {
		case p.asking:
		case now.Before(due):
			next.add(due)
		case w.asking[j.pool] < askers: // who has to wait is looked at when one of these is done
			p.asking, p.asked = true, now
			w.asking[j.pool]++
			run(func() {
				reason, err := w.ask(ctx, j.pool, j.Name)
				w.mu.Lock()
				p.asking = false
				w.asking[j.pool]--
				if err == nil {
					p.reason = reason
				}
				w.mu.Unlock()
				w.told(id, err)
			})
		}
	}
}

// waits tells whether a replica's job waits for Nomad to place it.
func waits(view *state.View, j nomad.Job) bool {
	if j.Stopped || j.Problem != "" || live(j) {
		return false
	}
	r := view.Replica(nil, j.ID)
	return r != nil && r.Status.Request() == state.RequestKeep
}
