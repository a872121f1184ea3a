package state_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

func pipelineOf(name string, models ...string) *state.SetPipeline {
	return &state.SetPipeline{Name: name, Source: "pipeline " + name, Models: models}
}

func TestPipelines(t *testing.T) {
	l := newLog(t)
	require.Equal(t, uint64(1), l.store.View().TableIndex(state.TablePipelines))
	l.must(pipelineOf("p", "a", "b"))
	p := l.store.View().Pipeline(nil, "p")
	require.Equal(t, &state.Pipeline{Name: "p", Source: "pipeline p", Models: []string{"a", "b"}, CreateIndex: 1, ModifyIndex: 1}, p)
	require.False(t, l.apply(pipelineOf("p", "a", "b")).Changed)

	// Replaced, and compared with what the caller knows.
	next := pipelineOf("p", "a")
	next.Source, next.ModifyIndex = "pipeline q", ptr(uint64(0))
	require.ErrorIs(t, l.apply(next).Err, state.ErrConflict)
	next.ModifyIndex = ptr(uint64(1))
	l.must(next)
	require.Equal(t, uint64(1), l.store.View().Pipeline(nil, "p").CreateIndex)
	require.Equal(t, l.index, l.store.View().Pipeline(nil, "p").ModifyIndex)
	require.ErrorIs(t, l.apply(&state.SetPipeline{Name: "p", Delete: true, ModifyIndex: ptr(uint64(1))}).Err, state.ErrConflict)
	l.must(pipelineOf("o", "a"))
	require.Len(t, l.store.View().Pipelines(nil), 2)
	l.must(&state.SetPipeline{Name: "p", Delete: true, ModifyIndex: ptr(uint64(4))})
	require.ErrorIs(t, l.apply(&state.SetPipeline{Name: "p", Delete: true}).Err, state.ErrNotFound)
	require.Nil(t, l.store.View().Pipeline(nil, "p"))

	for _, bad := range []*state.SetPipeline{
		{Source: "x", Models: []string{"a"}},
		{Name: "x", Models: []string{"a"}},
		{Name: "x", Source: "x"},
		pipelineOf("x", "b", "a"),
		pipelineOf("x", "a", "a"),
		pipelineOf("x", ""),
		pipelineOf("x y", "a"),
	} {
		require.ErrorIs(t, l.apply(bad).Err, state.ErrBadRequest, "%+v", bad)
	}
}

// TestPipelinesAndModelsShareNames, and pipelines call no pipelines, whatever comes first.
func TestPipelinesAndModelsShareNames(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")}, pipelineOf("p", "m", "n"))
	refused := func(c any, text string) {
		t.Helper()
		err := l.apply(c).Err
		require.ErrorIs(t, err, state.ErrConflict)
		require.Contains(t, err.Message, text)
	}
	refused(pipelineOf("m", "x"), `pipeline "m": a model already has this name`)
	refused(&state.UpsertModel{Model: model("p")}, `model "p": a pipeline already has this name`)
	refused(&state.UpsertModels{Models: []state.UpsertModel{{Model: model("q")}, {Model: model("p")}}}, `model "p": a pipeline already has this name`)
	require.Nil(t, l.store.View().Model(nil, "q"), "all or none")
	refused(pipelineOf("o", "p"), `a step calls "p", which is a pipeline`)
	refused(pipelineOf("o", "o"), `a step calls "o", which is a pipeline`)
	refused(pipelineOf("n", "x"), `the steps of pipeline "p" call this name`)
	// Gone, the names are free.
	l.must(&state.SetPipeline{Name: "p", Delete: true}, &state.UpsertModel{Model: model("p")}, pipelineOf("n", "p"))
}

func TestSnapshotsOfPipelines(t *testing.T) {
	l := full(t)
	l.must(pipelineOf("p", "m"))
	data := snapshotOf(t, l.store)
	again := restored(t, data)
	require.Equal(t, data, snapshotOf(t, again))
	require.Equal(t, l.store.View().Pipelines(nil), again.View().Pipelines(nil))
	require.Equal(t, l.index, again.View().TableIndex(state.TablePipelines))
}

// drawPipeline draws names of models, too.
func drawPipeline(t *rapid.T) *state.SetPipeline {
	names := []string{"m0", "m1", "p0", "p1", "x"}
	c := &state.SetPipeline{Name: pick(names).Draw(t, "pipeline"), Source: pick([]string{"a", "b"}).Draw(t, "source"), Delete: between(0, 3).Draw(t, "stop") == 0}
	for _, m := range names {
		if between(0, 2).Draw(t, "calls") == 0 {
			c.Models = append(c.Models, m)
		}
	}
	return c
}

// checkNames: no name is a model's and a pipeline's, and no step calls a pipeline.
func checkNames(t require.TestingT, v *state.View) {
	for _, p := range v.Pipelines(nil) {
		require.Nil(t, v.Model(nil, p.Name), p.Name)
		for _, m := range p.Models {
			require.Nil(t, v.Pipeline(nil, m), "%s calls %s", p.Name, m)
		}
	}
}
