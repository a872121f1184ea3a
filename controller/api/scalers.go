package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
)

// Scaler is the memory of a program that scales models, as the windows of an HPA: the
// controller keeps it, and does not look into it.
type Scaler struct {
	Name string
	// State is any JSON but null.
	State json.RawMessage

	CreateIndex, ModifyIndex uint64
}

// ScalerSummary is a scaler in a list.
type ScalerSummary struct {
	Name string
	// Bytes of its state.
	Bytes int

	CreateIndex, ModifyIndex uint64
}

// ScalerRequest wants a scaler's memory to be another.
type ScalerRequest struct {
	// State is any JSON but null, of at most 64 KiB without the spaces that mean nothing.
	State json.RawMessage
	// CAS is the scaler's ModifyIndex as the caller knows it, 0: it does not exist. Of several
	// who compare with the same one, only one is taken, also where the State is as before. Absent:
	// whatever it is; the same State changes nothing then.
	CAS *uint64 `json:",omitempty"`
}

// ScalerResponse says what became of it.
type ScalerResponse struct {
	Name string
	// New: it did not exist. Changed: it is another one than before.
	New, Changed bool
	// ModifyIndex is the scaler's now; the next request compares with it.
	ModifyIndex uint64
}

// Scalers lists the scalers, without their memory.
func (c *Client) Scalers(ctx context.Context, q QueryOptions) ([]ScalerSummary, QueryMeta, error) {
	return read[[]ScalerSummary](ctx, c, "/v1/scalers", nil, q)
}

// Scaler returns the memory of one scaler. It fails with CodeNotFound where there is none.
func (c *Client) Scaler(ctx context.Context, name string, q QueryOptions) (Scaler, QueryMeta, error) {
	return read[Scaler](ctx, c, "/v1/scaler/"+url.PathEscape(name), nil, q)
}

// SetScaler keeps the memory of a scaler. It fails with CodeConflict where r.CAS is another
// one than the scaler's ModifyIndex: another process has written it meanwhile.
func (c *Client) SetScaler(ctx context.Context, name string, r ScalerRequest) (ScalerResponse, error) {
	return write[ScalerResponse](ctx, c, http.MethodPut, "/v1/scaler/"+url.PathEscape(name), nil, r)
}

// DeleteScaler forgets a scaler. cas is its ModifyIndex as the caller knows it, 0: whatever
// it is.
func (c *Client) DeleteScaler(ctx context.Context, name string, cas uint64) error {
	params := url.Values{}
	if cas != 0 {
		params.Set("cas", strconv.FormatUint(cas, 10))
	}
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/scaler/"+url.PathEscape(name), params, nil)
	return err
}
