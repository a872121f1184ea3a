package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// KeyAnonymous is the key of all requests without a known API key, together. It has no secret.
// Until an operator creates it, such requests have no limits.
const KeyAnonymous = "anonymous"

// KeyOther is the key under which the controller counts the usage of keys for which the usage of a day has no room
// left.
const KeyOther = "other"

// Key is an API key of clients. It is not an ACL token: it opens models at the gateways, and nothing
// at the controller.
type Key struct {
	Name string
	KeyLimits
	// Secrets are the secrets that are valid now, the newest first; none of KeyAnonymous.
	Secrets []KeySecret `json:",omitempty"`
	// CreatedAt is when it was created.
	CreatedAt time.Time

	CreateIndex, ModifyIndex uint64
}

// KeySecret describes a secret of a key. Nobody can read the secret itself again.
type KeySecret struct {
	// Prefix are the first characters of the secret.
	Prefix string
	// CreatedAt is when it was made. From ExpiresAt on it is not valid any more; absent: it does
	// not expire.
	CreatedAt time.Time
	ExpiresAt time.Time `json:",omitzero"`
}

// KeyLimits are what the requests of a key may do.
type KeyLimits struct {
	// Models are those that the key may call, by name; "llama*" stands for every name that begins
	// with "llama". Absent: all. Pipelines count as models.
	Models []string `json:",omitempty"`
	// Weight is the key's share of a model's tokens beside other keys, from 0.001 to 1000.
	Weight float64 `min:"0" max:"1000"`
	// Priority is that of a request that asks for none, MaxPriority the highest that one may ask
	// for: 0 to 9, a higher one goes first.
	Priority    int `min:"0" max:"9"`
	MaxPriority int `min:"0" max:"9"`
	// RequestsPerMinute, TokensPerMinute (prompt and answer together) and Concurrency, the number
	// of requests at a time, bound the key at all gateways together; 0: no limit.
	RequestsPerMinute int64 `json:",omitempty" min:"0"`
	TokensPerMinute   int64 `json:",omitempty" min:"0"`
	Concurrency       int64 `json:",omitempty" min:"0"`
	// TokensPerDay and TokensPerMonth are its budgets of tokens, prompt and answer together, in a
	// day and a calendar month of UTC; 0: no budget.
	TokensPerDay   int64 `json:",omitempty" min:"0"`
	TokensPerMonth int64 `json:",omitempty" min:"0"`
	// ExpiresAt is from when on the key with all its secrets is not valid any more; absent: it does not
	// expire.
	ExpiresAt time.Time `json:",omitzero"`
}

// HasBudget reports whether the tokens of a day or a month are limited.
func (l KeyLimits) HasBudget() bool { return l.TokensPerDay > 0 || l.TokensPerMonth > 0 }

// KeyRequest creates a key or changes its limits. A key that exists keeps its secrets.
type KeyRequest struct {
	KeyLimits
	// CAS is the key's ModifyIndex as the caller knows it, 0: it does not exist. Absent: whatever
	// it is.
	CAS *uint64 `json:",omitempty"`
}

// KeyResponse is a key that was written.
type KeyResponse struct {
	Key Key
	// Secret is what clients send as "Authorization: Bearer SECRET". It is returned only in the
	// response to the request that made it.
	Secret string `json:",omitempty"`
	// New: it did not exist. Changed: it is another one than before.
	New, Changed bool
}

// RotateKeyRequest makes a new secret for a key.
type RotateKeyRequest struct {
	// Grace is how long the secrets before stay valid, at most MaxKeyGrace; 0: not at all. A secret
	// that expires earlier is not valid for longer.
	Grace Duration
	// CAS is the key's ModifyIndex as the caller knows it. Absent: whatever it is.
	CAS *uint64 `json:",omitempty"`
}

// MaxKeyGrace is how long an old secret may stay valid.
const MaxKeyGrace = 90 * 24 * time.Hour

// KeyStatus is a key with what it has used.
type KeyStatus struct {
	Key
	// Used is what it has used, a few seconds behind the gateways.
	Used TokensUsed
}

// TokensUsed is how many tokens of prompts and answers a key has used at all gateways together.
type TokensUsed struct {
	// Day is the day in UTC, as "2006-01-02".
	Day string
	// Today are the tokens of Day, ThisMonth those of its calendar month up to Day.
	Today, ThisMonth int64
}

// Keys lists the keys.
func (c *Client) Keys(ctx context.Context, q QueryOptions) ([]Key, QueryMeta, error) {
	return read[[]Key](ctx, c, "/v1/keys", nil, q)
}

// Key returns one key with what it has used.
func (c *Client) Key(ctx context.Context, name string, q QueryOptions) (KeyStatus, QueryMeta, error) {
	return read[KeyStatus](ctx, c, "/v1/key/"+url.PathEscape(name), nil, q)
}

// SetKey creates a key or changes its limits. The response to a creation has the key's secret.
func (c *Client) SetKey(ctx context.Context, name string, r KeyRequest) (KeyResponse, error) {
	return write[KeyResponse](ctx, c, http.MethodPut, "/v1/key/"+url.PathEscape(name), nil, r)
}

// RotateKey makes a new secret for a key, which the response has.
func (c *Client) RotateKey(ctx context.Context, name string, r RotateKeyRequest) (KeyResponse, error) {
	return write[KeyResponse](ctx, c, http.MethodPost, "/v1/key/"+url.PathEscape(name)+"/rotate", nil, r)
}

// DeleteKey deletes a key. Its usage is kept. cas is its ModifyIndex as the caller
// knows it; nil: any.
func (c *Client) DeleteKey(ctx context.Context, name string, cas *uint64) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/key/"+url.PathEscape(name), casParam(cas), nil)
	return err
}
