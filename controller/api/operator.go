package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// RaftConfiguration is the cluster's members.
type RaftConfiguration struct {
	Servers []RaftServer
}

// RaftServer is a member of the cluster.
type RaftServer struct {
	ID string
	// Address is the one of Raft, API that of the HTTP API: empty until the answering server has
	// reached it.
	Address string
	API     string `json:",omitempty"`
	Leader  bool
	// Voter counts for the majority. A server that joins becomes one once it is stable, or
	// when an operator promotes it.
	Voter bool
	// FeatureLevel is what the server can apply; 0 until the answering server has reached
	// it.
	FeatureLevel int
	// PromotionBlocked is why a non-voter does not become a voter yet.
	PromotionBlocked string `json:",omitempty"`
}

// SnapshotInfo describes a snapshot.
type SnapshotInfo struct {
	// Version is that of the format.
	Version uint32
	// FeatureLevel is the lowest one of a server that can have this state.
	FeatureLevel int
	// Index is that of the last command in it.
	Index uint64
	// Rows by table.
	Rows  map[string]int
	Bytes int64
}

// LeaderStatus says who leads, as far as the answering server knows; empty where
// nobody does.
type LeaderStatus struct {
	ID string
	// Address is the one of Raft.
	Address string
}

// AgentSelf describes the answering server.
type AgentSelf struct {
	ID, Version string
	// Address is the one of Raft.
	Address string
	Leader  bool
	// Index is that of the last command it has applied.
	Index uint64
	// LastContact is how long ago it heard from the leader, KnownLeader whether there is
	// one.
	LastContact Duration
	KnownLeader bool
	ACL         ACLStatus
	Reconcile   ReconcileStatus
	// Gateways that report to it; none where it does not lead.
	Gateways []Gateway
}

// ACLStatus says whether tokens are asked for, and whether there is a first one.
type ACLStatus struct {
	Enabled, Bootstrapped bool
}

// ReconcileStatus is how the controller follows the world; only the leader's is alive.
type ReconcileStatus struct {
	// Active: this server leads, and acts.
	Active        bool
	Nomad, Consul LinkStatus
	// LastError is the newest failure, empty where all went well since.
	LastError string `json:",omitempty"`
}

// LinkStatus is how well another system is reached.
type LinkStatus struct {
	// LastContactAt is when it last answered.
	LastContactAt time.Time `json:",omitzero"`
	// Known: what it said is up to date.
	Known bool
	// Error is why not.
	Error string `json:",omitempty"`
}

// AgentHealth says whether the answering server does what it should.
type AgentHealth struct {
	Healthy bool
	// Problems has a sentence for each thing that is wrong.
	Problems []string
}

// RaftConfiguration returns the members.
func (c *Client) RaftConfiguration(ctx context.Context, q QueryOptions) (RaftConfiguration, QueryMeta, error) {
	return read[RaftConfiguration](ctx, c, "/v1/operator/raft/configuration", nil, q)
}

// RemovePeer takes a server out of the cluster.
func (c *Client) RemovePeer(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/operator/raft/peer/"+url.PathEscape(id), nil, nil)
	return err
}

// PromotePeer makes a server a voter that has caught up, without waiting until it was
// stable.
func (c *Client) PromotePeer(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, http.MethodPut, "/v1/operator/raft/promote/"+url.PathEscape(id), nil, nil)
	return err
}

// TransferLeadership makes another server lead; any where id is empty.
func (c *Client) TransferLeadership(ctx context.Context, id string) error {
	params := url.Values{}
	if id != "" {
		params.Set("id", id)
	}
	_, err := write[struct{}](ctx, c, http.MethodPut, "/v1/operator/raft/transfer-leader", params, nil)
	return err
}

// SaveSnapshot writes the whole state to w. It is whole only where there is no error.
// Of q only Stale counts.
func (c *Client) SaveSnapshot(ctx context.Context, w io.Writer, q QueryOptions) error {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: "/v1/operator/snapshot", query: QueryOptions{Stale: q.Stale}, endless: true})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return c.failed(http.MethodGet, "/v1/operator/snapshot", err)
	}
	return nil
}

// RestoreSnapshot replaces the state of the whole cluster with a saved one.
func (c *Client) RestoreSnapshot(ctx context.Context, r io.Reader) (SnapshotInfo, error) {
	info, _, err := do[SnapshotInfo](ctx, c, call{method: http.MethodPut, path: "/v1/operator/snapshot", stream: r, endless: true})
	return info, err
}

// Leader returns who leads.
func (c *Client) Leader(ctx context.Context) (LeaderStatus, error) {
	l, _, err := read[LeaderStatus](ctx, c, "/v1/status/leader", nil, QueryOptions{})
	return l, err
}

// AgentSelf describes the answering server.
func (c *Client) AgentSelf(ctx context.Context) (AgentSelf, error) {
	a, _, err := read[AgentSelf](ctx, c, "/v1/agent/self", nil, QueryOptions{})
	return a, err
}

// AgentHealth says whether the answering server does what it should. It is no error
// where it does not.
func (c *Client) AgentHealth(ctx context.Context) (AgentHealth, error) {
	h, _, err := do[AgentHealth](ctx, c, call{method: http.MethodGet, path: "/v1/agent/health", also: http.StatusServiceUnavailable})
	return h, err
}

// OpenAPI returns the description of the API, as JSON.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) {
	b, _, err := c.bytes(ctx, "/v1/openapi.json", nil, QueryOptions{})
	return b, err
}

// Metrics returns the answering server's, in Prometheus' text.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	b, _, err := c.bytes(ctx, "/metrics", nil, QueryOptions{})
	return b, err
}

// Live returns nil where the server answers at all.
func (c *Client) Live(ctx context.Context) error {
	_, _, err := c.bytes(ctx, "/live", nil, QueryOptions{})
	return err
}

// Ready returns nil where the server can answer for the cluster.
func (c *Client) Ready(ctx context.Context) error {
	_, _, err := c.bytes(ctx, "/ready", nil, QueryOptions{})
	return err
}
