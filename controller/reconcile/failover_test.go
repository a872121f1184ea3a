package reconcile_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/shimtest"
)

// pair has a replica of two engines, of which the primary serves and the shadow waits for the lock.
func (w *world) pair() (primary, shadow *shimtest.Shim) {
	w.t.Helper()
	m := *w.raft.store.View().Model(nil, "m")
	m.Failover, m.Hash = true, "h2"
	w.raft.must(&state.UpsertModel{Model: m, ModifyIndex: m.ModifyIndex, Time: time.Now()})
	p := placeOf("1", 1)
	p.Version, p.Placement.Seats = w.raft.store.View().Model(nil, "m").Version, []string{"n-GPU1#0", "n-GPU1#1"}
	w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{p}})
	w.rest()
	a := allocation("n")
	a.Ports = map[string]string{"primary_shim": "n:1", "shadow_shim": "n:2"}
	w.nomad.allocate(m1, a)
	w.consul.serve(engine("1"))
	w.rest()
	require.Equal(w.t, "serving", w.stage(m1))
	primary, shadow = shimtest.New(m1, replica.RolePrimary, true), shimtest.New(m1, replica.RoleShadow, true)
	shadow.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Standby, &shimclient.Lock{Position: 1} })
	w.shims.Put("n:1", primary)
	w.shims.Put("n:2", shadow)
	return primary, shadow
}

// takesOver has the shadow serve after so long.
func takesOver(shadow *shimtest.Shim, after time.Duration, t *shimclient.Takeover) {
	time.AfterFunc(after, func() {
		shadow.Set(func(st *shimclient.State) {
			st.Phase, st.Since, st.Takeover, st.Lock = shimclient.Active, time.Now(), t, &shimclient.Lock{Held: true}
		})
	})
}

func TestFailover(t *testing.T) {
	for name, tc := range map[string]struct {
		order    api.FailoverRequest
		told     string
		reported *shimclient.Takeover
		want     api.Failover
		reason   string
	}{
		"a hand-over": {
			api.FailoverRequest{Timeout: api.Duration(time.Minute)}, "failover 1m0s", &shimclient.Takeover{From: "primary", Cause: "handover", Seconds: 1.5},
			api.Failover{Replica: m1, From: "primary", To: "shadow", Drained: api.Duration(3 * time.Second), TookOver: api.Duration(1500 * time.Millisecond)},
			"an operator ordered a failover of m:v:1: the shadow serves, 1.5s after the end of the primary",
		},
		"a drill": {
			api.FailoverRequest{Drill: true, Timeout: api.Duration(30 * time.Second)}, "drill 30s", &shimclient.Takeover{From: "primary", Cause: "drill", Seconds: 2},
			api.Failover{Replica: m1, From: "primary", To: "shadow", Drill: true, TookOver: api.Duration(2 * time.Second)},
			"an operator ordered a drill of m:v:1: the shadow serves, 2s after the end of the primary",
		},
		"shims without a record": {
			api.FailoverRequest{Timeout: api.Duration(time.Minute)}, "failover 1m0s", nil,
			api.Failover{Replica: m1, From: "primary", To: "shadow", Drained: api.Duration(3 * time.Second), TookOver: api.Duration(2 * time.Second)},
			"an operator ordered a failover of m:v:1: the shadow serves, 2s after the end of the primary",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				primary, shadow := w.pair()
				primary.OnFailover(func() shimtest.Answer {
					time.Sleep(3 * time.Second)                           // it drains
					takesOver(shadow, 1990*time.Millisecond, tc.reported) // between two polls
					return shimtest.Answer{}
				})
				got, err := w.r.Failover(t.Context(), m1, tc.order, "an operator")
				require.NoError(t, err)
				require.Equal(t, tc.want, got)
				require.Equal(t, []string{tc.told}, primary.Orders())
				require.Empty(t, shadow.Orders())
				ds := w.raft.store.View().Decisions(nil, "m", 1)
				require.Len(t, ds, 1)
				require.Equal(t, []string{"failover-ordered", m1, tc.reason}, []string{ds[0].Kind, ds[0].Replica, ds[0].Reason})
			})
		})
	}
}

// TestFailoverIsRejected: the error names the replica, what is in the way and what to do.
func TestFailoverIsRejected(t *testing.T) {
	order := api.FailoverRequest{Timeout: api.Duration(time.Minute)}
	said := func(code int, text string) func(*world, *shimtest.Shim, *shimtest.Shim) {
		return func(_ *world, primary, _ *shimtest.Shim) {
			primary.OnFailover(func() shimtest.Answer { return shimtest.Answer{Code: code, Error: text} })
		}
	}
	for name, tc := range map[string]struct {
		before func(w *world, primary, shadow *shimtest.Shim)
		kind   error
		text   string
	}{
		"it drains already": {func(_ *world, p, _ *shimtest.Shim) {
			p.Set(func(st *shimclient.State) { st.Phase = shimclient.Draining })
		}, state.ErrConflict, "replica m:v:1: the primary is draining: a failover, a sleep or a stop is under way: wait until it has ended"},
		"it wakes": {func(_ *world, p, _ *shimtest.Shim) {
			p.Set(func(st *shimclient.State) { st.Phase = shimclient.Waking })
		}, state.ErrConflict, "replica m:v:1: the primary is waking: must be active: wait until it serves"},
		"the shadow loads": {func(_ *world, _, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Init, &shimclient.Lock{} })
		}, state.ErrConflict, "replica m:v:1: it has no standby: wait until the pair's other engine has started: the shadow: the engine is loading"},
		"the shadow is gone": {func(w *world, _, _ *shimtest.Shim) { w.shims.Put("n:2", nil) },
			state.ErrConflict, "it has no standby: wait until the pair's other engine has started: the shadow: state at the shim n:2: cannot reach the shim"},
		"none has the lock": {func(_ *world, p, _ *shimtest.Shim) {
			p.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Init, &shimclient.Lock{} })
		}, state.ErrConflict, "replica m:v:1: no engine of the pair holds its lock: wait until one serves: the primary: the engine is loading"},
		"it is on its way out": {func(w *world, _, _ *shimtest.Shim) { w.tier(m1, state.EventDrain, state.GoalWarm) },
			state.ErrConflict, `replica m:v:1: it is draining (HOT): must be serving: see "remuda replica status"`},
		"the shim rejects it": {said(http.StatusConflict, "no standby: no engine waits"), state.ErrConflict, "replica m:v:1: the primary: failover at the shim n:1: rejected by the shim: no standby: no engine waits"},
		"another secret":      {said(http.StatusUnauthorized, "wrong secret"), state.ErrConflict, "not authorized"},
		"it is not drained":   {said(http.StatusGatewayTimeout, "not drained"), state.ErrConflict, "replica m:v:1: requests of the primary still ran after 1m0s, and it serves on: allow more time"},
		"the answer is lost": {func(_ *world, p, _ *shimtest.Shim) {
			p.OnFailover(func() shimtest.Answer { return shimtest.Answer{Cut: true} })
		}, raft.ErrUnknownOutcome, "cannot reach the shim"},
		"the standby does not serve": {func(_ *world, _, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Waits = "" })
		}, raft.ErrUnknownOutcome, "the primary of m:v:1 has ended, and the shadow does not serve after 2m0s: the engine stands by: it waits for the lock"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(c *reconcile.Config) { c.Planner.WakeTimeout = 2 * time.Minute }, func(t *testing.T, w *world) {
				primary, shadow := w.pair()
				tc.before(w, primary, shadow)
				_, err := w.r.Failover(t.Context(), m1, order, "an operator")
				require.ErrorIs(t, err, tc.kind)
				require.ErrorContains(t, err, tc.text)
			})
		})
	}
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("2")
		_, err := w.r.Failover(t.Context(), "m:v:2", order, "an operator")
		require.ErrorIs(t, err, state.ErrConflict)
		require.ErrorContains(t, err, "replica m:v:2: it is a single engine: a failover needs a pair: set failover = true in the model file")
		_, err = w.r.Failover(t.Context(), "m:v:3", order, "an operator")
		require.ErrorIs(t, err, state.ErrNotFound)

		primary, shadow := w.pair()
		ctx, leave := context.WithCancel(t.Context())
		primary.OnFailover(func() shimtest.Answer { leave(); <-t.Context().Done(); return shimtest.Answer{Cut: true} })
		_, err = w.r.Failover(ctx, m1, order, "an operator")
		require.ErrorIs(t, err, context.Canceled, "the client has left")

		w.nomad.allocate(m1, allocation("n"))
		w.rest()
		_, err = w.r.Failover(t.Context(), m1, order, "an operator")
		require.ErrorContains(t, err, `has 0 ports of shims: must be 2, labelled "primary_shim" and "shadow_shim"`)
		require.Empty(t, shadow.Orders())

		w.cancel()
		<-w.stopped
		_, err = w.r.Failover(t.Context(), m1, order, "an operator")
		require.ErrorIs(t, err, raft.ErrNotLeader)
	})
}
