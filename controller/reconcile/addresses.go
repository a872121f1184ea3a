package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"remuda/controller/raft"
	"remuda/controller/state"
)

// addressesPerCommand keeps a command far below state.MaxCommand: a replica takes some 300 bytes,
// and at most 16 KiB.
const addressesPerCommand = 200

// changedAddresses returns the replicas whose engines may be elsewhere than the state has it. A job
// that no Nomad lists changes nothing: its engines may still run.
func changedAddresses(view *state.View, jobs map[string]job) []state.ReplicaAddresses {
	var out []state.ReplicaAddresses
	for _, r := range view.Replicas(nil) {
		j, listed := jobs[r.Name.String()]
		if !listed || r.Status == state.StatusCold {
			continue
		}
		addresses := j.EngineAddresses(r.Placement.Node)
		addresses = addresses[:min(len(addresses), state.MaxAddresses)]
		if j.Generation != r.Generation || !slices.Equal(addresses, r.Addresses) {
			out = append(out, state.ReplicaAddresses{Replica: r.Name.String(), Addresses: addresses, Generation: j.Generation})
		}
	}
	return out
}

// addresses writes where the replicas' engines may be. While a server of an earlier version is in the
// cluster, that is impossible, and no reason to hold up plans.
func (w *writer) addresses(ctx context.Context, view *state.View, jobs map[string]job, now time.Time, next *schedule) {
	changed := changedAddresses(view, jobs)
	if len(changed) == 0 || !w.ready(now, next) {
		return
	}
	for chunk := range slices.Chunk(changed, addressesPerCommand) {
		switch _, err := w.l.cfg.Raft.Apply(ctx, &state.SetAddresses{Replicas: chunk}); {
		case err == nil:
			w.failures, w.until = 0, time.Time{}
		case errors.Is(err, raft.ErrFeatureLevel):
			w.l.cfg.Logger.Warn("gateways do not get the addresses of new engines until all servers are upgraded", "replicas", len(changed), "error", err)
			next.add(now.Add(w.l.cfg.RetryMax))
			return
		default:
			w.failed(ctx, "write addresses", err, next)
			return
		}
	}
}
