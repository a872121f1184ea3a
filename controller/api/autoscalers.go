package api

import (
	"context"
	"time"
)

// AutoscalerAgent begins the User-Agent of an autoscaler's plugin: with its version and the name of
// the agent that it belongs to, as "remuda-autoscaler/0.1.0 (host/1234)".
const AutoscalerAgent = "remuda-autoscaler"

// Autoscaler is a nomad-autoscaler agent whose plugins asked the leader in the last hour.
type Autoscaler struct {
	// Name is its host with the ID of its allocation, or of its process where it has none: each
	// start has another one.
	Name string
	// Version is that of its plugins.
	Version                 string
	FirstSeenAt, LastSeenAt time.Time
	// EvaluatedAt is when it last looked at a model. One that waits for another one to end looks
	// at none.
	EvaluatedAt time.Time `json:",omitzero"`
	// ScaledAt is when it last scaled a model, and Scaled which one.
	ScaledAt time.Time `json:",omitzero"`
	Scaled   string    `json:",omitempty"`
}

// Autoscalers lists the autoscalers that asked the leader in the last hour, by name. It cannot be
// watched.
func (c *Client) Autoscalers(ctx context.Context) ([]Autoscaler, error) {
	list, _, err := read[[]Autoscaler](ctx, c, "/v1/autoscalers", nil, QueryOptions{})
	return list, err
}
