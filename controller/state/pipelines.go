package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-memdb"
)

// Pipeline is a composition of models that is called like a model (package pipeline, which
// reads its source; the state keeps it as it is). Pipelines and models have one namespace.
type Pipeline struct {
	Name string
	// Source is its HCL.
	Source string
	// Models are those that its steps call, sorted, each once. They need not exist; none of
	// them is a pipeline.
	Models []string

	CreateIndex, ModifyIndex uint64
}

// Bounds of a pipeline, far above those of package pipeline.
const (
	maxPipeline       = 1 << 20 // bytes of Source
	maxPipelineModels = 1000
)

// SetPipeline creates a pipeline, replaces it, or takes it away. The same Source as before
// changes nothing. It is rejected where a model has the name, where a step calls a pipeline,
// or where the steps of another pipeline call this name: pipelines do not call pipelines.
type SetPipeline struct {
	Name string
	// Source and Models are as in Pipeline.
	Source string   `json:",omitempty"`
	Models []string `json:",omitempty"`
	// Delete deletes the pipeline; one that does not exist is rejected as not found.
	Delete bool `json:",omitempty"`
	// ModifyIndex is the pipeline's as the caller knows it, 0: it does not exist; nil:
	// any.
	ModifyIndex *uint64 `json:",omitempty"`
}

// Type implements Command.
func (*SetPipeline) Type() Type { return TypeSetPipeline }

func (c *SetPipeline) apply(t *txn) *Error {
	if err := invalid(c.Name, checkName("pipeline name", c.Name)); err != nil {
		return err
	}
	old := first[Pipeline](t.Txn, TablePipelines, byID, c.Name)
	var have uint64
	if old != nil {
		have = old.ModifyIndex
	}
	if err := checkIndexIf("pipeline", c.Name, have, c.ModifyIndex); err != nil {
		return err
	}
	if c.Delete {
		if old == nil {
			return notFound(c.Name, "pipeline %q does not exist", c.Name)
		}
		t.remove(TablePipelines, old)
		return nil
	}
	if err := c.clash(t); err != nil {
		return err
	}
	p := &Pipeline{Name: c.Name, Source: c.Source, Models: slices.Clone(c.Models), CreateIndex: t.index, ModifyIndex: t.index}
	if old != nil {
		if old.Source == p.Source && slices.Equal(old.Models, p.Models) {
			return nil
		}
		p.CreateIndex = old.CreateIndex
	}
	t.put(TablePipelines, p)
	return nil
}

func (c *SetPipeline) check() *Error {
	errs := []error{checkName("pipeline name", c.Name)}
	if c.Delete {
		return invalid(c.Name, errs...)
	}
	errs = append(errs, checkText("source", c.Source, maxPipeline))
	if n := len(c.Models); n == 0 || n > maxPipelineModels {
		errs = append(errs, fmt.Errorf("the steps call %d models: must be 1 to %d", n, maxPipelineModels))
	}
	if !slices.IsSorted(c.Models) || len(slices.Compact(slices.Clone(c.Models))) != len(c.Models) {
		errs = append(errs, errors.New("models are not sorted, or contain duplicates"))
	}
	for _, m := range c.Models {
		errs = append(errs, checkName("model name", m))
	}
	return invalid(c.Name, errs...)
}

// clash finds what stands in the way of the pipeline.
func (c *SetPipeline) clash(t *txn) *Error {
	if first[Model](t.Txn, TableModels, byID, c.Name) != nil {
		return conflict(c.Name, "pipeline %q: a model already has this name: use another name", c.Name)
	}
	all, _ := each[Pipeline](t.Txn, TablePipelines, byID)
	for _, m := range c.Models {
		if m == c.Name || slices.ContainsFunc(all, func(p *Pipeline) bool { return p.Name == m }) {
			return conflict(c.Name, "pipeline %q: a step calls %q, which is a pipeline: steps can call models only", c.Name, m)
		}
	}
	for _, p := range all {
		if p.Name != c.Name && slices.Contains(p.Models, c.Name) {
			return conflict(c.Name, "pipeline %q: the steps of pipeline %q call this name as a model: use another name", c.Name, p.Name)
		}
	}
	return nil
}

// pipelineHas returns why a model cannot have the name of a pipeline.
func pipelineHas(model string) *Error {
	return conflict(model, "model %q: a pipeline already has this name: use another name", model)
}

// Pipelines returns all pipelines.
func (v *View) Pipelines(ws memdb.WatchSet) []*Pipeline {
	return query[Pipeline](v, ws, TablePipelines, byID)
}

// Pipeline returns a pipeline, nil if there is none of that name.
func (v *View) Pipeline(ws memdb.WatchSet, name string) *Pipeline {
	return queryOne[Pipeline](v, ws, TablePipelines, byID, name)
}
