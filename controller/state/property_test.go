package state_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

// TestRandomCommands applies random commands, good and bad, and looks after each one
// at what must always hold; at the end, at snapshot, restore and replay.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m0")}, &state.UpsertNodes{Nodes: []state.Node{node("n0", 2, 2, 20), node("n1", 1, 3, 20)}})
		accepted := 0
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			before := l.store.View()
			c := drawCommand(t, before)
			res := l.apply(c)
			after := l.store.View()
			if res.Err != nil {
				require.False(t, res.Changed)
				require.NotEqual(t, state.CodeInternal, res.Err.Code, res.Err.Message)
				require.Equal(t, before.TableIndex(), after.TableIndex(), "a refused command changes nothing")
			} else {
				accepted++
			}
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
		cut := rapid.IntRange(0, len(l.entries)).Draw(t, "cut")
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

// checkInvariants adds the ledger up by itself, from the replicas alone.
func checkInvariants(t require.TestingT, before, after *state.View) {
	type gpu struct{ node, uuid string }
	sum := func(v *state.View) (seats map[string]string, bytes map[gpu]int64, host map[string]int64) {
		seats, bytes, host = map[string]string{}, map[gpu]int64{}, map[string]int64{}
		for _, r := range v.Replicas(nil) {
			if r.Tier != state.Cold {
				for _, s := range r.Placement.Seats {
					key := r.Placement.Node + " " + s
					require.Empty(t, seats[key], "seat %s is promised twice", key)
					seats[key] = r.Name.String()
				}
			}
			for uuid, b := range r.Placement.Memory {
				if r.Tier == state.Hot || r.Tier == state.Warm && r.Phase == state.Waking {
					bytes[gpu{r.Placement.Node, uuid}] += b
				}
			}
			if r.Tier == state.Warm || r.Phase == state.Sleeping {
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
		require.LessOrEqual(t, r.ModifyIndex, after.Index())
	}
	require.LessOrEqual(t, len(after.Decisions(nil, "", 0)), state.DecisionLimit)
}

func drawCommand(t *rapid.T, v *state.View) state.Command {
	ids := func(prefix string, n int) *rapid.Generator[string] {
		return rapid.Map(rapid.IntRange(0, n-1), func(i int) string { return fmt.Sprint(prefix, i) })
	}
	now := epoch.Add(time.Duration(v.Index()) * time.Second)
	// index is mostly the right one.
	index := func(have uint64) uint64 {
		if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
			return rapid.Uint64Range(0, have+1).Draw(t, "index")
		}
		return have
	}
	drawMove := func() state.Move {
		rs := v.Replicas(nil)
		if len(rs) == 0 {
			return state.Move{Replica: "m0:v:none"}
		}
		r := rapid.SampledFrom(rs).Draw(t, "replica")
		phase := rapid.SampledFrom([]state.Phase{state.Placed, state.Starting, state.Running, state.Draining, state.Sleeping, state.Waking, state.Stopping, state.Failed}).Draw(t, "phase")
		c := state.Move{
			Replica: r.Name.String(), ModifyIndex: index(r.ModifyIndex), Phase: phase, Time: now,
			Tier:   rapid.SampledFrom([]state.Tier{state.Hot, state.Hot, state.Warm, state.Cold}).Draw(t, "tier"),
			Target: rapid.SampledFrom([]state.Tier{"", state.Warm, state.Cold, state.Hot}).Draw(t, "target"),
		}
		// Mostly a way that leads somewhere.
		if rapid.IntRange(0, 4).Draw(t, "wild") > 0 {
			switch r.Stage() {
			case state.Stage{Tier: state.Hot, Phase: state.Running}:
				c.Tier, c.Phase, c.Target = state.Hot, state.Draining, state.Warm
			case state.Stage{Tier: state.Hot, Phase: state.Draining}:
				c.Tier, c.Phase, c.Target = state.Hot, state.Sleeping, state.Warm
			case state.Stage{Tier: state.Hot, Phase: state.Sleeping}:
				c.Tier, c.Phase, c.Target = state.Warm, state.Running, ""
			case state.Stage{Tier: state.Warm, Phase: state.Running}:
				c.Tier, c.Phase, c.Target = state.Warm, state.Waking, state.Hot
			case state.Stage{Tier: state.Hot, Phase: state.Placed}, state.Stage{Tier: state.Hot, Phase: state.Starting}:
				c.Tier, c.Phase, c.Target = state.Hot, state.Running, ""
			}
		}
		if rapid.Bool().Draw(t, "registered") {
			c.JobIndex = ptr(uint64(3))
		}
		return c
	}
	drawRemove := func() state.Remove {
		rs := v.Replicas(nil)
		if len(rs) == 0 {
			return state.Remove{Replica: "m0:v:none"}
		}
		r := rapid.SampledFrom(rs).Draw(t, "removed")
		return state.Remove{Replica: r.Name.String(), ModifyIndex: index(r.ModifyIndex)}
	}
	drawPlace := func() state.Place {
		p := place(ids("m", 2).Draw(t, "model"), ids("r", 12).Draw(t, "id"), ids("n", 3).Draw(t, "node"),
			rapid.IntRange(0, 2).Draw(t, "gpu"), rapid.IntRange(0, 3).Draw(t, "seat"), rapid.Int64Range(0, 12).Draw(t, "bytes"))
		p.Placement.HostMemory = rapid.Int64Range(0, 12).Draw(t, "host bytes")
		if rapid.IntRange(0, 5).Draw(t, "adopted") == 0 {
			p.Adopt, p.Tier, p.Phase = true, rapid.SampledFrom([]state.Tier{state.Hot, state.Warm}).Draw(t, "tier"), state.Running
		}
		return p
	}
	switch rapid.IntRange(0, 24).Draw(t, "command") {
	case 0:
		m := model(ids("m", 2).Draw(t, "model"), func(m *state.Model) { m.Hash = ids("h", 3).Draw(t, "hash") })
		var have uint64
		if old := v.Model(nil, m.Name); old != nil {
			have = old.ModifyIndex
		}
		return &state.UpsertModel{Model: m, ModifyIndex: index(have)}
	case 1:
		return &state.DeleteModel{Model: ids("m", 2).Draw(t, "model")}
	case 2:
		return &state.SetScale{Model: ids("m", 2).Draw(t, "model"), Replicas: ptr(rapid.IntRange(-1, 101).Draw(t, "replicas")), Origin: state.OriginAutoscaler}
	case 3, 4:
		n := node(ids("n", 3).Draw(t, "node"), rapid.IntRange(0, 3).Draw(t, "gpus"), rapid.IntRange(1, 4).Draw(t, "seats"), rapid.Int64Range(5, 30).Draw(t, "memory"))
		n.Ready = rapid.IntRange(0, 5).Draw(t, "not ready") > 0
		n.Gone = rapid.IntRange(0, 5).Draw(t, "gone") == 0
		for i := range n.GPUs {
			n.GPUs[i].Healthy = rapid.IntRange(0, 5).Draw(t, "ill") > 0
		}
		return &state.UpsertNodes{Nodes: []state.Node{n}}
	case 5:
		return &state.DeleteNode{Node: ids("n", 3).Draw(t, "node")}
	case 6:
		return &state.Quarantine{Node: "n0", GPU: "n0-GPU0", On: rapid.Bool().Draw(t, "on")}
	case 7:
		return &state.RecordDecisions{Decisions: []state.Decision{{Time: now, Model: "m0", Kind: "think", Inputs: map[string]string{"b": "2", "a": "1"}}}}
	case 8:
		return &state.SetSwitch{Name: ids("s", 2).Draw(t, "switch"), Value: ids("", 2).Draw(t, "value"), Delete: rapid.Bool().Draw(t, "delete")}
	case 9:
		return &state.UpsertToken{Token: state.Token{Accessor: ids("a", 3).Draw(t, "accessor"), Role: state.RoleOperator, Hash: state.HashSecret(ids("x", 3).Draw(t, "secret"))}, Bootstrap: rapid.Bool().Draw(t, "bootstrap")}
	case 10:
		return &state.DeleteToken{Accessor: ids("a", 3).Draw(t, "accessor")}
	case 11, 12, 13, 14, 15, 16:
		c := drawMove()
		return &c
	case 17:
		c := drawRemove()
		return &c
	}
	c := &state.Plan{ID: "p", Index: v.Index(), Time: now}
	if rapid.IntRange(0, 5).Draw(t, "old plan") == 0 {
		c.Index = rapid.Uint64Range(0, v.Index()).Draw(t, "planned at")
	}
	for range rapid.IntRange(0, 1).Draw(t, "removals") {
		c.Remove = append(c.Remove, drawRemove())
	}
	for range rapid.IntRange(0, 1).Draw(t, "moves") {
		c.Move = append(c.Move, drawMove())
	}
	for range rapid.IntRange(0, 3).Draw(t, "places") {
		c.Place = append(c.Place, drawPlace())
	}
	return c
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
	}
	l.must(setup...)
	for _, c := range setup {
		seed(c)
	}
	seed(l.move(name("m", "1"), state.Hot, state.Starting, ""))
	seed(&state.Plan{ID: "p", Index: 3, Time: epoch, Place: []state.Place{place("m", "2", "n", 1, 0, 10)}, Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: 3}}})
	seed(&state.SetScale{Model: "m", Replicas: ptr(3), Origin: state.OriginOperator})
	seed(&state.RecordDecisions{Decisions: []state.Decision{{Kind: "k", Time: epoch}}})
	seed(&state.SetSwitch{Name: "s", Value: "v"})
	seed(&state.UpsertToken{Token: state.Token{Accessor: "a", Role: state.RoleOperator, Hash: state.HashSecret("x")}})
	f.Add([]byte{byte(state.TypeMove)})
	f.Add([]byte{0xff, 1, 2})
	f.Add([]byte("\x0a{\"Decisions\":[{\"Kind\":\"k\",\"Time\":\"0000-01-01T00:00:00+23:59\"}]}"))
	base := snapshotOf(f, l.store)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := restored(t, base)
		before := s.View()
		res := s.Apply(4, data)
		after := s.View()
		if res.Err != nil || res.Ignored {
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
