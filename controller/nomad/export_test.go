package nomad

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"remuda/controller/state"
)

// Namespace is where the replicas' jobs are.
func (c *Client) Namespace() string { return c.namespace }

// Inventory lists the nodes of the node pool that offer seats now, and those of known that Nomad
// still has, though they may offer none any more. Nodes are sorted by ID, GPUs by
// UUID and seats by number. Nodes that could not be read are an error.
func (c *Client) Inventory(ctx context.Context, known ...string) ([]state.Node, error) {
	var nodes []state.Node
	var unread map[string]error
	err := c.call(ctx, "list nodes", func(ctx context.Context) error {
		var err error
		nodes, unread, _, err = newReader(c, known).list(ctx, c.read(ctx))
		return err
	})
	return nodes, errors.Join(err, errors.Join(slices.Collect(maps.Values(unread))...))
}

// Observe lists the replicas' jobs with their allocations, sorted by ID.
func (c *Client) Observe(ctx context.Context) ([]Job, error) {
	var (
		jobs   []*api.JobListStub
		allocs []*api.AllocationListStub
	)
	// Jobs come first: a job that was stopped by then gets no allocation any more, so
	// that one that seems to have ended has.
	err := c.call(ctx, "list jobs", func(ctx context.Context) error {
		var err error
		jobs, _, err = c.listJobs(c.read(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	err = c.call(ctx, "list allocations", func(ctx context.Context) error {
		var err error
		allocs, _, err = c.listAllocations(c.read(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	return join(jobs, allocs), nil
}
