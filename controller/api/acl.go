package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Token is an ACL token.
type Token struct {
	// Accessor is its public name, Name a remark for people.
	Accessor, Name string
	// Role is operator, gateway, autoscaler or read-only.
	Role string `enum:"state.Role"`
	// SecretID is what its bearer sends. It is told once, when the token is made.
	SecretID  string    `json:",omitempty"`
	CreatedAt time.Time `json:",omitzero"`

	CreateIndex, ModifyIndex uint64
}

// TokenRequest makes a token.
type TokenRequest struct {
	Name string
	Role string `enum:"state.Role"`
}

// BootstrapACL makes the first token, an operator's. It works once.
func (c *Client) BootstrapACL(ctx context.Context) (Token, error) {
	return write[Token](ctx, c, http.MethodPut, "/v1/acl/bootstrap", nil, nil)
}

// Tokens lists the tokens, without their secrets.
func (c *Client) Tokens(ctx context.Context, q QueryOptions) ([]Token, QueryMeta, error) {
	return read[[]Token](ctx, c, "/v1/acl/tokens", nil, q)
}

// CreateToken makes a token; the answer has its secret.
func (c *Client) CreateToken(ctx context.Context, r TokenRequest) (Token, error) {
	return write[Token](ctx, c, http.MethodPut, "/v1/acl/token", nil, r)
}

// DeleteToken takes a token away.
func (c *Client) DeleteToken(ctx context.Context, accessor string) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/acl/token/"+url.PathEscape(accessor), nil, nil)
	return err
}

// SelfToken returns the token that the client uses.
func (c *Client) SelfToken(ctx context.Context, q QueryOptions) (Token, QueryMeta, error) {
	return read[Token](ctx, c, "/v1/acl/token/self", nil, q)
}
