package api

import (
	"context"
	"net/http"
	"time"
)

// GatewayState is what gateways follow: which models exist, and where their replicas
// stand. Its index is QueryMeta.Index.
type GatewayState struct {
	Models   []GatewayModel
	Replicas []GatewayReplica
}

// GatewayModel is a model that exists.
type GatewayModel struct {
	Name string
	// Wanted is how many replicas should run; 0 where it is Stopped.
	Wanted  int
	Stopped bool
	// Slots is of its first variant that says, 0 where the engines say.
	Slots int
}

// GatewayReplica is a replica as a gateway needs to know it.
type GatewayReplica struct {
	Name, Model, Variant string
	// Node is the Nomad node's ID.
	Node        string
	Tier, Phase string
	// Slots of one engine, 0 where the engine says.
	Slots int
	// Draining: no new request may go to it.
	Draining bool
}

// GatewayReport is what a gateway has in flight. It replaces the gateway's last one,
// and is forgotten when none follows.
type GatewayReport struct {
	// Gateway is its own unique name.
	Gateway string
	// Index is of the GatewayState that it follows now.
	Index    uint64
	Replicas []ReplicaLoad
	// Since is when the gateway began: of requests before that it knows nothing. Zero: it
	// does not say, and nothing can be concluded from what it has not seen.
	Since time.Time `json:",omitzero"`
	// Wanted are models that clients asked for and that had no replica to serve them, since
	// the report before; at most MaxReportWanted, each once.
	Wanted []string `json:",omitempty"`
}

// ReplicaLoad is one gateway's load on one replica. A replica on which nothing is in
// flight may be left out.
type ReplicaLoad struct {
	Name        string
	InFlight    int
	Oldest      time.Time `json:",omitzero"`
	LastRequest time.Time `json:",omitzero"`
	// Requests are at most MaxReportRequests, oldest first.
	Requests []Request `json:",omitempty"`
}

// MaxReportRequests is how many requests of one replica a report may name.
const MaxReportRequests = 64

// MaxReportWanted is how many models a report may want.
const MaxReportWanted = 1000

// GatewayState returns what gateways follow.
func (c *Client) GatewayState(ctx context.Context, q QueryOptions) (GatewayState, QueryMeta, error) {
	return read[GatewayState](ctx, c, "/v1/gateway/state", nil, q)
}

// GatewayReport tells the leader what a gateway has in flight.
func (c *Client) GatewayReport(ctx context.Context, r GatewayReport) error {
	_, err := write[struct{}](ctx, c, http.MethodPut, "/v1/gateway/report", nil, r)
	return err
}
