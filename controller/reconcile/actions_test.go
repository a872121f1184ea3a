package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/raft"
	"remuda/controller/reconcile"
	"remuda/controller/state"
	"remuda/internal/replica"
)

type (
	ctxType     = context.Context
	requestType = nomad.Request
	jobType     = nomad.Job
)

var errUnknown = fmt.Errorf("%w: a test", raft.ErrUnknownOutcome)

func TestNomadOutage(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.nomad.set(func() { w.nomad.down = true })
		w.rest()
		require.False(t, w.seen().Pools[""].JobsKnown)
		require.Zero(t, w.seen().Pools[""].JobsSince, "that is of outages that are over")
		require.NotEmpty(t, w.r.Status().Jobs.Error)
		writes := w.raft.writes()
		w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{placeOf("2", 1)}})
		w.pass(time.Minute)
		require.Equal(t, writes+1, w.raft.writes(), "nothing is concluded")
		require.Equal(t, "placed", w.stage("m:v:2"))
		require.Empty(t, w.replica("m:v:2").LastError, "it is not the replica's fault")
		w.nomad.set(func() { w.nomad.down = false })
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:2"), "it goes on at once")
		require.True(t, w.seen().Pools[""].JobsKnown)
		require.WithinDuration(t, time.Now(), w.seen().Pools[""].JobsSince, time.Second)
	})
}

func TestActionsBackOffAndResumeWhenNomadIsBack(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.onRegister = func(string) error { return errDown } }) // and the watch has not noticed
		w.place("1")
		w.pass(10 * time.Minute)
		tries, _, _ := w.nomad.did()
		require.Greater(t, tries, 15)
		require.Less(t, tries, 80, "less and less often")
		s := w.r.Status()
		require.Len(t, s.Waiting, 1)
		require.Equal(t, "m:v:1", s.Waiting[0].Replica)
		require.Equal(t, tries, s.Waiting[0].Failures)
		require.Contains(t, s.Waiting[0].Error, "connection refused")

		w.nomad.set(func() { w.nomad.down = true })
		w.rest()
		w.nomad.set(func() { w.nomad.down, w.nomad.onRegister = false, nil })
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:1"), "without the rest of the wait")
		require.Empty(t, w.r.Status().Waiting)
	})
}

func TestNoActionAfterLeadership(t *testing.T) {
	for name, lose := range map[string]func(w *world){
		"the context ended":          func(w *world) { w.raft.depose() },
		"a majority says so":         func(w *world) { w.raft.onVerify = func() error { return &raft.NotLeaderError{} } },
		"nobody can be asked":        func(w *world) { w.raft.onVerify = func() error { return errUnknown } },
		"the replica is another one": func(w *world) { w.raft.must(moveOf(w, "m:v:1", state.EventStop)) },
		"the replica is gone meanwhile": func(w *world) {
			w.raft.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: w.replica("m:v:1").ModifyIndex}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				rendering, goOn := make(chan struct{}), make(chan struct{})
				w.nomad.set(func() {
					w.nomad.onRender = func(context.Context, nomad.Request) error {
						w.nomad.set(func() { w.nomad.onRender = nil })
						close(rendering)
						<-goOn
						return nil
					}
				})
				w.place("1")
				<-rendering
				lose(w)
				close(goOn)
				w.rest()
				registers, _, _ := w.nomad.did()
				require.Zero(t, registers)
			})
		})
	}
}

func moveOf(w *world, name string, event state.Event) *state.Move {
	r := w.replica(name)
	c := &state.Move{Replica: name, ModifyIndex: r.ModifyIndex, Event: event, Time: time.Now()}
	if event == state.EventDrain || event == state.EventStop {
		c.Goal = state.GoalGone
	}
	return c
}

func TestRefusedJobFailsItsReplicaOnce(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() {
			w.nomad.onRender = func(context.Context, nomad.Request) error { return nomad.JobFaults{"task \"primary\": no driver"} }
		})
		w.place("1")
		w.rest()
		r := w.replica("m:v:1")
		require.Equal(t, state.StatusFailed, r.Status)
		require.Equal(t, 1, r.Failures)
		require.Contains(t, r.LastError, "no driver")
		require.WithinDuration(t, time.Now().Add(planner.DefaultConfig().Backoff), r.RetryAt, time.Second)
		d := w.raft.store.View().Decisions(nil, "m", 1)
		require.Len(t, d, 1)
		require.Equal(t, planner.KindLoadFailed, d[0].Kind)
		require.Contains(t, d[0].Reason, "no driver")
		writes := w.raft.writes()
		w.pass(10 * time.Minute)
		require.Equal(t, writes, w.raft.writes())

		// The second failure in a row waits for longer.
		w.move("m:v:1", state.EventRetry)
		w.rest()
		r = w.replica("m:v:1")
		require.Equal(t, 2, r.Failures)
		require.WithinDuration(t, time.Now().Add(2*planner.DefaultConfig().Backoff), r.RetryAt, time.Second)
	})
}

func TestAFailureIsNotedOnce(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.onRender = func(context.Context, nomad.Request) error { return errFail } })
		w.place("1")
		w.rest()
		require.Equal(t, "placed", w.stage("m:v:1"), "Nomad has not rejected the job")
		require.Equal(t, "no", w.replica("m:v:1").LastError)
		writes := w.raft.writes()
		w.pass(10 * time.Minute)
		require.Equal(t, writes, w.raft.writes(), "retries write nothing")
		w.nomad.set(func() { w.nomad.onRender = nil })
		w.pass(time.Minute)
		require.Equal(t, "starting", w.stage("m:v:1"))
		require.Empty(t, w.replica("m:v:1").LastError)
	})
}

// The leader died after it had registered the job, and before it could say so.
func TestRegisteredBeforeACrash(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.raft.set(func() {
			w.raft.onApply = func(c state.Command) (bool, error) {
				if _, ok := c.(*state.Move); ok {
					return false, errUnknown
				}
				return true, nil
			}
		})
		w.place("1")
		w.rest()
		require.Equal(t, "placed", w.stage("m:v:1"))
		require.Empty(t, w.replica("m:v:1").LastError, "what is wrong with Raft is not wrong with the replica")
		index := w.nomad.jobs["m:v:1"].Index
		require.NotZero(t, index)
		w.raft.depose()
		w.raft.set(func() { w.raft.onApply = nil })
		w.raft.elect()
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:1"))
		require.Equal(t, index, w.replica("m:v:1").JobIndex, "the job that is there is success")
		require.Equal(t, index, w.nomad.jobs["m:v:1"].Index)
	})
}

// The replica is evicted while its job is being registered.
func TestReplicaChangesDuringItsRegistration(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() {
			w.nomad.onRegister = func(string) error {
				w.raft.must(moveOf(w, "m:v:1", state.EventStop))
				return nil
			}
		})
		w.place("1")
		w.rest()
		require.Nil(t, w.replica("m:v:1"), "the next look has stopped and removed it")
		registers, stops, purges := w.nomad.did()
		require.Equal(t, []int{1, 1, 1}, []int{registers, stops, purges})
	})
}

// Nomad takes its time with a registration, and meanwhile the replica is not wanted any
// more. What the job is going to hold is not free before that is over.
func TestReplicaStaysWhileItsRegistrationHangs(t *testing.T) {
	inWorld(t, func(cfg *reconcile.Config) {
		cfg.NewPlanner, cfg.Actions = reconcile.DefaultConfig().NewPlanner, planner.Actions
	}, func(t *testing.T, w *world) {
		answer := make(chan struct{})
		w.nomad.set(func() {
			w.nomad.onRegister = func(string) error {
				<-answer
				return nil
			}
		})
		one, none := 1, 0
		w.raft.must(&state.ScaleRequest{Model: "m", Replicas: &one, Origin: state.OriginOperator})
		w.rest()
		rs := w.raft.store.View().Replicas(nil)
		require.Len(t, rs, 1)
		name := rs[0].Name.String()
		require.Equal(t, "placed", w.stage(name))
		w.raft.must(&state.ScaleRequest{Model: "m", Replicas: &none, Origin: state.OriginOperator})
		w.pass(2 * planner.DefaultConfig().SettleTime)
		require.Equal(t, "stopping", w.stage(name))
		close(answer)
		w.pass(2 * planner.DefaultConfig().SettleTime)
		require.Empty(t, w.raft.store.View().Replicas(nil))
		require.Empty(t, w.nomad.jobs)
		require.Zero(t, countOf(w, planner.KindAdopt)+countOf(w, planner.KindOrphan))
	})
}

func countOf(w *world, kind string) int {
	n := 0
	for _, d := range w.raft.store.View().Decisions(nil, "", 0) {
		if d.Kind == kind {
			n++
		}
	}
	return n
}

// Nomad's token is not known to the server that was asked, or was taken away. That is
// nothing that the replica has done, and retries help as soon as it is mended.
func TestADeniedTokenIsNoFailureOfTheReplica(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		denied := fmt.Errorf("register: %w: Permission denied (403)", nomad.ErrDenied)
		w.nomad.set(func() { w.nomad.onRegister = func(string) error { return denied } })
		w.place("1")
		w.pass(time.Minute)
		require.Equal(t, "placed", w.stage("m:v:1"))
		require.Contains(t, w.replica("m:v:1").LastError, "Permission denied", "people find it there")
		require.Zero(t, w.replica("m:v:1").Failures)
		w.nomad.set(func() { w.nomad.onRegister = nil })
		w.pass(reconcile.DefaultConfig().RetryMax)
		require.Equal(t, "starting", w.stage("m:v:1"))
		require.Empty(t, w.replica("m:v:1").LastError)
	})
}

func TestConflictLeadsToANewLook(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.nomad.set(func() {
			w.nomad.onRegister = func(string) error {
				w.nomad.set(func() { w.nomad.onRegister = nil })
				w.nomad.edit("m:v:1", func(*nomad.Job) {}) // somebody is faster
				return nil
			}
		})
		w.nomad.edit("m:v:1", func(j *nomad.Job) { j.Stopped = true })
		w.pass(time.Second)
		require.False(t, w.nomad.jobs["m:v:1"].Stopped)
		require.Len(t, w.nomad.indexes, 3)
		require.Greater(t, w.nomad.indexes[2], w.nomad.indexes[1], "over what was found, not over what was known")
		require.Equal(t, w.nomad.jobs["m:v:1"].Index, w.replica("m:v:1").JobIndex)
		require.Empty(t, w.replica("m:v:1").LastError)
		require.Equal(t, "serving", w.stage("m:v:1"), "it went by way of starting, and its engine still serves")
	})
}

// A list from before our last write says nothing of the replica, however old it is: the job that
// it lacks is not registered again, the one that it shows is not stopped again, and the replica
// is not removed.
func TestListsThatLag(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Second, planner.DefaultConfig().SettleTime, time.Minute, time.Hour} {
		t.Run(lag.String(), func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				lagging := func(do func()) {
					w.nomad.set(func() { w.nomad.frozen = true })
					do()
					w.pass(lag)
				}
				caughtUp := func() {
					w.nomad.set(func() { w.nomad.frozen = false })
					w.rest()
				}
				counted := func() []int {
					registers, stops, purges := w.nomad.did()
					return []int{registers, stops, purges}
				}
				lagging(func() { w.place("1") })
				require.Equal(t, "starting", w.stage(m1))
				require.True(t, w.seen().InFlight[m1])
				require.Equal(t, []int{1, 0, 0}, counted())
				caughtUp()
				require.False(t, w.seen().InFlight[m1])
				require.Equal(t, w.replica(m1).JobIndex, w.seen().Jobs[m1].Index)
				require.Empty(t, w.seen().Jobs[m1].Drift)

				lagging(func() { w.nomad.edit(m1, func(j *nomad.Job) { j.Stopped = true }) })
				caughtUp()
				require.Equal(t, []int{2, 0, 0}, counted(), "somebody else's write is answered once")

				lagging(func() { w.move(m1, state.EventStop) })
				require.True(t, w.seen().InFlight[m1])
				require.Equal(t, "stopping", w.stage(m1))
				require.Equal(t, []int{2, 1, 0}, counted())
				w.nomad.set(func() { // it shows that the job has ended, and not that it is purged
					l := w.nomad.list()
					w.nomad.lagging, w.nomad.frozen = &l, false
				})
				w.pass(lag)
				require.Nil(t, w.replica(m1))
				require.Equal(t, []int{2, 1, 1}, counted())
				w.nomad.set(func() { w.nomad.lagging = nil })
				w.rest()
				require.Empty(t, w.nomad.jobs)
				require.Equal(t, []int{2, 1, 1}, counted())
			})
		})
	}
}

// A new leader has written nothing. That its first list may lag behind what the earlier leader
// wrote it knows from the state.
func TestAListThatLagsBehindAnEarlierLeader(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.raft.depose()
		w.rest()
		w.nomad.set(func() { w.nomad.lagging = &nomad.Listing{Index: w.replica(m1).JobIndex - 1} })
		w.raft.elect()
		w.pass(reconcile.DefaultConfig().LagTimeout / 2)
		require.True(t, w.seen().InFlight[m1])
		registers, _, _ := w.nomad.did()
		require.Equal(t, 1, registers)
		w.nomad.set(func() { w.nomad.lagging = nil })
		w.rest()
		require.False(t, w.seen().InFlight[m1])
		registers, _, _ = w.nomad.did()
		require.Equal(t, 1, registers)
		require.Equal(t, "serving", w.stage(m1))
	})
}

// Between the write to Nomad and the one to the state, the two differ.
func TestOwnWritesAreNoDrift(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		looks, drift := 0, []string(nil)
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			if j := o.Jobs["m:v:1"]; !j.Stopped {
				looks++
				drift = append(drift, j.Drift...)
			}
			return simplePlan(v, o), time.Time{}
		})
		w.raft.set(func() { w.raft.slow = time.Second })
		w.nomad.edit("m:v:1", func(j *nomad.Job) { j.Stopped = true })
		for range 20 {
			w.nomad.set(func() {})
			w.rest()
		}
		require.Equal(t, w.nomad.jobs["m:v:1"].Index, w.replica("m:v:1").JobIndex)
		require.Greater(t, looks, 10)
		require.Empty(t, drift)
	})
}

// The action ends while the planner still thinks about the world as it was.
func TestActionsAreNotRepeatedOnOldNews(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.onRegister = func(string) error { time.Sleep(time.Second); return nil } })
		w.place("1")
		w.rest()
		thought := false
		w.script(func(v *state.View, o planner.Observation) (*state.Plan, time.Time) {
			if thought {
				return nil, time.Time{}
			}
			thought = true
			time.Sleep(2 * time.Second)
			return &state.Plan{Decisions: []state.Decision{{Time: o.Now, Kind: "place", Reason: "test"}}}, time.Time{}
		})
		w.nomad.set(func() {})
		w.pass(5 * time.Second)
		require.Equal(t, "starting", w.stage("m:v:1"))
		registers, _, _ := w.nomad.did()
		require.Equal(t, 1, registers)
	})
}

// Nomad was restored from a snapshot of before the write. Its index is lower for long.
func TestAWriteThatNomadHasForgotten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.frozen = true })
		w.place("1")
		w.rest()
		w.nomad.set(func() {
			delete(w.nomad.jobs, m1)
			w.nomad.index, w.nomad.frozen = 50, false
		})
		w.pass(reconcile.DefaultConfig().LagTimeout / 2)
		w.nomad.set(func() {})
		w.rest()
		registers, _, _ := w.nomad.did()
		require.Equal(t, 1, registers, "a server that lags looks the same")
		w.pass(reconcile.DefaultConfig().LagTimeout)
		w.nomad.set(func() {})
		w.rest()
		registers, _, _ = w.nomad.did()
		require.Equal(t, 2, registers)
		require.Contains(t, w.nomad.jobs, m1)
	})
}

// Nomad says that all is as it should be, and the planner does not think so.
func TestActionWithoutEffectIsNotRepeatedInAHurry(t *testing.T) {
	always := func(c *reconcile.Config) {
		c.Actions = func(v *state.View, o planner.Observation, c planner.Config) []planner.Action {
			out := actions(v, o, c)
			if r := v.Replica(nil, "m:v:1"); len(out) == 0 && r != nil {
				out = append(out, planner.Action{Kind: planner.Register, Replica: "m:v:1", Name: r.Name, Index: o.Jobs["m:v:1"].Index})
			}
			return out
		}
	}
	inWorld(t, always, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.unchanged = true })
		w.running("1")
		before, _, _ := w.nomad.did()
		writes := w.raft.writes()
		w.pass(10 * time.Minute)
		after, _, _ := w.nomad.did()
		require.Greater(t, after-before, 10)
		require.Less(t, after-before, 40)
		require.Equal(t, writes, w.raft.writes())
	})
}

func TestWorkersAreBounded(t *testing.T) {
	inWorld(t, func(c *reconcile.Config) { c.Workers = 3 }, func(t *testing.T, w *world) {
		w.nomad.set(func() { w.nomad.nodes = []state.Node{node("n", 40)} })
		w.rest()
		w.nomad.set(func() {
			w.nomad.onRender = func(ctx context.Context, _ nomad.Request) error {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
		})
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint(i))
		}
		w.place(ids...)
		w.pass(500 * time.Millisecond)
		require.Equal(t, 3, w.r.Status().Running)
		w.pass(20 * time.Second)
		require.Equal(t, 3, w.nomad.mostAtOnce)
		for _, id := range ids {
			require.Equal(t, "starting", w.stage("m:v:"+id))
		}
		registers, _, _ := w.nomad.did()
		require.Equal(t, 40, registers, "each once")

		// Those that are under way end with the leadership.
		w.raft.must(&state.Plan{ID: "more", Index: w.raft.store.View().Index(), Time: time.Now(), Move: []state.Move{*moveOf(w, "m:v:1", state.EventFailed)}})
		w.move("m:v:1", state.EventRetry)
		w.rest()
		w.cancel()
		<-w.stopped
	})
}

func TestWhyIsAskedSeldom(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		cfg := reconcile.DefaultConfig()
		w.nomad.set(func() { w.nomad.reasons["m:v:1"] = "group \"x\": 1 nodes do not have enough memory" })
		w.place("1", "2")
		w.rest()
		w.nomad.allocate("m:v:2", allocation("n"))
		w.pass(cfg.Planner.PlaceTimeout/2 - 10*time.Second)
		require.Empty(t, w.nomad.asked(), "not before its time")
		w.pass(10 * time.Second)
		require.Equal(t, []string{"m:v:1"}, w.nomad.asked(), "and only about the one that waits")
		require.Contains(t, w.seen().Jobs["m:v:1"].Unplaceable, "1 nodes do not have enough memory", "known before the placement counts as failed")
		require.Empty(t, w.seen().Jobs["m:v:2"].Unplaceable)
		w.pass(10 * cfg.WhyInterval)
		require.InDelta(t, 11, len(w.nomad.asked()), 1)

		// A new leader needs not wait as long again.
		asked := len(w.nomad.asked())
		w.raft.depose()
		w.raft.elect()
		w.rest()
		require.Len(t, w.nomad.asked(), asked+1)

		w.nomad.allocate("m:v:1", allocation("n"))
		w.pass(10 * cfg.WhyInterval)
		require.Empty(t, w.seen().Jobs["m:v:1"].Unplaceable)
		require.Len(t, w.nomad.asked(), asked+1)
	})
}

func TestAllocationInThePlannersWords(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.place("1")
		w.rest()
		at := func(sec int) time.Time { return time.Date(2026, 1, 1, 0, 0, sec, 0, time.UTC) }
		w.nomad.allocate("m:v:1",
			nomad.Allocation{ID: "newest", Desired: "stop", Client: "complete", Node: "n"},
			nomad.Allocation{ID: "second", Desired: "run", Client: "running", Node: "n",
				Seats: map[string][]string{"primary": {"n-GPU0#0"}, "shadow": {"n-GPU0#0"}},
				Tasks: []nomad.Task{
					{Name: "lockd", State: "running", Restarts: 9, Started: at(50), Event: "not an engine"},
					{Name: "primary", State: "running", Restarts: 1, Started: at(10), Event: "Started"},
					{Name: "shadow", State: "pending", Restarts: 4, Started: at(20), Event: "Restarting in 2s"},
				}},
			nomad.Allocation{ID: "oldest", Desired: "stop", Client: "failed", Node: "n"})
		w.rest()
		require.Equal(t, &planner.Alloc{ID: "second", Client: "running", Restarts: 9, Started: at(20), Oldest: at(10), Event: "lockd: not an engine"}, w.seen().Jobs["m:v:1"].Alloc)

		w.nomad.allocate("m:v:1", nomad.Allocation{ID: "a", Desired: "run", Client: "failed", Description: "Failed tasks", Node: "n"})
		w.rest()
		require.Equal(t, &planner.Alloc{ID: "a", Client: "failed", Failed: true, First: true, Event: "Failed tasks"}, w.seen().Jobs["m:v:1"].Alloc)
		w.nomad.edit("m:v:1", func(*nomad.Job) {})
		w.rest()
		require.NotEmpty(t, w.seen().Jobs["m:v:1"].Drift, "somebody has edited it")
	})
}

// TestEveryRegistrationHasALargerGeneration: so tokens never go back, and Nomad makes a new
// allocation in the place of one that failed.
func TestEveryRegistrationHasALargerGeneration(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		generation := func() (out uint64) {
			w.nomad.set(func() { out = w.nomad.requests[m1].Generation })
			return out
		}
		w.running("1")
		last := generation()
		require.NotZero(t, last)
		w.script(func(*state.View, planner.Observation) (*state.Plan, time.Time) { return nil, time.Time{} })
		again := func() {
			t.Helper()
			w.move(m1, "")
			w.move(m1, state.EventFailed)
			w.rest()
			w.move(m1, state.EventRetry)
			w.rest()
			require.Equal(t, "starting", w.stage(m1))
			require.Greater(t, generation(), last)
			last = generation()
		}
		again()
		// The state was restored from a backup that is older than the job.
		w.nomad.edit(m1, func(j *nomad.Job) { j.Generation = 1 << 40 })
		w.rest()
		again()
		require.Equal(t, uint64(1<<40+1), last)
		w.nomad.edit(m1, func(j *nomad.Job) { j.Generation, j.Stopped = last, true })
		w.rest()
		require.Greater(t, generation(), last, "a job that was stopped behind the controller's back")
		require.False(t, w.nomad.jobs[m1].Stopped)
	})
}

// TestGatewayKeyOfAJob: the shims learn the gateways' key, but where the engine is to judge the
// credentials of clients.
func TestGatewayKeyOfAJob(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		given := func(name string) (out string) {
			w.nomad.set(func() { out = w.nomad.requests[name].GatewayKey })
			return out
		}
		w.running("1")
		key := w.raft.Store().View().ShimKey(nil)
		require.NotNil(t, key)
		require.Equal(t, replica.GatewayPublicKey(key), given(m1))

		m := *w.raft.Store().View().Model(nil, "m")
		m.PassAuthorization, m.Hash = true, "h2"
		w.raft.must(&state.UpsertModel{Model: m, ModifyIndex: m.ModifyIndex})
		w.script(func(*state.View, planner.Observation) (*state.Plan, time.Time) { return nil, time.Time{} })
		for _, e := range []state.Event{state.EventFailed, state.EventRetry} {
			w.move(m1, e)
			w.rest()
		}
		require.Equal(t, "starting", w.stage(m1))
		require.Empty(t, given(m1))
	})
}
