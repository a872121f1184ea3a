package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Pipeline is a composition of models that is called like one.
type Pipeline struct {
	Name string
	// Source is its HCL, as it was applied.
	Source string
	// Models are those that its steps call, and Missing those of them that do not exist.
	Models  []string
	Missing []string `json:",omitempty"`

	CreateIndex, ModifyIndex uint64
}

// PipelineRequest wants a pipeline to be as a file says.
type PipelineRequest struct {
	// File is a file with the one pipeline that the path names.
	File string
	// Filename is for messages.
	Filename string `json:",omitempty"`
	// CAS is the pipeline's ModifyIndex as the caller knows it, 0: it does not exist. Absent:
	// whatever it is.
	CAS *uint64 `json:",omitempty"`
}

// PipelineResponse says what became of it.
type PipelineResponse struct {
	Pipeline Pipeline
	// New: it did not exist. Changed: it is another one than before.
	New, Changed bool
}

// Pipelines lists the pipelines.
func (c *Client) Pipelines(ctx context.Context, q QueryOptions) ([]Pipeline, QueryMeta, error) {
	return read[[]Pipeline](ctx, c, "/v1/pipelines", nil, q)
}

// Pipeline returns one pipeline.
func (c *Client) Pipeline(ctx context.Context, name string, q QueryOptions) (Pipeline, QueryMeta, error) {
	return read[Pipeline](ctx, c, "/v1/pipeline/"+url.PathEscape(name), nil, q)
}

// ApplyPipeline creates a pipeline or replaces it.
func (c *Client) ApplyPipeline(ctx context.Context, name string, r PipelineRequest) (PipelineResponse, error) {
	return write[PipelineResponse](ctx, c, http.MethodPut, "/v1/pipeline/"+url.PathEscape(name), nil, r)
}

// DeletePipeline takes a pipeline away. Requests that it is answering end as they would. cas
// is its ModifyIndex as the caller knows it; nil: any.
func (c *Client) DeletePipeline(ctx context.Context, name string, cas *uint64) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/pipeline/"+url.PathEscape(name), casParam(cas), nil)
	return err
}

// casParam returns the parameter of a compare-and-set; nil: none.
func casParam(cas *uint64) url.Values {
	if cas == nil {
		return nil
	}
	return url.Values{"cas": {strconv.FormatUint(*cas, 10)}}
}
