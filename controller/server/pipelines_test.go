package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// pipelineFile is a pipeline that calls these models, one after the other.
func pipelineFile(name string, models ...string) string {
	var b strings.Builder
	b.WriteString("pipeline \"" + name + "\" {\n")
	before := "input"
	for i, m := range models {
		step := string(rune('a' + i))
		b.WriteString("  step \"" + step + "\" {\n    model  = \"" + m + "\"\n    prompt = " + before + ".text\n  }\n")
		before = "step." + step
	}
	b.WriteString("  output = " + before + "\n}\n")
	return b.String()
}

func TestPipelines(t *testing.T) {
	t.Parallel()
	m := one(t)
	m.applied("small")
	list, meta, err := m.client.Pipelines(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, list)
	before, _, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, before.Pipelines)

	// A gateway that waits hears of it.
	state, gatewayMeta, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, state.Pipelines)
	type heard struct {
		state api.GatewayState
		err   error
	}
	told := make(chan heard, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		s, _, err := m.client.GatewayState(ctx, api.QueryOptions{Index: gatewayMeta.Index})
		told <- heard{s, err}
	}()

	source := pipelineFile("meta/p", "small", "large")
	done, err := m.client.ApplyPipeline(t.Context(), "meta/p", api.PipelineRequest{File: source, CAS: new(uint64)})
	require.NoError(t, err)
	require.True(t, done.New)
	require.True(t, done.Changed)
	require.Equal(t, []string{"large", "small"}, done.Pipeline.Models)
	require.Equal(t, []string{"large"}, done.Pipeline.Missing)
	got := <-told
	require.NoError(t, got.err)
	require.Equal(t, []api.GatewayPipeline{{Name: "meta/p", Source: source}}, got.state.Pipelines)

	again, err := m.client.ApplyPipeline(t.Context(), "meta/p", api.PipelineRequest{File: source})
	require.NoError(t, err)
	require.Equal(t, api.PipelineResponse{Pipeline: done.Pipeline}, again)
	p, _, err := m.client.Pipeline(t.Context(), "meta/p", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, done.Pipeline, p)
	require.Equal(t, source, p.Source)
	list, after, err := m.client.Pipelines(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, []api.Pipeline{p}, list)
	require.Greater(t, after.Index, meta.Index)
	decisions, _, err := m.client.Decisions(t.Context(), api.DecisionFilter{Limit: 1}, api.QueryOptions{})
	require.NoError(t, err)
	require.Contains(t, decisions[0].Reason, `anonymous (no ACL token) applied new pipeline "meta/p": its 2 steps call large, small`)

	// Names are of one space, both ways.
	_, err = m.client.ApplyPipeline(t.Context(), "small", api.PipelineRequest{File: pipelineFile("small", "x")})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "a model already has this name")
	_, err = m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("meta/p"))})
	requireError(t, err, http.StatusConflict, api.CodeConflict, "a pipeline already has this name")
	_, err = m.client.ApplyPipeline(t.Context(), "q", api.PipelineRequest{File: pipelineFile("q", "meta/p")})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `a step calls "meta/p", which is a pipeline`)

	// What is wrong is told with its line.
	_, err = m.client.ApplyPipeline(t.Context(), "p", api.PipelineRequest{Filename: "my.hcl", File: "pipeline \"p\" {\n  output = step.a\n}\n"})
	e := requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, "my.hcl:")
	require.NotEmpty(t, e.Faults)
	require.Equal(t, 2, e.Faults[1].Line)
	_, err = m.client.ApplyPipeline(t.Context(), "p", api.PipelineRequest{File: source})
	requireError(t, err, http.StatusBadRequest, api.CodeBadRequest, `the file defines pipeline "meta/p", but the path names "p"`)
	_, err = m.client.ApplyPipeline(t.Context(), "meta/p", api.PipelineRequest{File: pipelineFile("meta/p", "x"), CAS: new(uint64)})
	requireError(t, err, http.StatusConflict, api.CodeConflict, `pipeline "meta/p" already exists`)

	requireError(t, m.client.DeletePipeline(t.Context(), "meta/p", ptr(p.ModifyIndex+1)), http.StatusConflict, api.CodeConflict, "has changed")
	require.NoError(t, m.client.DeletePipeline(t.Context(), "meta/p", ptr(p.ModifyIndex)))
	requireError(t, m.client.DeletePipeline(t.Context(), "meta/p", nil), http.StatusNotFound, api.CodeNotFound, `pipeline "meta/p" does not exist`)
	_, _, err = m.client.Pipeline(t.Context(), "meta/p", api.QueryOptions{})
	requireError(t, err, http.StatusNotFound, api.CodeNotFound, `pipeline "meta/p" does not exist`)
	now, _, err := m.client.GatewayState(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, now.Pipelines)
}
