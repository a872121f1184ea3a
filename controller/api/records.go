package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Decision is something that the controller decided, and why.
type Decision struct {
	ID   uint64
	Time time.Time
	// Model and Replica are what it is about; either may be empty.
	Model   string `json:",omitempty"`
	Replica string `json:",omitempty"`
	// Kind is a word, as "place". Reason is a sentence, Details are its numbers.
	Kind    string
	Reason  string
	Details map[string]string `json:",omitempty"`
}

// DecisionFilter chooses decisions.
type DecisionFilter struct {
	Model, Replica string
	// Node is the ID or the name of a node.
	Node string
	// Limit, 0: the server's.
	Limit int
}

// Switch is a named setting that operators change while the controller runs.
type Switch struct {
	Name, Value string
	ModifyIndex uint64
}

// SwitchRequest sets a switch.
type SwitchRequest struct {
	Value string
	// CAS is the switch's ModifyIndex as the caller knows it, 0: it is not set. Absent:
	// whatever it is.
	CAS *uint64 `json:",omitempty"`
}

// Decisions returns the newest decisions, newest first.
func (c *Client) Decisions(ctx context.Context, f DecisionFilter, q QueryOptions) ([]Decision, QueryMeta, error) {
	params := url.Values{}
	if f.Model != "" {
		params.Set("model", f.Model)
	}
	if f.Replica != "" {
		params.Set("replica", f.Replica)
	}
	if f.Node != "" {
		params.Set("node", f.Node)
	}
	if f.Limit != 0 {
		params.Set("limit", strconv.Itoa(f.Limit))
	}
	return read[[]Decision](ctx, c, "/v1/decisions", params, q)
}

// Switches lists the switches that are set.
func (c *Client) Switches(ctx context.Context, q QueryOptions) ([]Switch, QueryMeta, error) {
	return read[[]Switch](ctx, c, "/v1/switches", nil, q)
}

// SetSwitch sets a switch.
func (c *Client) SetSwitch(ctx context.Context, name string, r SwitchRequest) (Switch, error) {
	return write[Switch](ctx, c, http.MethodPut, "/v1/switch/"+url.PathEscape(name), nil, r)
}

// DeleteSwitch takes a switch away; one that is not set is no error.
func (c *Client) DeleteSwitch(ctx context.Context, name string) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/switch/"+url.PathEscape(name), nil, nil)
	return err
}
