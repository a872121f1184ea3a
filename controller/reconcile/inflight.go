package reconcile

import (
	"maps"
	"time"

	"remuda/controller/state"
)

// write is what this server last wrote to a Nomad for a replica.
type write struct {
	pool string
	// pending: it is being done. Otherwise index is Nomad's index of the write, and at when
	// Nomad acknowledged it.
	pending bool
	index   uint64
	at      time.Time
}

// shownBy reports whether a list of jobs shows the write or what came after it: its index is not
// lower, or it was asked for so long after the write that the index must have gone back, as that
// of a Nomad that was restored from a snapshot.
func (w write) shownBy(p poolSighted, lag time.Duration) bool {
	return !w.pending && (p.index >= w.index || !p.began.Before(w.at.Add(lag)))
}

// inFlight returns the replicas whose jobs may be others than Nomad's lists show: those with a
// write that is pending or not shown. Of a replica that this server has not written for, an
// earlier leader has: the state has the index of that, and it had happened when this one began
// to lead.
//
// The writes must have been taken before the view: an action that had ended by then is in the
// view, and any other one is pending. When the lists were made does not matter.
func (l *leading) inFlight(writes map[string]write, view *state.View, seen sighted) map[string]bool {
	out := map[string]bool{}
	for name, w := range writes {
		if w.shownBy(seen.pools[w.pool], l.cfg.LagTimeout) {
			l.acts.forget(name, w)
		} else {
			out[name] = true
		}
	}
	for _, r := range view.Replicas(nil) {
		name := r.Name.String()
		if _, ours := writes[name]; ours || r.JobIndex == 0 {
			continue
		}
		w := write{pool: own, index: r.JobIndex, at: l.began}
		if n := view.Node(nil, r.Placement.Node); n != nil {
			w.pool = n.CapacityPool
		}
		if !w.shownBy(seen.pools[w.pool], l.cfg.LagTimeout) {
			out[name] = true
		}
	}
	return out
}

// writes returns what was last written for each replica, as far as lists may not show it.
func (a *acts) writes() map[string]write {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := maps.Clone(a.written)
	for name, t := range a.tasks {
		if t.busy && !ofShim(t.kind) {
			out[name] = write{pool: t.pool, pending: true}
		}
	}
	return out
}

// wrote notes a write that Nomad has acknowledged, while its action is still under way.
func (a *acts) wrote(o order, index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written[o.Replica] = write{pool: o.Pool, index: index, at: a.l.cfg.Now()}
}

// forget drops a write that a list has shown.
func (a *acts) forget(name string, w write) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.written[name] == w {
		delete(a.written, name)
	}
}

// awaits reports whether a write to a pool is not known to be shown.
func (a *acts) awaits(pool string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.written {
		if w.pool == pool {
			return true
		}
	}
	return false
}
