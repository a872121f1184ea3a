package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/planner"
	"remuda/controller/state"
)

// What the others on the GPU hold is theirs, and not what the replica keeps.
func TestVerifyKnowsTheOthers(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.withShim("1")
		// Another one on the same GPU, and a job that the state does not know.
		other := placeOf("2", 0)
		other.Placement.Seats = []string{"n-GPU0#1"}
		w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{other}})
		w.script(func(*state.View, planner.Observation) (*state.Plan, time.Time) { return nil, time.Time{} })
		used := int64(10 + 7 + 6)
		w.nomad.set(func() {
			w.nomad.memory = func(string) (map[string]nomad.Sample, error) { return samples(0, used, time.Now)("") }
		})
		w.sleeping(m1)
		w.pass(planner.DefaultConfig().MemoryTimeout / 2)
		require.Equal(t, "sleeping", w.stage(m1))
		w.nomad.set(func() {
			j := w.nomad.jobs[m1]
			j.ID, j.Name.Model, j.Name.ID = "x:v:3", "x", "3"
			j.Problem = "strange" // so that it is left alone
			j.Placement.Memory = map[string]int64{"n-GPU0": 7}
			w.nomad.jobs["x:v:3"] = j
			used = 10 + 7 + 5
		})
		w.rest()
		require.Equal(t, "warm", w.stage(m1))
	})
}

// Memory comes back late, and the ledger is not freed before.
func TestMemoryThatComesBackLate(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.running("1")
		w.withShim("1")
		free := time.Now().Add(20 * time.Second)
		w.nomad.set(func() {
			w.nomad.memory = func(string) (map[string]nomad.Sample, error) {
				if time.Now().Before(free) {
					return samples(0, 10, time.Now)("")
				}
				return samples(0, 0, time.Now)("")
			}
		})
		w.sleeping(m1)
		w.pass(15 * time.Second)
		require.Equal(t, "sleeping", w.stage(m1))
		require.Equal(t, int64(10), w.raft.store.View().Usage(nil, "n").Memory["n-GPU0"])
		w.pass(6 * time.Second)
		require.Equal(t, "warm", w.stage(m1))
		require.Zero(t, w.raft.store.View().Usage(nil, "n").Memory["n-GPU0"])
		require.Less(t, w.replica(m1).Since.Sub(free), time.Second)
	})
}

func errUnknownIf(it bool) error {
	if it {
		return errUnknown
	}
	return nil
}

// What a sleeping engine keeps is known once the driver has had its time to give the rest back, or at
// once if it is no more than expected.
func TestVerifyMeasuresWhatTheSleeperKeeps(t *testing.T) {
	settle := planner.DefaultConfig().MemorySettle
	for name, tc := range map[string]struct {
		expected, used int64
		within         time.Duration
		class          planner.OutcomeClass
	}{
		"nothing":                       {0, 0, time.Second, planner.Done},
		"as expected":                   {3, 3, time.Second, planner.Done},
		"more than expected":            {3, 4, settle + time.Second, planner.Done},
		"more than half":                {3, 6, planner.DefaultConfig().MemoryTimeout + time.Second, planner.MemoryHeld},
		"more than half, and expected":  {7, 7, time.Second, planner.Done},
		"more than that which may stay": {7, 8, planner.DefaultConfig().MemoryTimeout + time.Second, planner.MemoryHeld},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				own := placeOf("1", 0)
				own.Placement.SleepMemory = tc.expected
				w.raft.must(&state.Plan{ID: "test", Index: w.raft.store.View().Index(), Time: time.Now(), Place: []state.Place{own}})
				w.rest()
				w.withShim("1")
				w.consul.serve(engine("1"))
				w.rest()
				require.Equal(t, "serving", w.stage(m1))
				w.nomad.set(func() { w.nomad.memory = samples(0, tc.used, time.Now) })
				w.sleeping(m1)
				w.pass(tc.within)
				w.rest()
				require.Len(t, w.ended(), 1)
				require.Equal(t, tc.class, w.ended()[0].Class)
				require.Equal(t, tc.used, w.ended()[0].Kept["n-GPU0"])
				if tc.class == planner.Done {
					require.Equal(t, tc.used, w.replica(m1).Placement.SleepMemory)
				}
			})
		})
	}
}
