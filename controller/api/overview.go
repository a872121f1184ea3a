package api

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Overview is the cluster at a glance.
type Overview struct {
	Cluster ClusterSums
	// Problems are what needs a hand, at most MaxProblems of ProblemsTotal.
	Problems      []Problem
	ProblemsTotal int
	// Models are those that were asked for, the ones with a problem first: the first of ModelsTotal.
	Models      []OverviewModel
	ModelsTotal int
}

// MaxProblems is how many problems an Overview has at most.
const MaxProblems = 50

// ClusterSums adds up the nodes with GPUs.
type ClusterSums struct {
	// NodesUsable and GPUsUsable are those on which something may be placed.
	Nodes, NodesUsable, GPUs, GPUsUsable int
	// Memory of GPUs in bytes, and what HOT, moving and WARM replicas hold of it, as of GPU.
	Memory, HotMemory, MovingMemory, WarmMemory, FreeMemory int64
	// HostMemory of the nodes in bytes, and what WARM replicas hold of it.
	HostMemory, HostWarmMemory int64
}

// Problem is something that needs a hand.
type Problem struct {
	// Kind is model, replica, node or gpu.
	Kind string `enum:"model,replica,node,gpu"`
	// Model, Replica, Node and GPU are what it is about: names, IDs of nodes and UUIDs of GPUs.
	Model    string `json:",omitempty"`
	Replica  string `json:",omitempty"`
	Node     string `json:",omitempty"`
	NodeName string `json:",omitempty"`
	GPU      string `json:",omitempty"`
	// Text is a sentence without its subject.
	Text string
}

// OverviewModel is a model with what gateways have of it.
type OverviewModel struct {
	ModelSummary
	Queue Queue
	// Problem: one of the problems is about the model itself.
	Problem bool `json:",omitempty"`
	// Serving, InFlight, Waiting, Tokens, Errors and FirstTokenMillis are those of each minute of the last hour, as
	// of History; absent where there was none.
	Serving          []int64 `json:",omitempty"`
	InFlight         []int64 `json:",omitempty"`
	Waiting          []int64 `json:",omitempty"`
	Tokens           []int64 `json:",omitempty"`
	Errors           []int64 `json:",omitempty"`
	FirstTokenMillis []int64 `json:",omitempty"`
}

// History is what the leader has seen of a model lately, a number for each Step. It is in the leader's
// memory, and begins anew with each leader.
type History struct {
	// Step is the time between two numbers, and End when the last one was taken. There are at most
	// HistorySteps of each, the oldest first.
	Step Duration
	End  time.Time
	// Serving, InFlight and Waiting are how many replicas were HOT, how many requests were at engines
	// and how many waited, at the end of each step.
	Serving, InFlight, Waiting []int
	// Requests is how many requests ended in each step, Refused how many were turned away for want of
	// capacity, and Tokens how many prompt and completion tokens were counted.
	Requests, Refused, Tokens []int64
	// Errors is how many requests failed at an engine in each step, and FirstByteMillis the mean time from
	// a request's arrival to the first byte of its answer, in milliseconds, 0 in a step without answers.
	Errors, FirstByteMillis []int64
	// FirstTokenMillis is the mean time from a request's arrival to the first token of a streamed answer, in
	// milliseconds, 0 in a step without one.
	FirstTokenMillis []int64
	// Replicas is what the model's replicas were in the last hour, also of those that are gone, the
	// first MaxReplicaHistories that there were.
	Replicas []ReplicaHistory `json:",omitempty"`
}

// MaxReplicaHistories is how many replicas of a model a History has at most.
const MaxReplicaHistories = 40

// ReplicaHistory is what a replica was in the last hour.
type ReplicaHistory struct {
	// Replica is its ID.
	Replica, Variant string
	// States are the oldest first. One that began and ended between two steps may be missing.
	States []StateSince
	// GoneAt is the step at which it was there no more; absent: it is there.
	GoneAt time.Time `json:",omitzero"`
}

// StateSince is what a replica was from a time on: HOT, WARM, COLD, moving between them, or failed.
type StateSince struct {
	State string `enum:"HOT,WARM,COLD,moving,failed"`
	Since time.Time
}

// HistorySteps is how many steps a History has at most: an hour of minutes.
const HistorySteps = 60

// OverviewQuery says which models an Overview has.
type OverviewQuery struct {
	// Filter is part of their names, empty for all.
	Filter string
	// Limit is how many there are at most, 0 for the server's own limit.
	Limit int
}

// Overview returns the cluster at a glance. The leader answers; it cannot be watched.
func (c *Client) Overview(ctx context.Context, q OverviewQuery) (Overview, error) {
	params := url.Values{}
	if q.Filter != "" {
		params.Set("filter", q.Filter)
	}
	if q.Limit > 0 {
		params.Set("limit", strconv.Itoa(q.Limit))
	}
	o, _, err := read[Overview](ctx, c, "/v1/overview", params, QueryOptions{})
	return o, err
}
