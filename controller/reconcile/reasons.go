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

// maxPolls is how many questions are sent to one pool at once.
const maxPolls = 4

// poller asks about some of the replicas: Nomad why it does not place a job, shims why no engine of a
// replica serves, and how the engines of a failover pair are. It asks once a replica has been of
// that kind for longer than patience, and again after each interval.
type poller[T comparable] struct {
	concerns           func(view *state.View, j nomad.Job) bool
	ask                func(ctx context.Context, j job, last T) (T, error)
	patience, interval time.Duration
	now                func() time.Time
	// onAnswer is called after each answer. The new one is the last one again after an error.
	onAnswer func(name string, last, now T, err error)

	mu      sync.Mutex // guards the fields below
	pending map[string]*polled[T]
	polling map[string]int // by pool
}

type polled[T comparable] struct {
	index   uint64 // the job's
	since   time.Time
	askedAt time.Time
	asking  bool
	answer  T
}

// answer returns the last answer about this version of the job.
func (w *poller[T]) answer(name string, index uint64) (none T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[name]; p != nil && p.index == index {
		return p.answer
	}
	return none
}

// lastAnswer returns the last answer about any version of the job.
func (w *poller[T]) lastAnswer(name string) (none T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pending[name]; p != nil {
		return p.answer
	}
	return none
}

// poll starts to ask about the jobs that are due, if their pool is known to answer. It calls
// run to start a goroutine.
func (w *poller[T]) poll(ctx context.Context, view *state.View, jobs map[string]job, known func(pool string) bool, run func(func()), next *schedule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		w.pending, w.polling = map[string]*polled[T]{}, map[string]int{}
	}
	now := w.now()
	for id := range w.pending {
		if j, there := jobs[id]; !there || !w.concerns(view, j.Job) {
			delete(w.pending, id)
		}
	}
	for id, j := range jobs {
		if !w.concerns(view, j.Job) || !known(j.pool) {
			continue
		}
		p := w.pending[id]
		if p == nil || p.index != j.Index {
			p = &polled[T]{index: j.Index, since: now}
			if r := view.Replica(nil, id); r.Status == state.StatusStarting && r.Since.Before(now) {
				p.since = r.Since // as recorded by an earlier leader
			}
			w.pending[id] = p
		}
		due := p.since.Add(w.patience)
		if !p.askedAt.IsZero() {
			due = p.askedAt.Add(w.interval)
		}
		switch {
		case p.asking:
		case now.Before(due):
			next.add(due)
		case w.polling[j.pool] < maxPolls: // over the limit, the job is polled once another answer arrives
			p.asking, p.askedAt = true, now
			next.add(now.Add(w.interval))
			w.polling[j.pool]++
			last := p.answer
			run(func() {
				answer, err := w.ask(ctx, j, last)
				if err != nil {
					answer = last
				}
				w.mu.Lock()
				p.asking, p.answer = false, answer
				w.polling[j.pool]--
				w.mu.Unlock()
				w.onAnswer(id, last, answer, err)
			})
		}
	}
}

// waitsForNomad reports whether a replica's job waits for Nomad to place it.
func waitsForNomad(view *state.View, j nomad.Job) bool {
	if j.Stopped || j.Problem != "" || live(j) {
		return false
	}
	r := view.Replica(nil, j.ID)
	return r != nil && r.Status.Request() == state.RequestKeep
}

// waitsForEngines reports whether the engines of a starting replica run but do not serve yet.
func waitsForEngines(view *state.View, j nomad.Job) bool {
	r := view.Replica(nil, j.ID)
	a, ok := currentOf(j.Allocations)
	return ok && r != nil && r.Status == state.StatusStarting && !j.Stopped && j.Problem == "" && slices.ContainsFunc(a.Tasks, func(t nomad.Task) bool {
		return len(a.Seats[t.Name]) > 0 && t.State == "running"
	})
}

// notServingReason returns why none of a job's engines serves, as their shims report it.
func (l *loop) notServingReason(ctx context.Context, j job, _ string) (string, error) {
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
// and if this server does not lead. It may be called from several goroutines at once.
func (r *Reconciler) NotServing(replica string) string {
	l := r.current()
	if l == nil {
		return ""
	}
	return l.notServing.lastAnswer(replica)
}
