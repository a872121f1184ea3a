package agent

import (
	"cmp"
	"fmt"

	"remuda/controller/api"
	"remuda/controller/reconcile"
)

// reconcileStatus says for the API how the reconciling goes.
func reconcileStatus(s reconcile.Status) api.ReconcileStatus {
	out := api.ReconcileStatus{Active: s.Leading, Nomad: link(s.Nodes), Consul: link(s.Engines), LastError: s.Error}
	// Both of Nomad's watches must be up to date for Nomad to be known.
	if !s.Jobs.Known {
		out.Nomad.Known, out.Nomad.Error = false, cmp.Or(out.Nomad.Error, s.Jobs.Error)
	}
	if s.Jobs.Heard.After(out.Nomad.Heard) {
		out.Nomad.Heard = s.Jobs.Heard
	}
	for _, p := range s.Pools[min(1, len(s.Pools)):] {
		if out.LastError == "" && p.Error() != "" {
			out.LastError = fmt.Sprintf("pool %q: %s", p.Name, p.Error())
		}
	}
	if out.LastError == "" && len(s.Waiting) > 0 {
		w := s.Waiting[0]
		out.LastError = fmt.Sprintf("%s of %s has failed %d times: %s", w.Kind, w.Replica, w.Failures, w.Error)
	}
	return out
}

func link(s reconcile.Source) api.LinkStatus {
	return api.LinkStatus{Heard: s.Heard, Known: s.Known, Error: s.Error}
}
