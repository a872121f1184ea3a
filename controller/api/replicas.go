package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Replica is one running copy of a variant.
type Replica struct {
	// Name is <model>:<variant>:<id>, and the ID of its Nomad job.
	Name, Model, Variant, ID string
	// Version is the model's version that it was made from. Current: a replica made now would
	// be the same.
	Version int
	Current bool
	// Goal is what the controller wants of it: run, warm, cold or gone.
	Goal string `enum:"state.Goal"`
	// Status is what it is doing: placed, starting, serving, draining, sleeping, warm,
	// waking, stopping, discarding, cold or failed. Tier follows from it: HOT, WARM or COLD.
	Status string `enum:"state.Status"`
	Tier   string `enum:"state.Tier"`
	// Node is the Nomad node's ID, Seats are device IDs.
	Node, NodeName string
	Seats          []string
	// Memory of GPUs, by UUID, while it is HOT, and HostMemory of the node while it is WARM,
	// in bytes. SleepMemory is what it still takes of each of those GPUs while it is WARM, SharedMemory the part
	// of Memory that it shares with other replicas of its version on exactly these GPUs. LoadMemory is what it takes of
	// each GPU in the place of Memory while it loads to become WARM before it serves, 0 for all others.
	Memory       map[string]int64
	HostMemory   int64
	SleepMemory  int64 `json:",omitempty"`
	SharedMemory int64 `json:",omitempty"`
	LoadMemory   int64 `json:",omitempty"`
	// CapacityPool is the external capacity pool of its node, empty for the own one.
	CapacityPool string `json:",omitempty"`
	// OutOfUse is which of its GPUs is cordoned, unhealthy or not offered by its node, and
	// why. It is empty if all are in good order.
	OutOfUse string `json:",omitempty"`
	// NotServing is why a replica that is starting does not serve although its engines run, as
	// their shims report it; empty at first, and where the answering server does not lead.
	NotServing string `json:",omitempty"`
	// Pair is how the engines of a failover pair are that serves; absent for any other replica, at
	// first, and where the answering server does not lead.
	Pair *Pair `json:",omitempty"`
	// MakesRoomFor is the model that it is evicted for, empty where it goes for another
	// reason.
	MakesRoomFor string `json:",omitempty"`
	// Canary: it is the first of a new definition, and on trial.
	Canary bool `json:",omitempty"`
	// Failures in a row, why the last one was, and when it is tried again.
	Failures  int       `json:",omitempty"`
	LastError string    `json:",omitempty"`
	RetryAt   time.Time `json:",omitzero"`
	// Since is when its status was entered, CreatedAt when it was placed.
	Since     time.Time `json:",omitzero"`
	CreatedAt time.Time `json:",omitzero"`
	// Load is what gateways said last; absent where the answering server has heard nothing,
	// as one that does not lead.
	Load *Load `json:",omitempty"`

	CreateIndex, ModifyIndex uint64
}

// Pair is how the engines of a failover pair are, as their shims said some seconds ago.
type Pair struct {
	// Serves is the role of the engine that serves, empty while none does.
	Serves string `json:",omitempty"`
	// Degraded is why no other engine could take over, empty if one could. DegradedSince is when
	// the answering server first saw it.
	Degraded      string    `json:",omitempty"`
	DegradedSince time.Time `json:",omitzero"`
	// StandbySince is when the engine that could take over began to stand by, by the node's clock; absent
	// if none could.
	StandbySince time.Time `json:",omitzero"`
	// LastFailover is how the engine that serves came to do so; absent if there was none before it.
	LastFailover Takeover `json:",omitzero"`
}

// Takeover is how an engine of a failover pair came to serve after another one.
type Takeover struct {
	// From is the role of the engine that served before; Cause and Reason are why that one ended: it
	// exited, hung, lost the lock, was stopped, handed over, was ended by a drill, failed, or was killed
	// with its shim.
	From   string
	Cause  string
	Reason string `json:",omitempty"`
	// Ended is when that was, At when the next engine served, both by the node's clock, and Seconds the
	// time between.
	Ended   time.Time
	At      time.Time
	Seconds float64
	// GPU is which GPU of the pair was out of use, as after an XID, and why, when the failover was seen or within
	// the minute after it.
	GPU string `json:",omitempty"`
	// Log is the end of what that engine's task had printed, at most 20 lines of 200 bytes: of standard output,
	// then of standard error. It is there for a single replica only, and empty for some seconds after the failover.
	Log string `json:",omitempty"`
}

// Load is what gateways have to do with a replica, together.
type Load struct {
	InFlight int
	// Busy: at least one request is in flight.
	Busy bool
	// OldestAt is when the oldest request in flight began, LastRequest when the last one
	// was sent to the replica.
	OldestAt    time.Time `json:",omitzero"`
	LastRequest time.Time `json:",omitzero"`
	// Answered and Failed are how many requests the replica's engines have answered and
	// failed within the last 30 s; FailedInARow is how many have failed since the last answer.
	Answered     int64 `min:"0"`
	Failed       int64 `min:"0"`
	FailedInARow int64 `min:"0"`
	// Requests are some of those in flight, oldest first. Lists leave them out.
	Requests []Request `json:",omitempty"`
}

// Request is a request in flight, or one that waits.
type Request struct {
	ID string
	// Key is the name of its API key.
	Key string `json:",omitempty"`
	// Started is when it was sent to the replica, or came where it waits.
	Started time.Time
}

// EvictRequest wants replicas off their GPUs, and the model's scale down with them.
type EvictRequest struct {
	// Replica or Model, one of them.
	Replica string `json:",omitempty"`
	Model   string `json:",omitempty"`
	// To is WARM, which keeps the weights in the node's memory, COLD, which keeps them on its
	// disk, or empty for its end.
	To string `json:",omitempty"`
	// Force evicts dedicated replicas, and goes below the model's minimum, but not to WARM.
	Force bool `json:",omitempty"`
}

// EvictResponse says what becomes of each replica.
type EvictResponse struct {
	Replicas []Eviction
}

// Eviction is a replica that leaves.
type Eviction struct {
	Name string
	// Node is the node's ID.
	Node string
	// From and To are tiers; To is empty for its end.
	From, To string
	// FreedGPUs is on how many GPUs it gives up all its seats, FreedBytes how much GPU memory
	// is free once it is there. A replica that goes WARM keeps its seats.
	FreedGPUs  int
	FreedBytes int64
	// Error is why it does not go now, as when it was on its way out already.
	Error string `json:",omitempty"`
}

// FailoverRequest has the engine of a failover pair that serves hand over to its standby.
type FailoverRequest struct {
	// Drill ends the engine at once, as a crash would, and breaks its streams. Otherwise it
	// finishes its requests first.
	Drill bool
	// Timeout is for how long it may do so; 0: 30 s. After that the engine serves on.
	Timeout Duration
}

// Failover is what a failover did.
type Failover struct {
	Replica string
	// From is the role of the engine that served, To that of the one that serves now.
	From, To string
	Drill    bool `json:",omitempty"`
	// Drained is how long the old engine took to finish its requests. TookOver is the time from
	// its end until the new one served.
	Drained  Duration
	TookOver Duration
}

// Replicas lists the replicas, of one model if it is named.
func (c *Client) Replicas(ctx context.Context, model string, q QueryOptions) ([]Replica, QueryMeta, error) {
	params := url.Values{}
	if model != "" {
		params.Set("model", model)
	}
	return read[[]Replica](ctx, c, "/v1/replicas", params, q)
}

// Replica returns one replica, with its requests in flight.
func (c *Client) Replica(ctx context.Context, name string, q QueryOptions) (Replica, QueryMeta, error) {
	return read[Replica](ctx, c, "/v1/replica/"+url.PathEscape(name), nil, q)
}

// Failover hands a replica over to its standby and returns once that serves. Only ctx bounds it.
func (c *Client) Failover(ctx context.Context, replica string, r FailoverRequest) (Failover, error) {
	params := url.Values{}
	if r.Drill {
		params.Set("drill", "true")
	}
	if r.Timeout != 0 {
		params.Set("timeout", r.Timeout.String())
	}
	v, _, err := do[Failover](ctx, c, call{method: http.MethodPost, path: "/v1/replica/" + url.PathEscape(replica) + "/failover", params: params, endless: true})
	return v, err
}

// Evict takes a replica, or all of a model, off the GPUs.
func (c *Client) Evict(ctx context.Context, r EvictRequest) (EvictResponse, error) {
	return write[EvictResponse](ctx, c, http.MethodPut, "/v1/evict", nil, r)
}
