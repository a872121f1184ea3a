package state_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func TestCommandsOfOtherVersions(t *testing.T) {
	l := full(t)
	before := l.store.View().TableIndex()
	for _, tt := range []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, state.ErrBadRequest},
		{"unknown", []byte{0x70, '{', '}'}, state.ErrUnknownCommand},
		{"no body", []byte{byte(state.TypeMove)}, state.ErrBadRequest},
		{"not JSON", []byte{byte(state.TypeMove), 0xff}, state.ErrBadRequest},
		{"wrong type", []byte("\x05{\"Replica\":1}"), state.ErrBadRequest},
		{"unknown field", []byte("\x0b{\"Name\":\"x\",\"Value\":\"y\",\"Colour\":\"red\"}"), state.ErrUnknownCommand},
		{"unknown field inside", []byte("\x04{\"ID\":\"p\",\"Place\":[{\"Placement\":{\"Rack\":1}}]}"), state.ErrUnknownCommand},
		{"unknown field of a decided command", []byte("\x10{\"Of\":11,\"Command\":{\"Name\":\"x\",\"Colour\":\"red\"}}"), state.ErrUnknownCommand},
		{"unknown field and no JSON", []byte("\x0b{\"Colour\":\"red\""), state.ErrBadRequest},
		{"two values", []byte("\x0b{\"Name\":\"x\"}{}"), state.ErrBadRequest},
		{"null", []byte("\x05null"), state.ErrNotFound},
		{"too long", append([]byte{byte(state.TypeSetSwitch)}, strings.Repeat(" ", state.MaxCommand)...), state.ErrBadRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := l.applyBytes(tt.data)
			require.ErrorIs(t, res.Err, tt.want)
			require.False(t, res.Changed)
			require.Equal(t, l.index, l.store.View().Index())
			require.Equal(t, before, l.store.View().TableIndex())
		})
	}
	_, err := state.Encode(&state.SetSwitch{Name: strings.Repeat("x", state.MaxCommand)})
	require.ErrorIs(t, err, state.ErrBadRequest)
}

func TestTimesThatCannotBeWritten(t *testing.T) {
	l := full(t)
	for _, body := range []string{
		`{"ID":"p","Decisions":[{"Kind":"k","Time":"0000-01-01T00:00:00+23:59"}]}`,
		`{"ID":"p","Decisions":[{"Kind":"k","Time":"9999-12-31T23:59:00-23:59"}]}`,
	} {
		require.ErrorIs(t, l.applyBytes([]byte("\x04"+body)).Err, state.ErrBadRequest)
	}
	require.Nil(t, l.applyBytes([]byte("\x04"+`{"ID":"p","Decisions":[{"Kind":"k","Time":"2026-01-01T02:00:00+02:00"}]}`)).Err)
	require.Equal(t, "2026-01-01T00:00:00Z", l.store.View().Decisions(nil, "", 1)[0].Time.Format(time.RFC3339))
	snapshotOf(t, l.store)
}

func TestDecisionsAreARing(t *testing.T) {
	l := newLog(t)
	batch := func(n int) *state.Plan {
		c := &state.Plan{ID: "p"}
		for i := range n {
			c.Decisions = append(c.Decisions, state.Decision{Kind: "k", Time: epoch, Model: fmt.Sprint("m", i%2)})
		}
		return c
	}
	l.must(batch(10), batch(state.DecisionLimit-5))
	ds := l.store.View().Decisions(nil, "", 0)
	require.Len(t, ds, state.DecisionLimit)
	require.Equal(t, uint64(state.DecisionLimit+5), ds[0].ID, "newest first")
	require.Equal(t, uint64(6), ds[len(ds)-1].ID)
	l.must(batch(state.DecisionLimit + 3))
	ds = l.store.View().Decisions(nil, "", 0)
	require.Len(t, ds, state.DecisionLimit)
	require.Equal(t, uint64(2*state.DecisionLimit+8), ds[0].ID)

	ds = l.store.View().Decisions(nil, "m1", 3)
	require.Len(t, ds, 3)
	for i, d := range ds {
		require.Equal(t, "m1", d.Model)
		require.Equal(t, uint64(2*state.DecisionLimit+8-1-2*i), d.ID)
	}
	require.ErrorIs(t, l.apply(&state.Plan{ID: "p", Decisions: []state.Decision{{Kind: ""}}}).Err, state.ErrBadRequest)
	require.ErrorIs(t, l.apply(&state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k", Model: "a\x00b"}}}).Err, state.ErrBadRequest)
	require.False(t, l.apply(&state.Plan{ID: "p"}).Changed)
}

func TestSwitches(t *testing.T) {
	l := newLog(t)
	l.must(&state.SetSwitch{Name: "s", Value: "on", ModifyIndex: ptr(uint64(0))})
	require.False(t, l.apply(&state.SetSwitch{Name: "s", Value: "on"}).Changed)
	require.ErrorIs(t, l.apply(&state.SetSwitch{Name: "s", Value: "off", ModifyIndex: ptr(uint64(0))}).Err, state.ErrConflict)
	l.must(&state.SetSwitch{Name: "s", Value: "off", ModifyIndex: ptr(uint64(1))})
	require.Equal(t, "off", l.store.View().Switch(nil, "s"))
	l.must(&state.SetSwitch{Name: "s", Delete: true})
	require.False(t, l.apply(&state.SetSwitch{Name: "s", Delete: true}).Changed)
	require.Empty(t, l.store.View().Switches(nil))
	require.ErrorIs(t, l.apply(&state.SetSwitch{}).Err, state.ErrBadRequest)
}

func TestTokens(t *testing.T) {
	l := newLog(t)
	token := func(accessor, secret string, role state.Role) state.Token {
		return state.Token{Accessor: accessor, Role: role, Hash: state.HashSecret(secret), CreatedAt: epoch}
	}
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: token("a", "x", state.RoleGateway), Bootstrap: true}).Err, state.ErrBadRequest)
	l.must(&state.UpsertToken{Token: token("a", "x", state.RoleOperator), Bootstrap: true})
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: token("b", "y", state.RoleOperator), Bootstrap: true}).Err, state.ErrConflict, "only once")
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: token("b", "x", state.RoleReadOnly)}).Err, state.ErrConflict, "the secret is another's")
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: token("a", "z", state.RoleOperator)}).Err, state.ErrConflict, "it exists")
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: token("b", "y", "king")}).Err, state.ErrBadRequest)
	require.ErrorIs(t, l.apply(&state.UpsertToken{Token: state.Token{Accessor: "b", Role: state.RoleReadOnly, Hash: "secret"}}).Err, state.ErrBadRequest)
	l.must(&state.UpsertToken{Token: token("b", "y", state.RoleReadOnly)})
	require.Equal(t, "b", l.store.View().TokenBySecret("y").Accessor)
	l.must(&state.UpsertToken{Token: token("b", "z", state.RoleGateway), ModifyIndex: l.index})
	require.Nil(t, l.store.View().TokenBySecret("y"), "the old secret is worth nothing")
	require.Equal(t, state.RoleGateway, l.store.View().TokenBySecret("z").Role)
	l.must(&state.DeleteToken{Accessor: "b"})
	require.Nil(t, l.store.View().TokenBySecret("z"))
	require.ErrorIs(t, l.apply(&state.DeleteToken{Accessor: "b"}).Err, state.ErrNotFound)
	require.Len(t, l.store.View().Tokens(nil), 1)
}

// TestBlockingQueries waits for the replicas of one model.
func TestBlockingQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t)
		var found []*state.Replica
		query := func(v *state.View, ws memdb.WatchSet) (uint64, error) {
			found = v.ReplicasOf(ws, "m")
			return v.TableIndex(state.TableReplicas), nil
		}
		index, err := l.store.Block(t.Context(), 0, query)
		require.NoError(t, err)
		require.Equal(t, uint64(1), index, "an empty table has an index to wait on")

		wait := func(after uint64) <-chan uint64 {
			answered := make(chan uint64, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			go func() {
				defer cancel()
				index, err := l.store.Block(ctx, after, query)
				require.NoError(t, err)
				answered <- index
			}()
			synctest.Wait()
			return answered
		}
		pending := func(ch <-chan uint64) {
			synctest.Wait()
			require.Empty(t, ch, "it was answered too early")
		}
		answered := wait(1)
		l.must(&state.UpsertModel{Model: model("m")}, &state.UpsertModel{Model: model("other")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 2, 10)}})
		pending(answered)
		l.must(l.plan(place("m", "0", "n", 1, 1, 1)))
		require.Equal(t, l.index, <-answered)
		require.Len(t, found, 1)

		// Another model's replicas wake nobody who waits for those of m.
		answered = wait(l.index)
		l.must(l.plan(place("other", "1", "n", 1, 0, 1)))
		pending(answered)
		l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
		require.Equal(t, l.index, <-answered)
		require.Len(t, found, 2)

		// A refused command and one that changes nothing wake nobody.
		answered = wait(l.index)
		require.NotNil(t, l.apply(l.plan(place("m", "2", "n", 0, 0, 10))).Err)
		pending(answered)
		l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: l.replica(name("m", "1")).ModifyIndex}}})
		require.Equal(t, l.index, <-answered)
		require.Len(t, found, 1)

		// Time runs out: the answer is what is there.
		start := time.Now()
		require.Equal(t, l.index, <-wait(l.index))
		require.Equal(t, time.Minute, time.Since(start))

		// A restored state answers at once, whatever its index.
		empty := snapshotOf(t, newLog(t).store)
		answered = wait(l.index)
		_, err = l.store.Restore(strings.NewReader(string(empty)), state.FeatureLevel)
		require.NoError(t, err)
		require.Equal(t, uint64(1), <-answered)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = l.store.Block(ctx, 99, query)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestEveryQueryWatches changes each table and looks whether its queries notice.
func TestEveryQueryWatches(t *testing.T) {
	l := full(t)
	for _, tt := range []struct {
		name   string
		query  func(*state.View, memdb.WatchSet)
		change any
	}{
		{"models", func(v *state.View, ws memdb.WatchSet) { v.Models(ws) }, &state.UpsertModel{Model: model("m2")}},
		{"model", func(v *state.View, ws memdb.WatchSet) { v.Model(ws, "m3") }, &state.UpsertModel{Model: model("m3")}},
		{"nodes", func(v *state.View, ws memdb.WatchSet) { v.Nodes(ws) }, &state.UpsertNodes{Nodes: []state.Node{node("n2", 1, 1, 1)}}},
		{"node", func(v *state.View, ws memdb.WatchSet) { v.Node(ws, "n") }, &state.Cordon{Node: "n", GPU: "n-GPU0", On: true}},
		{"replicas", func(v *state.View, ws memdb.WatchSet) { v.Replicas(ws) }, l.move(name("m", "1"), state.EventStarted, "")},
		{"replica", func(v *state.View, ws memdb.WatchSet) { v.Replica(ws, "m:v:2") }, l.move(name("m", "2"), state.EventStarted, "")},
		{"usage", func(v *state.View, ws memdb.WatchSet) { v.Usage(ws, "n") }, &state.Move{Replica: "m:v:1", ModifyIndex: l.index + 5, Event: state.EventFailed}},
		{"ledger", func(v *state.View, ws memdb.WatchSet) { v.Ledger(ws) }, &state.Move{Replica: "m:v:2", ModifyIndex: l.index + 6, Event: state.EventFailed}},
		{"decisions", func(v *state.View, ws memdb.WatchSet) { v.Decisions(ws, "", 1) }, &state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k"}}}},
		{"decisions of a model", func(v *state.View, ws memdb.WatchSet) { v.Decisions(ws, "q", 1) }, &state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k", Model: "q"}}}},
		{"switches", func(v *state.View, ws memdb.WatchSet) { v.Switches(ws) }, &state.SetSwitch{Name: "t", Value: "1"}},
		{"switch", func(v *state.View, ws memdb.WatchSet) { v.Switch(ws, "u") }, &state.SetSwitch{Name: "u", Value: "1"}},
		{"dedicated", func(v *state.View, ws memdb.WatchSet) { v.Dedicated(ws) }, &state.SetDedicated{Models: map[string]int{"m2": 1}, Time: epoch}},
		{"is dedicated", func(v *state.View, ws memdb.WatchSet) { v.IsDedicated(ws, v.Model(nil, "m")) }, &state.SetDedicated{Time: epoch}},
		{"pipelines", func(v *state.View, ws memdb.WatchSet) { v.Pipelines(ws) }, pipelineOf("p", "m")},
		{"pipeline", func(v *state.View, ws memdb.WatchSet) { v.Pipeline(ws, "p2") }, pipelineOf("p2", "m")},
		{"schedule", func(v *state.View, ws memdb.WatchSet) { v.Schedule(ws) }, &state.SetSchedule{}},
		{"pace", func(v *state.View, ws memdb.WatchSet) { v.Pace(ws) }, &state.Plan{ID: "p", Pace: &state.Pace{Pruned: epoch}}},
		{"disabled", func(v *state.View, ws memdb.WatchSet) { v.Limits(ws) }, &state.SetSwitch{Name: "disable-scaling/m", Value: "true"}},
		{"cap", func(v *state.View, ws memdb.WatchSet) { v.Limits(ws) }, &state.SetSwitch{Name: "cap-max-replicas", Value: "4"}},
		{"delay", func(v *state.View, ws memdb.WatchSet) { v.Limits(ws) }, &state.SetSwitch{Name: "scale-to-zero-delay", Value: "never"}},
		{"tokens", func(v *state.View, ws memdb.WatchSet) { v.Tokens(ws) }, &state.DeleteToken{Accessor: "a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ws := memdb.NewWatchSet()
			tt.query(l.store.View(), ws)
			require.NotEmpty(t, ws)
			past, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, ws.WatchCtx(past), "nothing has changed")
			l.must(tt.change)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, ws.WatchCtx(ctx))
		})
	}
}

// TestTheLastOperatorStays where that is asked for, so that nobody can be the first again.
func TestTheLastOperatorStays(t *testing.T) {
	l := newLog(t)
	for _, a := range []string{"a", "b"} {
		l.must(&state.UpsertToken{Token: state.Token{Accessor: a, Role: state.RoleOperator, Hash: state.HashSecret(a), CreatedAt: epoch}})
	}
	l.must(&state.UpsertToken{Token: state.Token{Accessor: "c", Role: state.RoleReadOnly, Hash: state.HashSecret("c"), CreatedAt: epoch}})
	l.must(&state.DeleteToken{Accessor: "a", KeepOperator: true})
	require.ErrorIs(t, l.apply(&state.DeleteToken{Accessor: "b", KeepOperator: true}).Err, state.ErrConflict)
	l.must(&state.DeleteToken{Accessor: "c", KeepOperator: true})
	l.must(&state.DeleteToken{Accessor: "b"})
	require.Empty(t, l.store.View().Tokens(nil))
}
