package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Gateway is a gateway that reports to the leader.
type Gateway struct {
	Name string
	// Address is the URL of its port for clients, empty where it does not say.
	Address string `json:",omitempty"`
	// Index is of the state that it follows.
	Index uint64
	// InFlight is how many requests it has at engines, Waiting how many wait for one.
	InFlight, Waiting int
	// Draining: it takes no new requests. DrainOrdered: it was told so within the last half
	// minute.
	Draining, DrainOrdered bool
	// Since is when it began, or was first heard where it does not say. LastReportAt is when it
	// last reported; at ExpiresAt it is forgotten.
	Since, LastReportAt, ExpiresAt time.Time
}

// Gateways lists the gateways that report to the leader, by name. It cannot be watched.
func (c *Client) Gateways(ctx context.Context) ([]Gateway, error) {
	list, _, err := read[[]Gateway](ctx, c, "/v1/gateways", nil, QueryOptions{})
	return list, err
}

// DrainGateway orders a gateway to take no new requests, to let those that run finish, and
// to end. The order is given with the answer to its next report; watch Gateways for what
// becomes of it.
func (c *Client) DrainGateway(ctx context.Context, name string) (Gateway, error) {
	return write[Gateway](ctx, c, http.MethodPost, "/v1/gateway/"+url.PathEscape(name)+"/drain", nil, nil)
}
