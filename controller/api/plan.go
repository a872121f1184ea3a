package api

import (
	"context"
	"net/http"
)

// PlanRequest asks what the controller would do. What it names is tried on a copy of
// the state, in the order Files, Revert, Scale, Evict, Cordon; with nothing in it, the state is as it is.
type PlanRequest struct {
	// Files are model files that would be applied, and Jobs the job files that they name, as of
	// ApplyRequest. Nomad is not asked about the jobs.
	Files []SourceFile      `json:",omitempty"`
	Jobs  map[string]string `json:",omitempty"`
	// Revert would be asked for: of a model to an earlier version.
	Revert *PlannedRevert `json:",omitempty"`
	// Scale is how many replicas models would have.
	Scale map[string]int `json:",omitempty"`
	// Evict would be asked for.
	Evict *EvictRequest `json:",omitempty"`
	// Cordon would be asked for.
	Cordon *PlannedCordon `json:",omitempty"`
}

// PlannedRevert is a revert that is planned.
type PlannedRevert struct {
	Model string
	// Version is as of RevertRequest.
	Version int `json:",omitempty"`
}

// PlannedCordon is a cordon that is planned, or the end of one.
type PlannedCordon struct {
	// Node is its ID, the beginning of that, or its name; GPU and On are as of CordonRequest.
	Node string
	GPU  string `json:",omitempty"`
	On   bool   `json:",omitempty"`
}

// PlanResponse is what would happen, step by step, until nothing is left to do. Nothing was
// changed.
type PlanResponse struct {
	// Steps are in the order in which they would happen.
	Steps []PlannedStep
	// Waits are what could not be done in the end.
	Waits []PlannedWait
	// Decisions are what would be decided, with the numbers, in their order. They have no ID,
	// and their times are estimates.
	Decisions []Decision
	// Standbys are what would stand by in the end, and what each costs: of the models that the request
	// names and of those with steps.
	Standbys []PlannedStandby `json:",omitempty"`
	// Assumptions are what the steps and their times rest on.
	Assumptions []PlanAssumption
	// Unfinished is why the steps end before everything is done, empty where nothing is left to
	// do.
	Unfinished string `json:",omitempty"`
}

// PlannedStep is what would become of one replica.
type PlannedStep struct {
	// After is the estimated time from now.
	After   Duration
	Replica string
	// Node is the node's ID, NodeName its name.
	Node, NodeName string
	// From and To are statuses, as "serving"; From is empty where the replica is new, To
	// where it would be gone.
	From, To string
	// Reason is a sentence.
	Reason string
}

// PlannedStandby is a standby and what it costs.
type PlannedStandby struct {
	// Replica is the pair whose second engine it is, or the WARM replica.
	Replica string
	// Kind is pair (the second engine of a failover pair) or warm (a WARM replica).
	Kind string
	// Node is the node's ID, NodeName its name.
	Node, NodeName string
	// Seats that it takes, and the number of its GPUs.
	Seats, GPUs int
	// GPUMemory is how many bytes it keeps of each of its GPUs, 0 where that is not known. Of a pair it is a
	// part of the memory that the pair takes.
	GPUMemory int64
	// HostMemory is how many bytes of its node's memory it takes.
	HostMemory int64
	// Takes is how long it takes until it serves, Cold how long a start on its node would take.
	Takes, Cold Duration
	// Measured: Takes is what wakes of the variant, or the last failover of the pair, have taken, and not an estimate
	// by the configured rates.
	Measured bool `json:",omitempty"`
}

// PlanAssumption is something that the steps rest on.
type PlanAssumption struct {
	// Kind is cold-start, wake, sleep, drain, stop, traffic or success.
	Kind string
	// Model and Variant are those of the replicas that it is about, empty where it is about all.
	Model   string `json:",omitempty"`
	Variant string `json:",omitempty"`
	// Takes is how long it takes, absent where that has no meaning.
	Takes Duration `json:",omitempty"`
	// Text is a sentence.
	Text string
}

// PlannedWait is what could not be done.
type PlannedWait struct {
	// Model and Replica are what it is about; either may be empty.
	Model   string `json:",omitempty"`
	Replica string `json:",omitempty"`
	// Reason is a sentence.
	Reason string
}

// Plan returns what the controller would do, and why. Nothing is done.
func (c *Client) Plan(ctx context.Context, r PlanRequest) (PlanResponse, error) {
	return write[PlanResponse](ctx, c, http.MethodPut, "/v1/plan", nil, r)
}
