package server

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/pipeline"
	"remuda/controller/state"
)

// pipelineOf also looks which of its models exist.
func pipelineOf(v *state.View, ws memdb.WatchSet, p *state.Pipeline) api.Pipeline {
	out := api.Pipeline{
		Name: p.Name, Source: p.Source, Models: list(p.Models, func(m string) string { return m }), CreateIndex: p.CreateIndex, ModifyIndex: p.ModifyIndex,
	}
	for _, m := range p.Models {
		if v.Model(ws, m) == nil {
			out.Missing = append(out.Missing, m)
		}
	}
	return out
}

func (s *Server) listPipelines(_ *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	all := list(v.Pipelines(ws), func(p *state.Pipeline) api.Pipeline { return pipelineOf(v, ws, p) })
	return answer{value: all, index: v.TableIndex(state.TablePipelines, state.TableModels)}, nil
}

func noPipeline(name string) *api.Error {
	return notFound("pipeline %q does not exist: see \"remuda pipeline list\"", name)
}

func (s *Server) getPipeline(rq *request, v *state.View, ws memdb.WatchSet) (answer, error) {
	index := v.TableIndex(state.TablePipelines, state.TableModels)
	p := v.Pipeline(ws, rq.PathValue("pipeline"))
	if p == nil {
		return answer{index: index}, noPipeline(rq.PathValue("pipeline"))
	}
	return answer{value: pipelineOf(v, ws, p), index: index}, nil
}

func (s *Server) applyPipeline(rq *request, v *state.View) (answer, error) {
	var body api.PipelineRequest
	if err := rq.decode(&body); err != nil {
		return answer{}, err
	}
	name := rq.PathValue("pipeline")
	p, err := pipeline.Parse(cmp.Or(body.Filename, "pipeline.hcl"), []byte(body.File))
	if err != nil {
		return answer{}, fileError(err)
	}
	if p.Name != name {
		return answer{}, badRequest("the file defines pipeline %q, but the path names %q: must be the same", p.Name, name)
	}
	before := v.Pipeline(nil, name)
	reason := fmt.Sprintf("%s changed pipeline %q", by(rq.token), name)
	if before == nil {
		reason = fmt.Sprintf("%s applied new pipeline %q", by(rq.token), name)
	}
	models := p.Models()
	res, err := s.decide(rq, &state.SetPipeline{Name: name, Source: body.File, Models: models, ModifyIndex: body.CAS},
		state.Decision{Kind: "pipeline", Reason: fmt.Sprintf("%s: its %s call %s", reason, plural(len(p.Steps), "step"), strings.Join(models, ", ")),
			Details: map[string]string{"pipeline": name, "models": strings.Join(models, ",")}})
	if err != nil {
		return answer{}, err
	}
	after := s.cfg.Raft.Store().View()
	now := after.Pipeline(nil, name)
	if now == nil {
		return answer{}, conflict("pipeline %q was deleted in the meantime", name)
	}
	return answer{value: api.PipelineResponse{Pipeline: pipelineOf(after, nil, now), New: before == nil && res.Changed, Changed: res.Changed}}, nil
}

func (s *Server) deletePipeline(rq *request, v *state.View) (answer, error) {
	name := rq.PathValue("pipeline")
	cmd := &state.SetPipeline{Name: name, Delete: true, ModifyIndex: rq.cas()}
	if v.Pipeline(nil, name) == nil {
		return answer{}, noPipeline(name)
	}
	_, err := s.decide(rq, cmd, state.Decision{Kind: "pipeline", Reason: fmt.Sprintf("%s deleted pipeline %q", by(rq.token), name), Details: map[string]string{"pipeline": name}})
	return answer{}, err
}
