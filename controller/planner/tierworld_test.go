package planner_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/testkit/long"
)

// TestTierWorld lets random things happen to a little world whose GPUs and whose memory
// are too few, with a pool beside it: evictions, sleeps and wakes that fail in every way,
// requests, switches, dedicated sets, leaders that change, nodes that are lost. After each
// plan and each step it looks at what must hold (world.check and world.physics), and then
// it lets the world come to rest.
func TestTierWorld(t *testing.T) {
	t.Parallel()
	commands, plans := 0, 0
	for range long.Pick(1, 20) {
		rapid.Check(t, func(rt *rapid.T) {
			w := simulateTiers(rt, rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(5, 60).Draw(rt, "turns"))
			commands, plans = commands+len(w.entries), plans+w.plans
		})
	}
	t.Logf("%d commands, of which %d were plans", commands, plans)
	if long.Enabled() {
		require.Greater(t, commands, 90_000)
	}
}

// TestTierWorldTriesEveryRule does the same with seeds that meet every rule: one that
// nothing has met was not tried. Its long form makes a million plans. Each world is a subtest
// named after its seed, so that -run replays it alone, with REMUDA_LONG=1 if it is one of the
// long form:
//
//	REMUDA_LONG=1 go test -run '^TestTierWorldTriesEveryRule$/^all$/^part=1$/^seed=7$' ./controller/planner
func TestTierWorldTriesEveryRule(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	plans, changes, rested, made := 0, 0, 0, 0
	worlds := long.Pick(160, 5600)
	const parts = 2
	t.Run("all", func(t *testing.T) {
		for part := range parts {
			t.Run(fmt.Sprintf("part=%d", part), func(t *testing.T) {
				t.Parallel()
				for seed := part; seed < worlds; seed += parts {
					t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
						w := simulateTiers(t, uint64(seed), 60)
						mu.Lock()
						defer mu.Unlock()
						plans, changes, rested, made = plans+w.leader.plans, changes+w.plans, rested+w.leader.rested, made+1
						for _, d := range w.view().Decisions(nil, "", 0) {
							seen[d.Kind]++
						}
					})
				}
			})
		}
	})
	t.Logf("%d plans in %d worlds, of which %d changed something", plans, made, changes)
	if made < worlds { // one failed, or -run chose some
		return
	}
	if long.Enabled() {
		require.GreaterOrEqual(t, plans, 1_000_000)
	}
	for _, kind := range []string{
		planner.KindEvict, planner.KindEvictWarm, planner.KindCalledOff, planner.KindAsleep, planner.KindWake, planner.KindAwake, planner.KindSleepFailed,
		planner.KindWakeFailed, planner.KindMemoryHeld, planner.KindCannotSleep, planner.KindIdle, planner.KindPruned, planner.KindLostWarm, planner.KindSpill,
		planner.KindLeavePool, planner.KindDemand, planner.KindReturn, planner.KindWaitsForRoom, planner.KindGPUOutOfUse, planner.KindMoveAway,
	} {
		require.NotZero(t, seen[kind], kind)
	}
	require.Greater(t, rested, plans, "models at rest before each plan of a leader")
}

func simulateTiers(t require.TestingT, seed uint64, turns int) *world {
	w := newWorld(t, rand.New(rand.NewPCG(seed, 2)))
	w.restarts, w.updates = rand.New(rand.NewPCG(seed, 4)), rand.New(rand.NewPCG(seed, 3))
	w.load = func() time.Duration { return time.Duration(1+w.rand.IntN(3)) * tick }
	c := &w.conf
	c.DrainTimeout, c.CanaryTime, c.PlaceTimeout, c.SteadyTime, c.NodeGrace = 15*tick, 5*tick, 20*tick, 30*tick, 10*tick
	c.BackoffMax, c.MinAge, c.ThrashWindow, c.TrafficWindow, c.TierGrace = time.Minute, 5*tick, 20*tick, 6*tick, 2*tick
	c.PruneInterval, c.PruneMax, c.WakeTimeout, c.SleepTimeout, c.MemoryTimeout = 4*tick, 2, 10*tick, 12*tick, 2*tick
	c.Pools = []planner.Pool{pool("cloud", modes[w.rand.IntN(len(modes))], func(p *planner.Pool) {
		p.Batch, p.Interval, p.Price = 1+w.rand.IntN(2), 6*tick, 2
	})}
	for i := range 2 + w.rand.IntN(2) {
		n := node(fmt.Sprintf("n%d", i), 2)
		if i == 1 {
			n = seats4(n.ID, 2)
		}
		n.HostMemory = int64(20 + 20*w.rand.IntN(4))
		w.addNodes(n)
	}
	w.addNodes(away("c0", "cloud", 2))
	w.outcome = func(planner.Kind, *state.Replica) planner.OutcomeClass {
		classes := []planner.OutcomeClass{planner.CannotSleep, planner.NotDrained, planner.Failed, planner.MemoryHeld, planner.Unreachable}
		if i := w.rand.IntN(25); i < len(classes) {
			return classes[i]
		}
		return planner.Done
	}
	hashes := 0
	for range turns {
		w.disturbTiers(&hashes)
		if w.rand.IntN(4) == 0 {
			w.disturb(&hashes)
		}
		w.planAndAct(12)
		if w.rand.IntN(3) == 0 {
			w.traffic()
		}
		for range w.rand.IntN(6) {
			w.step()
		}
		w.step()
		w.listedMayLag()
		w.restart()
	}
	w.settle()
	return w
}

// disturbTiers does one random thing.
func (w *world) disturbTiers(hashes *int) {
	v := w.view()
	name := fmt.Sprintf("t%d", w.rand.IntN(5))
	m := v.Model(nil, name)
	var rs []*state.Replica
	for _, r := range v.Replicas(nil) {
		if r.Status != state.StatusCold {
			rs = append(rs, r)
		}
	}
	switch w.rand.IntN(16) {
	case 0, 1, 2, 3:
		if m != nil {
			w.demand[name] = w.now.Add(time.Millisecond)
			w.log("demand for %s", name)
			return
		}
		*hashes++
		fresh := model(name, w.rand.IntN(3), variant("v", fmt.Sprintf("t%d", *hashes), func(v *state.Variant) {
			v.GPUs, v.Memory, v.HostMemory, v.SleepMemory = 1+w.rand.IntN(2), int64(20+20*w.rand.IntN(4)), int64(5+5*w.rand.IntN(3)), int64(w.rand.IntN(3))
			v.Reach = []int{0, 0, 2}[w.rand.IntN(3)]
			v.SharedMemory = []int64{0, v.Memory / 2, 3 * v.Memory / 4}[w.rand.IntN(3)]
		}))
		fresh.Update = w.update()
		fresh.Min, fresh.Priority = w.rand.IntN(4)/3, 50+10*w.rand.IntN(2)
		fresh.IdleWarm, fresh.IdleCold = time.Duration(w.rand.IntN(20))*tick, time.Duration(w.rand.IntN(30))*tick
		fresh.KeepWarm, fresh.Failover = w.rand.IntN(2), w.rand.IntN(8) == 0
		fresh.Dedicated = w.rand.IntN(8) == 0
		fresh.Management = []state.Management{state.ManagementFull, state.ManagementFull, state.ManagementFull, state.ManagementDisabled}[w.rand.IntN(4)]
		if delete(w.keeps, name); w.rand.IntN(2) == 0 {
			w.keeps[name] = int64(w.rand.IntN(4)) // and not what the file says
		}
		w.log("model %s %+v", name, fresh.Variants[0])
		w.model(fresh)
	case 4:
		delete(w.demand, name)
	case 5, 6, 7:
		if len(rs) > 0 {
			e := &state.EvictRequest{Replica: rs[w.rand.IntN(len(rs))].Name.String(), To: state.GoalWarm, Force: w.rand.IntN(2) == 0, Time: w.now}
			w.log("evict %s to WARM: %v", e.Replica, w.apply(e).Err)
		}
	case 8:
		n := w.rand.IntN(4)
		w.log("scale %s %d", name, n)
		w.apply(&state.ScaleRequest{Model: name, Replicas: &n, Origin: state.OriginOperator})
	case 9:
		set := map[string]int{}
		if m != nil && w.rand.IntN(2) == 0 {
			set[name] = 1
		}
		w.log("dedicated %v", set)
		w.apply(&state.SetDedicated{Models: set, Time: w.now})
	case 10:
		n := w.rand.IntN(3)
		w.log("%d of %s expected in the cloud", n, name)
		w.apply(&state.ScaleRequest{Model: name, Pool: "cloud", Replicas: &n, Origin: state.OriginOperator})
	case 11:
		w.poolOut["cloud"] = !w.poolOut["cloud"]
		w.log("the cloud is out of reach: %v", w.poolOut["cloud"])
	case 12:
		s := []*state.SetSwitch{
			{Name: state.SwitchDisableScaling, Value: "true"}, {Name: state.SwitchFor(state.SwitchDisableScaling, name), Value: "true"},
			{Name: state.SwitchCapMaxReplicas, Value: "1"}, {Name: state.SwitchScaleToZeroDelay, Value: "never"},
			{Name: state.SwitchScaleToZeroDelay, Value: "1m"},
		}[w.rand.IntN(5)]
		if s.Delete = w.rand.IntN(2) == 0; s.Delete {
			s.Value = ""
		}
		w.log("switch %s %s", s.Name, s.Value)
		w.apply(s)
	case 13:
		w.gateways = !w.gateways
		w.gatewaysSince = w.now
		w.log("gateways: %v", w.gateways)
	case 14: // a process of a replica that sleeps dies, or is parked behind our back
		if len(rs) > 0 {
			r := rs[w.rand.IntN(len(rs))]
			if j := w.nomad[r.Name.String()]; j != nil && j.asleep && j.alloc.Client == "running" && r.Status == state.StatusWarm {
				w.log("the process of %s begins anew, without an engine", r.Name)
				j.restart(w.now)
				j.using, j.host = nil, 0
				j.alloc.Restarts++
			}
		}
	case 15:
		w.conf.Pools[0].Management = modes[w.rand.IntN(len(modes))]
		w.log("the cloud's mode is %s", w.conf.Pools[0].Management)
	}
}

// planAndAct plans from what may be old news and acts. In one of n actions the leader crashes before it is done,
// and in another one before it can write the outcome down.
func (w *world) planAndAct(n int) {
	lagging := w.rand.IntN(4) == 0
	w.plan(lagging)
	for _, a := range planner.Actions(w.view(), w.observe(lagging), w.conf) {
		switch w.rand.IntN(n) {
		case 0:
		case 1:
			w.act(a, true)
		default:
			w.act(a, false)
		}
	}
}
