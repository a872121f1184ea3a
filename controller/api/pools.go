package api

import (
	"context"
	"time"
)

// Pool is capacity with a Nomad of its own: the controller's own, or external capacity.
type Pool struct {
	// Name is empty for the own pool.
	Name string
	// Management is disabled, manual, upscaling or full.
	Management string `enum:"state.Management"`
	// Price is a factor on the costs of variants.
	Price float64
	// Batch is how many replicas may leave the pool at most in each Interval; 0 for the own
	// pool, which has no such bound.
	Batch    int
	Interval Duration
	// Address of its Nomad, with the region, namespace and node pool that are used there; empty
	// where they are Nomad's defaults.
	Address   string
	Region    string `json:",omitempty"`
	Namespace string `json:",omitempty"`
	NodePool  string `json:",omitempty"`
	// Known: what its Nomad said is up to date. LastContactAt is when it last answered, Error
	// why it is not Known.
	Known         bool
	LastContactAt time.Time `json:",omitzero"`
	Error         string    `json:",omitempty"`
	// Nodes, and GPUs of them, on which something may be placed; Memory of those GPUs, and
	// FreeMemory of it, in bytes.
	Nodes, GPUs        int
	Memory, FreeMemory int64
	// Counts of the replicas there.
	Counts Counts
	// Desired is how many replicas each model should have there.
	Desired map[string]int `json:",omitempty"`
}

// Pools lists the capacity pools, the own one first. Known, LastContactAt and Error are the
// leader's where it answers.
func (c *Client) Pools(ctx context.Context, q QueryOptions) ([]Pool, QueryMeta, error) {
	return read[[]Pool](ctx, c, "/v1/pools", nil, q)
}
