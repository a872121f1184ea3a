package reconcile_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/reconcile"
	"remuda/controller/state"
)

func TestUnplaceable(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		cordon := func(on bool) {
			for _, g := range w.node("n").GPUs {
				w.raft.must(&state.Cordon{Node: "n", GPU: g.UUID, On: on})
			}
		}
		writes := w.raft.writes()
		require.Empty(t, w.r.Unplaceable("m"))
		cordon(true)
		w.pass(time.Second)
		require.Empty(t, w.r.Unplaceable("m"), "it is asked often, and looks seldom")
		w.pass(time.Second)
		require.Contains(t, w.r.Unplaceable("m")["v"], "name-n: 4 GPUs out of use (cordoned)")
		require.Empty(t, w.r.Unplaceable("nobody"))
		cordon(false)
		w.pass(2 * time.Second)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got := w.r.Unplaceable("m"); len(got) > 0 {
					t.Errorf("there is room again: %v", got)
				}
			})
		}
		wg.Wait()
		require.Equal(t, writes+8, w.raft.writes(), "it is only looked")

		cordon(true)
		w.pass(2 * time.Second)
		require.NotEmpty(t, w.r.Unplaceable("m"))
		w.raft.depose()
		w.rest()
		require.Nil(t, w.r.Unplaceable("m"), "who does not lead hears nobody")
		w.raft.elect()
		w.rest()
		require.NotEmpty(t, w.r.Unplaceable("m"))
	})
}

// TestUnplaceableDoesNotWaitForALongProbe: while one caller probes, others get the last answer.
func TestUnplaceableDoesNotWaitForALongProbe(t *testing.T) {
	var hold atomic.Bool
	var begun, end chan struct{} // of the bubble
	inWorld(t, func(c *reconcile.Config) {
		c.Now = func() time.Time {
			if hold.CompareAndSwap(true, false) {
				close(begun)
				<-end
			}
			return time.Now()
		}
	}, func(t *testing.T, w *world) {
		for _, g := range w.node("n").GPUs {
			w.raft.must(&state.Cordon{Node: "n", GPU: g.UUID, On: true})
		}
		w.rest()
		require.NotEmpty(t, w.r.Unplaceable("m"))
		begun, end = make(chan struct{}), make(chan struct{})
		hold.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() { w.r.Unplaceable("m") })
		<-begun
		asked := time.Now()
		require.NotEmpty(t, w.r.Unplaceable("m"))
		require.Less(t, time.Since(asked), time.Second)
		close(end)
		wg.Wait()
	})
}

// TestUnplaceableByNomad has Nomad's own word, as the planner has it.
func TestUnplaceableByNomad(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.reasons["m:v:1"] = "not enough memory" })
		w.place("1")
		w.pass(reconcile.DefaultConfig().Planner.PlaceTimeout)
		require.Contains(t, w.r.Unplaceable("m")["v"], "Nomad cannot place the job: not enough memory")
		w.nomad.allocate("m:v:1", allocation("n"))
		w.pass(2 * time.Second)
		require.Empty(t, w.r.Unplaceable("m"))
	})
}
