package state_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// TestRandomCommands applies random commands, good and bad, and looks after each one
// at what must always hold; at the end, at snapshot, restore and replay.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m0")}, &state.UpsertNodes{Nodes: []state.Node{node("n0", 2, 2, 20), node("n1", 1, 3, 20)}})
		l.must(l.plan(place("m0", "r0", "n0", 0, 0, 5), place("m0", "r1", "n0", 1, 0, 5), place("m0", "r2", "n1", 0, 0, 5)))
		l.must(l.move(replica.Name{Model: "m0", Variant: "v", ID: "r0"}, state.EventStarted, ""))
		l.must(l.move(replica.Name{Model: "m0", Variant: "v", ID: "r0"}, state.EventServing, ""))
		accepted := 0
		for range between(1, 120).Draw(t, "commands") {
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
		}
		t.Log("accepted", accepted)

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
	})
}

// rowsOf writes down the rows that commands replace by changed ones.
func rowsOf(t require.TestingT, v *state.View) string {
	data, err := json.Marshal([]any{v.Models(nil), v.Replicas(nil), v.Nodes(nil)})
	require.NoError(t, err)
	return string(data)
}

// checkInvariants adds the ledger up by itself, from the replicas alone.
func checkInvariants(t require.TestingT, before, after *state.View) {
	checkNames(t, after)
	type gpu struct{ node, uuid string }
	sum := func(v *state.View) (seats map[string]string, bytes map[gpu]int64, host map[string]int64) {
		seats, bytes, host = map[string]string{}, map[gpu]int64{}, map[string]int64{}
		for _, r := range v.Replicas(nil) {
			if r.Status != state.StatusCold {
				for _, s := range r.Placement.Seats {
					key := r.Placement.Node + " " + s
					require.Empty(t, seats[key], "seat %s is promised twice", key)
					seats[key] = r.Name.String()
				}
			}
			for uuid, b := range r.Placement.Memory {
				switch {
				case r.Tier() == state.Hot || r.Status == state.StatusWaking:
					bytes[gpu{r.Placement.Node, uuid}] += b
				case r.Tier() == state.Warm && r.Placement.SleepMemory > 0:
					bytes[gpu{r.Placement.Node, uuid}] += r.Placement.SleepMemory
				}
			}
			for _, uuid := range r.Slept {
				require.NotContains(t, r.Placement.Memory, uuid, "it does not wake where it only slept")
				if r.Placement.SleepMemory > 0 {
					bytes[gpu{r.Placement.Node, uuid}] += r.Placement.SleepMemory
				}
			}
			if r.Tier() == state.Warm || r.Status == state.StatusSleeping {
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
	for _, m := range after.Marks(nil) {
		require.False(t, m.Time.IsZero(), "mark %q", m.Key)
	}
	for _, r := range after.Replicas(nil) {
		require.False(t, r.Leaving() && r.Resting(), "%s is %s, for %q", r.Name, r.Status, r.Goal)
		require.Equal(t, !r.Leaving() && !r.Resting(), r.Counts())
		require.True(t, r.For == "" || r.Status == state.StatusDiscarding || r.Status == state.StatusDraining || r.Status == state.StatusSleeping || r.Status == state.StatusStopping, "%s is %s", r.Name, r.Status)
		if r.Status != state.StatusCold {
			require.NotEmpty(t, r.Placement.Memory)
		}
	}
	require.LessOrEqual(t, len(after.Decisions(nil, "", 0)), state.DecisionLimit)
}

// checkModel looks at what must hold within one model's row.
func checkModel(t require.TestingT, m *state.Model) {
	require.True(t, m.Min <= m.Replicas && m.Replicas <= m.Max, "model %q: %d replicas of %d to %d", m.Name, m.Replicas, m.Min, m.Max)
	sum := 0
	for variant, n := range m.Spread {
		require.NotNil(t, m.Variant(variant), "model %q: a number for no variant", m.Name)
		require.GreaterOrEqual(t, n, 0)
		sum += n
	}
	require.LessOrEqual(t, sum, m.Replicas, "model %q: more of its variants than of itself", m.Name)
	if len(m.Spread) == len(m.Variants) {
		require.Equal(t, m.Replicas, sum, "model %q: nobody shares the rest", m.Name)
	}
	require.Equal(t, m.Replicas-sum, m.Shared())
	expected := 0
	for pool, n := range m.Expected {
		require.Positive(t, n, "pool %q", pool)
		expected += n
	}
	require.LessOrEqual(t, expected, m.Replicas, "model %q: more in pools than it has", m.Name)
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
func checkEffect(t require.TestingT, c state.Command, before, after *state.View) {
	switch c := c.(type) {
	case *state.UpsertModels:
		for _, u := range c.Models {
			require.Equal(t, u.Model.Hash, after.Model(nil, u.Model.Name).Hash)
			checkUpsert(t, before.Model(nil, u.Model.Name), after.Model(nil, u.Model.Name), before.StayingOf(nil, u.Model.Name), after.Versions(nil, u.Model.Name))
		}
	case *state.UpsertModel:
		checkUpsert(t, before.Model(nil, c.Model.Name), after.Model(nil, c.Model.Name), before.StayingOf(nil, c.Model.Name), after.Versions(nil, c.Model.Name))
	case *state.SetScale:
		old, m := before.Model(nil, c.Model), after.Model(nil, c.Model)
		if c.Variant == "" {
			require.Empty(t, m.Spread)
			require.Equal(t, *c.Replicas, m.Replicas)
			return
		}
		require.Equal(t, *c.Replicas, m.Spread[c.Variant])
		for variant, n := range old.Spread {
			if variant != c.Variant {
				require.Equal(t, n, m.Spread[variant], "the others keep theirs")
			}
		}
		if n, ok := old.Spread[c.Variant]; ok {
			require.Equal(t, m.Replicas-old.Replicas, *c.Replicas-n)
			require.Equal(t, old.Shared(), m.Shared())
		}
	case *state.SetVariants:
		checkVariants(t, c, before.Model(nil, c.Model), after.Model(nil, c.Model))
	case *state.SetExpected:
		old, m := before.Model(nil, c.Model), after.Model(nil, c.Model)
		require.Equal(t, c.Replicas, m.Expected[c.Pool])
		require.GreaterOrEqual(t, m.Replicas, old.Replicas)
		for pool, n := range old.Expected {
			if pool != c.Pool {
				require.Equal(t, n, m.Expected[pool], "the others keep theirs")
			}
		}
	case *state.SetDedicated:
		checkDedicated(t, c, before, after)
	case *state.Plan:
		for _, r := range c.Rescales {
			if d := c.Dedicated; d == nil {
				require.Equal(t, r.Replicas, after.Model(nil, r.Model).Replicas)
			}
		}
		for _, r := range c.Replacements {
			require.Equal(t, r.Replacements, after.Model(nil, r.Model).Replacements)
		}
		for _, m := range c.Marks {
			require.Equal(t, m.Time.IsZero(), after.Mark(nil, m.Key) == nil)
		}
		for _, mv := range c.Move {
			if r := after.Replica(nil, mv.Replica); len(mv.Memory) > 0 {
				require.Equal(t, mv.Memory, r.Placement.Memory)
				require.Equal(t, state.StatusWaking, r.Status)
			}
		}
		if c.Dedicated != nil {
			checkDedicated(t, c.Dedicated, before, after)
		}
	case *state.Evict:
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
		require.True(t, m.Replicas <= old.Replicas && m.Replicas >= old.Replicas-going, "what rests is no part of the scale")
	}
}

// checkDedicated looks at the set and at the numbers of its models.
func checkDedicated(t require.TestingT, c *state.SetDedicated, before, after *state.View) {
	d := after.Dedicated(nil)
	require.Equal(t, c.Source, d.Source)
	require.Len(t, d.Models, len(c.Models))
	for _, m := range after.Models(nil) {
		n, isDedicated := c.Models[m.Name]
		require.Equal(t, n, d.Models[m.Name])
		require.Equal(t, isDedicated || m.Dedicated, after.IsDedicated(nil, m))
		old := before.Model(nil, m.Name)
		was := 0
		if set := before.Dedicated(nil); set != nil {
			was = set.Models[m.Name]
		}
		switch {
		case m.Management == state.ManagementDisabled:
			require.Equal(t, old.Replicas, m.Replicas)
		case isDedicated:
			require.False(t, m.Stopped)
			require.GreaterOrEqual(t, m.Replicas, n)
		case was > 0:
			expected := 0
			for _, n := range m.Expected {
				expected += n
			}
			require.Equal(t, max(m.Min, expected), m.Replicas)
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
	seed := func(c state.Command) {
		data, err := state.Encode(c)
		require.NoError(f, err)
		f.Add(data)
	}
	l := newLog(f)
	setup := []state.Command{
		&state.UpsertModel{Model: model("m")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}},
		&state.Plan{ID: "p", Index: 2, Time: epoch, Place: []state.Place{place("m", "1", "n", 0, 0, 10)}},
		&state.UpsertModel{Model: defined("vh2"), ModifyIndex: 1, Time: epoch},
		&state.SetScale{Model: "m", Variant: "v", Replicas: ptr(2), Origin: state.OriginOperator},
	}
	l.must(setup...)
	for _, c := range setup {
		seed(c)
	}
	seed(l.move(name("m", "1"), state.EventStarted, ""))
	carried := place("m", "2", "n", 1, 0, 10)
	carried.Failures, carried.LastError, carried.Retry = 2, "no", epoch
	seed(&state.Plan{
		ID: "p", Index: 5, Time: epoch, Place: []state.Place{carried}, Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: 3}},
		Rollouts: []state.SetRollout{{Model: "m", Variant: "v", Version: 2, Status: state.RolloutRolling, Reason: "good"}},
	})
	seed(&state.UpsertModel{Model: defined("vh1"), ModifyIndex: 5, Time: epoch})
	seed(&state.UpsertModels{Models: []state.UpsertModel{{Model: defined("vh3"), ModifyIndex: 5, Time: epoch}, {Model: model("m2"), Time: epoch}}})
	seed(&state.SetScale{Model: "m", Variant: "v", Replicas: ptr(3), Origin: state.OriginAutoscaler})
	seed(&state.Evict{Replica: "m:v:1", To: state.GoalCold, Time: epoch})
	seed(&state.Evict{Model: "m", To: state.GoalGone, Force: true, Time: epoch})
	seed(&state.SetScale{Model: "m", Replicas: ptr(3), Origin: state.OriginOperator})
	seed(&state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k", Time: epoch}}})
	seed(&state.SetSwitch{Name: "s", Value: "v"})
	seed(&state.UpsertToken{Token: state.Token{Accessor: "a", Role: state.RoleOperator, Hash: state.HashSecret("x")}})
	seed(&state.Evict{Replica: "m:v:1", To: state.GoalWarm, Time: epoch})
	seed(&state.Cordon{Node: "n", GPU: "n-GPU0", On: true, Reason: "memory held"})
	seed(&state.SetSwitch{Name: "cap-max-replicas/m", Value: "2"})
	seed(&state.SetExpected{Model: "m", Pool: "east", Replicas: 3})
	seed(&state.SetDedicated{Models: map[string]int{"m": 2}, Source: "operator", Time: epoch})
	seed(&state.SetSchedule{File: "window \"office\" {}"})
	seed(pipelineOf("p", "m"))
	seed(&state.SetPipeline{Name: "p", Delete: true, ModifyIndex: ptr(uint64(0))})
	seed(variants(map[string]int{"v": 3}))
	sleepy := l.move(name("m", "1"), state.EventStop, state.GoalCold)
	sleepy.For, sleepy.Memory = ptr("m2"), map[string]int64{"n-GPU1": 10}
	seed(sleepy)
	seed(&state.Plan{
		ID: "p", Index: 5, Time: epoch, Marks: []state.Mark{{Key: "evicted\x1fa\x1fb", Time: epoch}, {Key: "prune"}},
		Replacements: []state.SetReplacements{{Model: "m", Replacements: state.Replacements{InARow: 1, Last: epoch}}},
		Rescales:     []state.Rescale{{Model: "m", ModifyIndex: 5, Replicas: 1, Spread: map[string]int{"v": 1}}},
		Cordons:      []state.Cordon{{Node: "n", GPU: "n-GPU1", On: true, Reason: "memory held"}},
		Dedicated:    &state.SetDedicated{Source: "schedule:night"},
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
