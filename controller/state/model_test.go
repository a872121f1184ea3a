package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

func TestModelIsComparedAndSet(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")})
	require.ErrorIs(t, l.apply(&state.UpsertModel{Model: model("m")}).Err, state.ErrConflict, "it exists")
	require.ErrorIs(t, l.apply(&state.UpsertModel{Model: model("x"), ModifyIndex: 3}).Err, state.ErrNotFound)

	same := l.apply(&state.UpsertModel{Model: model("m"), ModifyIndex: 1})
	require.Nil(t, same.Err)
	require.False(t, same.Changed, "the hash is the same")

	changed := model("m", func(m *state.Model) { m.Hash, m.Max = "h2", 5 })
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: 1})
	m := l.store.View().Model(nil, "m")
	require.Equal(t, uint64(1), m.CreateIndex)
	require.Equal(t, l.index, m.ModifyIndex)
	require.ErrorIs(t, l.apply(&state.UpsertModel{Model: changed, ModifyIndex: 1}).Err, state.ErrConflict, "stale")
}

func TestModelKeepsItsScale(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")}, &state.ScaleRequest{Model: "m", Replicas: ptr(7), Origin: state.OriginOperator})
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Hash = "h2" }), ModifyIndex: l.index})
	require.Equal(t, 7, l.store.View().Model(nil, "m").Desired.Total())
	l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) { m.Hash, m.Max = "h3", 4 }), ModifyIndex: l.index})
	require.Equal(t, 7, l.model("m").Desired.Total())
	require.Equal(t, state.Target{Replicas: 4, Bound: state.BoundMax}, l.store.View().Target(nil, l.model("m")))
}

func TestApplyStartsAStoppedModel(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")}, &state.ScaleRequest{Model: "m", Stopped: ptr(true), Origin: state.OriginOperator})
	l.must(&state.UpsertModel{Model: model("m"), ModifyIndex: l.index})
	require.False(t, l.store.View().Model(nil, "m").Stopped)
}

func TestBadModelsNameEveryFault(t *testing.T) {
	l := newLog(t)
	res := l.apply(&state.UpsertModel{Model: state.Model{
		Name: "a b", Min: 3, Max: 2, Priority: 101, Management: "sometimes", IdleWarm: -1,
		Variants: []state.Variant{{Name: "a:b", Memory: -1, Cost: -1}, {Name: "a:b", GPUs: 1, Hash: "h"}},
	}})
	require.ErrorIs(t, res.Err, state.ErrBadRequest)
	for _, want := range []string{"spaces", "min is 3", "priority is 101", "sometimes", "idle", "hash is empty", "contains a ':'", "duplicate variant", "gpus is 0", "memory is -1", "cost is -1"} {
		require.ErrorContains(t, res.Err, want)
	}
	require.False(t, res.Changed)
	require.Empty(t, l.store.View().Models(nil))
}

func TestManagementOfAScale(t *testing.T) {
	operator, autoscaler := state.OriginOperator, state.OriginAutoscaler
	for _, tt := range []struct {
		name       string
		management state.Management
		scale      state.ScaleRequest
		want       error
		unchanged  bool
	}{
		{"operator up", state.ManagementManual, state.ScaleRequest{Replicas: ptr(6), Origin: operator}, nil, false},
		{"as it is", state.ManagementDisabled, state.ScaleRequest{Replicas: ptr(5), Origin: operator}, nil, true},
		{"above max", state.ManagementFull, state.ScaleRequest{Replicas: ptr(11), Origin: operator}, state.ErrBadRequest, true},
		{"below min", state.ManagementFull, state.ScaleRequest{Replicas: ptr(0), Origin: operator}, state.ErrBadRequest, true},
		{"no origin", state.ManagementFull, state.ScaleRequest{Replicas: ptr(6)}, state.ErrBadRequest, true},
		{"disabled for people", state.ManagementDisabled, state.ScaleRequest{Replicas: ptr(6), Origin: operator}, state.ErrForbidden, true},
		{"disabled can be stopped", state.ManagementDisabled, state.ScaleRequest{Stopped: ptr(true), Origin: operator}, nil, false},
		{"manual for the autoscaler", state.ManagementManual, state.ScaleRequest{Replicas: ptr(6), Origin: autoscaler}, state.ErrForbidden, true},
		{"upscaling up", state.ManagementUpscaling, state.ScaleRequest{Replicas: ptr(6), Origin: autoscaler}, nil, false},
		{"upscaling down", state.ManagementUpscaling, state.ScaleRequest{Replicas: ptr(4), Origin: autoscaler}, state.ErrForbidden, true},
		{"full down", state.ManagementFull, state.ScaleRequest{Replicas: ptr(4), Origin: autoscaler}, nil, false},
		{"autoscaler stops", state.ManagementFull, state.ScaleRequest{Stopped: ptr(true), Origin: autoscaler}, state.ErrForbidden, true},
		{"no such model yet", state.ManagementFull, state.ScaleRequest{Replicas: ptr(6), Origin: operator, ModifyIndex: ptr(uint64(0))}, state.ErrConflict, true},
		{"stale", state.ManagementFull, state.ScaleRequest{Replicas: ptr(6), Origin: operator, ModifyIndex: ptr(uint64(99))}, state.ErrConflict, true},
		{"fresh", state.ManagementFull, state.ScaleRequest{Replicas: ptr(6), Origin: operator, ModifyIndex: ptr(uint64(1))}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: model("m", func(m *state.Model) {
				m.Min, m.Max, m.Desired, m.Management = 1, 10, state.Any(5), tt.management
			})})
			tt.scale.Model = "m"
			res := l.apply(&tt.scale)
			if tt.want == nil {
				require.Nil(t, res.Err)
			} else {
				require.ErrorIs(t, res.Err, tt.want)
			}
			require.Equal(t, tt.unchanged, !res.Changed)
			m := l.store.View().Model(nil, "m")
			if tt.unchanged {
				require.Equal(t, 5, m.Desired.Total())
				require.Equal(t, uint64(1), m.ModifyIndex)
			} else if tt.scale.Replicas != nil {
				require.Equal(t, *tt.scale.Replicas, m.Desired.Total())
			} else {
				require.True(t, m.Stopped)
			}
		})
	}
}

func TestDeleteModel(t *testing.T) {
	l := ready(t)
	l.must(l.plan(place("m", "1", "n", 0, 0, 10)))
	require.ErrorIs(t, l.apply(&state.DeleteModel{Model: "m"}).Err, state.ErrConflict, "it has a replica")
	l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:1", ModifyIndex: l.index - 1}}})
	require.ErrorIs(t, l.apply(&state.DeleteModel{Model: "m", ModifyIndex: ptr(uint64(77))}).Err, state.ErrConflict)
	l.must(&state.DeleteModel{Model: "m"})
	require.ErrorIs(t, l.apply(&state.DeleteModel{Model: "m"}).Err, state.ErrNotFound)
}

// TestDeletedModelForgetsItsWeights has a COLD replica and one that is being stopped.
func TestDeletedModelForgetsItsWeights(t *testing.T) {
	l := walk(t, state.StatusCold)
	l.must(l.plan(place("m", "2", "n", 0, 0, 10)))
	require.ErrorContains(t, l.apply(&state.DeleteModel{Model: "m"}).Err, "still has 1 replicas")
	require.Len(t, l.store.View().Replicas(nil), 2, "a refused command changes nothing")
	l.must(&state.Plan{ID: "p", Remove: []state.Remove{{Replica: "m:v:2", ModifyIndex: l.replica(name("m", "2")).ModifyIndex}}})
	l.must(&state.DeleteModel{Model: "m"})
	require.Empty(t, l.store.View().Replicas(nil))
}

func TestModelsAreChangedTogetherOrNotAtAll(t *testing.T) {
	none := func(*state.UpsertModels) {}
	for _, tt := range []struct {
		name    string
		edit    func(*state.UpsertModels)
		want    *state.Error
		subject string
		text    []string
	}{
		{name: "good", edit: none},
		{"bad ones", func(c *state.UpsertModels) {
			c.Models[1].Model.Hash, c.Models[1].Model.Priority, c.Models[2].Model.Variants = "", 101, nil
		}, state.ErrBadRequest, "b", []string{`model "b": hash is empty`, `model "b": priority is 101`, `model "c": no variants: at least one is required`}},
		{"no name", func(c *state.UpsertModels) { c.Models[1].Model.Name = "" }, state.ErrBadRequest, "", []string{`model "": model name is empty`}},
		{"twice", func(c *state.UpsertModels) { c.Models[2].Model.Name = "b" }, state.ErrBadRequest, "b", []string{`model "b": duplicate model`}},
		{"stale", func(c *state.UpsertModels) { c.Models[0].ModifyIndex, c.Models[2].ModifyIndex = 99, 5 }, state.ErrConflict, "a", []string{`model "a" has changed since it was read: its index is 1, not 99`, `model "c" does not exist`}},
		{"unknown", func(c *state.UpsertModels) { c.Models[1].ModifyIndex = 7 }, state.ErrNotFound, "b", []string{`model "b" does not exist`}},
		{"exists", func(c *state.UpsertModels) { c.Models[0].ModifyIndex = 0 }, state.ErrConflict, "a", []string{`model "a" already exists`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			l.must(&state.UpsertModel{Model: model("a")})
			c := &state.UpsertModels{}
			for _, name := range []string{"a", "b", "c"} {
				c.Models = append(c.Models, state.UpsertModel{Model: model(name, func(m *state.Model) { m.Hash, m.Max = "h2", 7 }), Time: epoch})
			}
			c.Models[0].ModifyIndex = 1
			tt.edit(c)
			res := l.apply(c)
			if tt.want == nil {
				require.Nil(t, res.Err)
				for _, name := range []string{"a", "b", "c"} {
					require.Equal(t, 7, l.model(name).Max)
					require.Equal(t, l.index, l.model(name).ModifyIndex)
				}
				for i := range c.Models {
					c.Models[i].ModifyIndex = l.index
				}
				require.False(t, l.apply(c).Changed, "the hashes are the same")
				return
			}
			require.ErrorIs(t, res.Err, tt.want)
			require.Equal(t, tt.subject, res.Err.Subject)
			for _, text := range tt.text {
				require.ErrorContains(t, res.Err, text)
			}
			require.False(t, res.Changed)
			require.Len(t, l.store.View().Models(nil), 1)
			require.Equal(t, "h1", l.model("a").Hash)
		})
	}
	l := newLog(t)
	require.False(t, l.apply(&state.UpsertModels{}).Changed)
}

// TestWhatNoRowOfAModelHolds: a command that was not made by a proposal of this version leaves
// the state as it was.
func TestWhatNoRowOfAModelHolds(t *testing.T) {
	for _, tt := range []struct {
		text string
		edit func(*state.WriteModel)
	}{
		{"must be in its one form", func(w *state.WriteModel) { w.Desired = state.Shares{{Replicas: 1}, {Replicas: 1}} }},
		{"unknown variant \"x\"", func(w *state.WriteModel) { w.Desired = state.Shares{{Variant: "x", Replicas: 1}} }},
		{"displaced must be a part of desired", func(w *state.WriteModel) { w.Displaced.UntilRoom = state.Any(2) }},
		{"stable version 7 does not exist", func(w *state.WriteModel) { w.StableVersion = 7 }},
		{"a rollout of variant \"x\"", func(w *state.WriteModel) {
			w.Rollouts = map[string]state.Rollout{"x": {Status: state.RolloutCanary, Version: 2}}
		}},
		{"is \"odd\": must be canary", func(w *state.WriteModel) { w.Rollouts = map[string]state.Rollout{"v": {Status: "odd", Version: 2}} }},
		{"must be of version 2", func(w *state.WriteModel) {
			w.Rollouts = map[string]state.Rollout{"v": {Status: state.RolloutCanary, Version: 1}}
		}},
		{"version 2 has no definition", func(w *state.WriteModel) { w.Definition = nil }},
		{"cannot follow", func(w *state.WriteModel) { w.Version = 1 }},
		{"cannot follow", func(w *state.WriteModel) { w.Definition.Name = "other" }},
		{"min is -1", func(w *state.WriteModel) { w.Definition.Min = -1 }},
		{"has changed since", func(w *state.WriteModel) { w.ModifyIndex = 99 }},
		{"already exists", func(w *state.WriteModel) { w.ModifyIndex = 0 }},
	} {
		l := newLog(t)
		l.must(&state.UpsertModel{Model: model("m")})
		next := &state.UpsertModel{Model: defined("vh2", func(m *state.Model) { m.Hash = "h2" }), ModifyIndex: l.model("m").ModifyIndex, Time: epoch}
		resolved, refused := next.Resolve(l.store.View())
		require.Nil(t, refused)
		c := resolved.(*state.WriteModels)
		require.Len(t, c.Models, 1)
		before := rowsOf(t, l.store.View())
		tt.edit(&c.Models[0])
		require.ErrorContains(t, l.apply(c).Err, tt.text)
		require.Equal(t, before, rowsOf(t, l.store.View()), tt.text)
	}
}
