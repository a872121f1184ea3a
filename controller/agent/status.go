package agent

import (
	"cmp"
	"fmt"

	"remuda/controller/api"
	"remuda/controller/reconcile"
)

// reconciler is the reconciler as the API shows it.
type reconciler struct {
	*reconcile.Reconciler
	cfg Config
}

func (r reconciler) Pools() []api.Pool { return r.cfg.pools(r.Reconciler.Status()) }

func (r reconciler) Status() api.ReconcileStatus {
	s := r.Reconciler.Status()
	out := api.ReconcileStatus{Active: s.Leading, Nomad: link(s.Nodes), Consul: link(s.Engines), LastError: s.Error}
	// Both of Nomad's watches must be up to date for Nomad to be known.
	if !s.Jobs.Known {
		out.Nomad.Known, out.Nomad.Error = false, cmp.Or(out.Nomad.Error, s.Jobs.Error)
	}
	if s.Jobs.LastContactAt.After(out.Nomad.LastContactAt) {
		out.Nomad.LastContactAt = s.Jobs.LastContactAt
	}
	// A failure of an unreachable pool is shown with the pool (Config.pools), not here.
	away := map[string]bool{}
	for _, p := range s.Pools {
		away[p.Name] = p.Name != "" && !p.Known()
	}
	for _, w := range s.Waiting {
		if out.LastError == "" && !away[w.Pool] {
			out.LastError = fmt.Sprintf("%s of %s failed %d times: %s", w.Kind, w.Replica, w.Failures, w.Error)
		}
	}
	return out
}

func link(s reconcile.Source) api.LinkStatus {
	return api.LinkStatus{LastContactAt: s.LastContactAt, Known: s.Known, Error: s.Error}
}
