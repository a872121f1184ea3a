package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/shimclient"
	"remuda/controller/state"
)

// pairInterval is how often the shims of a failover pair are asked.
const pairInterval = 2 * time.Second

// gpuFaultWithin is how long after a failover a GPU's fault may become known and still be named with it.
const gpuFaultWithin = time.Minute

// pairState is what the shims of a failover pair report.
type pairState struct {
	api.Pair
	// weightsLost: the pair sleeps, and its wake would load the weights from their file.
	weightsLost bool
}

// isPair reports whether a job is of a failover pair that should serve or sleep.
func isPair(view *state.View, j nomad.Job) bool {
	r := view.Replica(nil, j.ID)
	if r == nil || r.Status != state.StatusServing && r.Status != state.StatusWarm || j.Stopped || j.Problem != "" || !live(j) {
		return false
	}
	version := view.Versions(nil, r.Name.Model).Get(r.Version)
	return version != nil && version.Model.Failover
}

// askPair asks the shims of a pair. What it cannot find out of both is an error; a shim that does not
// respond beside one that does has no engine that could take over. Of a pair that sleeps it returns
// only whether its weights are lost.
func (l *loop) askPair(ctx context.Context, j job, last pairState) (pairState, error) {
	a, _ := currentOf(j.Allocations)
	var out pairState
	var errs []error
	sleeps, standby := false, "it has no shim of a standby"
	for _, s := range j.Shims(a) {
		st, err := l.cfg.Shims.State(ctx, s.Address)
		switch {
		case ctx.Err() != nil:
			return pairState{}, ctx.Err()
		case err != nil:
			errs = append(errs, err)
			standby = fmt.Sprintf("the shim of the %s does not respond: %v", s.Role, err)
		case st.Replica != j.Name.String():
			standby = fmt.Sprintf("the shim of the %s at %s is of replica %q", s.Role, s.Address, st.Replica)
		case st.Phase == shimclient.Active:
			out.Serves = s.Role
			if st.Takeover != nil {
				out.LastFailover = l.lastFailover(ctx, j, s, *st.Takeover, last.LastFailover)
			}
		case st.Parked && st.Leads():
			out.weightsLost, sleeps = st.WeightsLost, true
		case st.CanTakeOver():
			standby, out.StandbySince = "", st.Since
		default:
			standby = fmt.Sprintf("the %s cannot take over: %s", s.Role, st.NotServing())
		}
	}
	if len(errs) > 1 {
		return pairState{}, errors.Join(errs...)
	}
	if sleeps {
		return out, nil
	}
	out.Degraded = standby
	if out.Serves == "" {
		out.Degraded = "no engine serves"
	}
	if out.Degraded != "" {
		out.StandbySince = time.Time{}
		if out.DegradedSince = last.DegradedSince; last.Degraded == "" {
			out.DegradedSince = l.cfg.Now()
		}
	}
	return out, nil
}

// lastFailover returns a take-over with its log, which the shim is asked for until it has it, and with
// what is wrong with the pair's GPUs.
func (l *loop) lastFailover(ctx context.Context, j job, s nomad.Shim, t shimclient.Takeover, last api.Takeover) api.Takeover {
	out := api.Takeover{From: t.From, Cause: t.Cause, Reason: t.Reason, Ended: t.Ended, At: t.At, Seconds: t.Seconds, Log: t.Log}
	if last.At.Equal(t.At) {
		out.Log, out.GPU = last.Log, last.GPU
	}
	if out.GPU == "" && l.cfg.Now().Sub(t.At) < gpuFaultWithin {
		view := l.cfg.Raft.Store().View()
		if r := view.Replica(nil, j.ID); r != nil {
			out.GPU = r.OutOfUse(view.Node(nil, r.Placement.Node))
		}
	}
	if out.Log == "" {
		if st, err := l.cfg.Shims.Takeover(ctx, l.target(j.Name.String(), s.Address)); err != nil {
			l.cfg.Logger.Debug("cannot read the log of an engine that has ended", "replica", j.Name, "shim", s.Address, "error", err)
		} else if st.Takeover != nil {
			out.Log = st.Takeover.Log
		}
	}
	return out
}

// Pair returns how a failover pair is that serves; zero for any other replica, and if this server does
// not lead. It may be called from several goroutines at once.
func (r *Reconciler) Pair(replica string) api.Pair {
	l := r.current()
	if l == nil {
		return api.Pair{}
	}
	return l.pairs.lastAnswer(replica).Pair
}
