package api

import (
	"context"
	"net/http"
)

// PlanRequest asks what the controller would do next. What it names is tried on a copy of
// the state, in the order Files, Scale, Evict; with nothing in it, the state is as it is.
type PlanRequest struct {
	// Files are model files that would be applied, and Jobs the job files that they name, as of
	// ApplyRequest. Nomad is not asked about the jobs.
	Files []SourceFile      `json:",omitempty"`
	Jobs  map[string]string `json:",omitempty"`
	// Scale is how many replicas models would have.
	Scale map[string]int `json:",omitempty"`
	// Evict would be asked for.
	Evict *EvictRequest `json:",omitempty"`
}

// PlanResponse says what would happen first. What follows from it, as once a replica has
// drained, is planned when it is there. Nothing was changed.
type PlanResponse struct {
	// Changes of replicas, by name.
	Changes []PlannedChange
	// Waits are what could not be done now.
	Waits []PlannedWait
	// Decisions are what would be decided, with the numbers, in their order. They have no ID.
	Decisions []Decision
}

// PlannedChange is what would become of one replica.
type PlannedChange struct {
	Replica string
	// Node is the node's ID, NodeName its name.
	Node, NodeName string
	// From and To are statuses, as "serving"; From is empty where it is new, To
	// where it would be gone.
	From, To string
	// Why is a sentence.
	Why string
}

// PlannedWait is what could not be done now.
type PlannedWait struct {
	// Model and Replica are what it is about; either may be empty.
	Model   string `json:",omitempty"`
	Replica string `json:",omitempty"`
	// Why is a sentence.
	Why string
}

// Plan tells what the controller would do next, and why. Nothing is done.
func (c *Client) Plan(ctx context.Context, r PlanRequest) (PlanResponse, error) {
	return write[PlanResponse](ctx, c, http.MethodPut, "/v1/plan", nil, r)
}
