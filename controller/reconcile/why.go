package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"remuda/controller/nomad"
	"remuda/controller/state"
)

// askers is how many jobs one Nomad is asked about at once.
const askers = 4

// why asks why replicas that start make no progress: Nomad of jobs that it does not place,
// shims of engines that do not serve. It asks of those that wait for longer than patience,
// and again after each interval.
type why struct {
	waits           func(view *state.View, j nomad.Job) bool
	ask             func(ctx context.Context, j job) (string, error)
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

// reason is the last answer about this version of the job.
func (w *why) reason(name string, index uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[name]; p != nil && p.index == index {
		return p.reason
	}
	return ""
}

// last is the last answer about a job, whatever its version.
func (w *why) last(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[name]; p != nil {
		return p.reason
	}
	return ""
}

// look begins to ask about the jobs that have waited for long enough, where their Nomad is
// known to answer. run starts a goroutine.
func (w *why) look(ctx context.Context, view *state.View, jobs map[string]job, known func(pool string) bool, run func(func()), next *schedule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		w.pending, w.asking = map[string]*pending{}, map[string]int{}
	}
	now := w.now()
	for id := range w.pending {
		if j, there := jobs[id]; !there || !w.waits(view, j.Job) {
			delete(w.pending, id)
		}
	}
	for id, j := range jobs {
		if !w.waits(view, j.Job) || !known(j.pool) {
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
				reason, err := w.ask(ctx, j)
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

// waitsForNomad tells whether a replica's job waits for Nomad to place it.
func waitsForNomad(view *state.View, j nomad.Job) bool {
	if j.Stopped || j.Problem != "" || live(j) {
		return false
	}
	r := view.Replica(nil, j.ID)
	return r != nil && r.Status.Request() == state.RequestKeep
}

// waitsForEngines tells whether a replica that has started runs and does not serve yet.
func waitsForEngines(view *state.View, j nomad.Job) bool {
	r := view.Replica(nil, j.ID)
	a, ok := currentOf(j.Allocations)
	return ok && r != nil && r.Status == state.StatusStarting && !j.Stopped && j.Problem == "" && slices.ContainsFunc(a.Tasks, func(t nomad.Task) bool {
		return len(a.Seats[t.Name]) > 0 && t.State == "running"
	})
}

// askShims returns why none of a job's engines serves, as their shims report it.
func (l *leading) askShims(ctx context.Context, j job) (string, error) {
	a, _ := currentOf(j.Allocations)
	shims := j.Shims(a)
	var out []string
	for _, s := range shims {
		st, err := l.cfg.Shims.State(ctx, s.Address)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		text := st.NotServing()
		switch {
		case err != nil:
			text = err.Error()
		case st.Replica != j.Name.String():
			text = fmt.Sprintf("the shim at %s is of replica %q", s.Address, st.Replica)
		case text == "":
			text = "its shim reports that the engine serves, and Consul does not list it as healthy"
		}
		if len(shims) > 1 {
			text = s.Role + ": " + text
		}
		out = append(out, text)
	}
	return strings.Join(out, "; "), nil
}

// NotServing returns why a replica whose allocation runs does not serve yet, as its shims
// reported it some seconds ago. It is empty for any other replica, within the serving grace,
// and where this server does not lead. It may be called from several goroutines at once.
func (r *Reconciler) NotServing(replica string) string {
	l := r.current()
	if l == nil {
		return ""
	}
	return l.idle.last(replica)
}
