package reconcile

import (
	"maps"
	"time"

	"remuda/controller/state"
)

// write is the last write of this server to a Nomad for a replica.
type write struct {
	pool string
	// pending means that the write is under way. Otherwise index is Nomad's index of the write,
	// and at is when Nomad acknowledged it.
	pending bool
	index   uint64
	at      time.Time
}

// visibleIn reports whether a list of jobs includes the write. Either the index of the list is
// not lower than that of the write, or the list was requested at least lag after the write: then
// Nomad's index has gone back, because Nomad was restored from a snapshot.
func (w write) visibleIn(p poolSnapshot, lag time.Duration) bool {
	return !w.pending && (p.index >= w.index || !p.began.Before(w.at.Add(lag)))
}

// inFlight returns the replicas whose jobs may differ from Nomad's lists: those with a write that
// is pending or not visible yet. If this server has not written a replica's job, an earlier leader
// has: the state has the index of that write, and the write precedes this server's leadership.
//
// The writes must be read before the view: then an action that has ended is in the view, and any
// other is pending. The lists may be of any time.
func (l *loop) inFlight(writes map[string]write, view *state.View, snap snapshot) map[string]bool {
	out := map[string]bool{}
	for name, w := range writes {
		if w.visibleIn(snap.pools[w.pool], l.cfg.LagTimeout) {
			l.executor.forgetWrite(name, w)
		} else {
			out[name] = true
		}
	}
	for _, r := range view.Replicas(nil) {
		name := r.Name.String()
		if _, ours := writes[name]; ours || r.JobIndex == 0 {
			continue
		}
		w := write{pool: ownPool, index: r.JobIndex, at: l.began}
		if n := view.Node(nil, r.Placement.Node); n != nil {
			w.pool = n.CapacityPool
		}
		if !w.visibleIn(snap.pools[w.pool], l.cfg.LagTimeout) {
			out[name] = true
		}
	}
	return out
}

// writes returns the last write for each replica, where it may not be visible in a list yet.
func (e *executor) writes() map[string]write {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := maps.Clone(e.written)
	for name, s := range e.actions {
		if s.busy && !isShimAction(s.kind) {
			out[name] = write{pool: s.pool, pending: true}
		}
	}
	return out
}

// recordWrite records a write that Nomad has acknowledged. It is called while the action runs.
func (e *executor) recordWrite(o assignment, index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.written[o.Replica] = write{pool: o.Pool, index: index, at: e.l.cfg.Now()}
}

// forgetWrite drops a write that is visible in a list.
func (e *executor) forgetWrite(name string, w write) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.written[name] == w {
		delete(e.written, name)
	}
}

// awaitsWrite reports whether a write to a pool may not be visible in its list yet.
func (e *executor) awaitsWrite(pool string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.written {
		if w.pool == pool {
			return true
		}
	}
	return false
}
