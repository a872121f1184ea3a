package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/testkit/shimtest"
)

// A leader that goes leaves what the next one does again, to the same end.
func TestLeaderChangesInAChangeOfTier(t *testing.T) {
	change := func(w *world) {
		w.raft.depose()
		w.rest()
		w.raft.elect()
		w.pass(time.Second)
	}
	t.Run("in the sleep", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			s := w.withShim("1")
			goOn := make(chan struct{})
			s.OnSleep(func() shimtest.Answer { s.OnSleep(nil); <-goOn; return shimtest.Answer{} })
			w.sleeping(m1)
			w.rest()
			w.raft.depose()
			w.rest()
			require.Equal(t, "sleeping", w.stage(m1))
			close(goOn) // a sleep that has begun is finished by the shim
			w.rest()
			w.raft.elect()
			w.pass(time.Second)
			require.Equal(t, "warm", w.stage(m1))
			require.Equal(t, []string{"sleep", "sleep"}, s.Orders())
		})
	})
	t.Run("before its order arrives", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			s := w.withShim("1")
			s.OnSleep(func() shimtest.Answer {
				s.OnSleep(nil)
				w.raft.depose()
				// The next leader has put the engine to sleep and has woken it.
				s.Set(func(st *shimclient.State) { st.Since = st.Since.Add(time.Second) })
				return shimtest.Answer{}
			})
			w.sleeping(m1)
			w.rest()
			require.Equal(t, []string{"sleep"}, s.Orders())
			require.Equal(t, shimclient.Active, s.State().Phase, "the old leader's order came too late")
			require.False(t, s.State().Parked)
		})
	})
	t.Run("in the verification", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			w.withShim("1")
			w.nomad.set(func() { w.nomad.memory = samples(0, 10, time.Now) })
			w.sleeping(m1)
			w.pass(5 * time.Second)
			change(w)
			require.Equal(t, "sleeping", w.stage(m1), "a new leader looks for itself")
			w.nomad.set(func() { w.nomad.memory = nil })
			w.pass(time.Second)
			require.Equal(t, "warm", w.stage(m1))
			require.Len(t, w.ended(), 1)
		})
	})
	t.Run("before the outcome is committed", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.running("1")
			w.withShim("1")
			w.raft.set(func() {
				w.raft.onApply = func(c state.Command) (bool, error) {
					_, plan := c.(*state.Plan)
					return !plan, errUnknownIf(plan)
				}
			})
			w.sleeping(m1)
			w.rest()
			w.raft.set(func() { w.raft.onApply = nil })
			change(w)
			require.Equal(t, "warm", w.stage(m1))
		})
	})
	t.Run("in the wake", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			s := w.warm()
			goOn := make(chan struct{})
			s.OnWake(func() shimtest.Answer { s.OnWake(nil); <-goOn; return shimtest.Answer{} })
			w.tier(m1, state.EventWake, "")
			w.rest()
			w.raft.depose()
			close(goOn)
			w.rest()
			require.Equal(t, "waking", w.stage(m1))
			w.raft.elect()
			w.rest()
			require.Equal(t, "serving", w.stage(m1))
		})
	})
}
