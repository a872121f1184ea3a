package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// QueueIdle is the state of a model that no gateway has anything of: nothing runs, and the
// first request brings a replica up. Gateways never report it.
const QueueIdle = "IDLE"

// Queue is what all live gateways have of one model together.
type Queue struct {
	Model string
	// State is what the model is at. Where no gateway has anything of it, that is what the
	// controller's own state says: STOPPED, READY, DEPLOYING, or IDLE where nothing runs and
	// the first request brings a replica up.
	State QueueState `enum:"api.QueueState,IDLE"`
	// Waiting is how many requests wait for an engine, InFlight how many are at one.
	Waiting, InFlight int
	// WaitingTokens is how many tokens the prompts of those that wait are estimated to have.
	WaitingTokens int64 `json:",omitempty" min:"0"`
	// OldestAt is when the one that has waited longest came, absent where none waits.
	OldestAt time.Time `json:",omitzero"`
	// CompletedPerSecond is how many requests ended per second lately.
	CompletedPerSecond float64
	// Serving is how many replicas are HOT and running.
	Serving int
	// Gateways is how many gateways have something of the model.
	Gateways int
	// Counters count the model's requests at all gateways, as far as the leader has heard of
	// them. They never fall and never jump while a leader leads, also where gateways come, go
	// and restart: what a gateway did before it was heard is left out. They start again, from 0
	// or later, with the next leader and where no live gateway has had a request of the model
	// lately: who reads them takes one that fell for one that began anew. They are absent where
	// they are not known: no gateway counts the model, one that has requests of it does not, or
	// the answer is Incomplete.
	Counters *Counters `json:",omitempty"`
	// Incomplete: the answering server has not led for long enough to have heard every live
	// gateway. What gateways have of the model is this or more.
	Incomplete bool `json:",omitempty"`
}

// QueueStatus is all about one model's queue.
type QueueStatus struct {
	Queue Queue
	// Gateways have something of the model, by name.
	Gateways []GatewayQueue
	// Waiting are some of the requests that wait, the next first: of each gateway the first
	// MaxReportRequests. InFlight are some of those at engines, oldest first: of each gateway
	// the oldest MaxReportRequests of each replica.
	Waiting, InFlight []QueuedRequest
	// Replicas of the model, with their requests.
	Replicas []Replica
	// History is the model's last hour; absent where there is none yet.
	History *History `json:",omitempty"`
}

// GatewayQueue is what one gateway has of a model.
type GatewayQueue struct {
	Gateway string
	// State is what the model is at, for the gateway.
	State QueueState `enum:"api.QueueState"`
	// Waiting is how many requests wait for an engine, InFlight how many are at one.
	Waiting, InFlight int
	// OldestAt is when the one that has waited longest came, absent where none waits.
	OldestAt time.Time `json:",omitzero"`
	// CompletedPerSecond is how many requests ended per second lately.
	CompletedPerSecond float64
}

// QueuedRequest is a request of a queue.
type QueuedRequest struct {
	ID string
	// Key is the name of its API key, "anonymous" for one without or with an unknown one.
	Key string `json:",omitempty"`
	// Started is when it came where it waits, and when it was sent to the replica where it
	// does not.
	Started time.Time
	Gateway string
	Model   string
	// Replica is absent while it waits.
	Replica string `json:",omitempty"`
	// Position is its place in its gateway's queue, 1 is next; absent where it does not wait.
	Position int `json:",omitempty"`
}

// RequestStatus is what is known of the requests of one ID.
type RequestStatus struct {
	ID string
	// Places are where gateways say that such requests are: none or one, unless clients give
	// the same ID again. Gateways name only some of their requests.
	Places []QueuedRequest
	// Killed: within the last half minute the answering server was told to kill it. It
	// forgets that when it leads no more.
	Killed bool
	// Complete: the answering server leads for so long that every live gateway has reported.
	// While it is false, that a request is nowhere says nothing.
	Complete bool
}

// Queues lists what the gateways have of each model, those that exist and those that
// somebody asks for. The leader answers; it cannot be watched.
func (c *Client) Queues(ctx context.Context) ([]Queue, error) {
	list, _, err := read[[]Queue](ctx, c, "/v1/queues", nil, QueryOptions{})
	return list, err
}

// Queue returns all about one model's queue.
func (c *Client) Queue(ctx context.Context, model string) (QueueStatus, error) {
	q, _, err := read[QueueStatus](ctx, c, "/v1/queue/"+url.PathEscape(model), nil, QueryOptions{})
	return q, err
}

// Request returns what is known of the requests of an ID.
func (c *Client) Request(ctx context.Context, id string) (RequestStatus, error) {
	r, _, err := read[RequestStatus](ctx, c, "/v1/request/"+url.PathEscape(id), nil, QueryOptions{})
	return r, err
}

// KillRequest orders the gateways to end the requests of an ID, waiting or in flight, and
// returns where they are. The order is given with the answers to their next reports; watch
// Request for what becomes of it. Places is empty if no gateway names such a request: the
// order is given all the same, because gateways name only some. Without any gateway the
// error is CodeNotFound, and no order is given.
func (c *Client) KillRequest(ctx context.Context, id string) (RequestStatus, error) {
	return write[RequestStatus](ctx, c, http.MethodPost, "/v1/request/"+url.PathEscape(id)+"/kill", nil, nil)
}
