package planner_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/testkit/long"
)

// TestSuccessorWorld rolls new versions of pairs out in place, over and over, on GPUs with four seats, while
// versions are broken, sleeps and wakes fail, engines die, leaders crash and GPUs fall ill. After each plan and each
// step it looks at what must hold (world.check and world.physics), and then it lets the world come to rest.
func TestSuccessorWorld(t *testing.T) {
	t.Parallel()
	seeds := long.Pick(40, 1500)
	var mu sync.Mutex
	loads, bridged, rolledBack, done, made := 0, 0, 0, 0, 0
	t.Run("all", func(t *testing.T) {
		for part := range 2 {
			t.Run(fmt.Sprintf("part=%d", part), func(t *testing.T) {
				t.Parallel()
				for seed := part; seed < seeds && !t.Failed(); seed += 2 {
					t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
						w := simulateSuccessors(t, uint64(seed))
						mu.Lock()
						defer mu.Unlock()
						for _, d := range w.view().Decisions(nil, "", 0) {
							loads += btoi(d.Details["beside"] != "")
							rolledBack += btoi(d.Kind == planner.KindRolledBack)
							done += btoi(d.Kind == planner.KindRolloutDone)
						}
						bridged, made = bridged+w.bridged(), made+1
					})
				}
			})
		}
	})
	t.Logf("%d successors loaded, of which %d served; %d rollouts were finished and %d rolled back", loads, bridged, done, rolledBack)
	if made == seeds { // none failed, and -run chose no others
		require.Greater(t, bridged, seeds)
		require.Greater(t, rolledBack, seeds/2)
		require.Greater(t, done, seeds)
	}
}

func simulateSuccessors(t *testing.T, seed uint64) *world {
	w := newWorld(t, rand.New(rand.NewPCG(seed, 1)))
	w.restarts, w.updates = rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 5))
	w.load = func() time.Duration { return time.Duration(2+w.rand.IntN(8)) * tick }
	w.conf.DrainTimeout, w.conf.CanaryTime, w.conf.PlaceTimeout, w.conf.SteadyTime, w.conf.NodeGrace = 15*tick, 3*tick, 20*tick, 30*tick, 10*tick
	w.conf.WakeTimeout, w.conf.BackoffMax = 10*tick, time.Minute
	w.clients.each = 3
	w.addNodes(seats4("n0", 2), seats4("n1", 2), node("n2", 1))
	w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass {
		classes := []planner.OutcomeClass{planner.CannotSleep, planner.Failed, planner.Unreachable, planner.Unreachable}
		if i := w.rand.IntN(40); i < len(classes) {
			return classes[i]
		}
		return planner.Done
	}
	hashes := 0
	draw := func() state.Variant {
		hashes++
		hash := fmt.Sprintf("h%d", hashes)
		if hashes > 3 && w.rand.IntN(4) == 0 {
			w.broken[hash] = true
		}
		return variant("a", hash, func(v *state.Variant) {
			v.Memory, v.SleepMemory, v.HostMemory = int64(45+w.rand.IntN(20)), int64(w.rand.IntN(3)), int64(5+w.rand.IntN(10))
			v.SharedMemory = int64(2 + w.rand.IntN(12))
		})
	}
	for i := range 3 {
		m := model(fmt.Sprintf("m%d", i), 1+w.rand.IntN(2), draw())
		m.Failover, m.KeepWarm = i < 2, w.rand.IntN(4)/3
		m.Priority = 50 + 10*w.rand.IntN(2)
		m.Update = &state.Update{Surge: w.rand.IntN(4) / 3, MinAvailable: &state.Amount{Number: w.rand.IntN(2)}}
		if m.Update.Surge == 0 && w.rand.IntN(2) == 0 {
			m.Update.MinAvailable = nil
		}
		w.model(m)
	}
	w.turns(12)
	for range 60 {
		name := fmt.Sprintf("m%d", w.rand.IntN(3))
		m := w.view().Model(nil, name)
		switch w.rand.IntN(12) {
		case 0, 1, 2:
			changed := *m
			changed.Variants = []state.Variant{draw()}
			changed.Hash = fmt.Sprint("m", hashes)
			w.log("model %s becomes %s", name, changed.Variants[0].Hash)
			w.model(changed)
		case 3:
			n := w.rand.IntN(3)
			w.log("scale %s %d", name, n)
			w.apply(&state.ScaleRequest{Model: name, Replicas: &n, Origin: state.OriginOperator})
		case 4: // an engine dies
			names := sorted(w.nomad)
			if len(names) > 0 {
				if j := w.nomad[names[w.rand.IntN(len(names))]]; j.alloc != nil && j.alloc.Client == "running" && !j.asleep {
					w.log("the engine of %s dies", j.Name)
					j.alloc.Restarts++
					j.restart(w.now)
					j.alloc.Event, j.serves = "Killed", time.Time{}
				}
			}
		case 5:
			if w.rand.IntN(4) == 0 {
				w.disturb(&hashes)
			}
		case 6:
			w.traffic()
		}
		w.planAndAct(16)
		for range 1 + w.rand.IntN(6) {
			w.step()
		}
		w.listedMayLag()
		w.restart()
	}
	w.settle()
	return w
}
