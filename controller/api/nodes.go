package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Node is a node with GPUs, as Nomad says, and what replicas hold of it.
type Node struct {
	ID, Name, Datacenter, Pool string
	// CapacityPool is the external capacity pool that it belongs to, empty for the own one.
	CapacityPool string `json:",omitempty"`
	// Ready: Nomad places on it. Draining: it is being emptied. WrittenOff: it was down for
	// so long that its replicas were written off.
	Ready, Draining, WrittenOff bool
	// DownSince is when it was last heard to be down, zero while it is not.
	DownSince time.Time `json:",omitzero"`
	// Unusable is why nothing is placed on it, empty where something may be.
	Unusable string `json:",omitempty"`
	GPUs     []GPU
	// HostMemory and FreeHostMemory in bytes, CPU in MHz. WarmMemory is how many bytes of
	// HostMemory replicas hold that are WARM, or on their way there or back.
	HostMemory, FreeHostMemory, WarmMemory int64
	// WarmBudget is how many bytes of HostMemory WARM replicas may hold at most.
	WarmBudget int64
	CPU        int64

	CreateIndex, ModifyIndex uint64
}

// GPU is one card, or one MIG instance.
type GPU struct {
	UUID   string
	Model  string
	Clique string `json:",omitempty"`
	// Memory and FreeMemory in bytes. FreeMemory is below 0 where the node was said to
	// have less after it was given away.
	Memory, FreeMemory int64
	// HotMemory is what replicas hold of it that are HOT and serve, MovingMemory what those
	// hold that are on their way to, from or between the tiers, WarmMemory what is left of
	// WARM ones that sleep; in bytes. Together with FreeMemory they are Memory.
	HotMemory, MovingMemory, WarmMemory int64
	Seats                               []Seat
	Healthy                             bool
	// Reason is why it is not healthy.
	Reason string `json:",omitempty"`
	// Cordoned: nothing new is placed on it and its replicas leave it, until an operator
	// uncordons it. CordonReason says why.
	Cordoned     bool
	CordonReason string `json:",omitempty"`
}

// Seat is a device ID and the replica that holds it, empty where it is free.
type Seat struct {
	ID      string
	Replica string `json:",omitempty"`
}

// NodeStatus is a node with what is on it.
type NodeStatus struct {
	Node     Node
	Replicas []Replica
}

// CordonRequest cordons GPUs of a node, or uncordons them.
type CordonRequest struct {
	// GPU is the UUID of one GPU; empty: all GPUs that the node has now.
	GPU string `json:",omitempty"`
	On  bool
	// Reason is shown to operators behind the name of the token.
	Reason string `json:",omitempty"`
}

// NodeFilter says which nodes are listed.
type NodeFilter struct {
	// Text is part of their names or the beginning of their IDs, empty for all.
	Text string
	// Limit is how many, 0 for all.
	Limit int
}

// Nodes lists the nodes that a filter lets through.
func (c *Client) Nodes(ctx context.Context, f NodeFilter, q QueryOptions) ([]Node, QueryMeta, error) {
	params := url.Values{}
	if f.Text != "" {
		params.Set("filter", f.Text)
	}
	if f.Limit > 0 {
		params.Set("limit", strconv.Itoa(f.Limit))
	}
	return read[[]Node](ctx, c, "/v1/nodes", params, q)
}

// Node returns a node by its ID, the beginning of it, or its name.
func (c *Client) Node(ctx context.Context, node string, q QueryOptions) (NodeStatus, QueryMeta, error) {
	return read[NodeStatus](ctx, c, "/v1/node/"+url.PathEscape(node), nil, q)
}

// Cordon cordons GPUs of a node, or uncordons them, and returns the node.
func (c *Client) Cordon(ctx context.Context, node string, r CordonRequest) (Node, error) {
	return write[Node](ctx, c, http.MethodPut, "/v1/node/"+url.PathEscape(node)+"/cordon", nil, r)
}
