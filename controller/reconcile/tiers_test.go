package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/testkit/shimtest"
)

const m1 = "m:v:1"

// testShim is a shim whose engine may have requests.
type testShim struct{ *shimtest.Shim }

// working gives the engine a request, which ends when the channel is closed.
func (s testShim) working() (ended chan struct{}) {
	ended = make(chan struct{})
	s.OnDrain(func() shimtest.Answer { <-ended; return shimtest.Answer{} })
	return ended
}

// withShim puts a shim before replica m:v:<id>, and its port into the allocation.
func (w *world) withShim(id string) testShim {
	s := testShim{shimtest.New("m:v:"+id, "primary", false)}
	address := "n:" + id
	w.shims.Put(address, s.Shim)
	a := allocation("n")
	a.Ports = map[string]string{"shim": address}
	w.nomad.allocate("m:v:"+id, a)
	w.rest()
	return s
}

// tier changes where a replica is on its way between the tiers.
func (w *world) tier(name string, event state.Event, goal state.Goal) {
	w.t.Helper()
	r := w.replica(name)
	require.NotNil(w.t, r)
	w.raft.must(&state.Move{Replica: name, ModifyIndex: r.ModifyIndex, Event: event, Goal: goal, Time: time.Now()})
}

// sleeping drains a replica and sends it to sleep.
func (w *world) sleeping(name string) {
	w.t.Helper()
	w.tier(name, state.EventDrain, state.GoalWarm)
	w.tier(name, state.EventSleep, "")
}

// warm has a replica that is WARM, and its shim.
func (w *world) warm() testShim {
	w.t.Helper()
	w.running("1")
	s := w.withShim("1")
	w.sleeping(m1)
	w.rest()
	require.Equal(w.t, "warm", w.stage(m1))
	return s
}

// samples has the fake tell the memory of a GPU of n.
func samples(gpu int, used int64, at func() time.Time) func(string) (map[string]nomad.Sample, error) {
	return func(string) (map[string]nomad.Sample, error) {
		return map[string]nomad.Sample{fmt.Sprintf("n-GPU%d", gpu): {Used: used, At: at()}}, nil
	}
}

func TestSleepAndWake(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		s := w.withShim("1")
		w.sleeping(m1)
		w.rest()
		require.Equal(t, "warm", w.stage(m1))
		require.Equal(t, []planner.Outcome{{Kind: planner.Sleep, Replica: m1, Class: planner.Done}}, w.ended())
		require.Equal(t, []string{"sleep"}, s.Orders())
		registers, stops, _ := w.nomad.did()
		writes := w.raft.writes()
		w.pass(10 * time.Minute)
		r, st, _ := w.nomad.did()
		require.Equal(t, []int{registers, stops, writes}, []int{r, st, w.raft.writes()}, "a WARM replica is left alone")

		w.tier(m1, state.EventWake, "")
		before := time.Now()
		w.rest()
		require.Equal(t, "serving", w.stage(m1))
		require.Equal(t, []string{"sleep", "wake n-GPU0"}, s.Orders())
		require.Less(t, w.replica(m1).Since.Sub(before), 10*time.Millisecond, "at once")
	})
}

// A plan that wakes a replica has its action started in the same look, without waiting for
// anybody to tell of the commit.
func TestWakeBeginsWithItsPlan(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) { c.Settle = time.Minute }, func(t *testing.T, w *world) {
		w.pass(5 * time.Minute)
		w.running1(t)
		s := w.withShim("1")
		w.pass(3 * time.Minute)
		w.sleeping(m1)
		w.pass(3 * time.Minute)
		require.Equal(t, "warm", w.stage(m1))
		var planned, woken time.Time
		s.OnWake(func() shimtest.Answer { woken = time.Now(); return shimtest.Answer{} })
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			r := v.Replica(nil, m1)
			if r.Status != state.StatusWarm {
				return nil, time.Time{}
			}
			planned = o.Now
			return &state.Plan{Move: []state.Move{{Replica: m1, ModifyIndex: r.ModifyIndex, Event: state.EventWake}}}, time.Time{}
		})
		w.nomad.set(func() {})
		w.pass(3 * time.Minute)
		require.False(t, planned.IsZero())
		require.Equal(t, planned, woken)
	})
}

// running1 is running for worlds that look seldom.
func (w *world) running1(t *testing.T) {
	w.place("1")
	w.pass(3 * time.Minute)
	w.nomad.allocate(m1, allocation("n"))
	w.consul.serve(engine("1"))
	w.pass(3 * time.Minute)
	require.Equal(t, "serving", w.stage(m1))
}

func TestOutcomesOfASleep(t *testing.T) {
	now := time.Now
	for name, tc := range map[string]struct {
		set    func(w *world, s *shimtest.Shim)
		class  planner.OutcomeClass
		error  string
		held   map[string]int64
		orders []string
	}{
		"done": {func(*world, *shimtest.Shim) {}, planner.Done, "", nil, []string{"sleep"}},
		"cannot sleep": {func(_ *world, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.CanSleep = false })
		}, planner.CannotSleep, "no sleep mode", nil, nil},
		"no shim's port": {func(w *world, _ *shimtest.Shim) { w.nomad.allocate(m1, allocation("n")) }, planner.CannotSleep, "the job has no port for a shim", nil, nil},
		"not drained": {func(_ *world, s *shimtest.Shim) {
			s.OnSleep(func() shimtest.Answer {
				return shimtest.Answer{Code: 504, Error: "not drained within 1s: 1 requests run", State: shimclient.Draining}
			})
		}, planner.NotDrained, "1 requests run", nil, []string{"sleep", "wake"}},
		"busy again": {func(_ *world, s *shimtest.Shim) {
			s.OnSleep(func() shimtest.Answer {
				return shimtest.Answer{Code: 409, Error: "the engine is busy", State: shimclient.Draining}
			})
		}, planner.NotDrained, "is busy", nil, []string{"sleep", "wake"}},
		"not drained, and cannot be called off": {func(_ *world, s *shimtest.Shim) {
			s.OnSleep(func() shimtest.Answer {
				return shimtest.Answer{Code: 504, Error: "not drained", State: shimclient.Draining}
			})
			s.OnWake(func() shimtest.Answer { return shimtest.Answer{Code: 500, Error: "the drain could not be called off"} })
		}, planner.Failed, "could not be called off", nil, []string{"sleep", "wake"}},
		"failed": {func(_ *world, s *shimtest.Shim) {
			s.OnSleep(func() shimtest.Answer {
				return shimtest.Answer{Code: 500, Error: "put the engine to sleep: CUDA error", State: shimclient.Dead}
			})
		}, planner.Failed, "CUDA error", nil, []string{"sleep"}},
		"of another controller": {func(_ *world, s *shimtest.Shim) {
			s.Admit(func(string) bool { return false })
		}, planner.CannotSleep, "not authorized: wrong secret", nil, nil},
		"memory is held":     {func(w *world, _ *shimtest.Shim) { w.nomad.set(func() { w.nomad.memory = samples(0, 6, now) }) }, planner.MemoryHeld, "more than half of its memory is still in use: 6 bytes of GPU n-GPU0", map[string]int64{"n-GPU0": 6}, []string{"sleep"}},
		"memory is kept":     {func(w *world, _ *shimtest.Shim) { w.nomad.set(func() { w.nomad.memory = samples(0, 5, now) }) }, planner.Done, "", map[string]int64{"n-GPU0": 5}, []string{"sleep"}},
		"memory is not told": {func(w *world, _ *shimtest.Shim) { w.nomad.set(func() { w.nomad.memory = samples(0, -1, now) }) }, planner.MemoryUnknown, "does not report its memory in use", nil, []string{"sleep"}},
		"samples of old": {func(w *world, _ *shimtest.Shim) {
			before := time.Now()
			w.nomad.set(func() { w.nomad.memory = samples(0, 0, func() time.Time { return before }) })
		}, planner.Unreachable, "no newer sample of GPU n-GPU0", nil, nil},
		"samples of another GPU": {func(w *world, _ *shimtest.Shim) { w.nomad.set(func() { w.nomad.memory = samples(1, 0, now) }) }, planner.Unreachable, "no newer sample of GPU n-GPU0", nil, nil},
		"no samples": {func(w *world, _ *shimtest.Shim) {
			w.nomad.set(func() {
				w.nomad.memory = func(string) (map[string]nomad.Sample, error) { return nil, errDown }
			})
		}, planner.Unreachable, "connection refused", nil, nil},
		"nobody there":     {func(w *world, _ *shimtest.Shim) { w.shims.Put("n:1", nil) }, planner.Unreachable, "connection refused", nil, nil},
		"another's shim":   {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Replica = "m:v:2" }) }, planner.Unreachable, "belongs to replica m:v:2", nil, nil},
		"no shim at all":   {func(_ *world, s *shimtest.Shim) { s.Garbage(true) }, planner.Unreachable, "not the response of a shim", nil, nil},
		"no allocation":    {func(w *world, _ *shimtest.Shim) { w.nomad.allocate(m1) }, planner.Unreachable, "no allocation", nil, nil},
		"it is on its way": {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Init }) }, planner.Unreachable, "the primary is init", nil, nil},
		"it waits for the lock": {func(_ *world, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Standby, &shimclient.Lock{} })
		}, planner.Unreachable, "waits for the lock", nil, nil},
		"it is asleep already": {func(_ *world, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Phase, st.Since, st.Parked = shimclient.Standby, time.Now(), true })
		}, planner.Done, "", nil, []string{"sleep"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.running("1")
				s := w.withShim("1")
				w.rest()
				tc.set(w, s.Shim)
				w.rest()
				w.sleeping(m1)
				w.pass(planner.DefaultConfig().MemoryTimeout + time.Second)
				ended := w.ended()
				require.NotEmpty(t, ended)
				require.Equal(t, tc.class, ended[0].Class, ended[0].Error)
				require.Contains(t, ended[0].Error, tc.error)
				require.Equal(t, tc.held, ended[0].Kept)
				if tc.orders != nil || tc.class == planner.CannotSleep {
					require.Equal(t, tc.orders, s.Orders())
				}
				if tc.class != planner.Unreachable {
					require.Len(t, ended, 1)
					return
				}
				require.Equal(t, "sleeping", w.stage(m1), "it is tried again")
				require.NotEmpty(t, w.r.Status().Waiting)
				// As soon as what was wrong is mended.
				w.shims.Put("n:1", s.Shim)
				s.Garbage(false)
				s.Admit(nil)
				s.Set(func(st *shimclient.State) {
					st.Replica, st.Lock = m1, nil
					if st.Phase == shimclient.Init || !st.Parked {
						st.Phase = shimclient.Active
					}
				})
				w.nomad.set(func() { w.nomad.memory = nil })
				a := allocation("n")
				a.Ports = map[string]string{"shim": "n:1"}
				w.nomad.allocate(m1, a)
				w.pass(planner.DefaultConfig().MemoryTimeout + 5*time.Second)
				require.Equal(t, "warm", w.stage(m1))
				require.Empty(t, w.r.Status().Waiting)
			})
		})
	}
}

// pairOf gives the replica 1 a shadow, nil for one that is gone.
func pairOf(w *world, shadow *shimtest.Shim) {
	w.shims.Put("n:2", shadow)
	a := allocation("n")
	a.Ports = map[string]string{"primary_shim": "n:1", "shadow_shim": "n:2"}
	w.nomad.allocate(m1, a)
}

func TestOutcomesOfADrain(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(w *world, s *shimtest.Shim)
		class  planner.OutcomeClass
		error  string
		orders int
	}{
		"idle":          {func(*world, *shimtest.Shim) {}, planner.Done, "", 1},
		"drains":        {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Draining }) }, planner.Done, "", 1},
		"loads":         {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Init }) }, planner.Done, "", 0},
		"sleeps":        {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Standby }) }, planner.Done, "", 0},
		"wakes":         {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Waking }) }, planner.Unreachable, "is waking", 0},
		"no lock":       {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Lock = &shimclient.Lock{} }) }, planner.Unreachable, "waits for the lock", 0},
		"no answer":     {func(_ *world, s *shimtest.Shim) { s.Down(true) }, planner.Unreachable, "connection reset", 0},
		"gone":          {func(w *world, _ *shimtest.Shim) { w.shims.Put("n:1", nil) }, planner.Done, "", 0},
		"no allocation": {func(w *world, _ *shimtest.Shim) { w.nomad.allocate(m1) }, planner.Unreachable, "no allocation", 0},
		"no port":       {func(w *world, _ *shimtest.Shim) { w.nomad.allocate(m1, allocation("n")) }, planner.Failed, "stopped at the drain timeout", 0},
		"of another controller": {func(_ *world, s *shimtest.Shim) {
			s.Admit(func(string) bool { return false })
		}, planner.Done, "", 0},
		"a pair that loads and is gone": {func(w *world, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Init, &shimclient.Lock{} })
			pairOf(w, nil)
		}, planner.Done, "", 0},
		"a pair of which one does not answer": {func(w *world, s *shimtest.Shim) {
			s.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Init, &shimclient.Lock{} })
			shadow := shimtest.New(m1, "shadow", false)
			shadow.Down(true)
			pairOf(w, shadow)
		}, planner.Unreachable, "connection reset", 0},
		"not drained": {func(_ *world, s *shimtest.Shim) {
			s.OnDrain(func() shimtest.Answer {
				return shimtest.Answer{Code: 504, Error: "not drained within 1s: 1 requests running", State: shimclient.Draining}
			})
		}, planner.Unreachable, "1 requests running", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(c *reconcile.Config) { c.Retry = time.Second }, func(t *testing.T, w *world) {
				w.running("1")
				s := w.withShim("1")
				tc.set(w, s.Shim)
				w.rest()
				w.tier(m1, state.EventDrain, state.GoalGone)
				w.rest()
				ended := w.ended()
				require.NotEmpty(t, ended)
				require.Equal(t, tc.class, ended[0].Class, ended[0].Error)
				require.Contains(t, ended[0].Error, tc.error)
				require.Len(t, s.Orders(), tc.orders)
				if tc.class != planner.Done {
					require.Equal(t, "draining", w.stage(m1), "it is tried again")
					w.withShim("1") // of an idle engine
					w.pass(5 * time.Second)
				}
				require.Equal(t, "stopping", w.stage(m1))
			})
		})
	}
}

// A drain that the planner gives up ends, and the job is stopped.
func TestADrainThatIsGivenUp(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		ended := w.withShim("1").working()
		defer close(ended)
		w.tier(m1, state.EventDrain, state.GoalGone)
		w.pass(time.Minute)
		require.Equal(t, "draining", w.stage(m1))
		w.tier(m1, state.EventStop, state.GoalGone)
		w.rest()
		require.True(t, w.nomad.jobs[m1].Stopped)
	})
}

func TestOutcomesOfAWake(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(w *world, s *shimtest.Shim)
		class  planner.OutcomeClass
		error  string
		orders int
	}{
		"done":   {func(*world, *shimtest.Shim) {}, planner.Done, "", 1},
		"serves": {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Active }) }, planner.Done, "", 1},
		"drains": {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Draining }) }, planner.Done, "", 1},
		"failed": {func(_ *world, s *shimtest.Shim) {
			s.OnWake(func() shimtest.Answer { return shimtest.Answer{Code: 500, Error: "wake failed"} })
		}, planner.Failed, "wake failed", 1},
		"cannot move": {func(_ *world, s *shimtest.Shim) {
			s.OnWake(func() shimtest.Answer { return shimtest.Answer{Code: 409, Error: "the engine cannot move"} })
		}, planner.Failed, "cannot move", 1},
		"loads":        {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Phase = shimclient.Init }) }, planner.Unreachable, "is init", 0},
		"no lock":      {func(_ *world, s *shimtest.Shim) { s.Set(func(st *shimclient.State) { st.Lock = &shimclient.Lock{} }) }, planner.Unreachable, "waits for the lock", 0},
		"nobody there": {func(_ *world, s *shimtest.Shim) { s.Down(true) }, planner.Unreachable, "connection reset", 0},
		"no answer": {func(_ *world, s *shimtest.Shim) {
			s.OnWake(func() shimtest.Answer { s.OnWake(nil); return shimtest.Answer{Cut: true} })
		}, planner.Unreachable, "connection reset", -1},
		"no port": {func(w *world, _ *shimtest.Shim) { w.nomad.allocate(m1, allocation("n")) }, planner.Failed, "no port", 0},
		"of another controller": {func(_ *world, s *shimtest.Shim) {
			s.Admit(func(string) bool { return false })
		}, planner.Failed, "not authorized", 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				s := w.warm()
				tc.set(w, s.Shim)
				w.rest()
				w.tier(m1, state.EventWake, "")
				w.rest()
				ended := w.ended()[1:] // the first was the sleep
				require.NotEmpty(t, ended)
				require.Equal(t, tc.class, ended[0].Class, ended[0].Error)
				require.Contains(t, ended[0].Error, tc.error)
				if tc.orders >= 0 {
					require.Len(t, s.Orders()[1:], tc.orders)
				}
				switch tc.class {
				case planner.Done:
					require.Equal(t, "serving", w.stage(m1))
				case planner.Failed:
					require.NotEqual(t, "waking", w.stage(m1))
				default:
					s.Down(false)
					s.Set(func(st *shimclient.State) {
						st.Lock = nil
						if st.Phase == shimclient.Init {
							st.Phase = shimclient.Standby
						}
					})
					w.pass(reconcile.DefaultConfig().ShimRetryMax)
					require.Equal(t, "serving", w.stage(m1), "tried again")
				}
			})
		})
	}
}

// Of a pair, the engine that has the lock is meant, whichever that is.
func TestTheHolderOfAPair(t *testing.T) {
	for _, holder := range []string{"primary", "shadow"} {
		t.Run(holder, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.running("1")
				a := allocation("n")
				a.Ports = map[string]string{}
				pair := map[string]*shimtest.Shim{}
				for _, role := range []string{"primary", "shadow"} {
					s := shimtest.New(m1, role, true)
					if role != holder {
						s.Set(func(st *shimclient.State) { st.Phase, st.Lock = shimclient.Standby, &shimclient.Lock{} })
					}
					pair[role] = s
					w.shims.Put(role+":1", s)
					a.Ports[role+"_shim"] = role + ":1"
				}
				w.nomad.allocate(m1, a)
				w.rest()
				w.sleeping(m1)
				w.rest()
				require.Equal(t, "warm", w.stage(m1), "%+v", w.ended())
				w.tier(m1, state.EventWake, "")
				w.rest()
				require.Equal(t, "serving", w.stage(m1))
				for role, s := range pair {
					want := []string{"sleep", "wake n-GPU0"}
					if role != holder {
						want = nil
					}
					require.Equal(t, want, s.Orders(), role)
				}
			})
		})
	}
}

// A shadow that hangs keeps nobody waiting.
func TestAShimThatHangsDelaysNoWake(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		a := allocation("n")
		a.Ports = map[string]string{"primary_shim": "primary:1", "shadow_shim": "shadow:1"}
		s := shimtest.New(m1, "primary", true)
		w.shims.Put("primary:1", s)
		hung := shimtest.New(m1, "shadow", true)
		hung.Hang(true)
		defer hung.Hang(false)
		w.shims.Put("shadow:1", hung)
		w.nomad.allocate(m1, a)
		w.rest()
		w.sleeping(m1)
		w.rest()
		w.tier(m1, state.EventWake, "")
		before := time.Now()
		w.rest()
		require.Equal(t, "serving", w.stage(m1))
		require.Less(t, w.replica(m1).Since.Sub(before), 10*time.Millisecond)
	})
}

// A server that leads no more tells no shim anything.
func TestNoOrderAfterLeadership(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		s := w.warm()
		w.raft.set(func() { w.raft.onVerify = func() error { return errUnknown } })
		w.tier(m1, state.EventWake, "")
		w.rest()
		require.Equal(t, []string{"sleep"}, s.Orders())
		w.raft.set(func() { w.raft.onVerify = nil })
		w.pass(reconcile.DefaultConfig().ShimRetryMax)
		require.Equal(t, "serving", w.stage(m1))
	})
}

// A replica that is to be stopped is not kept by a sleep that hangs.
func TestASleepThatIsNotWantedAnyMoreIsGivenUp(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		s := w.withShim("1")
		goOn := make(chan struct{})
		s.OnSleep(func() shimtest.Answer { <-goOn; return shimtest.Answer{} })
		w.sleeping(m1)
		w.rest()
		require.Equal(t, 1, w.r.Status().Running)
		w.tier(m1, state.EventStop, state.GoalCold)
		w.rest()
		require.Zero(t, w.r.Status().Running)
		_, stops, _ := w.nomad.did()
		require.Equal(t, 1, stops)
		require.Empty(t, w.ended())
		close(goOn)
	})
}

// What is being done at a shim says nothing of the job, and its absence is concluded from.
func TestASleepHidesNothing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		s := w.withShim("1")
		goOn := make(chan struct{})
		defer close(goOn)
		s.OnSleep(func() shimtest.Answer { <-goOn; return shimtest.Answer{} })
		w.sleeping(m1)
		w.rest()
		require.Equal(t, 1, w.r.Status().Running)
		require.Empty(t, w.seen().InFlight)
	})
}

// A registration that was decided before does not end the process of a WARM replica.
func TestAWarmReplicaIsNotRegistered(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) {
		c.Actions = func(v *state.View, _ planner.Observation, _ planner.Config) []planner.Action {
			var out []planner.Action
			for _, r := range v.Replicas(nil) {
				kind := planner.Register
				if r.Status == state.StatusSleeping {
					kind = planner.Sleep
				}
				out = append(out, planner.Action{Kind: kind, Replica: r.Name.String(), Name: r.Name})
			}
			return out
		}
	}, func(t *testing.T, w *world) {
		w.running("1")
		w.withShim("1")
		w.sleeping(m1)
		w.rest()
		require.Equal(t, "warm", w.stage(m1))
		registers, _, _ := w.nomad.did()
		w.nomad.edit(m1, func(*nomad.Job) {})
		w.pass(time.Minute)
		after, _, _ := w.nomad.did()
		require.Equal(t, registers, after)
	})
}

func TestPreview(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		writes := w.raft.writes()
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			require.Contains(t, o.Jobs, m1, "with what is observed")
			if r := v.Replica(nil, m1); v.Switch(nil, "x") == "y" && r.Status == state.StatusServing {
				return &state.Plan{Move: []state.Move{{Replica: m1, ModifyIndex: r.ModifyIndex, Event: state.EventStop, Goal: state.GoalGone}}}, o.Now.Add(time.Hour)
			}
			return nil, time.Time{}
		})
		change := func(s *state.Store) error {
			data, err := state.Encode(&state.SetSwitch{Name: "x", Value: "y"})
			require.NoError(t, err)
			if res := s.Apply(s.View().Index()+1, data); res.Err != nil {
				return res.Err
			}
			return nil
		}
		p, err := w.r.Preview(t.Context(), change)
		require.NoError(t, err)
		require.Len(t, p.Steps, 1)
		require.Equal(t, state.Status("stopping"), p.Store.View().Replica(nil, m1).Status)
		require.Contains(t, p.Assumptions, planner.Assumption{Kind: planner.AssumeStop, Takes: time.Second}, "its job is stopped")
		require.Empty(t, p.Unfinished)
		w.rest()
		require.Equal(t, writes, w.raft.writes(), "nothing is done")
		require.Equal(t, "serving", w.stage(m1))

		p, err = w.r.Preview(t.Context(), func(*state.Store) error { return nil })
		require.NoError(t, err)
		require.Empty(t, p.Steps)
		ended, end := context.WithCancel(t.Context())
		end()
		p, err = w.r.Preview(ended, change)
		require.NoError(t, err)
		require.Equal(t, "there was no time for more steps", p.Unfinished)
		_, err = w.r.Preview(t.Context(), func(*state.Store) error { return context.DeadlineExceeded })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.raft.depose()
		w.rest()
		_, err = w.r.Preview(t.Context(), change)
		require.ErrorContains(t, err, "leader")
	})
}

// A drain may take for longer than this server leads: the next leader may have put the
// engine to sleep meanwhile, and it is not to be woken behind the ledger's back.
func TestNoDrainIsCalledOffAfterLeadership(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		s := w.withShim("1")
		s.OnSleep(func() shimtest.Answer {
			w.raft.set(func() { w.raft.onVerify = func() error { return errUnknown } })
			s.Set(func(st *shimclient.State) { st.Phase, st.Since, st.Parked = shimclient.Standby, time.Now(), true }) // by the other one
			return shimtest.Answer{Code: 504, Error: "not drained within 1s: 1 requests run", State: shimclient.Draining}
		})
		w.sleeping(m1)
		w.pass(10 * time.Second)
		require.Equal(t, []string{"sleep"}, s.Orders())
		require.Equal(t, "sleeping", w.stage(m1))
	})
}

// A shim may be silent for longer than this server leads.
func TestNoWakeOnOldLeadership(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		s := w.warm()
		s.Hang(true)
		w.tier(m1, state.EventWake, "")
		w.pass(time.Second)
		w.raft.set(func() { w.raft.onVerify = func() error { return errUnknown } })
		s.Hang(false)
		w.pass(10 * time.Second)
		require.Equal(t, []string{"sleep"}, s.Orders())
		w.raft.set(func() { w.raft.onVerify = nil })
		w.pass(reconcile.DefaultConfig().ShimRetryMax)
		require.Equal(t, "serving", w.stage(m1))
	})
}

// What became of a sleep is not taken for what became of a later one.
func TestAnOutcomeIsOfItsOwnSleep(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		s := w.withShim("1")
		w.nomad.set(func() {
			w.nomad.memory = func(string) (map[string]nomad.Sample, error) {
				w.nomad.set(func() { w.nomad.memory = nil })
				time.Sleep(time.Second)
				w.tier(m1, state.EventServing, "")
				w.sleeping(m1)
				return nil, errDown
			}
		})
		w.sleeping(m1)
		w.pass(10 * time.Second)
		require.Equal(t, "warm", w.stage(m1))
		require.Equal(t, []string{"sleep", "sleep"}, s.Orders())
	})
}

// TestAReplicaThatLoadsGoesWARM: it is put to sleep once both of its engines stand by, and is woken like any other.
func TestAReplicaThatLoadsGoesWARM(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) { c.Actions, c.After = planner.Actions, planner.After }, func(t *testing.T, w *world) {
		p := placeOf("1", 0)
		p.Placement.LoadMemory = 4
		w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{p}})
		w.rest()
		require.Equal(t, "starting", w.stage(m1))
		require.Equal(t, int64(4), w.nomad.requests[m1].Placement.LoadMemory, "its job says so")
		pair := map[string]*shimtest.Shim{}
		for _, role := range []string{"primary", "shadow"} {
			s := shimtest.New(m1, role, true)
			s.Set(func(st *shimclient.State) { st.Phase = shimclient.Init })
			pair[role] = s
		}
		pair["shadow"].Set(func(st *shimclient.State) { st.Lock = &shimclient.Lock{} })
		w.shims.Put("n:1", pair["primary"])
		pairOf(w, pair["shadow"])
		w.pass(time.Minute)
		require.Equal(t, "starting", w.stage(m1), "both load")
		pair["primary"].Set(func(st *shimclient.State) { st.Phase = shimclient.Standby })
		w.pass(time.Minute)
		require.Equal(t, "starting", w.stage(m1), "one loads")
		require.Empty(t, pair["primary"].Orders())
		require.Empty(t, w.r.Status().Waiting, "nothing is wrong")
		pair["shadow"].Garbage(true)
		w.pass(time.Minute)
		require.Len(t, w.r.Status().Waiting, 1)
		require.Contains(t, w.r.Status().Waiting[0].Error, "cannot sleep now: the shadow: ")
		require.Equal(t, "starting", w.stage(m1))
		pair["shadow"].Garbage(false)
		w.pass(time.Minute)
		require.Empty(t, w.r.Status().Waiting, "nothing is wrong any more")
		pair["shadow"].Set(func(st *shimclient.State) { st.Phase = shimclient.Standby })
		w.pass(time.Minute)
		require.Equal(t, "warm", w.stage(m1))
		require.Zero(t, w.replica(m1).Placement.LoadMemory)
		registers, _, _ := w.nomad.did()
		w.tier(m1, state.EventWake, "")
		w.rest()
		require.Equal(t, "serving", w.stage(m1))
		require.Equal(t, []string{"sleep", "wake n-GPU0"}, pair["primary"].Orders())
		require.Empty(t, pair["shadow"].Orders())
		after, _, _ := w.nomad.did()
		require.Equal(t, registers, after, "its job stays as it is")
	})
}
