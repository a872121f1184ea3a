package state_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
)

// TestRandomCommands applies random commands, good and bad, on three servers that restart,
// get snapshots and lead in turn, and looks after each command at what must always hold; at
// the end, at snapshot, restore and replay.
func TestRandomCommands(t *testing.T) {
	const parts = 4
	rounds := long.Pick(1, 175) // of 100 checks
	var tally randomTally
	t.Run("all", func(t *testing.T) {
		for part := range min(parts, rounds) {
			t.Run(fmt.Sprint("part=", part), func(t *testing.T) {
				t.Parallel()
				for round := part; round < rounds && !t.Failed(); round += parts {
					rapid.Check(t, tally.check)
				}
			})
		}
	})
	t.Logf("%d commands, of which %d were accepted; %d restarts, %d restored snapshots, %d changes of the leader",
		tally.commands.Load(), tally.accepted.Load(), tally.restarts.Load(), tally.restores.Load(), tally.leaders.Load())
	if long.Enabled() && !t.Failed() {
		require.GreaterOrEqual(t, tally.commands.Load(), int64(1_000_000))
	}
}

// randomTally counts what happened in all checks.
type randomTally struct{ commands, accepted, restarts, restores, leaders atomic.Int64 }

// server is a store that has applied the first entries of the log, and its last
// snapshot.
type server struct {
	store          *state.Store
	applied, saved int
	snapshot       []byte
}

// catchUp applies the entries that the server lacks.
func (s *server) catchUp(l *log) {
	for ; s.applied < len(l.entries); s.applied++ {
		s.store.Apply(uint64(s.applied+1), l.entries[s.applied])
	}
}

// save makes a snapshot.
func (s *server) save(t require.TestingT) {
	s.snapshot, s.saved = snapshotOf(t, s.store), s.applied
}

// restore begins again with a snapshot.
func (s *server) restore(t require.TestingT, snapshot []byte, applied int) {
	s.store, s.snapshot, s.applied, s.saved = restored(t, snapshot), snapshot, applied, applied
}

func (tally *randomTally) check(t *rapid.T) {
	l := newLog(t)
	servers := [3]*server{}
	for i := range servers {
		servers[i] = &server{store: newLog(t).store}
		servers[i].save(t)
	}
	leader := servers[0]
	l.store = leader.store
	// happens lets something happen to the servers.
	happens := func() {
		other := servers[between(0, 2).Draw(t, "server")]
		switch between(0, 24).Draw(t, "happens") {
		case 0: // it leads
			other.catchUp(l)
			leader = other
			tally.leaders.Add(1)
		case 1: // it restarts with its last snapshot; the log follows
			other.restore(t, other.snapshot, other.saved)
			tally.restarts.Add(1)
		case 2:
			other.save(t)
		case 3:
			other.catchUp(l)
		case 4: // it gets the leader's snapshot
			other.restore(t, snapshotOf(t, leader.store), leader.applied)
			tally.restores.Add(1)
		}
		leader.catchUp(l)
		l.store = leader.store
	}
	l.must(&state.UpsertModel{Model: model("m0")}, &state.UpsertNodes{Nodes: []state.Node{node("n0", 2, 2, 20), node("n1", 1, 3, 20)}})
	l.must(l.plan(place("m0", "r0", "n0", 0, 0, 5), place("m0", "r1", "n0", 1, 0, 5), place("m0", "r2", "n1", 0, 0, 5)))
	l.must(l.move(replica.Name{Model: "m0", Variant: "v", ID: "r0"}, state.EventStarted, ""))
	l.must(l.move(replica.Name{Model: "m0", Variant: "v", ID: "r0"}, state.EventServing, ""))
	accepted := 0
	for range between(1, 120).Draw(t, "commands") {
		leader.applied = len(l.entries)
		happens()
		before := l.store.View()
		rows := rowsOf(t, before)
		c := drawCommand(t, before)
		// What is tried on a fork comes out as it will, and changes nothing here.
		fork := &log{t: t, store: l.store.Fork(), index: l.index}
		tried := fork.apply(c)
		require.Equal(t, rows, rowsOf(t, l.store.View()))
		require.Equal(t, before.Index(), l.store.View().Index())
		res := l.apply(c)
		after := l.store.View()
		require.Equal(t, res, tried)
		require.Equal(t, rowsOf(t, after), rowsOf(t, fork.store.View()))
		if res.Err != nil {
			require.False(t, res.Changed)
			require.NotEqual(t, state.CodeInternal, res.Err.Code, res.Err.Message)
			require.Equal(t, before.TableIndex(), after.TableIndex(), "a refused command changes nothing")
		} else {
			accepted++
			checkEffect(t, c, before, after)
		}
		require.Equal(t, rows, rowsOf(t, before), "what a view has shown never changes")
		checkInvariants(t, before, after)
		checkKeys(t, after)
	}
	t.Log("accepted", accepted)
	tally.commands.Add(int64(len(l.entries)))
	tally.accepted.Add(int64(accepted))

	snapshot := snapshotOf(t, l.store)
	require.Equal(t, snapshot, snapshotOf(t, restored(t, snapshot)), "restored")

	replay := newLog(t)
	for _, e := range l.entries {
		replay.applyBytes(e)
	}
	require.Equal(t, snapshot, snapshotOf(t, replay.store), "replayed")

	// A server that was restored in the middle of the log goes on as the others.
	cut := between(0, len(l.entries)).Draw(t, "cut")
	half := newLog(t)
	for _, e := range l.entries[:cut] {
		half.applyBytes(e)
	}
	half.store = restored(t, snapshotOf(t, half.store))
	for _, e := range l.entries[cut:] {
		half.applyBytes(e)
	}
	require.Equal(t, snapshot, snapshotOf(t, half.store), "restored at %d", cut)

	leader.applied = len(l.entries)
	for i, s := range servers {
		s.catchUp(l)
		require.Equal(t, snapshot, snapshotOf(t, s.store), "server %d", i)
	}
}

// rowsOf writes down the rows that commands replace by changed ones.
func rowsOf(t require.TestingT, v *state.View) string {
	data, err := json.Marshal([]any{v.Models(nil), v.Replicas(nil), v.Nodes(nil), v.Keys(nil), v.UsageRows(nil, ""), v.UsageMarks()})
	require.NoError(t, err)
	return string(data)
}

// checkInvariants adds the ledger up by itself, from the replicas alone.
func checkInvariants(t require.TestingT, before, after *state.View) {
	checkNames(t, after)
	type gpu struct{ node, uuid string }
	type weights struct {
		model, variant, node, gpus string
		version                    int
	}
	sum := func(v *state.View) (seats map[string]string, bytes map[gpu]int64, host map[string]int64) {
		seats, bytes, host = map[string]string{}, map[gpu]int64{}, map[string]int64{}
		loaded := map[weights]bool{} // with shared memory
		for _, r := range v.Replicas(nil) {
			if r.Status != state.StatusCold {
				for _, s := range r.Placement.Seats {
					key := r.Placement.Node + " " + s
					require.Empty(t, seats[key], "seat %s is promised twice", key)
					seats[key] = r.Name.String()
				}
			}
			key := weights{r.Name.Model, r.Name.Variant, r.Placement.Node, fmt.Sprint(slices.Sorted(maps.Keys(r.Placement.Memory))), r.Version}
			for uuid, b := range r.Placement.Memory {
				switch {
				case r.Loads():
					bytes[gpu{r.Placement.Node, uuid}] += r.Placement.LoadMemory
				case r.Tier() == state.Hot || r.Status == state.StatusWaking:
					if loaded[key] {
						b -= r.Placement.SharedMemory
					}
					bytes[gpu{r.Placement.Node, uuid}] += b
				case r.Tier() == state.Warm && r.Placement.SleepMemory > 0:
					bytes[gpu{r.Placement.Node, uuid}] += r.Placement.SleepMemory
				}
			}
			if (r.Tier() == state.Hot || r.Status == state.StatusWaking) && r.Placement.SharedMemory > 0 && !r.Loads() {
				loaded[key] = true
			}
			for _, uuid := range r.SleepingGPUs {
				require.NotContains(t, r.Placement.Memory, uuid, "it does not wake where it only slept")
				if r.Placement.SleepMemory > 0 {
					bytes[gpu{r.Placement.Node, uuid}] += r.Placement.SleepMemory
				}
			}
			if r.Tier() == state.Warm || r.Status == state.StatusSleeping || r.Loads() {
				host[r.Placement.Node] += r.Placement.HostMemory
			}
		}
		return seats, bytes, host
	}
	seats, bytes, host := sum(after)
	_, bytesBefore, hostBefore := sum(before)

	ledger := after.Ledger(nil)
	gotSeats, gotBytes, gotHost := 0, 0, 0
	for id, u := range ledger {
		require.Equal(t, u, after.Usage(nil, id))
		for s, r := range u.Seats {
			require.Equal(t, seats[id+" "+s], r)
			gotSeats++
		}
		for uuid, b := range u.Memory {
			require.Equal(t, bytes[gpu{id, uuid}], b)
			gotBytes++
		}
		if u.HostMemory != 0 {
			require.Equal(t, host[id], u.HostMemory)
			gotHost++
		}
	}
	require.Equal(t, len(seats), gotSeats)
	require.Equal(t, len(bytes), gotBytes)
	for id, b := range host {
		if b != 0 {
			require.NotNil(t, ledger[id])
			gotHost--
		}
	}
	require.Zero(t, gotHost)

	// Over-committed only where the node shrank under what was taken before.
	for g, b := range bytes {
		var capacity int64
		if c := after.Node(nil, g.node).GPU(g.uuid); c != nil {
			capacity = c.Memory
		}
		require.True(t, b <= capacity || b <= bytesBefore[g], "GPU %s: %d of %d bytes", g.uuid, b, capacity)
	}
	for id, b := range host {
		var capacity int64
		if n := after.Node(nil, id); n != nil {
			capacity = n.HostMemory
		}
		require.True(t, b <= capacity || b <= hostBefore[id], "node %s: %d of %d bytes", id, b, capacity)
	}

	for _, r := range after.Replicas(nil) {
		require.NotNil(t, after.Model(nil, r.Name.Model), "every replica's model exists")
		require.NotNil(t, after.VariantOf(nil, r), "every replica's version exists, and has its variant")
		require.LessOrEqual(t, r.ModifyIndex, after.Index())
	}
	for _, m := range after.Models(nil) {
		checkModel(t, m)
		versions := after.Versions(nil, m.Name)
		require.Equal(t, m.Variants, versions.Get(m.Version).Model.Variants)
		require.NotNil(t, versions.Get(m.StableVersion))
		require.LessOrEqual(t, len(versions), state.VersionsKept+1+len(after.ReplicasOf(nil, m.Name)))
	}
	if d := after.Dedicated(nil); d != nil {
		for name, n := range d.Models {
			require.NotNil(t, after.Model(nil, name), "model %q is dedicated and does not exist", name)
			require.Positive(t, n)
		}
	}
	for _, r := range after.Replicas(nil) {
		require.False(t, r.Leaving() && r.Resting(), "%s is %s, for %q", r.Name, r.Status, r.Goal)
		require.Equal(t, !r.Leaving() && !r.Resting(), r.Counts())
		require.False(t, r.Loads() && (r.Served || r.Counts() || r.Tier() != state.Hot), "%s is %s, for %q, and loads", r.Name, r.Status, r.Goal)
		require.True(t, r.MakesRoomFor == "" || r.Status == state.StatusDiscarding || r.Status == state.StatusDraining || r.Status == state.StatusSleeping || r.Status == state.StatusStopping, "%s is %s", r.Name, r.Status)
		if r.Status != state.StatusCold {
			require.NotEmpty(t, r.Placement.Memory)
		}
	}
	require.LessOrEqual(t, len(after.Decisions(nil, "", 0)), state.DecisionLimit)
}

// checkModel looks at what must hold within one model's row.
func checkModel(t require.TestingT, m *state.Model) {
	own := map[string]bool{}
	for i, share := range m.Desired {
		require.True(t, share.Replicas > 0 || share.Replicas == 0 && share.Pool == "" && share.Variant != "", "model %q: %v", m.Name, m.Desired)
		if share.Variant != "" {
			require.NotNil(t, m.Variant(share.Variant), "model %q: a share of an unknown variant", m.Name)
			own[share.Variant] = own[share.Variant] || share.Pool == ""
			require.True(t, own[share.Variant], "model %q: no share in the own pool beside %v", m.Name, share)
		}
		if i > 0 {
			last := m.Desired[i-1]
			require.Negative(t, cmp.Or(cmp.Compare(last.Pool, share.Pool), cmp.Compare(last.Variant, share.Variant)), "model %q: %v", m.Name, m.Desired)
		}
	}
	if shared, _ := m.Desired.Of(""); len(own) == len(m.Variants) {
		require.Zero(t, shared, "model %q: no variant shares the rest", m.Name)
	}
	sum := m.Desired.In("")
	for _, pool := range m.Desired.External() {
		sum += m.Desired.In(pool)
	}
	require.Equal(t, m.Desired.Total(), sum)
	active := m.Active()
	require.Equal(t, m.Desired.Total(), active.Total()+m.Displaced.Total(), "model %q: %s is displaced of %s", m.Name, m.Displaced, m.Desired)
	for _, share := range slices.Concat(m.Displaced.UntilRoom, m.Displaced.UntilAsked) {
		require.Positive(t, share.Replicas)
	}
	for _, share := range m.Desired {
		has, own := active.Of(share.Variant)
		asked, wasOwn := m.Desired.Of(share.Variant)
		require.True(t, own == wasOwn && has <= asked, "model %q: %s of %s", m.Name, active, m.Desired)
	}
	if target := m.Target(state.Limits{}); m.Stopped {
		require.Equal(t, state.Target{Bound: state.BoundStopped}, target)
	} else {
		require.True(t, m.Min <= target.Replicas && target.Replicas <= m.Max, "model %q: %d replicas of %d to %d", m.Name, target.Replicas, m.Min, m.Max)
		require.Equal(t, target.Bound == state.BoundNone, target.Replicas == sum)
	}
	for variant, r := range m.Rollouts {
		v := m.Variant(variant)
		require.NotNil(t, v, "model %q: a rollout of no variant", m.Name)
		if r.Ongoing() {
			require.Equal(t, m.Version, r.Version, "model %q: a rollout of another version", m.Name)
			require.NotEqual(t, m.Version, m.StableVersion, "model %q: a rollout that falls back on itself", m.Name)
		}
		require.Contains(t, []state.RolloutStatus{state.RolloutCanary, state.RolloutRolling, state.RolloutRolledBack}, r.Status)
	}
}

// checkEffect looks at what an accepted command was to do.
func checkEffect(t require.TestingT, c any, before, after *state.View) {
	switch c := c.(type) {
	case *state.UpsertModels:
		for _, u := range c.Models {
			require.Equal(t, u.Model.Hash, after.Model(nil, u.Model.Name).Hash)
			checkUpsert(t, before.Model(nil, u.Model.Name), after.Model(nil, u.Model.Name), before.StayingOf(nil, u.Model.Name), after.Versions(nil, u.Model.Name))
		}
	case *state.UpsertModel:
		checkUpsert(t, before.Model(nil, c.Model.Name), after.Model(nil, c.Model.Name), before.StayingOf(nil, c.Model.Name), after.Versions(nil, c.Model.Name))
	case *state.ScaleRequest:
		checkScale(t, c, before, after)
	case *state.Scale:
		require.Equal(t, c.Desired.Total(), after.Model(nil, c.Model).Desired.Total())
		require.Equal(t, c.Displaced, after.Model(nil, c.Model).Displaced)
		require.Equal(t, c.Stopped, after.Model(nil, c.Model).Stopped)
	case *state.SetDedicated:
		checkDedicated(t, c, before, after)
	case *state.UpsertKey:
		checkUpsertedKey(t, c, before.Key(nil, c.Name), after.Key(nil, c.Name))
	case *state.RotateKey:
		checkRotatedKey(t, c, before.Key(nil, c.Name), after.Key(nil, c.Name))
	case *state.DeleteKey:
		require.Nil(t, after.Key(nil, c.Name))
	case *state.UsageCounters:
		checkUsage(t, c, before, after)
	case *state.Plan:
		for _, r := range c.Scales {
			require.Equal(t, r.Desired.Total(), after.Model(nil, r.Model).Desired.Total())
		}
		for _, r := range c.Replacements {
			require.Equal(t, r.Replacements, after.Model(nil, r.Model).Replacements)
		}
		for _, e := range c.Evictions {
			require.Len(t, after.Model(nil, e.Model).EvictedFor, len(e.EvictedFor))
		}
		if c.Pace != nil {
			require.True(t, c.Pace.Pruned.Equal(after.Pace(nil).Pruned))
			require.Len(t, after.Pace(nil).Left, len(c.Pace.Left))
		}
		for _, p := range c.Place {
			require.Equal(t, p.Spilled, after.Replica(nil, p.Name.String()).Spilled)
		}
		for _, mv := range c.Move {
			r := after.Replica(nil, mv.Replica)
			require.True(t, !mv.Kept || mv.Time.Equal(r.KeptAt))
			require.Equal(t, mv.Spilled || before.Replica(nil, mv.Replica).Spilled, r.Spilled)
			if len(mv.Memory) > 0 {
				require.Equal(t, mv.Memory, r.Placement.Memory)
				require.Equal(t, state.StatusWaking, r.Status)
			}
		}
		if c.Dedicated != nil {
			checkDedicated(t, c.Dedicated, before, after)
		}
	case *state.EvictRequest:
		model, going := c.Model, 0
		if c.Replica != "" {
			model = before.Replica(nil, c.Replica).Name.Model
		}
		for _, old := range before.ReplicasOf(nil, model) {
			r := after.Replica(nil, old.Name.String())
			if old.Leaving() || c.Replica != "" && c.Replica != r.Name.String() {
				require.Equal(t, old, r, "it does not go")
				continue
			}
			require.Equal(t, old.Placement, r.Placement, "it holds its seats until it has ended")
			if c.To == state.GoalWarm && old.Status != state.StatusServing {
				require.Equal(t, old, r, "it does not serve")
				continue
			}
			require.False(t, r.Counts())
			require.Equal(t, c.To == state.GoalWarm, r.Resting())
			require.True(t, !before.IsDedicated(nil, before.Model(nil, model)) || c.Force)
			if old.Counts() {
				going++
			}
		}
		old, m := before.Model(nil, model), after.Model(nil, model)
		require.Equal(t, old.Desired, m.Desired)
		is, was := m.Active().Total(), old.Active().Total()
		require.True(t, is <= was && is >= was-going, "what rests is no part of the scale")
	}
}

// checkDedicated looks at the set and at the numbers of its models.
func checkDedicated(t require.TestingT, c *state.SetDedicated, before, after *state.View) {
	d := after.Dedicated(nil)
	require.Equal(t, c.Window, d.Window)
	require.Len(t, d.Models, len(c.Models))
	for _, m := range after.Models(nil) {
		n, isDedicated := c.Models[m.Name]
		require.Equal(t, n, d.Models[m.Name])
		require.Equal(t, isDedicated || m.Dedicated, after.IsDedicated(nil, m))
		if isDedicated {
			require.False(t, m.Stopped)
		}
		require.Equal(t, n, after.Limits(nil)(m.Name).Dedicated)
		if target := m.Target(state.Limits{Dedicated: n}); m.Management != state.ManagementDisabled && !m.Stopped {
			require.GreaterOrEqual(t, target.Replicas, n)
		}
	}
}

// checkScale looks at what an accepted request was to do.
func checkScale(t require.TestingT, r *state.ScaleRequest, before, after *state.View) {
	old, m := before.Model(nil, r.Model), after.Model(nil, r.Model)
	switch {
	case r.Variants != nil:
		for variant, n := range r.Variants {
			is, own := m.Desired.Of(variant)
			require.True(t, own)
			require.Equal(t, n, is)
			runs, _ := m.Active().Of(variant)
			require.Equal(t, n, runs)
			if had, set := old.Active().Of(variant); set && r.Origin == state.OriginAutoscaler && old.Management == state.ManagementUpscaling {
				require.GreaterOrEqual(t, n, had)
			}
		}
		for _, v := range m.Variants {
			if had, own := old.Desired.Of(v.Name); own {
				if _, named := r.Variants[v.Name]; !named {
					is, _ := m.Desired.Of(v.Name)
					require.Equal(t, had, is, "the others keep theirs")
				}
			}
		}
	case r.Pool != "":
		require.Equal(t, *r.Replicas, m.Desired.In(r.Pool))
		require.Equal(t, max(old.Desired.Total(), *r.Replicas+old.Desired.Total()-old.Desired.In(r.Pool)-old.Desired.In("")), m.Desired.Total())
		for _, pool := range old.Desired.External() {
			if pool != r.Pool {
				require.Equal(t, old.Desired.In(pool), m.Desired.In(pool), "the others keep theirs")
			}
		}
	case r.Replicas != nil:
		require.Equal(t, *r.Replicas, m.Desired.Total())
		require.True(t, m.Displaced.IsZero(), "all are to run that were asked for")
		for _, share := range m.Desired {
			require.Empty(t, share.Variant)
		}
		if r.Origin == state.OriginAutoscaler {
			for _, pool := range old.Desired.External() {
				require.GreaterOrEqual(t, m.Desired.In(pool), old.Desired.In(pool))
			}
		}
	}
}

// checkUpsert looks at the rollouts that a new definition begins, keeps and ends.
func checkUpsert(t require.TestingT, old, m *state.Model, staying []*state.Replica, versions state.Versions) {
	if old == nil {
		require.Empty(t, m.Rollouts)
		return
	}
	if old.Hash == m.Hash {
		require.Equal(t, old.Rollouts, m.Rollouts)
		require.Equal(t, old.Version, m.Version)
		return
	}
	require.Greater(t, m.Version, old.Version)
	for _, v := range m.Variants {
		was := old.Variant(v.Name)
		r, isRolling := m.Rollouts[v.Name]
		ongoing := old.Rollouts[v.Name].Ongoing()
		if was != nil && was.Hash == v.Hash && ongoing {
			require.Equal(t, old.Rollouts[v.Name].Status, r.Status, "it goes on")
			continue
		}
		others := false
		for _, s := range staying {
			others = others || s.Name.Variant == v.Name && s.Served && versions.HashOf(s) != v.Hash
		}
		require.True(t, !isRolling || others, "a rollout that replaces nothing")
		base := versions.Get(old.StableVersion).Variant(v.Name)
		if was != nil && base != nil && was.Hash != v.Hash && others && !isRolling {
			require.Equal(t, base.Hash, v.Hash, "a change that is not rolled out")
		}
	}
	if m.Rollouts == nil {
		require.Equal(t, m.Version, m.StableVersion)
	}
}

// FuzzApply applies any bytes to a state that is not empty. Nothing panics, what is
// refused changes nothing, and the state can always be written and read.
func FuzzApply(f *testing.F) {
	l := newLog(f)
	seed := func(c any) {
		if p, ok := c.(state.Proposal); ok {
			resolved, refused := p.Resolve(l.store.View())
			require.Nil(f, refused)
			c = resolved
		}
		data, err := state.Encode(c.(state.Command))
		require.NoError(f, err)
		f.Add(data)
	}
	setup := []any{
		&state.UpsertModel{Model: model("m")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}},
		&state.Plan{ID: "p", Index: 2, Time: epoch, Place: []state.Place{place("m", "1", "n", 0, 0, 10)}},
		&state.UpsertModel{Model: defined("vh2"), ModifyIndex: 1, Time: epoch},
		&state.ScaleRequest{Model: "m", Variants: map[string]int{"v": 2}, Origin: state.OriginOperator},
	}
	l.must(setup...)
	for _, entry := range l.entries {
		f.Add(entry)
	}
	seed(l.move(name("m", "1"), state.EventStarted, ""))
	carried := place("m", "2", "n", 1, 0, 10)
	carried.Failures, carried.LastError, carried.RetryAt = 2, "no", epoch
	seed(&state.Plan{
		ID: "p", Index: 5, Time: epoch, Place: []state.Place{carried}, Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: 3}},
		Rollouts: []state.SetRollout{{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling, Reason: "good"}},
	})
	seed(&state.UpsertModel{Model: defined("vh1"), ModifyIndex: 5, Time: epoch})
	seed(&state.UpsertModels{Models: []state.UpsertModel{{Model: defined("vh3"), ModifyIndex: 5, Time: epoch}, {Model: model("m2"), Time: epoch}}})
	seed(&state.Scale{Model: "m", Desired: state.Shares{{Variant: "v", Replicas: 3}}, ModifyIndex: 5})
	seed(&state.EvictRequest{Replica: "m:v:1", To: state.GoalCold, Time: epoch})
	seed(&state.EvictRequest{Model: "m", To: state.GoalGone, Force: true, Time: epoch})
	seed(&state.Scale{Model: "m", Desired: state.Any(3), Stopped: true, ModifyIndex: 5})
	seed(&state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k", Time: epoch}}})
	seed(&state.SetSwitch{Name: "s", Value: "v"})
	seed(&state.UpsertToken{Token: state.Token{Accessor: "a", Role: state.RoleOperator, Hash: state.HashSecret("x")}})
	seed(&state.Cordon{Node: "n", GPU: "n-GPU0", On: true, Reason: "memory held"})
	seed(&state.SetSwitch{Name: "cap-max-replicas/m", Value: "2"})
	seed(&state.Scale{Model: "m", Desired: state.Shares{{Pool: "east", Replicas: 3}, {Replicas: -1}}, ModifyIndex: 5})
	seed(&state.SetDedicated{Models: map[string]int{"m": 2}, Time: epoch})
	seed(&state.SetSchedule{File: "window \"office\" {}"})
	seed(&state.SetShimKey{Seed: bytes.Repeat([]byte{1}, 32)})
	seed(pipelineOf("p", "m"))
	seed(&state.UpsertKey{Name: "k", Limits: limits(), Secret: secretOf("a", epoch), Time: epoch})
	seed(&state.UpsertKey{Name: state.KeyAnonymous, Limits: limits(), Time: epoch})
	seed(&state.SetKey{Name: "k", ModifyIndex: 3})
	seed(&state.SetAddresses{Replicas: []state.ReplicaAddresses{{Replica: "m:v:1", Addresses: []string{"10.0.0.1:1"}, Generation: 4}}})
	seed(counted(counters(epoch, mark(today, "g", "k", "m", 5)), l.store.View()))
	seed(&state.CountUsage{RowsSince: "2026-01-02", MarksSince: "2026-01-03", Index: 1})
	seed(&state.SetPipeline{Name: "p", Delete: true, ModifyIndex: ptr(uint64(0))})
	sleepy := l.move(name("m", "1"), state.EventStop, state.GoalCold)
	sleepy.MakesRoomFor, sleepy.Memory = ptr("m2"), map[string]int64{"n-GPU1": 10}
	seed(sleepy)
	seed(&state.Plan{
		ID: "p", Index: 5, Time: epoch, Pace: &state.Pace{Pruned: epoch, Left: map[string]time.Time{"east": epoch}},
		Evictions: []state.SetEvictedFor{{Model: "m", EvictedFor: map[string]time.Time{"b": epoch}}}, Sleeps: []state.SetSleep{{Model: "m", Hash: "vh1", Sleep: state.Sleep{None: true, Memory: 3}}},
		Replacements: []state.SetReplacements{{Model: "m", Replacements: state.Replacements{InARow: 1, Last: epoch}}},
		Scales:       []state.Scale{{Model: "m", ModifyIndex: 5, Desired: state.Shares{{Variant: "v", Replicas: 1}}}},
		Cordons:      []state.Cordon{{Node: "n", GPU: "n-GPU1", On: true, Reason: "memory held"}},
		Dedicated:    &state.SetDedicated{Window: "night"},
	})
	f.Add([]byte{byte(state.TypeMove)})
	f.Add([]byte{0xff, 1, 2})
	decided, err := state.Decide(&state.SetSwitch{Name: "a", Value: "b"}, state.Decision{Kind: "k", Time: epoch})
	require.NoError(f, err)
	seed(decided)
	f.Add([]byte("\x04{\"ID\":\"p\",\"Decisions\":[{\"Kind\":\"k\",\"Time\":\"0000-01-01T00:00:00+23:59\"}]}"))
	base := snapshotOf(f, l.store)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := restored(t, base)
		before := s.View()
		res := s.Apply(6, data)
		after := s.View()
		if res.Err != nil {
			require.False(t, res.Changed)
			require.Equal(t, before.TableIndex(), after.TableIndex())
		}
		if res.Err != nil {
			require.NotEqual(t, state.CodeInternal, res.Err.Code, res.Err.Message)
		}
		checkInvariants(t, before, after)
		snapshot := snapshotOf(t, s)
		require.True(t, bytes.Equal(snapshot, snapshotOf(t, restored(t, snapshot))))
	})
}
