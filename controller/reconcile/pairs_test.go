package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/shimtest"
)

const pair1 = "p:v:1"

// withPair has a failover pair that serves, and returns its shims: the primary serves, and the shadow
// waits for the lock.
func (w *world) withPair() (primary, shadow *shimtest.Shim) {
	w.raft.must(&state.UpsertModel{Model: state.Model{
		Name: "p", Max: 100, Priority: 50, Management: state.ManagementFull, Hash: "ph", Failover: true,
		Variants: []state.Variant{{Name: "v", GPUs: 1, Memory: 10, Cost: 1, Hash: "pv"}},
	}})
	one := placeOf("1", 3)
	one.Name.Model = "p"
	one.Placement.Seats = []string{"n-GPU3#0", "n-GPU3#1"}
	w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{one}})
	w.rest()
	a := allocation("n")
	a.Ports = map[string]string{"primary_shim": "primary:1", "shadow_shim": "shadow:1"}
	primary, shadow = shimtest.New(pair1, replica.RolePrimary, true), shimtest.New(pair1, replica.RoleShadow, true)
	shadow.Set(func(st *shimclient.State) {
		st.Phase, st.Lock = shimclient.Standby, &shimclient.Lock{Position: 1}
	})
	w.shims.Put("primary:1", primary)
	w.shims.Put("shadow:1", shadow)
	w.nomad.allocate(pair1, a)
	serves := engine("1")
	serves.Name.Model = "p"
	w.consul.serve(engine("1"), serves)
	w.rest()
	require.Equal(w.t, "serving", w.stage(pair1))
	return primary, shadow
}

// The leader knows which engine of a pair serves, whether another one could take over, since when none
// could, and how the last failover was.
func TestPairs(t *testing.T) {
	reg := prometheus.NewRegistry()
	inWorld(t, func(c *reconcile.Config) { c.Registerer = reg }, func(t *testing.T, w *world) {
		missing := func(replicas int, since time.Time) {
			t.Helper()
			seconds := 0.0
			if !since.IsZero() {
				seconds = time.Since(since).Seconds()
			}
			require.Equal(t, []string{
				fmt.Sprintf(`remuda_controller_degraded_replicas{model="p"} %d`, replicas),
				fmt.Sprintf(`remuda_controller_standby_missing_seconds{model="p"} %v`, seconds),
			}, exposed(t, reg, "remuda_controller_degraded_replicas", "remuda_controller_standby_missing_seconds"))
		}
		w.running("1")
		primary, shadow := w.withPair()
		w.pass(5 * time.Second)
		missing(0, time.Time{})
		require.Equal(t, api.Pair{Serves: "primary", StandbySince: shadow.State().Since.UTC()}, w.r.Pair(pair1))
		require.Equal(t, api.Pair{}, w.r.Pair(m1), "no pair")
		require.Empty(t, w.seen().Jobs[pair1].Degraded)

		began := time.Now()
		shadow.Down(true)
		w.pass(10 * time.Second)
		got := w.r.Pair(pair1)
		require.Contains(t, got.Degraded, "the shim of the shadow does not respond")
		require.WithinDuration(t, began, got.DegradedSince, 3*time.Second, "since the first look")
		require.Zero(t, got.StandbySince)
		require.Equal(t, got.Degraded, w.seen().Jobs[pair1].Degraded)
		missing(1, got.DegradedSince)

		shadow.Down(false)
		shadow.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Init, nil })
		w.pass(5 * time.Second)
		require.Equal(t, "the shadow cannot take over: the engine is loading", w.r.Pair(pair1).Degraded)
		require.Equal(t, got.DegradedSince, w.r.Pair(pair1).DegradedSince, "it has lacked a standby all the time")

		failover := shimclient.Takeover{From: "primary", Cause: "exited", Reason: "signal: killed", Ended: began.UTC(), At: began.Add(time.Second).UTC(), Seconds: 1, Log: "out of memory"}
		primary.Down(true)
		shadow.Set(func(st *shimclient.State) {
			st.Phase, st.Lock, st.Takeover = shimclient.Active, &shimclient.Lock{Held: true}, &failover
		})
		w.pass(5 * time.Second)
		got = w.r.Pair(pair1)
		require.Equal(t, "shadow", got.Serves)
		want := api.Takeover{From: "primary", Cause: "exited", Reason: "signal: killed", Ended: failover.Ended, At: failover.At, Seconds: 1, Log: "out of memory"}
		require.Equal(t, want, got.LastFailover)
		require.Equal(t, failover.At, w.seen().Jobs[pair1].Takeover.At)

		shadow.Down(true)
		w.pass(5 * time.Second)
		require.Equal(t, got, w.r.Pair(pair1), "what cannot be asked is not known to have changed")

		shadow.Down(false)
		primary.Down(false)
		primary.Set(func(st *shimclient.State) {
			st.Phase, st.Since, st.Lock = shimclient.Standby, time.Now(), &shimclient.Lock{Position: 1}
		})
		w.pass(5 * time.Second)
		require.Empty(t, w.r.Pair(pair1).Degraded)
		require.Equal(t, primary.State().Since.UTC(), w.r.Pair(pair1).StandbySince, "it is another engine")
		missing(0, time.Time{})
		w.raft.depose()
		w.rest()
		require.Equal(t, api.Pair{}, w.r.Pair(pair1), "of a leader only")
	})
}

// A GPU of the pair that turns out to be sick soon after the failover may be why the engine ended.
func TestFailoverOnASickGPU(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		_, shadow := w.withPair()
		sicken := func(xid string) {
			w.nomad.set(func() {
				sick := node("n", 4)
				sick.GPUs[3].Healthy, sick.GPUs[3].Reason = xid == "", xid
				w.nomad.nodes = []state.Node{sick}
			})
			w.pass(4 * time.Second)
		}
		failover := func() {
			shadow.Set(func(st *shimclient.State) {
				st.Phase, st.Takeover = shimclient.Active, &shimclient.Takeover{From: "primary", Cause: "exited", At: time.Now().UTC()}
			})
			w.pass(4 * time.Second)
		}
		failover()
		require.Empty(t, w.r.Pair(pair1).LastFailover.GPU)
		sicken("XID 79: GPU has fallen off the bus")
		require.Regexp(t, `^GPU n-GPU3 of node \S+ is unhealthy: XID 79: GPU has fallen off the bus$`, w.r.Pair(pair1).LastFailover.GPU)
		sicken("")
		require.Contains(t, w.r.Pair(pair1).LastFailover.GPU, "XID 79", "it was so then")
		failover()
		require.Empty(t, w.r.Pair(pair1).LastFailover.GPU, "this is another failover")
		w.pass(2 * time.Minute)
		sicken("XID 94")
		require.Empty(t, w.r.Pair(pair1).LastFailover.GPU, "that is too late")
	})
}

// If an engine dies while it is put to sleep, the other one goes to sleep instead. Its shim reports whether the
// weights are lost.
func TestPairWhoseEngineDiesGoingToSleep(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		primary, shadow := w.withPair()
		primary.OnSleep(func() shimtest.Answer {
			w.shims.Put("primary:1", nil)
			shadow.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Active, &shimclient.Lock{Held: true} })
			return shimtest.Answer{Cut: true}
		})
		w.sleeping(pair1)
		w.pass(10 * time.Second)
		require.Equal(t, "warm", w.stage(pair1), "%+v", w.ended())
		require.Equal(t, []string{"sleep"}, shadow.Orders())
		require.False(t, w.seen().Jobs[pair1].WeightsLost)
		require.Empty(t, w.r.Pair(pair1).Degraded)

		shadow.Set(func(st *shimclient.State) { st.Parked, st.WeightsLost = true, true })
		w.pass(5 * time.Second)
		require.True(t, w.seen().Jobs[pair1].WeightsLost)
		require.Empty(t, w.r.Pair(pair1).Degraded, "it does not serve")
	})
}

// It is known when a replica that has no engine now last had one.
func TestWhenAReplicaLastHadAnEngine(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		require.Empty(t, w.seen().PassedAt)
		w.pass(time.Minute)
		w.consul.serve()
		w.rest()
		at := w.seen().PassedAt[m1]
		require.WithinDuration(t, time.Now(), at, time.Second)
		w.pass(time.Minute)
		w.consul.serve()
		w.rest()
		require.Equal(t, at, w.seen().PassedAt[m1])
		w.consul.serve(engine("1"))
		w.rest()
		require.Empty(t, w.seen().PassedAt)
	})
}
