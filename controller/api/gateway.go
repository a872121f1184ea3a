package api

import (
	"context"
	"net/http"
	"time"
)

// GatewayState is what gateways follow: which models and keys exist, and where the replicas
// stand. Its index is QueryMeta.Index.
type GatewayState struct {
	Models    []GatewayModel
	Replicas  []GatewayReplica
	Pipelines []GatewayPipeline `json:",omitempty"`
	// Keys are the API keys of clients, by name, expired ones included.
	Keys []GatewayKey `json:",omitempty"`
	// EngineKey is the private key with which gateways derive the API keys of engines from their
	// registrations in Consul: an X25519 key in base64 (URL, without padding). Empty before the first
	// replica was started.
	EngineKey string `json:",omitempty"`
}

// GatewayKey is an API key of clients.
type GatewayKey struct {
	// Name is the key's, KeyAnonymous for the limits of all requests without a known key.
	Name string
	// Secrets may be expired.
	Secrets []GatewaySecret `json:",omitempty"`
	KeyLimits
	// Used is what a key with a budget had used when this response was made. A later use does not
	// change the index: GatewayOrders.Budgets has it.
	Used TokensUsed `json:",omitzero"`
}

// GatewaySecret is a secret of a key.
type GatewaySecret struct {
	// SHA256 is the hash of the secret in lower-case hexadecimal.
	SHA256 string
	// ExpiresAt is from when on it is not valid any more; absent: it does not expire.
	ExpiresAt time.Time `json:",omitzero"`
}

// GatewayPipeline is a pipeline that exists, as its operators wrote it.
type GatewayPipeline struct {
	Name string
	// Source is the pipeline's HCL.
	Source string
}

// GatewayModel is a model that exists.
type GatewayModel struct {
	Name    string
	Stopped bool
	// Continuation: a stream that an engine broke off goes on at another one.
	Continuation bool `json:",omitempty"`
	// QueueLength is how many requests may wait, QueueWait how long one waits at most, and
	// FirstByte how long an engine may take until the first byte of its answer; 0: the gateway's
	// own setting.
	QueueLength int      `json:",omitempty" min:"0"`
	QueueWait   Duration `json:",omitempty"`
	FirstByte   Duration `json:",omitempty"`
	// TTFTP95 is the model's goal for the time to the first token, 0: none. It decides which requests
	// are late; see Counters.
	TTFTP95 Duration `json:",omitempty"`
	// PassAuthorization: the credentials of clients are passed on to the engines.
	PassAuthorization bool `json:",omitempty"`
	// Engines are the dialects of its variants, sorted, each once: which routes its engines have
	// depends on them.
	Engines []string `json:",omitempty"`
	// Problem is why no replica comes; nil where one serves or is on its way, or none is
	// missing.
	Problem *GatewayProblem `json:",omitempty"`
}

// GatewayProblem is why a model without a serving replica gets none.
type GatewayProblem struct {
	// State is CANT_PLACE or LOAD_FAILED.
	State QueueState `enum:"api.QueueState"`
	// Message is a sentence for clients.
	Message string
	// Since is when it began, missing for a setting that holds until an operator changes it;
	// RetryAt is when a failed replica is tried again.
	Since   time.Time `json:",omitzero"`
	RetryAt time.Time `json:",omitzero"`
}

// GatewayReplica is a replica as a gateway needs to know it.
type GatewayReplica struct {
	Name, Model, Variant string
	// Status is as of Replica.
	Status string `enum:"state.Status"`
	// Draining: no new request may go to it.
	Draining bool
	// Addresses are where its engines may be, as host:port: those that Nomad gave to its
	// allocation. A registration in Consul with another address is not of this replica.
	Addresses []string `json:",omitempty"`
	// Generation is the highest one that the fencing tokens of its engines may have.
	Generation uint64 `json:",omitempty"`
	// MaxSlots is how many slots each of its engines may have.
	MaxSlots int `min:"1"`
}

// GatewayReport is what a gateway has in flight. It replaces the gateway's last one,
// and is forgotten when none follows.
type GatewayReport struct {
	// Gateway is its own unique name.
	Gateway string
	// Address is the URL at which others reach the port for clients, as "http://10.0.0.7:8080"; empty:
	// not known. Pages of the controller send chats there.
	Address string `json:",omitempty"`
	// Index is of the GatewayState that it follows now: it routes as that says, or as a newer
	// one.
	Index uint64
	// Replicas are those that it knows; one that is left out has nothing in flight.
	Replicas []ReplicaLoad `json:",omitempty"`
	// Since is when the gateway began: of requests before that it knows nothing. Zero: it
	// does not say, and nothing can be concluded from what it has not seen.
	Since time.Time `json:",omitzero"`
	// Demand are models that clients asked for and that had no replica to serve them, since
	// the last report that the controller took, with when they were last asked for; at most
	// MaxReportDemand.
	Demand map[string]time.Time `json:",omitempty"`
	// Queues are the models that have requests waiting or at engines; at most
	// MaxReportQueues, the longest queues first.
	Queues []QueueLoad `json:",omitempty"`
	// Counters are of all models that the gateway has had a request of lately, idle ones
	// too, each once: those of Queues first and then the last used; at most MaxReportQueues.
	// A gateway that has queues and no counters of their models does not count.
	Counters []ModelCounters `json:",omitempty"`
	// Usage are the gateway's counters that are not delivered or have changed since, at most
	// MaxReportUsage; those that wait longest first. It needs Since.
	Usage []UsageCounters `json:",omitempty"`
	// Draining: the gateway takes no new requests.
	Draining bool `json:",omitempty"`
	// Sequence grows with each report of the gateway. Shares need it: those of a report that comes
	// after a later one are ignored.
	Sequence uint64 `json:",omitempty"`
	// Shares are what the gateway holds and needs of what all gateways share, each resource once;
	// at most MaxReportShares.
	Shares []ShareClaim `json:",omitempty"`
	// Keys are the keys that have requests at engines or waiting, each once for each model; at most
	// MaxReportKeys, those with the largest needs.
	Keys []KeyDemand `json:",omitempty"`
}

// UsageCounters count what one key has used of one model on one day at one gateway, since the
// gateway began; they only grow. The controller counts by how much they grew, and nothing twice,
// however often it gets them.
//
// A gateway keeps its counters of a day until UsageReportDays days after it. An entry is delivered
// when a report with it was answered with a GatewayOrders.UsageTerm above 0. When that is another
// term than in the last such answer, only what the report just answered had is delivered: the
// controller may have lost the rest, and the gateway sends all counters that it has again.
type UsageCounters struct {
	// Key is the name of a key, KeyAnonymous for requests without a known key.
	Key, Model string
	// Day is the day in UTC on which the requests ended, as "2006-01-02". The controller ignores a
	// day more than UsageReportDays before today or after tomorrow.
	Day string
	Usage
}

// MaxReportUsage is how many UsageCounters a report may have.
const MaxReportUsage = 1000

// UsageReportDays is for how many days after a day its usage can be reported.
const UsageReportDays = 3

// QueueState is a state of a model at a gateway.
type QueueState = string

// States of a model at a gateway.
const (
	QueueCantPlace    QueueState = "CANT_PLACE"   // nothing runs, and there is no place for a replica
	QueueLoadFailed   QueueState = "LOAD_FAILED"  // nothing runs: replicas failed to start, and are tried again
	QueueProvisioning QueueState = "PROVISIONING" // nothing runs, and the controller is being asked
	QueueDeploying    QueueState = "DEPLOYING"    // the controller is bringing a replica up
	QueueReady        QueueState = "READY"        // a replica serves and nothing is in flight
	QueueBusy         QueueState = "BUSY"         // requests are in flight
	QueueStopped      QueueState = "STOPPED"      // nothing runs, and nothing will: the model is stopped
)

// QueueLoad is what one gateway has of one model.
type QueueLoad struct {
	Model string
	// State is what the model is at, for the gateway.
	State QueueState `enum:"api.QueueState"`
	// Waiting is how many requests wait for an engine, InFlight how many are at one.
	Waiting, InFlight int
	// WaitingTokens is how many tokens the prompts of those that wait are estimated to have.
	WaitingTokens int64 `json:",omitempty" min:"0"`
	// OldestAt is when the one that has waited longest came, absent where none waits.
	OldestAt time.Time `json:",omitzero"`
	// CompletedPerSecond is how many requests ended per second lately.
	CompletedPerSecond float64 `json:",omitempty"`
	// Requests are some of those that wait, in the order in which they would be served,
	// at most MaxReportRequests.
	Requests []Request `json:",omitempty"`
}

// ModelCounters count the requests of one model at one gateway since it first had one. They
// start again where the gateway does, or forgets the model as it is gone from the cluster.
type ModelCounters struct {
	Model string
	Counters
}

// Counters count requests.
type Counters struct {
	// Arrived is how many requests came and found an engine or a place in the queue, Finished
	// how many have left an engine, whatever became of them.
	Arrived, Finished int64 `min:"0"`
	// ServedSeconds is for how long requests that left engines were there, in seconds.
	ServedSeconds float64 `min:"0"`
	// Refused is how many requests were turned away for want of capacity: the queue was full,
	// or the wait was over before an engine was free. Those that waited have arrived too. A
	// client that left was not refused, nor was one that is over its key's limits.
	Refused int64 `min:"0"`
	// Errors is how many requests that an engine had ended with an error of the server's side, or were cut off.
	Errors int64 `min:"0"`
	// Answers is how many requests got a first byte from an engine, and FirstByteSeconds the sum of
	// the times from their arrival to it.
	Answers          int64   `min:"0"`
	FirstByteSeconds float64 `min:"0"`
	// FirstTokens is how many streamed answers had a first token, and FirstTokenSeconds the sum of the times
	// from the arrival of their requests to it.
	FirstTokens       int64   `json:",omitempty" min:"0"`
	FirstTokenSeconds float64 `json:",omitempty" min:"0"`
	// Late is how many requests of a model with a goal for the time to the first token got their first
	// engine only after that time, or were Refused.
	Late int64 `json:",omitempty" min:"0"`
}

// MaxReportQueues is how many models a report may have queues of, and counters.
const MaxReportQueues = 1000

// GatewayOrders is the answer to a report: what the gateway has to do. An order is
// repeated in each answer until a report shows that it was carried out or its time is over.
type GatewayOrders struct {
	// Kill are IDs of requests that have to end, waiting or in flight. One that the
	// gateway does not have is none of its business.
	Kill []string `json:",omitempty"`
	// Drain: take no new requests from now on, let those that run finish, and end.
	Drain bool `json:",omitempty"`
	// UsageTerm changes when the controller may have lost usage of reports that it had answered; see
	// UsageCounters. 0: the controller has not taken the usage of this report.
	UsageTerm uint64
	// Budgets is what the keys with a budget have used, by name; one that has used nothing this
	// month is left out. It contains what all gateways have reported, this report included.
	Budgets map[string]TokensUsed `json:",omitempty"`
	// Shares are what the gateway may use from now on, one for each of the report's Shares, in the
	// same order, but for slots of which the leader does not know yet who has them.
	Shares []GatewayShare `json:",omitempty"`
	// KeyParts are the parts that the gateway has of the needs of its keys at all gateways, above 0 to
	// 1: one for each of the report's Keys, in the same order. A key's weight at the gateway is this
	// part of its whole weight.
	KeyParts []float64 `json:",omitempty"`
}

// ReplicaLoad is one gateway's load on one replica. A replica that the gateway has sent no
// request to, or has forgotten, is left out.
type ReplicaLoad struct {
	Name     string
	InFlight int
	// OldestAt is when the oldest request in flight began, LastRequest when the newest of all
	// did; absent where there was none.
	OldestAt    time.Time `json:",omitzero"`
	LastRequest time.Time `json:",omitzero"`
	// Answered is how many requests the replica's engines have answered, an error of the
	// client's included, and Failed how many they have failed: with a 5xx, a broken
	// connection or a time-out. FailedInARow are those of Failed since the last answer. They
	// count from when the gateway first knew the replica. A request that is retried counts at
	// each engine; one that its client gives up counts as failed nowhere.
	Answered     int64 `json:",omitempty" min:"0"`
	Failed       int64 `json:",omitempty" min:"0"`
	FailedInARow int64 `json:",omitempty" min:"0"`
	// Requests are at most MaxReportRequests, oldest first.
	Requests []Request `json:",omitempty"`
}

// MaxReportRequests is how many requests of one replica a report may name.
const MaxReportRequests = 64

// MaxReportDemand is how many models a report may ask for.
const MaxReportDemand = 1000

// GatewayState returns what gateways follow.
func (c *Client) GatewayState(ctx context.Context, q QueryOptions) (GatewayState, QueryMeta, error) {
	return read[GatewayState](ctx, c, "/v1/gateway/state", nil, q)
}

// GatewayReport tells the leader what a gateway has, and returns what it has to do.
func (c *Client) GatewayReport(ctx context.Context, r GatewayReport) (GatewayOrders, error) {
	return write[GatewayOrders](ctx, c, http.MethodPut, "/v1/gateway/report", nil, r)
}
